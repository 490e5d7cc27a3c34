"""Settings: which source wins, and what each wrong one is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentbench_spec.config import RunConfig, load_config, parse_options
from agentbench_spec.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_later_sources_win(tmp_path: Path) -> None:
    """Fails if a flag does not beat --set, --set the file, or the file the defaults."""
    file = write(tmp_path, "[decode]\nk = 2\nmax_new_tokens = 20\ntemperature = 0.2\n")
    config = load_config(file, ["decode.k=3", "decode.max_new_tokens=30"], {"decode.k": 4, "decode.temperature": None})
    assert (config.decode.k, config.decode.max_new_tokens, config.decode.temperature) == (4, 30, 0.2)
    assert config.decode.top_p == RunConfig().decode.top_p


def test_settings_of_the_run_to_continue_come_before_all_others(tmp_path: Path) -> None:
    """Fails if a resumed run forgets what it was started with, or hides that something else was asked for."""
    begun = load_config(None, ["decode.k=2", "drafter_options.ngram.max_n=3"]).model_dump(mode="json")
    config = load_config(write(tmp_path, "[decode]\nmax_new_tokens = 20\n"), [], {}, base=begun)
    assert (config.decode.k, config.decode.max_new_tokens) == (2, 20)
    assert config.drafter_options == {"ngram": {"max_n": 3}} and config.drafters == RunConfig().drafters


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("decode.kk=3", r"unknown setting 'decode\.kk'; did you mean 'decode\.k'\?"),
        ("k=3", r"unknown setting 'k'; did you mean 'decode\.k'\?"),
        ("decod.k=3", r"unknown setting 'decod'; did you mean 'decode'\?"),
        ("colour=red", r"unknown setting 'colour'$"),
        ("decode.k=true", "setting decode.k: .*integer, got True"),
        ('decode.k="4"', "setting decode.k: .*integer, got '4'"),
        ("decode.k=1025", "setting decode.k: expected at most 1024; lower it, got 1025"),
        ("decode.k=-1", "setting decode.k: .*greater than or equal to 0"),
        ("decode.mode=forcd", "setting decode.mode: .*'generate' or 'forced', got 'forcd'"),
        ("decode.temperature=inf", "setting decode.temperature: .*finite"),
        ("measure.seed=-1", "setting measure.seed"),
        ("decode=3", "setting decode: is a section; set one of its keys, such as decode.k"),
        ("drafters=none", r'setting drafters: expected a list; write \["ngram", "suffix"\]'),
        ("target.revision=1234", 'setting target.revision: expected text; put it in quotes: "1234"'),
        ("drafter_options.ngram=3", "setting drafter_options.ngram: expected a table of options"),
        ("drafter_options.ngram.max_n=nan", "cannot be stored"),
        ("drafter_options.ngram.since=2020-01-01", "cannot be stored"),
        ("decode.k", "write it as key=value"),
        ("=3", "write it as key=value"),
        ("decode..k=3", "not a dotted key"),
        ("decode.=3", "not a dotted key"),
    ],
)
def test_wrong_settings_are_named_with_the_way_out(assignment: str, says: str) -> None:
    """Fails if a mistake is taken for another value, or the message does not lead to the right one."""
    with pytest.raises(ConfigError, match=says):
        load_config(None, [assignment])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[decode\nk = 2", r"run\.toml is not TOML: .*line 1"),
        ("[decode]\nk = 'two'", r"setting decode\.k: .*integer, got 'two' \(in .*run\.toml"),
        ("[decoding]\nk = 2", r"unknown setting 'decoding' \(in .*run\.toml"),
        ("[decode]\nk = -1\ntop_p = 3.0", r"setting decode\.k: .*\(and 1 more wrong\)"),
    ],
)
def test_faults_of_a_file_name_the_file(tmp_path: Path, text: str, says: str) -> None:
    """Fails if a user with several files has to guess which one is wrong."""
    with pytest.raises(ConfigError, match=says):
        load_config(write(tmp_path, text))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """Fails if a missing file, a folder or a file that is no text ends in a traceback."""
    (tmp_path / "latin.toml").write_bytes(b"x = '\xe9'")
    for path, says in ((tmp_path / "no.toml", "No such file"), (tmp_path, "Is a directory"), (None, "is not TOML")):
        with pytest.raises(ConfigError, match=says) as caught:
            load_config(path or tmp_path / "latin.toml")
        assert str(path or "latin.toml") in str(caught.value)


def test_a_section_set_through_a_value_is_refused(tmp_path: Path) -> None:
    """Fails if --set below a plain value overwrites it or ends in a TypeError."""
    with pytest.raises(ConfigError, match=r"decode\.k\.x: 'k' is a value, not a section"):
        load_config(write(tmp_path, "[decode]\nk = 2"), ["decode.k.x=1"])


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ('drafter_options."my.pkg:make".n=3', {"my.pkg:make": {"n": 3}}),
        ("drafter_options.'dlite=some/check.point'.n=3", {"dlite=some/check.point": {"n": 3}}),
        ("drafter_options.ngram.text=a=b", {"ngram": {"text": "a=b"}}),
    ],
)
def test_keys_with_dots_and_equals_signs_can_be_quoted(assignment: str, expected: dict[str, object]) -> None:
    """Fails if the options of a "module:factory" cannot be set on the command line."""
    assert load_config(None, [assignment]).drafter_options == expected


def test_short_names_of_dtypes_mean_the_long_ones() -> None:
    """Fails if one dtype can stand in two manifests under two names, or the field's usual name is refused."""
    assert [load_config(None, [f"target.dtype={name}"]).target.dtype for name in ("bf16", "fp32", "fp64")] == [
        "bfloat16",
        "float32",
        "float64",
    ]


def test_option_values_are_toml_or_text() -> None:
    """Fails if a number stays text, a bare word is refused, or a second line smuggles in another key."""
    given = ["a=4", "b=true", "c=[1, 2]", 'd="4"', "e=bare word", "f=1\ng = 2"]
    expected = {"a": 4, "b": True, "c": [1, 2], "d": "4", "e": "bare word", "f": "1\ng = 2"}
    assert parse_options(given) == expected


@pytest.mark.parametrize(
    ("assignments", "names"),
    [
        ("decode.mode=forced decode.temperature=0.5", "decode.mode=forced and decode.temperature=0.5"),
        ("decode.mode=forced replay.history=self", "decode.mode=forced and replay.history=self"),
        ("decode.temperature=0.0 decode.top_p=0.9", "decode.top_p=0.9 and decode.temperature=0"),
        ("decode.temperature=0.0 decode.top_k=40", "decode.top_k=40 and decode.temperature=0"),
        (
            "target.capacity_tokens=64 decode.max_new_tokens=64",
            "max_new_tokens=64 leaves no room",
        ),
        ("target.capacity_tokens=16 decode.k=16 decode.max_new_tokens=4", "decode.k=16 drafts more"),
        ("target.revision=main", "target.revision=main and target.source=smollm2-135m"),
        ('sglang.base_urls=["http://a"]', "sglang.base_urls and backend=engine"),
        ("sglang.launch=true", "sglang.launch and backend=engine"),
        ("backend=sglang measure.aa=true", "measure.aa and backend=sglang"),
        ("backend=sglang measure.rounds=true", "measure.rounds and backend=sglang"),
        ("backend=sglang target.rope_scaling.factor=2.0", "target.rope_scaling and backend=sglang"),
    ],
)
def test_contradictions_name_both_settings_and_the_way_out(assignments: str, names: str) -> None:
    """Fails if a setting is passed over because of another, or is refused only after the model was loaded."""
    with pytest.raises(ConfigError) as raised:
        load_config(assignments=assignments.split())
    said = str(raised.value)
    assert names in said and re.search(r"; (set|raise|lower|leave) .*, or ", said)


@pytest.mark.parametrize(
    "assignments",
    [
        "decode.mode=forced decode.temperature=0.0",
        "decode.temperature=0.5 decode.top_p=0.9 replay.history=self",
        "decode.k=0",
        "backend=sglang sglang.launch=true decode.k=0",
        "sglang.concurrency=4",
    ],
)
def test_what_only_looks_like_a_contradiction_is_taken(assignments: str) -> None:
    """Fails if settings that go together are refused."""
    load_config(assignments=assignments.split())
