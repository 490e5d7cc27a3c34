"""What `--launch` makes of a drafter's name and checkpoint for SGLang 0.5.23, before a server is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentbench_spec.config import RunConfig, load_config
from agentbench_spec.errors import ConfigError
from agentbench_spec.serving.engines import engine_of
from agentbench_spec.serving.launch import launchables

TARGET = {"hidden_size": 64, "vocab_size": 500}
DLITE = {"architectures": ["DLiteDraftModel"], "hidden_size": 64, "dlite_config": {"anchor_group_size": 1}}
DFLASH = {"architectures": ["DFlashDraftModel"], "hidden_size": 64, "dflash_config": {"mask_token_id": 7}}
DFLASH2 = {"architectures": ["DFlash2DraftModel"], "dflash_config": {"selector_rank": 8, "selector_top_k": 4}}
DOMINO = {"architectures": ["DFlashDraftModel"], "dflash_config": {"projector_type": "domino"}}
DSPARK = {"architectures": ["Qwen3DSparkModel"], "hidden_size": 64, "markov_rank": 16}
EAGLE3 = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64}
SMALL_LM = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 32, "vocab_size": 500}


def saved(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def asked(tmp_path: Path, name: str, draft: dict[str, Any]) -> RunConfig:
    """A launch of one drafter on a target of 64 wide states and 500 words."""
    target, folder = saved(tmp_path / "target", TARGET), saved(tmp_path / "draft", draft)
    flags = {"backend": "sglang", "sglang.launch": True, "target.source": str(target), "drafters": [f"{name}={folder}"]}
    return load_config(flags=flags)


@pytest.mark.parametrize(
    ("name", "draft", "algorithm"),
    [
        ("dlite", DLITE, "DLITE"),
        ("dflash", DFLASH, "DFLASH"),
        ("dflash", DOMINO, "DFLASH"),
        ("dflash2", DFLASH2, "DFLASH"),
        ("domino", DOMINO, "DFLASH"),
        ("dspark", DSPARK, "DSPARK"),
        ("eagle3", EAGLE3, "EAGLE3"),
        ("draft_lm", SMALL_LM, "STANDALONE"),
        ("standalone", SMALL_LM, "STANDALONE"),
        ("dflash", {"hidden_size": 64}, "DFLASH"),  # its config tells nothing: SGLang will say
    ],
)
def test_our_names_start_sglangs_algorithms(tmp_path: Path, name: str, draft: dict[str, Any], algorithm: str) -> None:
    """Fails if a row would be named otherwise than the drafter that was asked for, or start another algorithm."""
    config = asked(tmp_path, name, draft)
    own = launchables(config)[1]
    words = engine_of("sglang").flags(own, config, 1)
    assert own.name == name
    assert words[-4:-1] == ["--speculative-algorithm", algorithm, "--speculative-draft-model-path"]


@pytest.mark.parametrize(
    ("name", "draft", "why"),
    [
        ("dflash", DLITE, r"is a dlite checkpoint \(it has dlite_config\): write dlite="),
        ("dflash", DFLASH2, r"is a dflash2 checkpoint \(selector_rank is 8\): write dflash2="),
        ("dflash2", DFLASH, "is a dflash checkpoint"),
        ("dspark", DFLASH, "is a dflash checkpoint"),
        ("dspark", {**DSPARK, "markov_rank": 0}, "it has no markov_rank above 0"),
        ("dlite", SMALL_LM, "it has no dlite_config"),
        ("draft_lm", EAGLE3, "is a eagle3 checkpoint"),
        ("draft_lm", {**SMALL_LM, "vocab_size": 501}, "vocab_size 501, the target .* has 500"),
        ("dlite", {**DLITE, "hidden_size": 80}, "hidden_size 80, the target .* has 64"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path, name: str, draft: dict[str, Any], why: str) -> None:
    """Fails if the baseline would be measured for an hour before SGLang refuses the draft, or drafts noise with it."""
    with pytest.raises(ConfigError, match=why):
        launchables(asked(tmp_path, name, draft))


def test_a_hub_id_is_left_to_sglang(tmp_path: Path) -> None:
    """Nothing is fetched to look at it, and the target may be one, too."""
    flags = {"backend": "sglang", "sglang.launch": True, "target.source": "Qwen/Qwen3-4B", "drafters": ["dlite=a/b"]}
    assert launchables(load_config(flags=flags))[1].draft == "a/b"


def test_k_of_a_table_reaches_a_draft_model_by_our_name() -> None:
    """Fails if draft_lm would be served with SGLang's default of three steps beside drafters of seven."""
    sglang = engine_of("sglang")
    assert (
        sglang.chain("draft_lm", 7)
        == sglang.chain("STANDALONE", 7)
        == {
            "num_steps": 7,
            "eagle_topk": 1,
            "num_draft_tokens": 8,
        }
    )
    assert sglang.chain("dlite", 7) == {}


def test_why_dlite_did_not_start() -> None:
    """Fails if a missing or refused plugin is told as SGLang words it, which names no way out."""
    sglang = engine_of("sglang")
    dlite = sglang.launchable("dlite=d", {})
    assert "pip install --no-deps" in sglang.why_not_started(dlite, "ValueError: Unknown speculative algorithm name: X")
    log = (
        "DLITE is not registered: sglang.srt.a has no b. Tested with SGLang 0.5.23.\nUnknown speculative algorithm name"
    )
    assert "sglang.srt.a has no b" in sglang.why_not_started(dlite, log)
    assert sglang.why_not_started(dlite, "out of memory") == ""
    assert sglang.why_not_started(sglang.launchable("NGRAM", {}), log) == ""
