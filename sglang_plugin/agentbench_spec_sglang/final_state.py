"""The target's state after its final norm, which SGLang's models do not hand out with those of the layers.

They catch a layer's output as the next layer's input, so a request for the last layer is silently left out; and DLite
was trained on the state after the norm. So the transformer's forward appends it, in its place as the last one.
"""

from __future__ import annotations

import functools
from typing import Any

from sglang.srt.layers.aux_hidden_states import AuxHiddenStateList
from torch import Tensor, nn

_WANTED, _PATCHED = "_dlite_wants_final_state", "_dlite_appends_final_state"


def hand_out_final_state(transformer: nn.Module) -> None:
    """From now on the forward of `transformer` hands out the state after the final norm, after those of its layers.

    The class is changed and the instance marked: compiled prefill takes the forward from the class.
    """
    kind = type(transformer)
    if not vars(kind).get(_PATCHED):
        kind.forward = _appending(kind.forward)
        setattr(kind, _PATCHED, True)
    setattr(transformer, _WANTED, True)


def _appending(forward: Any) -> Any:
    @functools.wraps(forward)
    def appended(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = forward(self, *args, **kwargs)
        return with_final_state(result) if getattr(self, _WANTED, False) else result

    return appended


def with_final_state(result: Any) -> tuple[Tensor, AuxHiddenStateList]:
    """The result of a transformer's forward, (hidden, states) or hidden alone, with hidden among the states."""
    hidden, states = result if isinstance(result, tuple) else (result, AuxHiddenStateList())
    states.capture(hidden)
    return hidden, states
