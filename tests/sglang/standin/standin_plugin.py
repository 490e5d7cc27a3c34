"""A general SGLang plugin: answers "has AMX" with yes where arguments are resolved, and nowhere else.

So the attention backend whose ops the stand-in supplies is not swapped out, while layers keep their native code.

AGENTBENCH_SPEC_DEVICE_BYTES: memory of a device that this process has for itself: what a server finds free is then what
its own weights leave of it, whatever other programs hold.
"""

from __future__ import annotations

import os
from typing import Any


class _WithAmx:
    """Everything the platform says, and has_amx."""

    has_amx = True

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)


def load() -> None:
    """Called by SGLang in each of its processes before arguments are resolved."""
    from sglang.srt.arg_groups import overrides

    real = overrides.get_platform
    overrides.get_platform = lambda: _WithAmx(real())
    if device_bytes := os.environ.get("AGENTBENCH_SPEC_DEVICE_BYTES"):
        import psutil
        from sglang.srt.utils import common

        own = psutil.Process()
        common.get_free_cpu_memory = lambda: int(device_bytes) - own.memory_info().rss
