"""Whether a draft checkpoint is what an algorithm of SGLang drafts with, as far as config.json tells before a start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentbench_spec.errors import ConfigError
from agentbench_spec.serving.launchable import Launchable

_DRAFTS_WITH = {
    "eagle": "eagle",
    "eagle3": "eagle3",
    "dflash": "dflash",
    "dflash2": "dflash2",
    "domino": "domino",
    "dspark": "dspark",
    "dlite": "dlite",
    "standalone": "draft_lm",
    "draft_lm": "draft_lm",
}
"""Drafter as rows name it -> the kind of checkpoint it needs."""
_ALIKE = {("dflash", "domino")}
"""Algorithms that take another kind, too: SGLang 0.5.23 runs Domino's correction under DFLASH."""


def refuse_draft(drafter: Launchable, target: str) -> None:
    """Raises ConfigError for a draft folder that is of another kind, or was made for another target.

    What is not a folder here (a hub id) is SGLang's to judge, and so is a kind that its config.json does not tell.
    """
    wanted = _DRAFTS_WITH.get(drafter.name)
    draft, of_target = (_config(source) for source in (drafter.draft, target))
    if wanted is None or draft is None:
        return
    kind, why = kind_of(draft)
    where = f"drafter {drafter.name}: {drafter.draft}/config.json"
    if kind is not None and kind != wanted and (wanted, kind) not in _ALIKE:
        raise ConfigError(f"{where} is a {kind} checkpoint ({why}): write {kind}={drafter.draft}")
    if wanted in ("dlite", "dspark") and kind is None:
        raise ConfigError(f"{where} is no {wanted} checkpoint: it has {_MARKS[wanted]}; give one that is")
    for field in ("vocab_size",) if wanted == "draft_lm" else ("hidden_size",):
        own, its = draft.get(field), (of_target or {}).get(field)
        if own is not None and its is not None and own != its:
            raise ConfigError(f"{where} has {field} {own}, the target {target} has {its}; give a draft made for it")


_MARKS = {"dlite": "no dlite_config", "dspark": "no markov_rank above 0, which SGLang's DSPARK needs"}


def kind_of(draft: Mapping[str, Any]) -> tuple[str | None, str]:
    """The kind of a draft's config.json, by our drafters' names, and what tells it; None: nothing does."""
    named = " ".join(str(name) for name in draft.get("architectures") or ())
    block = {**draft, **(draft.get("dflash_config") or {}), **(draft.get("dspark_config") or {})}
    if "dlite_config" in draft:
        return "dlite", "it has dlite_config"
    if "eagle3" in named.lower():
        return "eagle3", named
    if block.get("selector_rank"):
        return "dflash2", f"selector_rank is {block['selector_rank']}"
    if block.get("markov_rank") or block.get("dspark_markov_rank"):
        return "dspark", f"markov_rank is {block.get('markov_rank') or block['dspark_markov_rank']}"
    if block.get("projector_type") == "domino":
        return "domino", "projector_type is domino"
    if "dflash" in named.lower() or "dflash_config" in draft:
        return "dflash", named or "it has dflash_config"
    return None, ""


def _config(source: str | None) -> dict[str, Any] | None:
    """config.json of a folder; None where there is no such file here. Raises ConfigError if it is not JSON."""
    path = Path(source or "") / "config.json"
    if not source or not path.is_file():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}; a checkpoint's folder holds its config.json whole") from None
