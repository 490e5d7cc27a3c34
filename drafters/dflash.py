"""DFlash (arXiv 2602.06036) in its published layouts: z-lab (block 16), DeepSpec (block 7) and speculators.

The family is read from the config's fields; a config that leaves it open is refused, because the wrong offset gives
correct text and almost no acceptance.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentbench_spec.drafting import ConfigError

from .nets.block import BlockConfig, Rule
from .nets.block_drafter import BlockDrafter, Verification
from .nets.checkpoint import open_checkpoint
from .nets.registry import require_checkpoint
from .nets.speculators import is_speculators, read_block


def make(
    checkpoint: str | Path | None = None,
    *,
    revision: str | None = None,
    verification: Verification | None = None,
    block_size: int | None = None,
    rope_theta: float | None = None,
    window_rule: Rule = "query",
) -> BlockDrafter:
    """A DFlash drafter from a local folder or hub id.

    verification: "rejection" or "match" at temperature > 0; default as published: "match" for z-lab, "rejection" for
    DeepSpec. block_size: z-lab only, a shorter block than trained (its loop offers this); to propose fewer tokens from
    a full block, lower k instead. rope_theta: rope base in place of the config's.
    Raises ConfigError if the checkpoint is not DFlash or an option does not fit it.
    """
    found = open_checkpoint(require_checkpoint("dflash", checkpoint), revision=revision)
    if is_speculators(found.config):
        config = read_block(found.config, found.where, "dflash", rope_theta=rope_theta, rule=window_rule)
    else:
        config = BlockConfig.from_config(found.config, found.where, rope_theta=rope_theta)
    if config.markov_rank or config.confidence:
        raise ConfigError(f"{found.where}: this draft has DSpark's heads; load it as dspark={found.name}")
    if block_size is not None:
        config = _shorten(config, block_size, found.where)
    published: Verification = "match" if config.layout == "z-lab" else "rejection"
    return BlockDrafter("dflash", found, config, verification or published)


def _shorten(config: BlockConfig, block_size: int, where: str) -> BlockConfig:
    if config.layout != "z-lab" and block_size != config.block_size:
        raise ConfigError(
            f"{where}: {config.layout} drafts always run their full block of {config.block_size}; to propose fewer "
            "tokens, lower k"
        )
    if not 2 <= block_size <= config.block_size:
        raise ConfigError(f"{where}: block_size {block_size} is not in 2..{config.block_size}, the trained block")
    return replace(config, block_size=block_size)
