"""EAGLE-3: a chain of single-layer steps over fused target features (Li et al., 2025); three checkpoint layouts.

Maintenance (`observe`) fuses the features and writes the K/V entries they complete; `propose` runs k steps of one
position per row, the first of them from the last committed feature. State: one-layer K/V and a fixed window of
features.
"""

from __future__ import annotations

from pathlib import Path

from agentbench_spec.drafting import ConfigError, DrafterSpec, TargetInfo

from .nets import eagle3
from .nets.chain import DEFAULT_WINDOW
from .nets.chain_drafter import ChainDrafter
from .nets.checkpoint import Checkpoint, open_checkpoint
from .nets.eagle3_layouts import Eagle3Config, read_config
from .nets.registry import require_checkpoint


class Eagle3Drafter(ChainDrafter):
    """EAGLE-3 on rows; see `make` for the options."""

    def __init__(
        self, checkpoint: Checkpoint, config: Eagle3Config, spec: DrafterSpec, *, stop_ids: tuple[int, ...], window: int
    ) -> None:
        super().__init__(spec, stop_ids=stop_ids, window=window)
        self._checkpoint, self._config = checkpoint, config
        self.notes = config.notes

    def load(self, target: TargetInfo) -> eagle3.Eagle3Net:
        """The head, checked against `target`. Raises ConfigError if they do not belong together."""
        net = eagle3.load(self._checkpoint, self._config, target, eagle3.Eagle3Net)
        self.notes = net.notes
        return net


def make(
    checkpoint: str | Path | None = None,
    *,
    revision: str | None = None,
    max_tokens: int | None = None,
    max_positions: int | None = None,
    target_layers: int | None = None,
    stop_ids: tuple[int, ...] | list[int] | str = (),
    window: int = DEFAULT_WINDOW,
) -> Eagle3Drafter:
    """An EAGLE-3 drafter from a hub id or a local folder in the DeepSpec, "midlayer" or speculators layout.

    max_tokens: longest chain; default: the trained length where the layout has one (DeepSpec), else any. max_positions:
    longest text to draft for; default: the config's max_position_embeddings. A larger number is allowed (rotations
    have no end) and says that the head is knowingly run beyond the window it was trained on. target_layers: decoder
    layers of the target, for configs that do not tell which of them are tapped. stop_ids: end a proposal with the
    first of these it drafts, as DeepSpec's loop does; list or comma-separated. window: features kept per row, in
    tokens.

    Raises ConfigError if the checkpoint is no EAGLE-3 head or an option does not fit it.
    """
    found = open_checkpoint(require_checkpoint("eagle3", checkpoint), revision=revision)
    config = read_config(found, target_layers=target_layers)
    spec = DrafterSpec(
        name="eagle3",
        hidden_layers=config.target_layers,
        hidden_scope="all",
        max_tokens=_chain_limit(config, max_tokens),
        max_positions=config.max_positions if max_positions is None else max_positions,
        version=found.revision or "0",
    )
    return Eagle3Drafter(found, config, spec, stop_ids=_ids(stop_ids), window=window)


def _chain_limit(config: Eagle3Config, wanted: int | None) -> int | None:
    if wanted is not None and config.max_tokens is not None and wanted > config.max_tokens:
        raise ConfigError(
            f"{config.where}: max_tokens {wanted} is more than ttt_length {config.max_tokens}; the head was never "
            "trained to draft further, and its guesses there would only look like a weak method"
        )
    return config.max_tokens if wanted is None else wanted


def _ids(stop_ids: tuple[int, ...] | list[int] | str) -> tuple[int, ...]:
    parts = stop_ids.replace(",", " ").split() if isinstance(stop_ids, str) else stop_ids
    try:
        return tuple(int(part) for part in parts)
    except ValueError:
        raise ConfigError(f"stop_ids {stop_ids!r}: expected token ids, such as 1,2") from None
