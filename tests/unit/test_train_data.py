"""Training texts from each kind of file, features online and cached, the target's own replies, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from test_render import smol_like
from typer.testing import CliRunner

from agentbench_spec.cli import app
from agentbench_spec.engine.target import Target
from agentbench_spec.errors import ConfigError
from agentbench_spec.rollout import Message, Rollout, write_rollouts
from agentbench_spec.rollouts.render import Renderer
from agentbench_spec.testing import greedy_text
from agentbench_spec.train.features import Cached, Extractor, Online, build_cache
from agentbench_spec.train.options import TrainConfig
from agentbench_spec.train.regenerate import regenerate
from agentbench_spec.train.texts import Text, read_texts, texts_of, token_counts


def said(role: str, content: str, **more: Any) -> Message:
    return Message.model_validate({"role": role, "content": content, **more})


def two_turns(name: str = "r") -> Rollout:
    messages = (said("user", "one"), said("assistant", "two!"), said("user", "three"), said("assistant", "four?"))
    return Rollout(id=name, workload="w", messages=messages)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(smol_like())


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with a byte-level tokenizer and the embedded model's chat template."""
    path = tmp_path_factory.mktemp("target")
    tokenizer = smol_like()
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer) + 8,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_a_rollout_is_one_text_whose_replies_are_supervised(renderer: Renderer) -> None:
    """Fails if turns are rendered apart, or a range is off by one: each holds the reply and its stop token."""
    (text,) = texts_of(two_turns(), renderer)
    tokenizer: Any = renderer._tokenizer
    parts = [tokenizer.decode(text.input_ids[start:stop]) for start, stop in text.supervised]
    assert parts == ["two!<|im_end|>", "four?<|im_end|>"]
    assert list(text.input_ids[: text.supervised[1][0]]) == renderer.prompt(two_turns(), 3)


def test_a_synthetic_reply_is_context_only(renderer: Renderer) -> None:
    """Fails if words nobody said are learnt."""
    rollout = two_turns()
    messages = list(rollout.messages)
    messages[1] = messages[1].model_copy(update={"synthetic": True})
    (text,) = texts_of(rollout.model_copy(update={"messages": tuple(messages)}), renderer)
    assert len(text.supervised) == 1


def test_a_rewritten_history_starts_a_new_text(renderer: Renderer) -> None:
    """A changed tool list rewrites the system block; the second reply must be learnt in its own context."""
    tool = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}
    rollout = two_turns()
    messages = list(rollout.messages)
    messages[2] = messages[2].model_copy(update={"tools": (tool,)})
    texts = texts_of(rollout.model_copy(update={"messages": tuple(messages)}), renderer)
    assert [len(text.supervised) for text in texts] == [1, 1]
    assert len({text.id for text in texts}) == 2


@pytest.mark.parametrize("field", ["messages", "conversations"])
def test_plain_conversations_read_as_rollouts(field: str, renderer: Renderer, tmp_path: Path) -> None:
    """Both common spellings give the text the rollout gives."""
    keys, roles = (
        (("role", "content"), {}) if field == "messages" else (("from", "value"), {"user": "human", "assistant": "gpt"})
    )
    turns = [{keys[0]: roles.get(m.role, m.role), keys[1]: m.content} for m in two_turns().messages]
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({field: turns}) + "\n")
    (text,) = read_texts(path, renderer, max_tokens=512)
    (expected,) = texts_of(two_turns(), renderer)
    assert (text.input_ids, text.supervised) == (expected.input_ids, expected.supervised)


def test_bad_lines_are_named(renderer: Renderer, tmp_path: Path) -> None:
    """Fails if a bad line is skipped, or the message does not say where."""
    path = tmp_path / "chats.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": 3}]}\n')
    with pytest.raises(ConfigError, match=r"chats.jsonl:1: messages\[0\]: expected role"):
        read_texts(path, renderer, max_tokens=64)
    path.write_text('{"id": "a", "input_ids": [1, 2], "supervised": [[0, 1]]}\n{"id": "b", "input_ids": [1]}\n')
    with pytest.raises(ConfigError, match=r"chats.jsonl:2: expected id"):
        read_texts(path, renderer, max_tokens=64)


def test_a_cut_text_keeps_what_is_left_of_its_ranges() -> None:
    """Fails if a range points beyond the cut."""
    text = Text("a", tuple(range(10)), ((2, 4), (6, 9)))
    assert text.cut(7) == Text("a", tuple(range(7)), ((2, 4), (6, 7)))
    assert text.cut(5).supervised == ((2, 4),)
    assert token_counts([text], 12).tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0]
    with pytest.raises(ConfigError, match="token id 8"):
        token_counts([text], 4)


def branching_texts() -> list[Text]:
    """Texts that start alike, as the turns of a rollout do, one that is alone, and one that is the start of another."""
    common = tuple(range(5, 25))
    branches = [(*common, 1, 2, 3), (*common[:12], 4, 5), (9, 8, 7, 6), (9, 8)]
    return [Text(str(n), ids, ((len(ids) - 2, len(ids)),)) for n, ids in enumerate(branches)]


def test_cached_features_are_those_of_a_fresh_forward(model_folder: Path, tmp_path: Path) -> None:
    """Shared starts are stored once and read back for each text; the size is said before it is written."""
    model, stock_model = (transformers.AutoModelForCausalLM.from_pretrained(model_folder) for _ in range(2))
    target, texts, said_before = Target(model, name="tiny", capacity=64), branching_texts(), []
    build_cache(tmp_path, texts, Extractor(target, (1, 4)), torch.float32, say=said_before.append)
    positions = 23 + 2 + 4
    assert f"{positions} positions" in said_before[0] and "shared" in said_before[0]
    assert (tmp_path / "states.bin").stat().st_size == positions * 2 * 32 * 4
    for index, text in enumerate(texts):
        found, fresh = Cached(tmp_path, (1, 4))[index], Online(texts, Extractor(target, (1, 4)))[index]
        with torch.no_grad():
            out = stock_model(torch.tensor([text.input_ids]), output_hidden_states=True)
        stock = torch.stack([out.hidden_states[2][0], out.hidden_states[5][0]], 1)
        choices = out.logits[0].argmax(-1)[-3:-1] if len(text.input_ids) > 2 else out.logits[0].argmax(-1)[:1]
        for features in (found, fresh):
            torch.testing.assert_close(features.states, stock, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(features.final, stock[:, 1], rtol=1e-4, atol=1e-5)
            assert features.greedy[features.greedy >= 0].tolist() == choices.tolist()


def test_a_cache_of_something_else_is_refused(model_folder: Path, tmp_path: Path) -> None:
    """Fails if features of other texts, or layers that are not there, are used in silence."""
    target = Target(transformers.AutoModelForCausalLM.from_pretrained(model_folder), name="tiny", capacity=64)
    build_cache(tmp_path, branching_texts(), Extractor(target, (1,)), torch.float32, say=lambda text: None)
    with pytest.raises(ConfigError, match="lacks the states of layers"):
        build_cache(tmp_path, branching_texts(), Extractor(target, (2,)), torch.float32, say=lambda text: None)
    with pytest.raises(ConfigError, match="other texts"):
        build_cache(tmp_path, branching_texts()[1:], Extractor(target, (1,)), torch.float32, say=lambda text: None)


def test_drafters_share_a_cache_with_the_layers_of_both(model_folder: Path, tmp_path: Path) -> None:
    """Fails if a cache is built again for fewer layers than it holds, or if a column of it is mistaken for another."""
    target = Target(transformers.AutoModelForCausalLM.from_pretrained(model_folder), name="tiny", capacity=64)
    texts = branching_texts()
    build_cache(tmp_path, texts, Extractor(target, (0, 1, 3)), torch.float32, say=lambda text: None)
    build_cache(tmp_path, texts, Extractor(target, (3, 1)), torch.float32, say=pytest.fail)
    found, fresh = Cached(tmp_path, (3, 1))[0], Online(texts, Extractor(target, (3, 1)))[0]
    torch.testing.assert_close(found.states, fresh.states, rtol=1e-5, atol=1e-6)


def test_regenerated_replies_are_the_targets_own(model_folder: Path, tmp_path: Path) -> None:
    """Greedy, in the recorded context; a file that was cut off is completed without a double or a gap."""
    data, out = tmp_path / "rollouts.jsonl", tmp_path / "replies.jsonl"
    write_rollouts(data, [two_turns("a"), two_turns("b")])
    settings = TrainConfig(
        drafter="dlite", target=str(model_folder), data=str(data), max_tokens=256, max_new_tokens=6, device="cpu"
    )
    regenerate(settings, out)
    whole = out.read_text()
    texts = [json.loads(line) for line in whole.splitlines()]
    assert [text["id"] for text in texts] == ["a@1", "a@3", "b@1", "b@3"]
    target = Target(transformers.AutoModelForCausalLM.from_pretrained(model_folder), name="tiny", capacity=256)
    for text in texts:
        start, stop = text["supervised"][0]
        assert stop == len(text["input_ids"])
        assert greedy_text(target, text["input_ids"][:start], stop - start) == text["input_ids"]
    out.write_text(whole[: len(whole) // 2])
    regenerate(settings, out)
    assert out.read_text() == whole


def test_the_command_trains_resumes_and_refuses(model_folder: Path, tmp_path: Path) -> None:
    """From a rollouts file to a checkpoint; a second start needs --resume; another setting is named."""
    data, out = tmp_path / "rollouts.jsonl", tmp_path / "run"
    write_rollouts(data, [two_turns(str(n)) for n in range(3)])
    common = ["train", "dflash", "--data", str(data), "--target", str(model_folder), "-o", str(out), "--device", "cpu"]
    common += ["--option", "depth=1", "--option", "block_size=3", "--option", "target_layer_ids=[1]", "--batch", "1"]
    common += ["--features", str(tmp_path / "features"), "--set", "min_supervised_tokens=2"]
    done = CliRunner().invoke(app, [*common, "--steps", "2"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["steps"] == 2
    config = json.loads((out / "config.json").read_text())
    assert config["dflash_config"]["target_layer_ids"] == [1] and (out / "model.safetensors").is_file()
    assert json.loads((out / "train.json").read_text())["settings"]["steps"] == 2
    again = CliRunner().invoke(app, [*common, "--steps", "2"])
    assert again.exit_code == 2 and "continue it with --resume" in " ".join(again.output.split())
    other = CliRunner().invoke(app, [*common, "--steps", "3", "--resume"])
    assert other.exit_code == 2 and "steps (2 -> 3)" in " ".join(other.output.split())
    finished = CliRunner().invoke(app, [*common, "--steps", "2", "--resume"])
    assert finished.exit_code == 0, finished.output
