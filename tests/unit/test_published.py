"""`list --registry`: what is known of published draft checkpoints, from every installed registry."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runkit import call

from agentbench_spec.plugins import available


def test_list_prints_the_published_pairs_and_null_for_what_nobody_knows() -> None:
    """Fails if a pair is missing, or a licence or a revision is made up."""
    done = call("list", "--registry")
    pairs = {(pair["target"], pair["checkpoint"]): pair for pair in done.last["pairs"]}
    known = pairs["Qwen/Qwen3-4B", "deepseek-ai/dspark_qwen3_4b_block7"]
    assert known["licence"] is None and known["revision"] == "3457dff1417cb84927f6098a5fcb7cee85c934b7"
    assert pairs["Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.peagle"] == {
        "target": "Qwen/Qwen3-8B",
        "drafter": "peagle",
        "checkpoint": "RedHatAI/Qwen3-8B-speculator.peagle",
        "layout": "speculators",
        "licence": "Apache-2.0",
        "revision": None,
    }
    assert {pair["drafter"] for pair in pairs.values()} <= available("drafter").keys()
    assert list(pairs) == sorted(pairs, key=lambda key: (key[0], pairs[key]["drafter"], key[1]))
    assert "3457dff1417c" in "".join(done.err.split())


def listed(site: Path, text: str | None) -> subprocess.CompletedProcess[str]:
    """The command beside an installed package whose registry holds `text`; None: there is no such file."""
    package, info = site / "odd_registry", site / "odd-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("")
    if text is not None:
        (package / "list.toml").write_text(text)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[agentbench_spec.registries]\nodd = odd_registry:list.toml\n")
    command = [sys.executable, "-m", "agentbench_spec", "list", "--registry"]
    environment = {**os.environ, "PYTHONPATH": str(site), "COLUMNS": "60"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=site)


def test_another_package_adds_its_own(tmp_path: Path) -> None:
    """Fails if only our registry is read, or an id is cut on a narrow screen."""
    long = "owner/a-very-long-name-of-a-checkpoint-that-no-narrow-screen-holds-in-one-line"
    text = f'[[pair]]\ntarget = "t"\ndrafter = "d"\nlayout = "l"\ncheckpoint = "{long}"'
    done = listed(tmp_path, text)
    assert done.returncode == 0 and f'"{long}"' in done.stdout and "RedHatAI" in done.stdout
    assert "…" not in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[pair]", "cannot be read: TOMLDecodeError"),
        ('other = "x"', "cannot be read: KeyError"),
        ('[[pair]]\ntarget = "t"\ndrafter = "d"\nlayout = "l"', "pair 1: no checkpoint"),
        ('[[pair]]\nlicense = "MIT"', "pair 1: license is not one of"),
        ("[[pair]]\ntarget = 3", "pair 1: target is not one of"),
        ("pair = [3]", "pair 1: 3 is no table"),
        ("pair = 3", "cannot be read: TypeError"),
        (None, "cannot be read: FileNotFoundError"),
    ],
)
def test_a_registry_that_cannot_be_read_is_named(text: str | None, message: str, tmp_path: Path) -> None:
    """Fails if another package's broken list ends in a trace, or its pairs are quietly left out."""
    done = listed(tmp_path, text)
    assert done.returncode == 1 and not done.stdout
    assert "registry 'odd' (odd_registry:list.toml)" in done.stderr and message in done.stderr
