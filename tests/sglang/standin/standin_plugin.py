"""A general SGLang plugin: answers "has AMX" with yes where arguments are resolved, and nowhere else.

So the attention backend whose ops the stand-in supplies is not swapped out, while layers keep their native code.
"""

from __future__ import annotations

from types import SimpleNamespace


def load() -> None:
    """Called by SGLang in each of its processes before arguments are resolved."""
    from sglang.srt.arg_groups import overrides

    real = overrides.get_platform()
    seen = SimpleNamespace(**{name: getattr(real, name) for name in dir(real) if not name.startswith("__")})
    seen.has_amx = True
    overrides.get_platform = lambda: seen
