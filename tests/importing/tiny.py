"""A byte-level tokenizer with the special tokens of three template families; no vocabulary to download."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentbench_spec.engine import embedded

TEMPLATES = Path(__file__).parent.parent / "data"
_SPECIAL = ["<|im_start|>", "<|im_end|>", "<bos>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
_ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
NAMES = ("qwen3", "llama3", "smollm2")


def tokenizer(name: str) -> PreTrainedTokenizerFast:
    """The tiny tokenizer with the template of a family in NAMES."""
    vocab = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    made.add_tokens([AddedToken(token, special=False, normalized=False) for token in _ADDED])
    eos = "<|eot_id|>" if name == "llama3" else "<|im_end|>"
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=eos, bos_token="<bos>")
    template = embedded.chat_template() if name == "smollm2" else (TEMPLATES / f"{name}_like.jinja").read_text("utf-8")
    fast.chat_template = template
    return fast
