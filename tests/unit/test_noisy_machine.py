"""benchmarks/noisy_machine.py: its verdicts, and that no competitor outlives it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchkit import benchmark

noisy_machine = benchmark("noisy_machine")


@pytest.mark.parametrize(
    ("idle", "found", "doubtful", "stands"),
    [
        (1.4, 1.46, False, True),
        (1.4, 1.34, False, True),
        (1.4, 1.5, False, False),
        (1.4, 2.8, True, True),
        (1.4, 1.2, False, False),
        (1.4, None, True, False),
        (None, 1.4, False, False),
    ],
)
def test_a_moved_speed_up_stands_only_if_the_run_says_so(
    idle: float | None, found: float | None, doubtful: bool, stands: bool
) -> None:
    """Fails if a speed-up more than 5 % off passes unsaid, or one that was not measured passes at all."""
    assert noisy_machine.verdict(idle, found, doubtful=doubtful).endswith("!") is not stands


def test_competitors_end_with_an_error() -> None:
    """Fails if an error in the measurement, or Ctrl-C, leaves processes that eat the machine."""
    started = []
    with pytest.raises(KeyboardInterrupt), noisy_machine.competing(2) as competitors:
        started += competitors
        assert [process.poll() for process in started] == [None, None]
        raise KeyboardInterrupt
    assert all(process.returncode is not None for process in started) and len(started) == 2


def test_competitors_end_with_a_killed_script() -> None:
    """The script has no time to clean up. Fails if its competitor goes on: it would hold the pipe open."""
    code = "import noisy_machine as n, sys, time\nwith n.competing(1):\n    print(1, flush=True)\n    time.sleep(60)"
    folder = Path(noisy_machine.__file__).parent
    script = subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdout=subprocess.PIPE)
    assert script.stdout is not None and script.stdout.readline() == b"1\n"
    script.kill()
    script.communicate(timeout=50)  # raises if anyone still has the pipe
