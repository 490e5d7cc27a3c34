"""What is installed is what is here: a wheel of this tree, used outside of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"agentbench_spec": "agentbench_spec", "drafters": "agentbench_spec_drafters"}
PACKAGES |= {"workloads": "agentbench_spec_workloads"}
BUILD = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"


def shipped() -> set[str]:
    """Every file of the three packages by its installed path; a package's README is for readers of the repository."""
    return {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, package in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and path != ROOT / folder / "README.md"
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this tree, built beside it so that nothing is left in it."""
    pytest.importorskip("setuptools", "77", reason="building a wheel needs setuptools 77 or newer")
    folder = tmp_path_factory.mktemp("build")
    for name in (*PACKAGES, "pyproject.toml", "README.md", "LICENSE"):
        (folder / name).symlink_to(ROOT / name)
    command = [sys.executable, "-c", BUILD, str(folder / "dist")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "dist" / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as pip would unpack it."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_the_wheel_holds_every_file_and_no_other(wheel: Path) -> None:
    """Fails if a new sub-package or data file is forgotten in pyproject.toml: the checkout would never notice."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == shipped()
    assert {"agentbench_spec/engine/loop.py", "agentbench_spec_drafters/registry.toml"} <= held  # the control


def test_it_is_used_from_elsewhere(site: Path, tmp_path: Path) -> None:
    """Fails if the installed package needs the checkout: its modules, its entry points, its data."""
    environ = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    code = f"""
import json, sys, agentbench_spec as ab
drafter, rollouts = ab.load_drafter("ngram"), ab.build_rollouts("bfcl_v3", limit=1)
modules = [m for n, m in sys.modules.items() if n.startswith("agentbench_spec")]
outside = [m.__file__ for m in modules if not m.__file__.startswith({str(site)!r})]
print(json.dumps([outside, drafter.spec.name, len(rollouts), len(ab.paper_facts())]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outside, *found = json.loads(done.stdout)
    assert outside == [] and found[:2] == ["ngram", 1] and found[2] > 0

    command = [sys.executable, "-m", "agentbench_spec", "list"]
    listed = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    names = json.loads(listed.stdout.splitlines()[-1])
    assert {"none", "ngram", "dlite"} <= set(names["drafter"]) and "bfcl_v3" in names["workload"]
