"""Capture without a GPU: the tensor operations of a step are noted, and run again on the same memory.

As with a CUDA graph, nothing of the step's Python runs in a replay, and the host may neither read a value nor send one.
So what a graph would get wrong on a GPU is wrong here, too: state kept in Python, a shape or an address that moves, a
branch on a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agentbench_spec.errors import ContractError

R = TypeVar("R")

_READS = {"_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "_unique2"}
"""Operations whose result the host must know before it goes on."""
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
_OF_THE_HOST = "lift_fresh"
"""What `torch.tensor(numbers)` and an index that is a Python list begin with."""


class Operations(TorchDispatchMode):
    """Notes every operation that makes or changes values."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._noted: list[tuple[Any, tuple[Any, ...], dict[str, Any], dict[int, Tensor]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        name = func._schema.name.partition("::")[2]
        _refuse(name, args)
        with self:  # what is made of other operations would hide them
            out = func.decompose(*args, **options)
        if out is not NotImplemented:
            return out
        out = func(*args, **options)
        given = {_memory(each) for each in tree_leaves((args, options)) if isinstance(each, Tensor)}
        results = enumerate(tree_leaves(out))
        made = {i: each for i, each in results if isinstance(each, Tensor) and _memory(each) not in given}
        if made or func._schema.is_mutable:
            self._noted.append((func, args, options, made))
        return out

    def replay(self) -> None:
        """Run all of them again, results in the memory of the first time."""
        for func, args, options, made in self._noted:
            again = tree_leaves(func(*args, **options))
            for i, old in made.items():
                old.copy_(again[i])


def _refuse(name: str, args: tuple[Any, ...]) -> None:
    if name == _OF_THE_HOST:
        raise ContractError("a step that is captured may not make a tensor of the host's numbers, but does")
    by_mask = name in _INDEXING and any(
        isinstance(index, Tensor) and index.dtype == torch.bool for index in tree_leaves(args[1])
    )
    if name in _READS or by_mask:
        raise ContractError(f"a step that is captured may not read values back, but does ({name})")


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.numel() else id(tensor)


def recorded(step: Callable[[], R]) -> tuple[R, Callable[[], None]]:
    """Run a step and note it: its results, and what fills them anew. Raises ContractError if values cross."""
    with Operations() as operations:
        results = step()
    return results, operations.replay
