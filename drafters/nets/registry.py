"""The published checkpoints known to fit a target, from registry.toml beside the drafters."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from agentbench_spec.drafting import ConfigError

_FILE = Path(__file__).parent.parent / "registry.toml"


@dataclass(frozen=True, slots=True)
class KnownPair:
    """One published draft checkpoint and the target it was trained for."""

    target: str
    drafter: str
    checkpoint: str
    layout: str
    licence: str | None = None
    revision: str | None = None


def known_pairs(drafter: str | None = None, target: str | None = None) -> list[KnownPair]:
    """The known pairs, all or those of one drafter name and one target id."""
    pairs = [KnownPair(**entry) for entry in tomllib.loads(_FILE.read_text(encoding="utf-8"))["pair"]]
    return [pair for pair in pairs if drafter in (None, pair.drafter) and target in (None, pair.target)]


def require_checkpoint(drafter: str, checkpoint: str | Path | None) -> str | Path:
    """The checkpoint, or a ConfigError that lists the published ones if none was given."""
    if checkpoint is not None:
        return checkpoint
    known = "; ".join(f"{pair.checkpoint} for {pair.target}" for pair in known_pairs(drafter))
    raise ConfigError(
        f"{drafter} needs a checkpoint: {drafter}=FOLDER or a hub id. Published: {known or 'none known'}. Only on the "
        "target smollm2-135m may it be left out, for which trained eagle3, dflash, dspark and dlite are shipped"
    )
