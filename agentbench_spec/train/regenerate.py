"""The target's own replies to the prompts of some rollouts, as a token file to train on.

A drafter has to guess what the target says, not what was recorded. Each decode point gives one text: the recorded
context, and the target's reply to it, which is what `generate` measures with `recorded` history. The rollout's prefix
is prefilled once, and a speculative decoder writes the replies, which changes no distribution. An interrupted file is
completed, not begun again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from agentbench_spec import plugins
from agentbench_spec.bars import Bar
from agentbench_spec.engine import embedded, loading
from agentbench_spec.engine.cpu import linear
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import RowSampler, Sampling, generator
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock
from agentbench_spec.errors import ConfigError
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.render import Renderer, stop_ids
from agentbench_spec.train.options import TrainConfig
from agentbench_spec.train.texts import Text, read_any_rollouts, read_token_file
from agentbench_spec.writing import write_bytes

__all__ = ["Writer", "regenerate"]

_DRAFTER = "ngram"
_K = 7


def regenerate(config: TrainConfig, out: Path) -> None:
    """Write the replies of `config.target` to the prompts of `config.data` to `out`, unless they are all there.

    Raises ConfigError if `out` holds a reply to other prompts, or the data cannot be rendered.
    """
    rollouts = list(read_any_rollouts(Path(config.data)))
    there = _whole_lines(out)
    wanted = [f"{rollout.id}@{index}" for rollout in rollouts for index in rollout.decode_points()]
    if there - set(wanted):
        raise ConfigError(f"{out} holds {sorted(there - set(wanted))[0]!r}, which is not in {config.data}")
    if len(there) == len(wanted):
        return
    writer = Writer.open(config)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", encoding="utf-8") as file, Bar(total=len(wanted), initial=len(there), desc="replies") as bar:
        for text in writer.texts(rollouts, there):
            if text is not None:
                file.write(json.dumps(text.as_dict()) + "\n")
                file.flush()
            bar.update()


def _whole_lines(path: Path) -> set[str]:
    """Ids of the texts of a token file; a last line that was cut off is removed."""
    if not path.is_file():
        return set()
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if whole != raw:
        write_bytes(path, whole)
    return {text.id for text in read_token_file(path)} if whole else set()


class Writer:
    """Lets a target answer the prompts of rollouts."""

    def __init__(self, target: Target, renderer: Renderer, limits: Limits, sampling: Sampling, seed: int) -> None:
        self._target, self._renderer, self._limits = target, renderer, limits
        self._sampling, self._seed = sampling, seed
        self._drafter = plugins.load_drafter(_DRAFTER)
        self._drafter.open(target.info, rows=1, capacity=target.capacity + _K + 1)

    @classmethod
    def open(cls, config: TrainConfig) -> Writer:
        """Load the target with the fastest kernels; it is not the copy that is trained against."""
        loaded = loading.load(config.target, dtype=config.target_dtype, device=config.device)
        linear.accelerate(loaded.model, embedded.cache_root())
        capacity = min(config.max_tokens, loaded.model.config.max_position_embeddings)
        target = Target(loaded.model, name=loaded.name, capacity=capacity, slack=_K + 1)
        stop = stop_ids(loaded.tokenizer, loaded.model.generation_config)
        limits = Limits(_K, config.max_new_tokens, frozenset(stop))
        return cls(target, Renderer(loaded.tokenizer, stop=stop), limits, Sampling(config.temperature), config.seed)

    def texts(self, rollouts: Iterable[Rollout], skip: set[str]) -> Iterator[Text | None]:
        """One text for each decode point that is not in `skip`; None where its prompt leaves no room for a reply."""
        for rollout in rollouts:
            session = Session(self._target, {_DRAFTER: self._drafter})
            for index in rollout.decode_points():
                name = f"{rollout.id}@{index}"
                if name not in skip:
                    prompt = self._renderer.prompt(rollout, index)
                    room = len(prompt) + self._limits.max_new_tokens <= self._target.capacity
                    yield self.reply(session, prompt, name) if room else None

    def reply(self, session: Session, prompt: Sequence[int], name: str) -> Text:
        """The prompt and the target's reply to it, stop token included."""
        device = self._target.info.device
        sampler = RowSampler(self._sampling, [generator(device, self._seed, name)])
        self._drafter.sampler = sampler
        session.prefill(prompt, lambda logits: sampler.draw(logits[None])[0][0])
        turn, _, _ = session.decode(_DRAFTER, self._limits, sampler, Clock(device))
        ids = (*prompt, *turn.output)
        return Text(name, ids, ((len(prompt), len(ids)),))
