"""The tree op of the n-gram worker; see the package's docstring: timings are void."""

from __future__ import annotations

import torch
from torch import Tensor


def reconstruct_indices_from_tree_mask(
    mask: Tensor,
    lengths: Tensor,
    positions: Tensor,
    index: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
    batch_size: int,
    nodes: int,
) -> None:
    """Links and positions of a tree of which only the ancestors of each node are known, as rows of `mask`."""
    ancestors = mask.view(batch_size, nodes, nodes).bool().tril(-1)
    for b in range(batch_size):
        above = [max(ancestors[b, node].nonzero().flatten().tolist(), default=-1) for node in range(nodes)]
        positions.view(batch_size, nodes)[b] = ancestors[b].sum(-1) + lengths[b]
        index.view(batch_size, nodes)[b] = torch.arange(b * nodes, (b + 1) * nodes)
        for node in range(nodes):
            children = [i for i in range(node + 1, nodes) if ancestors[b, i, node]]
            siblings = [i for i in range(node + 1, nodes) if above[i] == above[node] >= 0]
            next_token.view(batch_size, nodes)[b, node] = min(children, default=-1)
            next_sibling.view(batch_size, nodes)[b, node] = min(siblings, default=-1)
