"""Runs a server and ends it when the parent is gone: `python -m agentbench_spec.serving.supervise COMMAND ...`.

The parent holds this process's standard input. When it closes, by intent or because the parent was killed, the server
and everything it started are ended; so no way of dying leaves a server behind on a GPU. A signal sent to this process
ends them too: it must not be the one that dies first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

GRACE_S = 20.0
"""Seconds a server gets between the request to end and the kill."""


def main(command: list[str]) -> int:
    """Run `command` until it ends, standard input closes, or a signal asks to end; returns its exit code."""
    child: subprocess.Popen[bytes] | None = None
    for number in _ENDING:
        signal.signal(number, _stop)
    with contextlib.suppress(_Stopped):
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        threading.Thread(target=_leave_with, args=(child,), daemon=True).start()
        while sys.stdin.buffer.read(4096):
            pass
    if child is None:
        return 1
    end_group(child)
    return child.returncode or 0


_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _Stopped(Exception):
    """A signal came."""


def _stop(number: int, frame: object) -> None:
    for again in _ENDING:
        signal.signal(again, signal.SIG_IGN)  # the server is being ended already
    raise _Stopped


def end_group(child: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> None:
    """Ask the child's process group to end, then kill what is left of it."""
    _signal(child.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and _alive(child):
        time.sleep(0.05)
    _signal(child.pid, signal.SIGKILL)
    child.wait()


def _leave_with(child: subprocess.Popen[bytes]) -> None:
    code = child.wait()
    _signal(child.pid, signal.SIGKILL)  # workers that outlive their parent
    os._exit(code if code >= 0 else 128 - code)


def _alive(child: subprocess.Popen[bytes]) -> bool:
    if child.poll() is None:
        return True
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, 0)
        return True
    return False


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
