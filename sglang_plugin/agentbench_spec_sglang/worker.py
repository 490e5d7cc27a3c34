"""The worker that SGLang runs DLITE with: prefill and note the pivots, draft a block, let the target verify it.

A DLITE step is DFLASH's without its draft runner and draft KV, so the inputs and the scheduling are SGLang's own for
that family. `relied_on.py` lists them. Axes: bs requests, B block size with the anchor, W = S * H captured widths.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from agentbench_spec_drafters.nets.dlite import open_net
from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_func
from sglang.srt.layers.dp_attention import get_dp_tp_group
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from sglang.srt.speculative.dflash_utils import (
    apply_dflash_verify_logits_adjustments,
    build_speculative_verify_target_probs,
)
from sglang.srt.speculative.draft_worker_common import make_draft_input_v2
from sglang.srt.speculative.spec_sampling_mask import SpeculativeSamplingMaskCapture
from sglang.srt.speculative.spec_tp_sync import SpecTpSync, SpecTpSyncSite
from sglang.srt.speculative.spec_utils import GrammarTree, build_grammar_vocab_mask
from torch import Tensor, nn

from agentbench_spec.drafting import ConfigError, TargetInfo

from . import NAME
from .algorithm import draft_of
from .draft_block import DraftBlock
from .final_state import hand_out_final_state
from .slots import Slots, accepted, at_least, draw, emitted, last_rows, tail, taps

_LOG = logging.getLogger(__name__)

Publish = Callable[[Tensor], None]


class BlockVerifyInput(DFlashVerifyInput):
    """DFlash's, and what the CPU's attention backend asks of a chain."""

    tree_topk = 1


class DLiteWorker(BaseSpecWorker):
    """Drafts from the pivots of request slots; owns the draft's weights and no KV."""

    adaptive_controller = None

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        super().__init__()
        self.server_args, self._target_worker = server_args, target_worker
        self.model_runner = target_worker.model_runner
        spec = get_spec()
        self.speculative_num_draft_tokens = int(spec.speculative_num_draft_tokens)
        self.speculative_num_steps, self.topk = spec.speculative_num_steps, spec.speculative_eagle_topk
        checkpoint, self._config = draft_of(spec.speculative_draft_model_path, spec.speculative_draft_model_revision)
        self._tap(self.model_runner.model)
        target = _target_info(self.model_runner, gpu_id)
        self.device = target.device
        self._net = open_net(checkpoint, self._config, target)
        self._sync = SpecTpSync(get_dp_tp_group()).sync
        self._width = len(self._config.target_layer_ids) * target.hidden_size

    @property
    def draft_worker(self) -> None:
        """None: there is no draft runner."""
        return None

    def _tap(self, model: nn.Module) -> None:
        """Have the target's states delivered. Raises ConfigError for a target that cannot."""
        layers, final = taps(self._config.target_layer_ids, self._config.num_target_layers)
        resolved = self.model_runner.spec_aux_config
        if resolved.dflash_target_layer_ids != layers or resolved.dflash_draft_num_layers is not None:
            raise ConfigError(
                f"{NAME}: SGLang taps layers {resolved.dflash_target_layer_ids}, the checkpoint names {layers}: the "
                "hook was not applied; look for 'Failed to apply hooks' in the log"
            )
        transformer: Any = getattr(model, "model", None)
        if hasattr(model, "get_aux_hidden_states_width") or not hasattr(transformer, "layers_to_capture"):
            raise ConfigError(
                f"{NAME}: {type(model).__name__} hands out its states in another form than Qwen3 and Llama do; it is "
                "not served"
            )
        if final:
            hand_out_final_state(transformer)

    def alloc_memory_pool(
        self, memory_pool_config: Any = None, req_to_token_pool: Any = None, token_to_kv_pool_allocator: Any = None
    ) -> None:
        """Allocate what is kept for each request slot; slot 0 is padding."""
        super().alloc_memory_pool(memory_pool_config, req_to_token_pool, token_to_kv_pool_allocator)
        config, geometry = self._config, self._config.geometry
        self._slots = Slots(
            req_to_token_pool.req_to_token.shape[0],
            len(config.target_layer_ids),
            geometry.hidden_size,
            config.group,
            dtype=self.model_runner.dtype,
            device=self.device,
        )
        self._block = DraftBlock(self._net, self._slots, self.speculative_num_draft_tokens - 1)

    def init_cuda_graphs(self) -> None:
        """Capture the block at the batch sizes of the target's decode graphs; none where those are off."""
        sizes = getattr(self.model_runner.decode_cuda_graph_runner, "capture_bs", None)
        if self.device.type == "cuda" and sizes:
            self._block.capture(sizes)
            _LOG.info("%s: the draft block is captured at %d batch sizes", NAME, len(sizes))

    def forward_batch_generation(
        self,
        batch: Any,
        on_publish: Publish | None = None,
        grammar_barrier: Callable[[], None] | None = None,
        pp_proxy_tensors: Any = None,
    ) -> Any:
        """One step of the scheduler: a prefill, or a round of draft and verification."""
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return self._prefill(batch, on_publish)
        return self._round(batch, on_publish, grammar_barrier)

    def _prefill(self, batch: Any, on_publish: Publish | None) -> Any:
        before = self._config.group - 1
        rows = self._to_device(last_rows(batch.extend_lens))
        previous = self._to_device([tail(req.get_fill_ids(), before) for req in batch.reqs])
        result = self.target_worker.forward_batch_generation(batch, capture_hidden_mode=CaptureHiddenMode.FULL)
        self._sync(SpecTpSyncSite.DFLASH_TARGET, result.next_token_ids)
        result.new_seq_lens = batch.seq_lens
        if on_publish is not None:
            on_publish(result.new_seq_lens)
        self._slots.filled(batch.req_pool_indices, self._states(result.logits_output), rows, previous)
        result.next_draft_input = make_draft_input_v2(bonus_tokens=result.next_token_ids, new_seq_lens=batch.seq_lens)
        return result

    def _round(self, batch: Any, on_publish: Publish | None, grammar_barrier: Callable[[], None] | None) -> Any:
        if self.device.type == "cuda":  # made on the scheduler's stream, read on this one
            batch.seq_lens.record_stream(torch.cuda.current_stream())
        draft_input, committed, slots = batch.spec_info, batch.seq_lens, batch.req_pool_indices
        drafts = self._block(slots, draft_input.bonus_tokens, committed)
        self._sync(SpecTpSyncSite.DSPARK_DRAFT, drafts)
        block = torch.cat((draft_input.bonus_tokens[:, None], drafts), 1)
        tree = GrammarTree.from_linear_chain(block) if batch.has_grammar else None  # its copy starts before the target
        verified = self._verify(batch, draft_input, block)
        logits_output = verified.logits_output
        self._adjust(batch, logits_output.next_token_logits, tree, grammar_barrier)
        chosen = self._choose(batch.sampling_info, draft_input, logits_output.next_token_logits, block)
        count, bonus = accepted(block, chosen)
        tokens, lengths = emitted(chosen, count), (count + 1).to(torch.int32)
        self._tell(batch, draft_input, logits_output, tokens, lengths)
        new_seq_lens = committed + lengths.to(committed.dtype)
        if on_publish is not None:
            on_publish(new_seq_lens)
        # in this step: a graph's states lie in a buffer that the next forward overwrites
        self._slots.advanced(slots, self._states(logits_output), block, count)
        return GenerationBatchResult(
            logits_output=logits_output,
            next_token_ids=tokens.reshape(-1),
            accept_lens=lengths,
            can_run_cuda_graph=verified.can_run_cuda_graph,
            next_draft_input=make_draft_input_v2(bonus_tokens=bonus, new_seq_lens=new_seq_lens),
            speculative_num_draft_tokens=self.speculative_num_draft_tokens,
            new_seq_lens=new_seq_lens,
        )

    def _verify(self, batch: Any, draft_input: DFlashDraftInputV2, block: Tensor) -> Any:
        """Run the target over block [bs, B] behind the committed text."""
        width, committed = self.speculative_num_draft_tokens, batch.seq_lens
        pool = self.model_runner.req_to_token_pool.req_to_token
        batch.out_cache_loc = assign_extend_cache_locs_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=pool,
            start_offset=committed,
            end_offset=committed + width,
            batch_size=len(block),
            draft_token_num=width,
            device=self.device,
        )
        on_host = batch.seq_lens_cpu, batch.seq_lens_sum
        reserved = draft_input.nxt_kv_lens_cpu
        plan = self.model_runner.kv_index_translator.plan(
            req_pool_indices=batch.req_pool_indices,
            seq_lens=committed,
            seq_lens_cpu=reserved if on_host[0] is None else on_host[0],
            write_virtual=batch.out_cache_loc,
            read_extent=width,
        )
        verify = BlockVerifyInput(
            draft_token=block.reshape(-1),
            positions=(committed[:, None] + torch.arange(width, device=self.device)).reshape(-1),
            draft_token_num=width,
            custom_mask=None,  # a chain: the backends' own causal order is right
            capture_hidden_mode=CaptureHiddenMode.FULL,
            kv_loc_plan=plan,
        )
        if on_host[0] is not None:  # the host's bound while the block is verified
            batch.seq_lens_cpu = on_host[0] + width
            batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
        elif reserved is not None:
            batch.seq_lens_cpu, batch.seq_lens_sum = reserved, int(draft_input.nxt_kv_lens_sum)
        forward_batch, _ = verify.prepare_for_verify(batch, self.target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = on_host
        return self.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True, skip_attn_backend_init=True
        )

    def _adjust(
        self, batch: Any, logits: Tensor, tree: GrammarTree | None, grammar_barrier: Callable[[], None] | None
    ) -> None:
        """Penalties, biases and the grammar, in place on logits [bs * B, V]."""
        mask = None
        if tree is not None:
            mask = build_grammar_vocab_mask(
                reqs=batch.reqs,
                tree=tree,
                sampling_info=batch.sampling_info,
                device=logits.device,
                barrier=grammar_barrier,
            )
        apply_dflash_verify_logits_adjustments(
            next_token_logits=logits,
            sampling_info=batch.sampling_info,
            draft_token_num=self.speculative_num_draft_tokens,
        )
        if mask is not None:
            mask.apply(logits)

    def _choose(self, sampling: Any, draft_input: DFlashDraftInputV2, logits: Tensor, block: Tensor) -> Tensor:
        """The target's own token after each of block [bs, B]: the likeliest, or one draw."""
        if sampling is None or sampling.is_all_greedy:
            return self._sync(SpecTpSyncSite.DFLASH_ACCEPT_GREEDY, logits.argmax(-1).view_as(block))
        probs = build_speculative_verify_target_probs(
            next_token_logits=logits,
            sampling_info=sampling,
            draft_token_num=self.speculative_num_draft_tokens,
            bs=len(block),
            max_top_k=draft_input.max_top_k,
            uniform_top_k_value=draft_input.uniform_top_k_value,
        )
        if sampling.need_min_p_sampling:
            probs = at_least(probs, sampling.min_ps)
        return self._sync(SpecTpSyncSite.DFLASH_ACCEPT_SAMPLE, draw(probs))

    def _tell(
        self, batch: Any, draft_input: DFlashDraftInputV2, logits_output: Any, tokens: Tensor, lengths: Tensor
    ) -> None:
        """What requests asked to be told of their tokens [bs, B]: sampling masks, log-probabilities."""
        asked = SpeculativeSamplingMaskCapture.from_logits(
            batch.sampling_info,
            next_token_logits=logits_output.next_token_logits,
            draft_input=draft_input,
            draft_token_num=self.speculative_num_draft_tokens,
            bs=len(tokens),
        )
        if asked is not None:
            logits_output.sampling_mask_output = asked.build_output(out_tokens=tokens, commit_lens=lengths)
        if batch.return_logprob:
            compute_spec_logprobs(
                batch, logits_output, tokens.reshape(-1), chain_stride=self.speculative_num_draft_tokens
            )

    def _states(self, logits_output: Any) -> Tensor:
        """The captured states [tokens, W], taken out: the scheduler would copy them to the host."""
        states, logits_output.hidden_states = logits_output.hidden_states, None
        if states is None or states.shape[-1] != self._width:
            found = "none" if states is None else f"width {states.shape[-1]}"
            raise RuntimeError(
                f"{NAME}: the target delivered {found} where the {len(self._config.target_layer_ids)} layers of the "
                f"checkpoint make {self._width}; a layer was left out, most likely the last"
            )
        return states

    def _to_device(self, numbers: list[Any]) -> Tensor:
        host = torch.tensor(numbers, dtype=torch.int64)
        return host.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else host


def _target_info(runner: Any, gpu_id: int) -> TargetInfo:
    """SGLang's target as our loaders know one."""
    text, model = runner.model_config.hf_text_config, runner.model
    return TargetInfo(
        name=str(runner.model_config.model_path),
        vocab_size=int(text.vocab_size),
        hidden_size=int(text.hidden_size),
        num_layers=int(text.num_hidden_layers),
        max_positions=int(runner.model_config.context_len),
        dtype=runner.dtype,
        device=torch.device("cuda", gpu_id) if runner.device == "cuda" else torch.device(runner.device),
        config=text,
        embed_tokens=model.get_input_embeddings(),
        lm_head=model.lm_head,
    )
