"""What a call does: how much it computes, and which elements of a drafter's tensors it reads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_UNCOUNTED = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
"""Python code that is not the drafter's own."""


@dataclass(slots=True)
class Effort:
    """Work of one call."""

    operations: int = 0
    """Tensor operations that are no mere views."""
    elements: int = 0
    """Tensor elements they read and wrote."""
    steps: int = 0
    """Steps (bytecodes) of Python outside torch."""

    def __str__(self) -> str:
        return f"{self.operations} tensor operations on {self.elements} elements and {self.steps} steps of Python"


@contextmanager
def effort() -> Iterator[Effort]:
    """Count the work done inside."""
    done = Effort()
    before = sys.gettrace()
    with _Counting(done):
        sys.settrace(_tracer(done))
        try:
            yield done
        finally:
            sys.settrace(before)


def _tracer(done: Effort) -> Callable[..., Any]:
    def local(frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "opcode":
            done.steps += 1
        return local

    def on_call(frame: FrameType, _event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename.startswith(_UNCOUNTED):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return local

    return on_call


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _is_view(func: Any) -> bool:
    returns = [each.alias_info for each in func._schema.returns]
    return bool(returns) and all(info is not None and not info.is_write for info in returns)


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations and the elements they touch."""

    def __init__(self, done: Effort) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._done = done

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not _is_view(func):
            self._done.operations += 1
            self._done.elements += sum(each.numel() for each in _tensors((args, kwargs, out)))
        return out


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Marks which elements of some storages are read."""

    def __init__(self, sizes: Mapping[int, Tensor]) -> None:
        """sizes: address of a storage -> all of it, flat."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.read = {at: torch.zeros(flat.shape, dtype=torch.bool, device=flat.device) for at, flat in sizes.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if not _is_view(func):
            written = _written(func, args, given)
            picked = _picked(func, args)
            for tensor in _tensors((args, given)):
                if not any(tensor is other for other in written):
                    self._mark(tensor, picked if args and tensor is args[0] else None)
        return func(*args, **given)

    def _mark(self, tensor: Tensor, picked: Callable[[Tensor], Any] | None) -> None:
        mask = self.read.get(tensor.untyped_storage().data_ptr()) if tensor.numel() else None
        if mask is None:
            return
        size = [1 if stride == 0 else n for n, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        if picked is not None and size == [*tensor.shape]:
            picked(mask.as_strided(size, tensor.stride(), tensor.storage_offset()))
            return
        mask.as_strided(size, tensor.stride(), tensor.storage_offset()).fill_(True)


_OVERWRITING = ("copy_", "fill_", "zero_", "index_put_", "_index_put_impl_", "index_copy_", "index_fill_", "scatter_")


def _written(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> list[Tensor]:
    """Arguments that are overwritten without being read."""
    outs = [value for name, value in given.items() if name.startswith("out")]
    overwrites = func._schema.name.split("::")[-1] in _OVERWRITING
    return [*_tensors(args[:1] if overwrites else ()), *_tensors(outs)]


def _picked(func: Any, args: Sequence[Any]) -> Callable[[Tensor], Any] | None:
    """How to mark what a look-up reads of its first argument; None: all of it."""
    name = func._schema.name.split("::")[-1]
    if name in ("index", "_unsafe_index"):
        at = tuple(slice(None) if index is None else index for index in args[1])
        return lambda mask: mask.__setitem__(at, True)
    if name == "index_select":
        return lambda mask: mask.index_fill_(args[1], args[2], True)
    if name == "gather":
        return lambda mask: mask.scatter_(args[1], args[2], True)
    if name == "embedding":
        return lambda mask: mask.__setitem__(args[1], True)
    return None
