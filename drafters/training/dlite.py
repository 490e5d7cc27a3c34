"""Training of DLite (spec dlite, sections 4 and 5): a history-aware teacher, then the student in two stages.

The teacher sees, besides what the student sees, one fused state for each of the last W - 1 positions before the newest,
and positions of the text instead of local ones. Trained for itself it is the variant with sliding-window KV.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from agentbench_spec.drafting import ConfigError
from agentbench_spec.train.interface import (
    Loss,
    Phase,
    Prediction,
    Sample,
    Setting,
    Stage,
    Trainee,
    logits_of,
    position_weights,
)

from ..nets.checkpoint import open_checkpoint, tensors_of
from ..nets.dlite import DLiteConfig, DLiteNet, SerialHead, layout
from ..nets.dlite_window import WindowNet, history_layers
from ..nets.qwen3 import Rotary
from .recipe import (
    Packed,
    Start,
    ahead_of,
    base_config,
    initialise,
    lend_tables,
    start_as_checkpoint,
    start_as_target,
    under,
    unused_token,
    write_checkpoint,
)

OBJECTIVES: dict[str, dict[Loss, float]] = {
    "published": {"ce": 0.1, "tv": 1.0},
    "ce": {"ce": 1.0},
    "kl_target": {"kl_target": 1.0},
}
"""What a student learns from the target itself; the last two are the arms of the paper's figure 4b."""
_STUDENT_TENSORS = ("history_fuse.", "history_norm.")


def slot_layers(slots: int, depth: int) -> list[int]:
    """The `slots` target layers of a target of `depth` layers: first, last, and the rest evenly between."""
    inner = slots - 2
    if inner < 1 or slots > depth:
        raise ConfigError(f"{slots} context slots do not fit a target of {depth} layers; choose 3..{depth}")
    steps = [0.5] if inner == 1 else [j / (inner - 1) for j in range(inner)]
    ids = sorted({0, depth - 1, *(1 + round(step * (depth - 3)) for step in steps)})
    if len(ids) != slots:
        raise ConfigError(f"{slots} context slots give {len(ids)} different layers of {depth}; choose fewer")
    return ids


class DLiteTrainee(Trainee):
    """A DLite student, its teacher, or both; see `make` for the options."""

    name = "dlite"

    def __init__(
        self, setting: Setting, config: dict[str, Any], phases: tuple[Phase, ...], gamma: float, start: Start
    ) -> None:
        super().__init__()
        self._config, self.phases = config, phases
        parsed = DLiteConfig.from_config(_as_student(config), "dlite in training")
        self.parsed = parsed
        self.window = int(config["dlite_config"].get("swa_window_size", 0))
        self.student: DLiteNet | None = _built(DLiteNet, parsed, setting) if _needs(phases, "student") else None
        self.teacher: WindowNet | None = _built(WindowNet, parsed, setting) if self.window else None
        for net in (self.student, self.teacher) if start == "target" else ():
            if net is not None:
                _start(net, setting)
        if start not in ("random", "target"):
            self._go_on_from(start)
        self.k = parsed.max_tokens
        history = history_layers(parsed.num_target_layers) if self.window else ()
        self.hidden_layers = tuple(sorted({*parsed.target_layer_ids, *history}))
        self._slots = [self.hidden_layers.index(layer) for layer in parsed.target_layer_ids]
        self._history = [self.hidden_layers.index(layer) for layer in history]
        self.position_weights = position_weights(self.k, gamma)
        self._rotary = Rotary(parsed.geometry, device=setting.target.device, dtype=setting.dtype)

    def _go_on_from(self, checkpoint: str) -> None:
        """Take the weights of a trained student."""
        if self.student is None or self.teacher is not None:
            raise ConfigError(f"dlite: start={checkpoint} goes on with a student alone; give single_stage=true")
        start_as_checkpoint(self.student, checkpoint, _as_student(self._config))

    def load_teacher(self, folder: str) -> None:
        """Take a trained teacher's weights. Raises ConfigError if they are not those of this config."""
        tensors = dict(tensors_of(open_checkpoint(folder).fetch()))
        wanted = {name: tensor.shape for name, tensor in self._teacher.state_dict().items()}
        if {name: tensor.shape for name, tensor in tensors.items()} != wanted:
            raise ConfigError(f"teacher {folder}: its tensors are not those of a teacher for these options")
        self._teacher.load_state_dict(tensors)

    @property
    def _teacher(self) -> WindowNet:
        if self.teacher is None:
            raise ConfigError("dlite: there is no teacher in this training")
        return self.teacher

    def _net(self, phase: Phase) -> DLiteNet:
        found = self.teacher if phase.name == "teacher" else self.student
        if found is None:
            raise ConfigError(f"dlite: there is no {phase.name} in this training")
        return found

    def parameters_of(self, phase: Phase) -> list[nn.Parameter]:
        """The phase's own net; the other one is not trained."""
        return list(self._net(phase).parameters())

    def enter(self, phase: Phase, stage: Stage, *, fresh: bool) -> None:
        """In stage 1 the student's head is the teacher's, copied and frozen; from the transition on all is trained."""
        self.requires_grad_(False)
        net = self._net(phase).requires_grad_(True)
        self._training_teacher = phase.name == "teacher"
        if stage.name == "stage 1":
            if fresh:
                net.sequential_head.load_state_dict(self._teacher.sequential_head.state_dict())
            net.sequential_head.requires_grad_(False)

    def predict(self, sample: Sample, anchors: Tensor) -> Prediction:
        """The net of the current phase on all blocks of a text."""
        return self.teach(sample, anchors) if self._training_teacher else self._student(sample, anchors)

    def _student(self, sample: Sample, anchors: Tensor) -> Prediction:
        net, place = self._net(self.phases[-1]), layout(self.parsed, anchors)
        query = net.queries(ahead_of(sample.input_ids, anchors, 1 - self.parsed.group, self.parsed.group), self.k)
        slots = net.slots(sample.states[anchors - 1][:, self._slots])
        states = net.block(slots, query, self._rotary(place.positions), place.visible)
        return serial_prediction(net.sequential_head, states, sample.input_ids, anchors, primed=self.parsed.group > 1)

    def teach(self, sample: Sample, anchors: Tensor) -> Prediction:
        """The history-aware net on all blocks of a text."""
        net, parsed = self._teacher, self.parsed
        context = torch.arange(max(int(anchors[0]) - self.window, 0), int(anchors[-1]), device=anchors.device)
        fused = net.fuse(sample.states[None, context][:, :, self._history])
        shared = [(k[0], v[0]) for k, v in net.history(fused, self._rotary(context[None]))]
        behind = anchors[:, None] - context
        place = net.places(anchors)
        query = net.queries(ahead_of(sample.input_ids, anchors, 1 - parsed.group, parsed.group), self.k)
        slots = net.slots(sample.states[anchors - 1][:, self._slots])
        memory = Packed(shared, (behind >= 2) & (behind <= self.window), place.visible[:, 0, 0])
        states = net.block_with(memory, slots, query, self._rotary(place.positions))
        return serial_prediction(net.sequential_head, states, sample.input_ids, anchors, primed=parsed.group > 1)

    def write(self, folder: Path, phase: Phase, state: Mapping[str, Tensor]) -> None:
        """The released student layout, or the teacher's with `history_*` tensors."""
        role = "teacher" if phase.name == "teacher" else "student"
        config = self._config if role == "teacher" else _as_student(self._config)
        write_checkpoint(folder, config, under(state, f"{role}."))


def serial_prediction(head: SerialHead, states: Tensor, ids: Tensor, anchors: Tensor, *, primed: bool) -> Prediction:
    """Unroll the serial head on the tokens of the text: states [A, K, H], ids [T + K] -> latents [A, K, R]."""
    state = states.new_zeros(len(states), head.rank)
    if primed:
        state = head.advance(state, ids[anchors - 1])
    unrolled = []
    for token in ahead_of(ids, anchors, 0, states.shape[1]).unbind(1):
        state = head.advance(state, token)
        unrolled.append(state)
    from_state = nn.functional.linear(torch.stack(unrolled, 1), head.state_hidden_mlp.weight[:, : head.rank])
    return Prediction(head.hidden_part(states) + from_state, partial(logits_of, head.output_proj))


def _built(kind: type[DLiteNet], config: DLiteConfig, setting: Setting) -> Any:
    with torch.device("meta"):
        net = kind(config)
    lend_tables(net, setting, head=False)
    initialise(net, setting)
    return net


@torch.no_grad()
def _start(net: DLiteNet, setting: Setting) -> None:
    """As the target's last layers; the head as the best approximation of the target's that its rank allows."""
    start_as_target(net, setting, context_norm=net.context_norm)
    head, rank = setting.target.lm_head.get_parameter("weight").double(), net.sequential_head.rank
    directions = torch.linalg.eigh(head.T @ head).eigenvectors[:, -rank:]
    net.sequential_head.output_proj.weight.copy_(head @ directions)
    net.sequential_head.state_hidden_mlp.weight[:, rank:].copy_(directions.T)


def _needs(phases: Sequence[Phase], name: str) -> bool:
    return any(phase.name == name for phase in phases)


def _as_student(config: Mapping[str, Any]) -> dict[str, Any]:
    own = {k: v for k, v in config["dlite_config"].items() if k not in ("swa_window_size", "history_layer_ids")}
    return {**config, "dlite_config": {**own, "model_role": "pivot_q_student"}}


def make(
    setting: Setting,
    *,
    role: Literal["student", "teacher"] = "student",
    single_stage: bool = False,
    teacher: str | None = None,
    loss: Literal["published", "ce", "kl_target"] = "published",
    teacher_share: float = 1.0,
    window: int = 32,
    depth: int = 5,
    block_size: int = 8,
    slots: int = 7,
    rank: int = 256,
    group: int = 1,
    target_layer_ids: Sequence[int] | None = None,
    intermediate_size: int | None = None,
    mask_token_id: int | None = None,
    gamma: float = 4.0,
    start: Start = "random",
) -> DLiteTrainee:
    """DLite: first a teacher, then the student by KL (1/8 of the steps), a cross-fade (1/8) and the objective `loss`.

    loss: 0.1 CE + 1.0 TV as published, cross-entropy alone, or KL from the target's own distribution. role: "teacher"
    trains the sliding-window variant alone, by that objective. single_stage: the student by it from the start, no
    teacher. teacher: folder of a trained one, in place of training it here.
    teacher_share: its steps over the student's. window: W, its reach in positions. slots: target layers in use. rank:
    of the serial head. group: G, real tokens in the query. gamma: of the position weights, 0: no decay.
    start: "random"; "target", its last layers and the head of this rank that is closest to its own; or a student's
    checkpoint of the same options to train on, with single_stage.
    Raises ConfigError if an option does not fit the target or another option.
    """
    with_teacher = role == "teacher" or not single_stage
    if single_stage and (role == "teacher" or teacher is not None):
        raise ConfigError("dlite: single_stage trains the student without a teacher; leave role and teacher out")
    if window < 2:
        raise ConfigError(f"dlite: window is {window}; a teacher needs at least 2, the newest position and one before")
    given = target_layer_ids is not None
    ids = list(target_layer_ids or ()) if given else slot_layers(slots, setting.target.num_layers)
    mask = unused_token(setting, mask_token_id)
    own: dict[str, Any] = {
        "architecture_version": "dlite_v2" if group == 2 else "dlite_v1",
        "model_role": "swa_teacher",
        "anchor_group_size": group,
        "chs_num_layers": len(ids),
        "target_layer_ids": ids,
        "sequential_head": "rnn",
        "sequential_rank": rank,
        "mask_token_id": mask,
    }
    if with_teacher:
        own |= {"swa_window_size": window, "history_layer_ids": list(history_layers(setting.target.num_layers))}
    base = base_config(setting.target, depth=depth, intermediate_size=intermediate_size)
    config = {**base, "architectures": ["DLiteDraftModel"], "block_size": block_size, "dlite_config": own}
    trainee = DLiteTrainee(setting, config, _phases(role, single_stage, teacher, teacher_share, loss), gamma, start)
    if teacher is not None:
        trainee.load_teacher(teacher)
    return trainee


def _phases(role: str, single_stage: bool, teacher: str | None, teacher_share: float, loss: str) -> tuple[Phase, ...]:
    if loss not in OBJECTIVES:
        raise ConfigError(f"dlite: loss is {loss!r}; choose {', '.join(OBJECTIVES)}")
    supervised = OBJECTIVES[loss]
    if role == "teacher":
        return (Phase("teacher", (Stage("teacher", 1.0, supervised),)),)
    if role != "student":
        raise ConfigError(f"dlite: role is {role!r}; choose student or teacher")
    if single_stage:
        return (Phase("student", (Stage("single stage", 1.0, supervised),)),)
    stages = (
        Stage("stage 1", 1.0, {"kl": 1.0}),
        Stage("transition", 1.0, {"kl": 1.0}, fade_to=supervised),
        Stage("stage 2", 6.0, supervised),
    )
    student = Phase("student", stages)
    if teacher is not None:
        return (student,)
    first = Phase("teacher", (Stage("teacher", 1.0, {"ce": 1.0}),), share=teacher_share, folder="teacher")
    return (first, student)
