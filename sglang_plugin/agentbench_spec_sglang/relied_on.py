"""What the plugin relies on of SGLang, and whether the installed one has it.

SGLang's plugin interface is young: a name that moved, or a parameter that was dropped, would show as a crash in the
middle of a run, or as drafts that are merely bad. The table is compared with SGLang's source, which is read and not
imported: it is checked in every process, also in those that must not load kernels.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

Table = Mapping[str, Mapping[str, str]]
"""Module below `sglang` -> a function, a class, or what a class holds -> its parameters or members that are used."""

TESTED = ("0.5.23",)
"""SGLang versions whose source has the table's names, and that the plugin's tests are for."""

RELIED_ON: Table = {
    "srt.plugins.hook_registry": {"HookRegistry.register": "target hook hook_type", "HookType": "AROUND"},
    "srt.speculative.spec_info": {
        "SpeculativeAlgorithm.register": "name supports_overlap validate_server_args spec_class",
        "SpeculativeAlgorithm.create_future_map": "device req_to_token_pool needs_cpu_seq_lens needs_confidence_relay",
        "SpeculativeAlgorithm": "carries_draft_hidden_states need_topk",
    },
    "srt.speculative.spec_registry": {
        "CustomSpecAlgo": "name factory supports_overlap validate_server_args is_dflash_family has_draft_kv",
        "CustomSpecAlgo.handle_server_args": "server_args",
        "get_spec": "name",
    },
    # written settings that are no field are dropped in silence
    "srt.arg_groups.fields.spec": {
        "Spec": (
            "speculative_draft_model_path speculative_draft_model_revision speculative_num_steps "
            "speculative_eagle_topk speculative_num_draft_tokens"
        ),
    },
    "srt.arg_groups.fields.schedule": {"Schedule": "enable_mixed_chunk disable_overlap_schedule min_free_slots_delay"},
    "srt.arg_groups.fields.parallel": {"Parallel": "pp_size attn_dp_size attn_cp_size"},
    "srt.arg_groups.fields.disagg": {"Disagg": "disaggregation_mode enable_pdmux"},
    "srt.arg_groups.fields.exec_": {"ExecOverlap": "enable_two_batch_overlap"},
    "srt.arg_groups.fields.device": {"Device": "device"},
    "srt.model_executor.model_runner_components.spec_aux_hidden_state": {
        "resolve_spec_aux_hidden_state_config": "server_args model_config spec_algorithm is_draft_worker",
        "SpecAuxHiddenStateConfig": "dflash_use_aux_hidden_state dflash_target_layer_ids dflash_draft_num_layers",
    },
    "srt.layers.aux_hidden_states": {"AuxHiddenStateList.capture": "hidden"},
    "srt.speculative.base_spec_worker": {
        "BaseSpecWorker": "target_worker draft_worker init_cuda_graphs preloaded_weights_bytes draft_parallel_layout",
        "BaseSpecWorker.alloc_memory_pool": "memory_pool_config req_to_token_pool token_to_kv_pool_allocator",
    },
    "srt.speculative.dflash_info": {
        "DFlashVerifyInput": "draft_token positions draft_token_num custom_mask capture_hidden_mode kv_loc_plan",
        "DFlashVerifyInput.prepare_for_verify": "batch target_worker",
    },
    "srt.speculative.dflash_info_v2": {
        "DFlashDraftInputV2": (
            "bonus_tokens max_top_k uniform_top_k_value nxt_kv_lens_cpu nxt_kv_lens_sum prepare_for_decode"
        ),
    },
    "srt.speculative.draft_worker_common": {"make_draft_input_v2": "bonus_tokens new_seq_lens"},
    "srt.speculative.dflash_utils": {
        "apply_dflash_verify_logits_adjustments": "next_token_logits sampling_info draft_token_num",
        "build_speculative_verify_target_probs": (
            "next_token_logits sampling_info draft_token_num bs max_top_k uniform_top_k_value"
        ),
    },
    "srt.sampling.sampling_batch_info": {"SamplingBatchInfo": "is_all_greedy min_ps need_min_p_sampling"},
    "srt.speculative.spec_utils": {
        "GrammarTree.from_linear_chain": "verify_ids_2d",
        "build_grammar_vocab_mask": "reqs tree sampling_info device barrier",
    },
    "srt.speculative.spec_sampling_mask": {
        "SpeculativeSamplingMaskCapture.from_logits": "sampling_info next_token_logits draft_input draft_token_num bs",
        "SpeculativeSamplingMaskCapture.build_output": "out_tokens commit_lens",
    },
    "srt.speculative.spec_tp_sync": {
        "SpecTpSync.sync": "site values",
        "SpecTpSyncSite": "DSPARK_DRAFT DFLASH_TARGET DFLASH_ACCEPT_SAMPLE DFLASH_ACCEPT_GREEDY",
    },
    "srt.layers.dp_attention": {"get_dp_tp_group": ""},
    "srt.layers.logprob_processor": {"compute_spec_logprobs": "batch logits_output predict chain_stride"},
    "kernels.ops.speculative.cache_locs": {
        "assign_extend_cache_locs_func": (
            "req_pool_indices req_to_token start_offset end_offset batch_size draft_token_num device"
        ),
    },
    "srt.mem_cache.kv_index_translator": {
        "KVIndexTranslator.plan": "req_pool_indices seq_lens seq_lens_cpu write_virtual read_extent",
    },
    "srt.managers.tp_worker": {
        "TpModelWorker.forward_batch_generation": (
            "batch forward_batch is_verify skip_attn_backend_init capture_hidden_mode"
        ),
    },
    "srt.managers.utils": {
        "GenerationBatchResult": (
            "logits_output next_token_ids accept_lens can_run_cuda_graph next_draft_input "
            "speculative_num_draft_tokens new_seq_lens"
        ),
    },
    "srt.managers.schedule_batch": {
        "ScheduleBatch": (
            "reqs seq_lens seq_lens_cpu seq_lens_sum req_pool_indices out_cache_loc spec_info forward_mode extend_lens "
            "is_extend_in_batch has_grammar return_logprob sampling_info"
        ),
        "Req": "get_fill_ids",
    },
    "srt.managers.overlap_utils": {
        "FutureMap": "device spec_algo req_to_token_pool needs_cpu_seq_lens needs_confidence_relay",
    },
    "srt.model_executor.forward_batch_info": {"CaptureHiddenMode": "FULL"},
    "srt.model_executor.model_runner": {
        "ModelRunner": (
            "spec_aux_config model model_config dtype device kv_index_translator req_to_token_pool "
            "decode_cuda_graph_runner"
        ),
    },
    "srt.model_executor.runner.decode_cuda_graph_runner": {"DecodeCudaGraphRunner": "capture_bs"},
    "srt.configs.model_config": {"ModelConfig": "model_path context_len hf_text_config"},
    "srt.models.qwen2": {"Qwen2Model": "layers_to_capture"},
    "srt.runtime_context": {"get_spec": ""},
}


def source_root() -> Path:
    """The folder of the installed `sglang`. Raises ModuleNotFoundError where there is none."""
    found = find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("sglang is not installed")
    return Path(next(iter(found.submodule_search_locations)))


def first_mismatch(root: Path, table: Table = RELIED_ON) -> str | None:
    """The first entry of `table` that the package in folder `root` does not have, in words; None if it has them all."""
    every = ((module, name, used) for module, names in table.items() for name, used in names.items())
    return next((wrong for each in every if (wrong := _mismatch(root, *each)) is not None), None)


def _mismatch(root: Path, module: str, name: str, used: str) -> str | None:
    where = f"{root.name}.{module}"
    holder: ast.AST | None = _parsed(root.joinpath(*module.split(".")).with_suffix(".py"))
    if holder is None:
        return f"there is no module {where}"
    for part in name.split("."):
        holder = next((node for node in _held(holder) if part in _names(node)), None)
        if holder is None:
            return f"{where} has no {name}"
    known = _known(holder)
    missing = [each for each in used.split() if each not in known]
    return f"{where}.{name} has no {missing[0]!r}" if missing else None


@cache
def _parsed(path: Path) -> ast.Module | None:
    return ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else None


def _held(holder: ast.AST) -> Iterator[ast.AST]:
    """What a module or class holds, what stands under its `if` and `try` included."""
    for node in ast.iter_child_nodes(holder):
        yield node
        if isinstance(node, ast.If | ast.Try | ast.ExceptHandler):
            yield from _held(node)


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement assigns to."""
    given = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    for target in given:
        yield from target.elts if isinstance(target, ast.Tuple) else [target]


def _names(node: ast.AST) -> Iterator[str]:
    """The names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    yield from (target.id for target in _targets(node) if isinstance(target, ast.Name))


def _known(node: ast.AST) -> set[str]:
    """Parameters of a function; of a class what it holds, what its methods set on `self`, and what it is made from."""
    if isinstance(node, ast.FunctionDef):
        arguments = node.args
        return {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    known = {name for inner in _held(node) for name in _names(inner)}
    for inner in ast.walk(node):
        known |= {each.attr for each in _targets(inner) if isinstance(each, ast.Attribute)}
        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            known |= _known(inner)
    return known
