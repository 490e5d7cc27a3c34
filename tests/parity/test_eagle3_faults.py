"""Faults that leave output lossless and only make the method look weak: each must break parity with the recording."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import eagle3_kit as kit
import pytest
from agentbench_spec_drafters.eagle3 import Eagle3Drafter, make
from test_eagle3 import mismatches
from torch import Tensor

from agentbench_spec.drafting import ContractError, Span

CASE = "c06"


def _flag(**flags: bool) -> Callable[[Eagle3Drafter], None]:
    def plant(drafter: Eagle3Drafter) -> None:
        drafter.net.config = replace(drafter.net.config, **flags)  # type: ignore[arg-type]

    return plant


def _swap_concatenation(drafter: Eagle3Drafter) -> None:
    """Feature half before embedding half, in queries, keys and values alike."""
    weight = drafter.net.qkv.weight
    weight.copy_(weight.roll(drafter.net.geometry.hidden_size, 1))


def _without_hidden_norm(drafter: Eagle3Drafter) -> None:
    drafter.net._pair_gain[1] = 1.0


def _without_key_norm(drafter: Eagle3Drafter) -> None:
    drafter.net._key_gain = None


def _drafted_positions_one_too_large(drafter: Eagle3Drafter) -> None:
    """Committed entries at their positions, drafted ones one further (a fault once shipped by a serving engine)."""
    rope, observe, shift = drafter.net.rope, drafter.observe, {"by": 1}

    def at_own_positions(span: Span) -> None:
        shift["by"] = 0
        observe(span)
        shift["by"] = 1

    drafter.net.rope = lambda positions: rope(positions + shift["by"])  # type: ignore[method-assign]
    drafter.observe = at_own_positions  # type: ignore[method-assign]


def _alter_span(alter: Callable[[Span], Span]) -> Callable[[Eagle3Drafter], None]:
    def plant(drafter: Eagle3Drafter) -> None:
        observe = drafter.observe
        drafter.observe = lambda span: observe(alter(span))  # type: ignore[method-assign]

    return plant


def _hidden(span: Span) -> Tensor:
    assert span.hidden is not None
    return span.hidden


FAULTS: dict[str, Callable[[Eagle3Drafter], None]] = {
    "swapped concatenation": _swap_concatenation,
    "hidden_norm missing": _without_hidden_norm,
    "key norm missing in observe": _without_key_norm,
    "final norm missing": _flag(norm_logits=False),
    "normed state fed back": _flag(feed_back_normed=True),
    "residual from the normed feature": _flag(norm_before_residual=True),
    "drafted positions one too large": _drafted_positions_one_too_large,
    "features paired with their own token": _alter_span(lambda s: replace(s, input_ids=s.input_ids.roll(1, 1))),
    "features one position late": _alter_span(lambda s: replace(s, hidden=_hidden(s).roll(1, 1))),
    "tapped layers in reverse order": _alter_span(lambda s: replace(s, hidden=_hidden(s).flip(2))),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_breaks_parity(name: str) -> None:
    """Fails if the recorded rounds would not notice this fault."""
    drafter = make(kit.DRAFT)
    kit.opened(drafter)
    FAULTS[name](drafter)
    assert mismatches(drafter, CASE)


def test_uncounted_position_is_an_error() -> None:
    """A gap between what was observed and the anchor is reported, not drafted over."""
    drafter = make(kit.DRAFT)
    kit.opened(drafter)
    _alter_span(lambda s: replace(s, count=s.count - 1))(drafter)
    with pytest.raises(ContractError, match="anchor of row 0"):
        mismatches(drafter, CASE)


def test_wrong_rope_base_breaks_parity(tmp_path: Path) -> None:
    """The base is the config's: another one there must change the drafts, so it is neither ignored nor the target's."""
    folder = Path(shutil.copytree(kit.DRAFT, tmp_path / "draft"))
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 1e6
    (folder / "config.json").write_text(json.dumps(config))
    drafter = make(folder)
    kit.opened(drafter)
    assert mismatches(drafter, CASE)


def test_wrong_norm_epsilon_breaks_parity(tmp_path: Path) -> None:
    """rms_norm_eps is read from the config and reaches the norms."""
    folder = Path(shutil.copytree(kit.DRAFT, tmp_path / "draft"))
    config = json.loads((folder / "config.json").read_text())
    config["rms_norm_eps"] = 1e-1
    (folder / "config.json").write_text(json.dumps(config))
    drafter = make(folder)
    kit.opened(drafter)
    assert mismatches(drafter, CASE)
