"""`decode.k = "auto"`, which stands for two settings: that k is chosen round by round, and the most it may be."""

from __future__ import annotations

import re
from typing import Any

_AUTO = re.compile(r"auto(?::([0-9]{1,9}))?")


def with_auto_k(decode: Any) -> Any:
    """The section `decode` with k = "auto", or "auto:15", as k_policy and k."""
    k = decode.get("k") if isinstance(decode, dict) else None
    if not isinstance(k, str) or not (auto := _AUTO.fullmatch(k)):
        return decode
    most = {"k": int(auto[1])} if auto[1] else {}
    return {**{name: value for name, value in decode.items() if name != "k"}, **most, "k_policy": "auto"}
