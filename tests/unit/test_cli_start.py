"""What a command loads before it answers, in fresh interpreters; completion, --version, and who gets the JSON line."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from reportkit import two_rollouts, write_run
from runkit import call, verbs

from agentbench_spec.results.provenance import git_state, package_versions

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "transformers", "pandas", "scipy", "datasets"}

_PROBE = """
import contextlib, io, json, sys
from agentbench_spec.cli import app
sys.argv = ["agentbench-spec"]
for words in json.loads(sys.stdin.read()):
    before, said = set(sys.modules), io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            app(words)
            code = 0
        except SystemExit as end:
            code = end.code or 0
    new = sorted({name.partition(".")[0] for name in set(sys.modules) - before})
    print(json.dumps([code, said.getvalue(), new]), flush=True)
"""


def probed(commands: list[list[str]], folder: Path) -> list[tuple[int, str, set[str]]]:
    """(exit code, both streams, packages loaded by it) of each command, all in one fresh interpreter in `folder`."""
    command = [sys.executable, "-c", _PROBE]
    env = os.environ | {"COLUMNS": "400"}
    done = subprocess.run(
        command, input=json.dumps(commands), cwd=folder, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return [(code, said, set(new)) for code, said, new in map(json.loads, done.stdout.splitlines())]


REFUSED = {
    "rnu": "No such command 'rnu'",
    "run --hlep": "No such option: --hlep",
    "run --workload bfcl": "did you mean 'bfcl_v3'?",
    "run --workload no.jsonl": "no.jsonl: no such file",
    "run --workload no/such": "a path must be a rollouts file",
    "run --workload no.module:make": "no module 'no'",
    "run --data no/such": "no/such: no such file or folder",
    "run --drafter ngrm": "did you mean 'ngram'?",
    "run --drafter no.module:make": "no module 'no'",
    "run --drafter ngram:": "write package.module:factory",
    "run --drafter dlite=": "nothing follows '='",
    "run --k -1": "setting decode.k",
    "run --set decode.kk=1": "did you mean 'decode.k'?",
    "run --target ./no/such": "no such folder",
    "run --resume --out no/such": "no/such holds no run",
    "run --out taken": "taken already holds a run",
    "run --backend sglng": "expected engine, sglang, vllm or openai",
    "run --backend engine --base-url http://127.0.0.1:1": "--backend engine takes neither --base-url nor --launch",
    "run --backend engine --launch": "--backend engine takes neither --base-url nor --launch",
    "run --concurrency 2": "--concurrency is for servers",
    "run --backend engine --client chat": "--client is for servers",
    "run --backend sglang": "backend sglang needs servers",
    "run --launch --base-url http://127.0.0.1:1 --target a/b": "not both",
    "run --base-url http://127.0.0.1:1 --mode forced": "decode.mode=forced",
    "check ngrm": "did you mean 'ngram'?",
    "check ngram --reference ngrm": "did you mean 'ngram'?",
    "check ngram --on moon": "unknown target 'moon' to check on; known: toy, embedded",
    "check ngram --target ./no/such": "no such folder",
    "check ngram --set max_n": "write it as key=value",
    "report no/such": "no/such holds no run",
    "export no/such -o x.md": "no/such holds no run",
    "compare no/such no/such": "no/such holds no run",
    "compare no/such no/such --tolerance 2": "--tolerance",
    "reproduce tabel1": "unknown table 'tabel1'",
    "reproduce table1 --drafter ngrm": "did you mean 'ngram'?",
    "reproduce table1 --set decode.k=-1": "setting decode.k",
    "reproduce table1 --presets no.toml": "presets no.toml",
    "reproduce table1 --backend engine --launch": "--backend engine takes neither --base-url nor --launch",
    "reproduce table1 --api-key x": "--api-key is for servers",
    "reproduce table1 --launch": "on servers only table4",
    "reproduce table4 --launch --base-url http://127.0.0.1:1": "not both",
    "reproduce table4 --concurrency two": "expected whole numbers",
    "train dlte --data data.jsonl -o new": "did you mean 'dlite'?",
    "train dlite --data no.jsonl -o new": "no.jsonl: no such file",
    "train dlite --data data.jsonl --held-out no.jsonl -o new": "no.jsonl: no such file",
    "train dlite --data data.jsonl -o new --steps -1": "setting steps",
    "train dlite --data data.jsonl -o new --resume": "new holds no training run to resume",
    "train dlite --data data.jsonl -o new --target ./no/such": "no such folder",
    "rollouts build bfcl -o x.jsonl": "did you mean 'bfcl_v3'?",
    "run --workload bfcl_v3 --shard 0/4": "1/4, 2/4",
    "run --workload bfcl_v3 --shards 2": "--on ray",
    "run --workload bfcl_v3 --speeds none=3": "--dry-run",
    "merge no/such -o x": "no/such holds no run",
    "plan-fleet no/such --sessions 2 --turn-rate 1": "no/such holds no run",
    "rollouts build bfcl_v3 -o x.json": "name it .jsonl",
    "rollouts build bfcl_v3 -o x.jsonl --data no/such": "no/such: no such file or folder",
    "rollouts import no.json -o x.jsonl": "no.json: no such file or folder",
    "rollouts import data.jsonl -o x.jsonl --format swe": "swe",
    "rollouts validate no.jsonl": "no.jsonl: no such file",
    "rollouts stats no/such.jsonl": "no/such.jsonl: no such file",
    "rollouts stats bfcl": "did you mean 'bfcl_v3'?",
    "rollouts stats bfcl_v3 --target ./no/such": "no such folder",
    "rollouts stats bfcl_v3 --windows x --target smollm2-135m": "expected numbers of tokens",
    "rollouts stats bfcl_v3 --output csv --json": "--json and --output csv both write to stdout",
}
"""A command that cannot be run -> words of its answer."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, set[str]]]:
    """What each command above said and loaded."""
    folder = tmp_path_factory.mktemp("start")
    write_run(folder / "taken", two_rollouts())
    (folder / "data.jsonl").write_text("{}\n")
    before = sorted(folder.rglob("*"))
    found = dict(zip(REFUSED, probed([words.split() for words in REFUSED], folder), strict=True))
    assert sorted(folder.rglob("*")) == before  # a refused command leaves nothing behind
    return found


@pytest.mark.parametrize("words", REFUSED)
def test_a_mistake_is_answered_before_anything_heavy_is_loaded(
    words: str, answers: dict[str, tuple[int, str, set[str]]]
) -> None:
    """Fails if a user waits seconds for torch, transformers or pandas only to hear of a typing mistake."""
    code, said, loaded = answers[words]
    assert code == 2 and REFUSED[words] in said and "Traceback" not in said, said
    assert not HEAVY & loaded


def test_help_of_every_verb_and_the_list_load_nothing_heavy(tmp_path: Path) -> None:
    """Fails if a verb's module, or an option's default, imports what only its work needs."""
    commands = [["--help"], ["--version"], ["list"], *([*verb.split(), "--help"] for verb in verbs())]
    for words, (code, said, loaded) in zip(commands, probed(commands, tmp_path), strict=True):
        assert code == 0 and said and not HEAVY & loaded, (words, loaded)


def test_what_reads_runs_never_loads_torch(tmp_path: Path) -> None:
    """Fails if a report, an export or a comparison of finished runs waits for the engine's libraries."""
    write_run(tmp_path / "run", two_rollouts())
    reports = [["report", "run"], ["report", "run", "run2"], ["compare", "run", "run2"], ["figures", "run", "-o", "f"]]
    exports = [["export", "run", "-o", f"table.{form}"] for form in ("csv", "parquet", "md", "tex")]
    write_run(tmp_path / "run2", two_rollouts())
    for code, said, loaded in probed([*reports, *exports], tmp_path):
        assert code == 0, said
        assert not {"torch", "transformers"} & loaded


def test_the_probe_sees_what_a_command_loads(tmp_path: Path) -> None:
    """The control: a check that is carried out does load torch."""
    ((code, _, loaded),) = probed([["check", "none", "--on", "toy", "--set", "no_such=1"]], tmp_path)
    assert code == 2 and "torch" in loaded


def test_a_checkpoint_is_judged_by_its_drafter(tmp_path: Path) -> None:
    """Fails if a path after "=" is taken for a model: it may be a file, and the drafter has the right words."""
    (tmp_path / "plugin.py").write_text(
        "from agentbench_spec.errors import ConfigError\n"
        "def make(checkpoint):\n    raise ConfigError(f'mine: {checkpoint}')\n"
    )
    asked = ("run --workload bfcl_v3 --set workload.options.subset=shipped --drafter", "check --on toy")
    for code, said, _ in probed([[*words.split(), "plugin:make=./weights.pt"] for words in asked], tmp_path):
        assert code == 2 and "mine: ./weights.pt" in said, said


def completions(words: str) -> tuple[list[str], set[str]]:
    """What bash is offered for the last of `words`, and the packages loaded for it."""
    code = (
        "import atexit, sys; sys.argv = ['agentbench-spec']\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from agentbench_spec.cli import app; app()"
    )
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    env = os.environ | {"_AGENTBENCH_SPEC_COMPLETE": "complete_bash", **asked}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    return done.stdout.split(), set(done.stderr.split())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("agentbench-spec re", {"reproduce", "report"}),
        ("agentbench-spec run --drafter ng", {"ngram"}),
        ("agentbench-spec run --workload bf", {"bfcl_v3"}),
        ("agentbench-spec rollouts stats bf", {"bfcl_v3"}),
        ("agentbench-spec check suf", {"suffix"}),
        ("agentbench-spec train ea", {"eagle3"}),
        ("agentbench-spec reproduce fig", {"figure1b", "figure4b", "figure5"}),
    ],
)
def test_a_shell_completes_verbs_and_names(words: str, offered: set[str]) -> None:
    """Fails if a name is not offered, or the TAB key waits for a library."""
    found, loaded = completions(words)
    assert set(found) == offered and not HEAVY & loaded


def on_a_terminal(*words: str) -> str:
    """What a command writes to stdout where that is a terminal."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "agentbench_spec", *words]
    try:
        subprocess.run(command, stdout=slave, stderr=subprocess.DEVNULL, timeout=60, check=True)
        os.write(slave, b"end")  # so that there is something to read
        written = b""
        while not written.endswith(b"end"):
            written += os.read(master, 65536)
    finally:
        os.close(slave)
        os.close(master)
    return written.decode().removesuffix("end")


def test_the_json_line_is_for_programs() -> None:
    """Fails if a reader at a terminal is shown a line of JSON under the table, or a program is not given it."""
    assert on_a_terminal("list") == ""
    assert "ngram" in json.loads(on_a_terminal("list", "--json"))["drafter"]
    assert call("list").last == call("list", "--json").last


def test_every_verb_takes_json() -> None:
    """Fails if one verb of the command line lacks the option that the others have."""
    takes: dict[str, Any] = {verb: any("--json" in own.opts for own in it.params) for verb, it in verbs().items()}
    assert [verb for verb, has in takes.items() if not has] == []


def test_version_names_the_package_and_the_commit() -> None:
    """Fails if a bug report cannot say which code it is about, or `python -m` is another command than the script."""
    done = subprocess.run(
        [sys.executable, "-m", "agentbench_spec", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith(f"agentbench-spec {package_versions(['agentbench-spec'])['agentbench-spec']}")
    sha = git_state(ROOT / "agentbench_spec")["sha"]
    assert ("commit" not in done.stdout) if sha is None else (f"(commit {sha[:12]}" in done.stdout)
