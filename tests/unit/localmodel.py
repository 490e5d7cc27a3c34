"""A tiny model folder and rollouts for it, so that whole runs take a second: random weights, a byte-level tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agentbench_spec.rollout import Message, Rollout, ToolCall, write_rollouts

TEMPLATE = Path(__file__).parent.parent / "data" / "qwen3_like.jinja"
ADDED = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tools>", "</tools>")
WINDOW = 1024
"""Tokens (here: bytes) the tiny model was "trained" for."""
TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}


def save_model(folder: Path) -> Path:
    """Write a Qwen3 of two layers with its tokenizer and a chat template that has tools and a think flag."""
    tokenizer = _tokenizer()
    torch.manual_seed(4)  # greedy replies that repeat themselves a little, so that look-up drafts are accepted
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    vocab = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(token, special=token.startswith("<|"), normalized=False) for token in ADDED])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    fast.chat_template = TEMPLATE.read_text("utf-8")
    return fast


def session(name: str, turns: int = 3, *, pad: int = 0, **fields: Any) -> Rollout:
    """A rollout of `turns` calls and results; pad: characters more in each result."""
    messages = [Message(role="user", content=f"List the files of {name}.")]
    for i in range(turns):
        messages += [
            Message(role="assistant", tool_calls=(ToolCall(name="ls", arguments={"folder": f"d{i}"}, id=f"c{i}"),)),
            Message(role="tool", content=f"{name}-{i}.txt " + "x" * pad, tool_call_id=f"c{i}"),
        ]
    return Rollout(id=name, workload="hand", tools=(TOOL,), messages=tuple(messages), **fields)


def save_rollouts(path: Path, *rollouts: Rollout) -> Path:
    """Write `rollouts`, or three short ones, as a rollouts file."""
    write_rollouts(path, rollouts or [session("a"), session("b"), session("c")])
    return path
