"""A general SGLang plugin: answers "has AMX" with yes where arguments are resolved, and nowhere else.

So the attention backend whose ops the stand-in supplies is not swapped out, while layers keep their native code.
"""

from __future__ import annotations

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
