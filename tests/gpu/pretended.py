"""A CUDA device that is not there: tensors say `cuda`, the arithmetic runs on the CPU, and all traffic is logged.

    with PretendedDevice() as device:
        target = Target(device.moved(model), ...)

Inside, `device="cuda"` may be asked of any torch function. As on a GPU, a tensor of the host that meets one of the
device is an error, and a value comes to the host only by a read-back. Each kernel, view and crossing is an `Event`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA = torch.device("cuda", 0)

Kind = Literal["kernel", "view", "copy in", "read back"]

M = TypeVar("M", bound=nn.Module)


class Event(NamedTuple):
    """Something that the device did."""

    kind: Kind
    op: str
    shapes: tuple[tuple[int, ...], ...]
    """Of the tensors it was given."""
    waits: bool = False
    """The host waits for it, as for a read-back and for a copy from memory that is not pinned."""
    place: tuple[object, ...] = ()
    """Where in their memory these tensors begin, their strides, and the numbers that it was given besides."""


class DeviceMixed(RuntimeError):
    """A kernel was given tensors of the host and of the device."""


_VIEWS = {"view", "_unsafe_view", "_reshape_alias", "as_strided", "detach", "lift_fresh", "split", "split_with_sizes"}
_READ_VALUES = {"nonzero", "masked_select", "_unique2", "equal", "is_nonzero", "_local_scalar_dense"}
"""Kernels whose result has a shape or value that the host must know before it goes on."""
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
_ATTENTION = "scaled_dot_product_attention"
_ONE_KERNEL = {_ATTENTION, "rms_norm"}
"""Composite functions that a GPU runs as one kernel."""


class OnDevice(Tensor):
    """A tensor of the pretended device; the values are in a CPU tensor that it holds."""

    held: Tensor
    log: ClassVar[list[Event]] = []
    attention_layout: ClassVar[Callable[[Tensor], Tensor]] = staticmethod(lambda out: out)

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        with torch.inference_mode(False):  # a view of a normal tensor must itself be a normal one
            made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls,
                held.shape,
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                device="cpu",
                requires_grad=False,
            )
        made.held = held
        return made  # type: ignore[no-any-return]

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.held!r})"

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def tolist(self) -> Any:
        return self.read().tolist()

    def read(self) -> Tensor:
        """The values on the host, after waiting for them."""
        self.log.append(Event("read back", "copy", (tuple(self.shape),), waits=True))
        return self.held.clone()

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(func, args, dict(kwargs or {}))


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = func._schema.name.partition("::")[2]
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    if composite and name not in _ONE_KERNEL:
        return func.decompose(*args, **kwargs)
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    shapes = tuple(tuple(each.shape) for each in given)
    _check_devices(name, given, shapes, non_blocking=any(flag is True for flag in (*args[2:], *kwargs.values())))
    OnDevice.log.append(_event(func, name, args, kwargs, shapes))
    out = func(*tree_map(_held, args), **tree_map(_held, kwargs))
    if name == "_local_scalar_dense":
        return out
    if name == _ATTENTION:
        out = OnDevice.attention_layout(out)
    owners = {id(each.held): each for each in given if isinstance(each, OnDevice)}  # what was changed in place

    def there(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return owners[id(x)] if id(x) in owners else OnDevice(x)

    return tree_map(there, out)


def _held(x: Any) -> Any:
    return x.held if isinstance(x, OnDevice) else x


def _check_devices(name: str, given: list[Tensor], shapes: tuple[tuple[int, ...], ...], *, non_blocking: bool) -> None:
    strangers = [each for each in given if not isinstance(each, OnDevice) and each.ndim]
    if not strangers:
        return  # a single number may come from the host
    if name in {"copy_", *_INDEXING} and isinstance(given[0], OnDevice):  # torch copies these by itself
        free = name == "copy_" and non_blocking and getattr(strangers[0], "pinned", False)
        OnDevice.log.append(Event("copy in", name, shapes, waits=not free))
        return
    raise DeviceMixed(f"{name}: a tensor of the host {[tuple(each.shape) for each in strangers]} among {shapes}")


def _event(
    func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], shapes: tuple[tuple[int, ...], ...]
) -> Event:
    by_mask = name in _INDEXING and any(
        isinstance(index, Tensor) and index.dtype == torch.bool for index in tree_leaves(args[1])
    )
    if name in _READ_VALUES or by_mask:
        return Event("read back", name, shapes, waits=True)
    alias = any(back.alias_info is not None and not back.alias_info.is_write for back in func._schema.returns)
    place = tuple(map(_fixed, tree_leaves((args, dict(kwargs)))))
    return Event("view" if alias or name in _VIEWS else "kernel", name, shapes, place=place)


def _fixed(given: Any) -> object:
    """What a graph would keep of an argument: where a tensor lies, and any number; not what a tensor holds."""
    if isinstance(given, OnDevice):
        return given.held.storage_offset(), given.held.stride()
    return tuple(given.shape) if isinstance(given, Tensor) and given.ndim else repr(given)


class PretendedDevice(TorchFunctionMode):
    """Where `device="cuda"` works; `log` holds what was done since `clear`."""

    def __init__(self, attention_layout: Callable[[Tensor], Tensor] | None = None) -> None:
        """attention_layout: how the attention kernel lays its result out in memory, same values."""
        super().__init__()
        self.log: list[Event] = []
        self._layout = attention_layout or (lambda out: out)

    def __enter__(self) -> PretendedDevice:
        OnDevice.log, OnDevice.attention_layout = self.log, staticmethod(self._layout)  # type: ignore[assignment]
        super().__enter__()
        return self

    def moved(self, model: M) -> M:
        """The model with its parameters and buffers on the device."""
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = nn.Parameter(OnDevice(parameter.detach()), requires_grad=False)
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = OnDevice(buffer)
        return model

    def events(self, kind: Kind) -> list[Event]:
        """Those of one kind."""
        return [event for event in self.log if event.kind == kind]

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func is Tensor.cpu:
            return _to_host(args[0])
        if func is Tensor.to:
            return self._to(*args, **options)
        if func in (torch.tensor, torch.as_tensor):
            return self._from_numbers(func, *args, **options)
        if options.get("device") is not None and torch.device(options["device"]).type == "cuda":
            made = func(*tree_map(_held, args), **{**options, "device": "cpu"})
            self.log.append(Event("kernel", func.__name__, ()))
            return OnDevice(made)
        return func(*args, **options)

    def _from_numbers(
        self, func: Any, data: Any, *, pin_memory: bool = False, device: Any = None, **options: Any
    ) -> Any:
        if isinstance(data, OnDevice):
            return data
        made = func(data, **options)
        made.pinned = pin_memory
        return made if device is None else self._to(made, device)

    def _to(self, tensor: Tensor, *args: Any, non_blocking: bool = False, **options: Any) -> Any:
        places = [
            each for each in (*args, options.pop("device", None)) if isinstance(each, str | torch.device | Tensor)
        ]
        rest = [each for each in args if not isinstance(each, str | torch.device | Tensor)]
        rest += [each.dtype for each in places if isinstance(each, Tensor)]
        for place in places:
            device = place.device if isinstance(place, Tensor) else torch.device(place)
            if device.type == "cpu":
                tensor = _to_host(tensor)
            elif not isinstance(tensor, OnDevice):
                free = non_blocking and getattr(tensor, "pinned", False)
                self.log.append(Event("copy in", "copy", (tuple(tensor.shape),), waits=not free))
                tensor = OnDevice(tensor.clone())
        return tensor.to(*rest, **options) if rest or options else tensor


def _to_host(tensor: Tensor) -> Tensor:
    return tensor.read() if isinstance(tensor, OnDevice) else tensor
