"""What a drafter holds: every tensor, array and container that can be reached from it, and what changed in them."""

from __future__ import annotations

import gc
import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agentbench_spec.drafting import Drafter, TargetInfo

_OWN_PACKAGES = ("agentbench_spec.", "torch", "numpy", "builtins")
_LEAVES = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    torch.dtype,
    torch.device,
    TargetInfo,
    nn.Parameter,
    ModuleType,
    type,
)
_STATE = (list, dict, set, Tensor, np.ndarray, array, bytearray)


def _flat(tensor: Tensor) -> Tensor:
    """All of a tensor's storage, in the tensor's dtype."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)


@dataclass(slots=True)
class Held:
    """What was found in one walk over a drafter."""

    tensors: dict[int, Tensor]
    """Address of a storage -> all of it, flat."""
    arrays: list[Tensor]
    """NumPy arrays, flat: who reads them cannot be seen."""
    entries: int
    """Entries of lists, dicts, sets, deques and the like, host memory that grows with them."""

    def copied(self) -> Held:
        """The same with the contents of now."""
        kept = {at: tensor.clone() for at, tensor in self.tensors.items()}
        return Held(kept, [each.clone() for each in self.arrays], self.entries)

    def changed(self, before: Held) -> dict[int, Tensor]:
        """Storage -> which of its elements are not what they were; those of a new storage all are."""
        return {at: _differs(now, before.tensors.get(at)) for at, now in self.tensors.items()}

    def arrays_changed(self, before: Held) -> int:
        """Elements of NumPy arrays that are not what they were."""
        pairs = zip(self.arrays, [*before.arrays, *[None] * len(self.arrays)], strict=False)
        return sum(int(_differs(now, was).sum()) for now, was in pairs)


def _differs(now: Tensor, before: Tensor | None) -> Tensor:
    if before is None or before.shape != now.shape or before.dtype != now.dtype:
        return torch.ones(now.shape, dtype=torch.bool, device=now.device)
    return (now != before) & ~((now != now) & (before != before))


def held_by(drafter: Drafter) -> Held:
    """Walk over a drafter, its class, and the variables of the modules its classes come from.

    Weights (`nn.Parameter`) and the target are left out.
    """
    found = Held({}, [], 0)
    seen: set[int] = set()
    waiting: list[Any] = [drafter, *_class_state(drafter)]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, _LEAVES):
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            if thing.layout is torch.strided and thing.device.type != "meta":
                found.tensors.setdefault(thing.untyped_storage().data_ptr(), _flat(thing))
            continue
        if isinstance(thing, np.ndarray):
            if thing.dtype.kind in "biuf":
                found.arrays.append(torch.from_numpy(np.ascontiguousarray(thing)).reshape(-1))
            continue
        found.entries += _entries(thing)
        waiting.extend(_parts(thing))
    return found


def _entries(thing: Any) -> int:
    if isinstance(thing, array | bytearray):
        return len(thing)
    if isinstance(thing, list | tuple | dict | set | frozenset) or type(thing).__module__ == "collections":
        try:
            return len(thing)
        except TypeError:
            return 0
    return 0


def _parts(thing: Any) -> Iterable[Any]:
    if isinstance(thing, FunctionType):  # not its globals: they are its whole module
        cells = [cell.cell_contents for cell in thing.__closure__ or () if _filled(cell)]
        return [*cells, thing.__defaults__, thing.__kwdefaults__, thing.__dict__]
    if isinstance(thing, MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, BuiltinFunctionType | torch.Generator):
        return ()
    return gc.get_referents(thing)


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _class_state(drafter: Drafter) -> Iterator[Any]:
    """Variables of a drafter's classes and of their modules, where state may stand as well."""
    for kind in type(drafter).__mro__:
        if kind is object or kind.__module__.startswith(_OWN_PACKAGES):
            continue
        yield from (value for name, value in vars(kind).items() if not name.startswith("__"))
        module = sys.modules.get(kind.__module__)
        for value in list(vars(module).values()) if module is not None else ():
            if isinstance(value, list | dict | set | Tensor | np.ndarray | array | bytearray) and not _is_namespace(
                value
            ):
                yield value


def _is_namespace(value: Any) -> bool:
    return isinstance(value, dict) and "__builtins__" in value
