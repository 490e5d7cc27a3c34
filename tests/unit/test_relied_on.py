"""The guard of the SGLang plugin: a package that has the whole table, and the same with one thing missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from agentbench_spec_sglang.relied_on import RELIED_ON, Table, first_mismatch

PLUGIN = Path(__file__).parents[2] / "sglang_plugin"
EVERY = [(module, name) for module, names in RELIED_ON.items() for name in names]


def planted(root: Path, table: Table) -> Path:
    """A package in which every name of `table` is a function with its parameters, or a class with its members."""
    for module, names in table.items():
        path = root.joinpath(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        holders: dict[str, list[str]] = {}
        for name, used in names.items():
            holder, _, member = name.partition(".")
            if member:
                holders.setdefault(holder, []).append(f"    def {member}(self, {', '.join(used.split())}): ...")
            elif holder[0].isupper():
                holders.setdefault(holder, []).extend(f"    {each} = None" for each in used.split())
            else:
                holders[holder] = [f"def {holder}({', '.join(used.split())}): ..."]
        for lines in holders.values():
            lines.sort(key=lambda line: "def " not in line)
        texts = [
            "\n".join(lines if lines[0].startswith("def") else [f"class {holder}:", *lines])
            for holder, lines in holders.items()
        ]
        path.write_text("\n".join(texts))
    return root


def less(table: Table, module: str, name: str) -> Table:
    """The table without one name, or with its last parameter under another name."""
    used = table[module][name].split()
    names = {key: value for key, value in table[module].items() if key != name}
    return {**table, module: {**names, name: " ".join([*used[:-1], f"new_{used[-1]}"])} if used else names}


def test_a_package_with_the_whole_table_passes(tmp_path: Path) -> None:
    """Fails if the guard would keep the plugin out of an SGLang that has all it needs."""
    assert first_mismatch(planted(tmp_path / "sglang", RELIED_ON)) is None


@pytest.mark.parametrize(("module", "name"), EVERY, ids=[name for _, name in EVERY])
def test_each_missing_name_or_parameter_is_found(tmp_path: Path, module: str, name: str) -> None:
    """Fails if SGLang may rename what the plugin calls, and the guard says nothing."""
    found = first_mismatch(planted(tmp_path / "sglang", less(RELIED_ON, module, name)))
    assert found is not None and module in found


def test_where_a_name_may_stand(tmp_path: Path) -> None:
    """Members set in a method, fields of a dataclass, names under `try`, parameters behind a star."""
    (tmp_path / "a.py").write_text(
        "try:\n    import b\nexcept ImportError:\n    def made(x, *, y): ...\n"
        "class Held:\n    field: int = 0\n    def start(self):\n        self.first, self.second = 1, 2\n"
    )
    assert first_mismatch(tmp_path, {"a": {"made": "x y", "Held": "field start first second"}}) is None
    assert first_mismatch(tmp_path, {"a": {"Held": "third"}}) == f"{tmp_path.name}.a.Held has no 'third'"
    assert first_mismatch(tmp_path, {"c": {"Held": ""}}) == f"there is no module {tmp_path.name}.c"


def test_a_mismatch_is_one_error_and_no_registration(tmp_path: Path) -> None:
    """A process with another SGLang: one line names the first mismatch and the tested version; nothing is imported."""
    planted(tmp_path / "sglang", less(RELIED_ON, "srt.runtime_context", "get_spec"))
    (tmp_path / "sglang" / "__init__.py").write_text("raise SystemExit('imported')")
    code = "import sys; sys.path[:0] = sys.argv[1:]; from agentbench_spec_sglang import register; register()"
    done = subprocess.run([sys.executable, "-c", code, str(PLUGIN), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "DLITE is not registered: sglang.srt.runtime_context has no get_spec. Tested with SGLang 0.5.23."
    ]
