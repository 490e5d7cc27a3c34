"""Three chat templates on one tiny tokenizer, to render any rollout with."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentbench_spec.engine import embedded
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.render import Renderer

DATA = Path(__file__).parent.parent / "data"
_SPECIALS = ["<|im_start|>", "<|im_end|>", "<bos>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]


def _tokenizer(template: str, eos: str) -> PreTrainedTokenizerFast:
    vocab = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIALS])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, bos_token="<bos>")
    fast.chat_template = template
    return fast


def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    """Name -> byte-level tokenizer with that template."""
    read = {name: (DATA / f"{name}_like.jinja").read_text("utf-8") for name in ("qwen3", "llama3")}
    return {
        "qwen3": _tokenizer(read["qwen3"], "<|im_end|>"),
        "llama3": _tokenizer(read["llama3"], "<|eot_id|>"),
        "smollm2": _tokenizer(embedded.chat_template(), "<|im_end|>"),
    }


def assert_renders(rollout: Rollout) -> None:
    """Every message of the rollout stands in the last prompt or reply, in order, in each of the three templates; and
    so does every tool in force."""
    last = rollout.decode_points()[-1]
    for name, tokenizer in tokenizers().items():
        renderer = Renderer(tokenizer)
        text = tokenizer.decode(renderer.prompt(rollout, last) + renderer.reply(rollout, last))
        for tool in rollout.tools_at(last):
            declared = json.dumps(tool["function"]["name"])
            assert declared in text, f"{name}: the tool {declared} of {rollout.id} is not in the prompt"
        at = 0
        for i, message in enumerate(rollout.messages[: last + 1]):
            found = text.find(message.content.strip(), at)
            assert found >= 0, f"{name}: message {i} ({message.role}) of {rollout.id} is not in the prompt"
            at = found + len(message.content.strip())
            assert all(call.name in text for call in message.tool_calls), f"{name}: a call of message {i} is lost"


class Bytes:
    """Counts tokens as a byte-level tokenizer with the Qwen3-like template does."""

    source = "qwen3-like"

    def __init__(self) -> None:
        self._tokenizer = tokenizers()["qwen3"]
        self._renderer = Renderer(self._tokenizer)

    def text(self, text: str) -> int:
        return len(text.encode())

    def prompt(self, rollout: Rollout, index: int) -> int:
        return len(self._renderer.prompt(rollout, index))
