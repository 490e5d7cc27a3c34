"""The verifier: a stock transformers causal LM over a SlotCache, with layer taps and pointer rollback."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from agentbench_spec.drafting import TargetInfo
from agentbench_spec.engine import attention
from agentbench_spec.engine.cache import SlotCache
from agentbench_spec.engine.spans import on_device
from agentbench_spec.engine.verify import sound
from agentbench_spec.engine.windows import Windows
from agentbench_spec.errors import ConfigError, MeasurementError, NotFinite

if TYPE_CHECKING:
    from agentbench_spec.engine.cpu.split_attention import Split
    from agentbench_spec.engine.steps.static_target import Static

EMBEDDING = -1
"""Layer id of the embedding output."""


_SELF_CHECK_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 0.1}
"""Largest logit difference, relative to the largest logit, that rounding explains; float64 models rotate in float32."""

_SHORT_WINDOW = 5
"""Longest window, in tokens, in the self check: one that the model or the engine leaves out must show."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What one forward of the target gave."""

    logits: Tensor
    """[B, m, V]: logits of the last m positions fed."""
    states: dict[int, Tensor]
    """layer id -> [B, n, H], for the layers asked for."""


class Target:
    """A causal LM whose rows grow, are verified against, and are cut back, without copying any KV."""

    def __init__(
        self,
        model: nn.Module,
        *,
        name: str,
        capacity: int,
        rows: int = 1,
        slack: int = 64,
        static: Static | None = None,
        split: Split | None = None,
    ):
        """Wrap `model` for `rows` sequences of at most `capacity` tokens.

        slack: positions beyond the capacity that a verified block may touch before it is cut back; static: what makes
        rounds static, None: they are not; split: how attention over long contexts is split on a CPU, None: it is not.

        Raises ConfigError if the model is not laid out as decoder layers between an embedding and a final norm.
        """
        config: Any = model.config
        self.model, self.capacity, self.rows, self.static = model, capacity, rows, static
        self.lengths = [0] * rows
        """Positions of each row that count."""
        windows = Windows.of(config)
        split = None if windows else split
        config._attn_implementation = self._attention = attention.register(split)
        weight = next(model.parameters())
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        self._groups = heads // kv_heads
        self.cache = SlotCache(
            layers=config.num_hidden_layers,
            rows=rows,
            kv_heads=kv_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            capacity=capacity + slack if static is None else static.attention.slots(capacity + slack),
            dtype=weight.dtype,
            device=weight.device,
        )
        if split is not None:
            self.cache.granule = split.parts
        self.windows = windows if windows and windows.tokens < self.cache.capacity else None
        """None where no text that fits outgrows a window."""
        self._hooks = _TapHooks(model, config.num_hidden_layers)
        self.info = TargetInfo(
            name=name,
            vocab_size=model.get_input_embeddings().num_embeddings,  # type: ignore[operator]
            hidden_size=config.hidden_size,
            num_layers=config.num_hidden_layers,
            max_positions=config.max_position_embeddings,
            dtype=weight.dtype,
            device=weight.device,
            config=config,
            embed_tokens=model.get_input_embeddings(),  # type: ignore[operator]
            lm_head=model.get_output_embeddings(),  # type: ignore[operator]
            attention=None if static is None else static.attention,
        )

    @torch.inference_mode()
    def evaluate(
        self, first_row: int, start: Sequence[int], input_ids: Tensor, *, keep: int = 0, taps: Collection[int] = ()
    ) -> Evaluated:
        """Run tokens through the model, writing their KV; `lengths` stay as they are until `commit`.

        first_row, start: row first_row + b is fed at text positions start[b] ...; input_ids [B, n] int64 on the
        target's device; keep: logits of how many last positions (0: all); taps: layer ids whose states are wanted.
        Starts that are on the device already, as Numbers, are not copied there again.

        Raises MeasurementError if a start leaves a gap or runs past the capacity.
        """
        n = input_ids.shape[1]
        self.check_start(first_row, start)
        at_start = on_device(input_ids.device, start)[0].on_device
        positions = at_start[:, None] + torch.arange(n, device=input_ids.device)
        extent = self.cache.aim(first_row, start, n, positions)
        mask: Any = None
        if n > 1 or len(start) > 1 or extent != start[0] + 1:
            mask = attention.causal_mask(at_start, n, extent, self._groups, self.info.dtype)
        if self.windows is not None:
            mask = self.windows.masks(mask, self.cache, at_start, start, n, self._groups)

        def body() -> Tensor:
            out = self.model(
                input_ids=input_ids,
                attention_mask=mask,
                position_ids=positions,
                cache=self.cache,
                use_cache=True,
                logits_to_keep=keep,
            )
            return out.logits  # type: ignore[no-any-return]

        return self.evaluated(body, taps)

    def evaluated(self, body: Callable[[], Tensor], taps: Collection[int]) -> Evaluated:
        """The logits that `body` gives by running the model, and the states of `taps` met on the way."""
        self._hooks.wanted = taps
        logits = body()
        return Evaluated(logits=logits, states=self._hooks.take())

    def check_start(self, first_row: int, start: Sequence[int]) -> None:
        """Raise MeasurementError if what is fed at the starts of the rows from first_row on would leave a gap."""
        for row, at in enumerate(start, first_row):
            if at > self.lengths[row]:
                raise MeasurementError(f"row {row} has {self.lengths[row]} positions; position {at} would leave a gap")

    @torch.inference_mode()
    def self_check(self, tokens: int = 24) -> None:
        """Compare the engine with the model's own attention on a few tokens fed in two chunks, beyond any window.

        Raises ConfigError if they differ by more than rounding: the model then needs something that the slot cache or
        the attention function does not do, and every number measured on it would be wrong.
        """
        tokens = min(tokens, self.capacity)
        with self._short_windows():
            self._compare(tokens)

    def _compare(self, tokens: int) -> None:
        ids = torch.arange(tokens, device=self.info.device)[None] * 7 % self.info.vocab_size
        config: Any = self.model.config
        config._attn_implementation = "eager"  # every model has it, and it applies what sdpa refuses
        try:
            stock = self.model(input_ids=ids, use_cache=False).logits[0]
        finally:
            config._attn_implementation = self._attention
        if (finite := int(sound(stock[None]))) < tokens:
            raise ConfigError(
                f"{self.info.name}: the model's own logits are not finite (token {finite} of the load probe, in "
                f"{self.info.dtype}): its weights hold NaN or infinity, or overflow in this dtype; check the "
                "checkpoint, or set target.dtype wider"
            )
        try:
            ours = self._in_two_chunks(ids)
            last = None if self.static is None else self._in_a_static_step(ids)
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(f"{self.info.name}: this architecture does not run on the engine: {error}") from error
        self._refuse_difference(ours, stock, "")
        if last is not None:
            self._refuse_difference(last, stock[-len(last) :], " in static rounds: set target.graphs=off")

    def _refuse_difference(self, ours: Tensor, stock: Tensor, where: str) -> None:
        apart = (ours - stock).abs().masked_fill(ours == stock, 0)  # entries masked by -inf have no difference
        difference = float(apart.max() / stock.masked_fill(stock.isinf(), 0).abs().max())
        if not difference <= _SELF_CHECK_TOLERANCE[self.info.dtype]:
            raise ConfigError(
                f"{self.info.name}: the engine's logits differ from the model's own by {difference:.1%}; this "
                f"architecture is not supported{where}"
            )

    @contextmanager
    def _short_windows(self) -> Iterator[None]:
        """Windows that a short text outgrows, for the engine and the model's own masks alike."""
        config: Any = self.model.config
        windows, tokens = self.windows, getattr(config, "sliding_window", None)
        if not tokens:
            yield
            return
        config.sliding_window = min(tokens, _SHORT_WINDOW)
        self.windows = Windows.of(config)
        try:
            yield
        finally:
            config.sliding_window, self.windows = tokens, windows

    def _in_two_chunks(self, ids: Tensor) -> Tensor:
        """Logits [n, V] of ids [1, n] fed to row 0 in two evaluations; the row is empty again afterwards.

        Raises ValueError for a layer whose state is no [1, n, H].
        """
        half = ids.shape[1] // 2
        evaluated = self.evaluate(0, [0], ids[:, :half], taps=range(EMBEDDING, self.info.num_layers))
        for layer, state in evaluated.states.items():
            if state.shape != (1, half, self.info.hidden_size):
                raise ValueError(f"the state of layer {layer} is {list(state.shape)}, not one vector a token")
        self.commit(0, half)
        second = self.evaluate(0, [half], ids[:, half:]).logits[0]
        self.truncate(0, 0)
        return torch.cat([evaluated.logits[0], second])

    def _in_a_static_step(self, ids: Tensor) -> Tensor:
        """Logits of the last of ids [1, n] fed to row 0 as a static round does; the row is empty again afterwards."""
        assert self.static is not None
        kept = max(ids.shape[1] - 8, 1)
        self.evaluate(0, [0], ids[:, :kept])
        start = torch.full((1,), kept, device=ids.device)
        return self.static.evaluate(self, start, ids[:, kept:], ()).logits[0]

    def check_finite(self, row: int, start: int, finite: int, read: int) -> None:
        """Raise NotFinite unless the logits of text positions start .. start + read are among the first `finite`."""
        if finite <= read:
            raise self.not_finite(row, start, start + finite)

    def not_finite(self, row: int, start: int, at: int) -> NotFinite:
        """The error of logits that are not finite at text position `at`; what `row` holds from `start` on is wiped."""
        self.cache.wipe(row, start)
        return NotFinite(at)

    def commit(self, row: int, length: int) -> None:
        """From now on, `row` has `length` positions; those must have been evaluated."""
        self.lengths[row] = length

    def truncate(self, row: int, length: int) -> None:
        """Forget positions >= length of `row`: free, and undone by nothing but evaluating them again."""
        self.lengths[row] = min(self.lengths[row], length)

    def close(self) -> None:
        """Take the hooks off the model, so that another Target may wrap it; this one is of no more use."""
        for handle in self._hooks.handles:
            handle.remove()

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights read per decode step: an embedding tied to the head once, an untied one (a look-up) not."""
        embedding: Any = self.info.embed_tokens.weight
        looked_up = 0 if self.info.lm_head.weight is embedding else embedding.numel() * embedding.element_size()
        return sum(p.numel() * p.element_size() for p in self.model.parameters()) - looked_up


class _TapHooks:
    """Forward hooks that keep the states asked for; `output_hidden_states` would keep all of them."""

    def __init__(self, model: nn.Module, num_layers: int):
        decoder: Any = model.get_decoder()  # type: ignore[operator]
        layers, norm = getattr(decoder, "layers", None), getattr(decoder, "norm", None)
        if layers is None or norm is None:
            raise ConfigError(
                f"{type(model).__name__} is not laid out as decoder.layers and decoder.norm; only Llama-, Qwen2- and "
                "Qwen3-like models can be a target"
            )
        self.wanted: Collection[int] = ()
        self._kept: dict[int, Tensor] = {}
        self._last = num_layers - 1
        # the last layer's state is taken after the final norm
        places = [model.get_input_embeddings(), *layers[: self._last], norm]  # type: ignore[operator]
        self.handles = [place.register_forward_hook(self._keeper(i)) for i, place in enumerate(places, EMBEDDING)]

    def _keeper(self, layer: int) -> Any:
        def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if layer in self.wanted:
                self._kept[layer] = output if isinstance(output, Tensor) else output[0]

        return keep

    def take(self) -> dict[int, Tensor]:
        kept, self._kept, self.wanted = self._kept, {}, ()
        return kept
