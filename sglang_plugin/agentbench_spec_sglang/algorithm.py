"""The algorithm as SGLang sees it: what it is like, what it sets, what it refuses, which states are tapped for it."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from agentbench_spec_drafters.nets.checkpoint import Checkpoint, open_checkpoint
from agentbench_spec_drafters.nets.dlite import DLiteConfig
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo, get_spec

from agentbench_spec.drafting import ConfigError

from . import NAME
from .slots import taps

_RESOLVER = (
    "sglang.srt.model_executor.model_runner_components.spec_aux_hidden_state.resolve_spec_aux_hidden_state_config"
)

_SIMULATED = "SGLANG_SIMULATE_ACC_LEN"


@cache
def draft_of(path: str, revision: str | None) -> tuple[Checkpoint, DLiteConfig]:
    """The draft checkpoint and what its config.json says; weights are not touched. Raises ConfigError."""
    checkpoint = open_checkpoint(path, revision=revision)
    return checkpoint, DLiteConfig.from_config(checkpoint.config, checkpoint.where)


class DLite(CustomSpecAlgo):
    """DLITE: scheduled, verified and captured in graphs like the DFlash family, and without its draft KV."""

    def is_dflash_family(self) -> bool:
        """True: block verification with the target's states, and the scheduler's reservations for a block."""
        return True

    def supports_prefill_shared_read_done(self) -> bool:
        """True: after the target's prefill nothing reads its shared buffers."""
        return True

    def supports_grammar_overlap(self) -> bool:
        """True: the worker advances grammars behind the target's forward."""
        return True

    def has_draft_kv(self) -> bool:
        """False: nothing of the draft is in a KV pool."""
        return False

    def carries_draft_hidden_states(self) -> bool:
        """False: pivots stay where they are."""
        return False

    def need_topk(self) -> bool:
        """False: a chain is verified."""
        return False

    def create_future_map(
        self,
        device: Any,
        req_to_token_pool: Any,
        needs_cpu_seq_lens: bool = True,
        needs_confidence_relay: bool = False,
    ) -> Any:
        """SGLang's own relay between overlapping steps."""
        from sglang.srt.managers.overlap_utils import FutureMap

        return FutureMap(device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay)

    def handle_server_args(self, server_args: Any) -> None:
        """Set what SGLang's accounting reads of a block drafter. Raises ConfigError for a width the block has not."""
        _, config = draft_of(server_args.speculative_draft_model_path, server_args.speculative_draft_model_revision)
        width = server_args.speculative_num_draft_tokens or config.block_size
        if not 2 <= width <= config.block_size:
            raise ConfigError(
                f"{NAME}: --speculative-num-draft-tokens is {width}; the checkpoint's block has {config.block_size}, "
                f"the anchor included: give 2 to {config.block_size}, or leave it out"
            )
        server_args.speculative_num_steps = 1
        server_args.speculative_eagle_topk = 1
        server_args.speculative_num_draft_tokens = width
        server_args.enable_mixed_chunk = False
        if (
            server_args.min_free_slots_delay is None
        ):  # the family's delay of prefills saves draft prefills; here is none
            server_args.min_free_slots_delay = 1
        if server_args.device == "cpu":  # no speculative algorithm of SGLang's overlaps there
            server_args.disable_overlap_schedule = True


def refuse(server_args: Any) -> None:
    """Raises ConfigError for settings under which the worker would be wrong, not just slow."""
    if server_args.speculative_draft_model_path is None:
        raise ConfigError(f"{NAME} needs its checkpoint: --speculative-draft-model-path FOLDER_OR_HUB_ID")
    unserved = {
        "--pp-size above 1": server_args.pp_size != 1,
        "--attn-dp-size above 1": server_args.attn_dp_size > 1,
        "--attn-cp-size above 1": server_args.attn_cp_size > 1,
        "--disaggregation-mode": server_args.disaggregation_mode != "null",
        "--enable-two-batch-overlap": server_args.enable_two_batch_overlap,
        "--enable-pdmux": server_args.enable_pdmux,
        _SIMULATED: float(os.environ.get(_SIMULATED) or -1) > 0,
    }
    named = [flag for flag, given in unserved.items() if given]
    if named:
        raise ConfigError(f"{NAME} is not served with {', '.join(named)}; leave it out")


def tapped(original: Any, *, model_config: Any, spec_algorithm: Any, is_draft_worker: bool, **others: Any) -> Any:
    """The target's layers to tap, as the checkpoint names them; for other algorithms SGLang's own answer.

    SGLang's would take the checkpoint for a DFlash draft and keep room for a draft KV that does not exist.
    """
    if not isinstance(spec_algorithm, DLite) or is_draft_worker:
        return original(
            model_config=model_config, spec_algorithm=spec_algorithm, is_draft_worker=is_draft_worker, **others
        )
    from sglang.srt.model_executor.model_runner_components.spec_aux_hidden_state import SpecAuxHiddenStateConfig
    from sglang.srt.runtime_context import get_spec as settings

    _, config = draft_of(settings().speculative_draft_model_path, settings().speculative_draft_model_revision)
    layers, _ = taps(config.target_layer_ids, config.num_target_layers)
    return SpecAuxHiddenStateConfig(dflash_use_aux_hidden_state=True, dflash_target_layer_ids=layers)


def _worker(server_args: Any) -> type:
    from .worker import DLiteWorker

    return DLiteWorker


def add_to_registry() -> None:
    """Register the algorithm and the hook that taps the target's layers; a second call changes nothing."""
    if get_spec(NAME) is not None:
        return
    register = SpeculativeAlgorithm.register(NAME, supports_overlap=True, validate_server_args=refuse, spec_class=DLite)
    register(_worker)
    HookRegistry.register(_RESOLVER, tapped, HookType.AROUND)
