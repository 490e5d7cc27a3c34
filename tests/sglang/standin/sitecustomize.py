"""Declares the two ops without which the CUDA build of torchvision cannot be imported beside a CPU torch."""

from __future__ import annotations

try:
    import torch

    if torch.version.cuda is None:
        _LIBRARY = torch.library.Library("torchvision", "DEF")
        for _name in ("nms", "qnms"):
            _LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
except ImportError:
    pass
