"""Progress where no terminal shows it: a real process whose stderr is a pipe."""

from __future__ import annotations

import subprocess
import sys

import pytest

STAYS = """
from agentbench_spec.bars import Bar
with Bar(total=500, desc="steps") as bar:
    for i in range(500):
        bar.set_description(f"step {i}")
        bar.set_postfix_str(f"loss {i}")
        bar.update()
"""
GOES = "from agentbench_spec.bars import Bar\nassert sum(Bar(range(500), desc='counting', leave=False)) == 124750\n"
SLOW = "import agentbench_spec.bars as bars\nbars.LOG_EVERY_S = 0.0\n" + GOES
OFF = STAYS.replace("total=500", "total=500, disable=True")


@pytest.mark.parametrize(("program", "least", "most"), [(STAYS, 2, 4), (GOES, 0, 0), (SLOW, 1, 501), (OFF, 0, 0)])
def test_a_pipe_gets_few_whole_lines(program: str, least: int, most: int) -> None:
    """Fails if a log fills with pieces of a bar or carriage returns, or never hears of long work."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert b"\r" not in done.stderr and b"\x1b" not in done.stderr
    lines = done.stderr.decode().splitlines()
    assert least <= len(lines) <= most and all(line.strip() for line in lines), lines
    assert all("500/500" in line for line in lines[-1:] if program == STAYS)
