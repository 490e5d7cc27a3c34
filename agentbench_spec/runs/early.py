"""What a run looks at before anything heavy is imported: are its drafters there, does the hub answer if needed?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from agentbench_spec.config import RunConfig
from agentbench_spec.engine import hub_reach
from agentbench_spec.plugins import check_name


def checkpoints(drafters: Iterable[str]) -> Iterator[str]:
    """What follows the "=" of NAME=CHECKPOINT, where it can be a hub id."""
    yield from (checkpoint for name in drafters if "/" in (checkpoint := name.partition("=")[2]))


def check_drafters(names: Iterable[str]) -> None:
    """Raises ConfigError for a drafter that is not there."""
    for name in names:
        check_name("drafter", name)


def check_hub(config: RunConfig, tell: Callable[[str], None]) -> None:
    """`hub_reach.check_models` for all that a run loads: target, checkpoints of drafters, a workload's tokenizer."""
    options = (own.get("checkpoint") for own in config.drafter_options.values())
    named = [*checkpoints(config.drafters), *options, config.workload.options.get("tokenizer")]
    others = [name for name in named if isinstance(name, str)]
    hub_reach.check_models(config.named_target, *others, tell=tell)
