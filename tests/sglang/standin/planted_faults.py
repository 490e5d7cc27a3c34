"""Faults planted into DLite's plugin for SGLang, so that a test sees them caught; none unless one is asked for.

AGENTBENCH_SPEC_PLANTED_FAULT: "left_out": the target's last state is not handed out; "zeros": it is, as zeros.
"""

from __future__ import annotations

import os
from typing import Any


def load() -> None:
    """Called by SGLang in each of its processes; changes the plugin before its worker is made."""
    fault = os.environ.get("AGENTBENCH_SPEC_PLANTED_FAULT")
    if not fault:
        return
    from agentbench_spec_sglang import final_state

    if fault == "left_out":
        final_state.hand_out_final_state = lambda transformer: None
        return
    whole = final_state.with_final_state

    def zeroed(result: Any) -> Any:
        hidden, states = whole(result)
        states[-1].zero_()
        return hidden, states

    final_state.with_final_state = zeroed
