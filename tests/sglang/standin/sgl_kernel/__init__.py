"""Our own stand-in for SGLang's CPU kernel package, which PyPI does not have: plain torch, written from the call sites.

It lets the real server of SGLang 0.5.23 run on a CPU without AMX, for functional tests. **Timings are void**: nothing
here is fast, and no speed seen with it says anything about an algorithm or about SGLang.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch
from torch import Tensor


def assign_req_to_token_pool_cpu(
    rows: Tensor, table: Tensor, start: Tensor, end: Tensor, slots: Tensor, width: int
) -> None:
    """Write packed `slots` into each request's row of `table`, columns start..end."""
    for row, first, last, packed in _packed(rows, start, end):
        table[row, first:last] = slots[packed].to(table.dtype)


def assign_extend_cache_locs_cpu(
    rows: Tensor, table: Tensor, start: Tensor, end: Tensor, slots: Tensor, width: int
) -> None:
    """The way back: pack columns start..end of each request's row into `slots`."""
    for row, first, last, packed in _packed(rows, start, end):
        slots[packed] = table[row, first:last].to(slots.dtype)


def _packed(rows: Tensor, start: Tensor, end: Tensor) -> Iterator[tuple[int, int, int, slice]]:
    done = 0
    for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        yield row, first, last, slice(done, done + last - first)
        done += last - first


def assign_draft_cache_locs_contiguous_cpu(
    rows: Tensor, table: Tensor, lengths: Tensor, slots: Tensor, width: int, topk: int, steps: int
) -> None:
    """Each request's topk * steps slots that follow its text."""
    count = topk * steps
    out = slots.view(-1)
    for i, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        out[i * count : (i + 1) * count] = table[row, length : length + count].to(out.dtype)


def build_draft_decode_metadata_cpu(
    table: Tensor, rows: Tensor, lengths: Tensor, topk: int, steps: int, width: int
) -> Tensor:
    """One row of slots per draft candidate: the request's text, then the candidate's own `steps` slots."""
    out = torch.zeros((len(rows) * topk, table.shape[1]), dtype=table.dtype)
    for i, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        for candidate in range(topk):
            own = table[row, length + candidate * steps : length + (candidate + 1) * steps]
            out[i * topk + candidate, :length] = table[row, :length]
            out[i * topk + candidate, length : length + steps] = own
    return out


def fill_bonus_tokens_cpu(accepted: Tensor, accepted_lengths: Tensor, bonus: Tensor, stride: int) -> None:
    """The last accepted token of each request; lengths have the bonus token in them."""
    at = torch.arange(len(accepted_lengths)) * stride + accepted_lengths.long() - 1
    bonus.copy_(accepted.view(-1)[at].to(bonus.dtype))


def fill_accept_out_cache_loc_cpu(accepted: Tensor, slots: Tensor, out: Tensor) -> None:
    """Slots of the accepted nodes, packed."""
    kept = accepted.view(-1)
    kept = kept[kept >= 0].long()
    out[: len(kept)] = slots[kept].to(out.dtype)


def copy_all_layer_kv_cache_cpu(pointers: Tensor, strides: Tensor, targets: Tensor, sources: Tensor) -> None:
    """Move KV rows, by address, in every layer's buffer; all are read before any is written."""
    for base, stride in zip(pointers.tolist(), strides.tolist(), strict=True):
        read = [ctypes.string_at(base + row * stride, stride) for row in sources.tolist()]
        for row, data in zip(targets.tolist(), read, strict=True):
            ctypes.memmove(base + row * stride, data, stride)


def rotate_input_ids_cpu(ids: Tensor, start: Tensor, lengths: Tensor, following: Tensor, select: Tensor | None) -> None:
    """Shift each request's ids left by one and put its next token last, or where `select` says."""
    for i, (first, length) in enumerate(zip(start.tolist(), lengths.tolist(), strict=True)):
        if length:
            ids[first : first + length - 1] = ids[first + 1 : first + length].clone()
            ids[first + length - 1 if select is None else int(select[i])] = following.view(-1)[i]


def build_tree_kernel_efficient_cpu(
    parents: Tensor,
    selected: Tensor,
    lengths: Tensor,
    mask: Tensor,
    positions: Tensor,
    index: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
    topk: int,
    depth: int,
    nodes: int,
    mask_mode: int,
) -> None:
    """Links, positions and visibility of the chosen draft nodes. Mask mode 0: text and nodes, else nodes."""
    offset = 0
    for b, length in enumerate(lengths.tolist()):
        chosen = selected[b].tolist()
        above = [_parent(chosen, parents[b].tolist(), i, topk) for i in range(1, nodes)]
        index.view(-1)[b * nodes : (b + 1) * nodes] = torch.arange(b * nodes, (b + 1) * nodes)
        for i in range(nodes - 1, 0, -1):
            if above[i - 1] is not None:
                _link(next_token[b], next_sibling[b], above[i - 1], i)
        seen, depths = _visible(above, nodes)
        positions.view(-1)[b * nodes : (b + 1) * nodes] = torch.tensor(depths) + length
        width = nodes if mask_mode else length + nodes
        block = mask.view(-1)[offset : offset + nodes * width].view(nodes, width)
        if not mask_mode:
            block[:, :length] = True
        block[:, width - nodes :] = seen.to(mask.dtype)
        offset += nodes * width


def _parent(chosen: list[int], parents: list[int], node: int, topk: int) -> int | None:
    """The node above `node`; 0 is the root."""
    group = chosen[node - 1] // topk
    if group == 0:
        return 0
    return chosen.index(parents[group]) + 1 if parents[group] in chosen else None


def _link(next_token: Tensor, next_sibling: Tensor, parent: int | None, node: int) -> None:
    first = int(next_token[parent])
    next_token[parent] = node
    if first != -1:
        next_sibling[node] = first


def _visible(above: list[int | None], nodes: int) -> tuple[Tensor, list[int]]:
    seen = torch.eye(nodes, dtype=torch.bool)
    depths = [0] * nodes
    for node in range(1, nodes):
        parent = above[node - 1]
        seen[node] |= seen[parent or 0]
        depths[node] = depths[parent or 0] + 1
    return seen, depths


def verify_tree_greedy_cpu(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each tree from its root to the child that says what the target says, as far as there is one."""
    wanted = target_predict.reshape(-1)
    for b in range(len(candidates)):
        last, node, accepted = int(retrive_index[b, 0]), 0, 0
        accept_index[b, 0] = last
        while accepted + 1 < accept_index.shape[1]:
            node = int(retrive_next_token[b, node])
            while node != -1 and int(candidates[b, node]) != int(wanted[last]):
                node = int(retrive_next_sibling[b, node])
            if node == -1:
                break
            predicts[last] = wanted[last]
            accepted, last = accepted + 1, int(retrive_index[b, node])
            accept_index[b, accepted] = last
        accept_token_num[b] = accepted
        predicts[last] = wanted[last]


def _attend(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None, scale: float) -> Tensor:
    """query [n, heads, d], keys and values [m, kv_heads, d], visible [n, m] bool -> [n, heads, d]"""
    groups = query.shape[1] // keys.shape[1]
    split = query.float().view(query.shape[0], keys.shape[1], groups, -1)
    scores = torch.einsum("nkgd,mkd->kgnm", split, keys.float()) * scale
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    mixed = torch.einsum("kgnm,mkd->nkgd", scores.softmax(-1), values.float())
    return mixed.reshape(query.shape[0], query.shape[1], -1)


def _decode_attention(
    query: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    key_scale: float,
    value_scale: float,
    out: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    slots: Tensor,
    logits: Tensor,
    table: Tensor,
    rows: Tensor,
    lengths: Tensor,
    scale: float,
    *_: object,
) -> None:
    if key is not None and value is not None:
        key_pool[slots] = key.view(-1, *key_pool.shape[1:]).to(key_pool.dtype)
        value_pool[slots] = value.view(-1, *value_pool.shape[1:]).to(value_pool.dtype)
    for i, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        at = table[row, :length].long()
        out[i : i + 1] = _attend(query[i : i + 1], key_pool[at], value_pool[at], None, scale).to(out.dtype)


def _extend_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    out: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    key_scale: float,
    value_scale: float,
    table: Tensor,
    rows: Tensor,
    lengths: Tensor,
    new_lengths: Tensor,
    starts: Tensor,
    longest: int,
    scale: float,
    cap: float,
    cross: bool,
    window: int,
    encoder_lengths: Tensor | None,
    sinks: Tensor | None,
    tree: Tensor | None,
    causal: bool,
) -> None:
    offset = 0
    each = zip(rows.tolist(), lengths.tolist(), new_lengths.tolist(), starts.tolist(), strict=True)
    whole = tree is not None and tree.numel() == int((lengths * new_lengths).sum())
    for row, length, new, start in each:
        visible = torch.ones(new, length, dtype=torch.bool)
        if tree is not None:
            width = length if whole else new
            visible[:, length - width :] = tree[offset : offset + new * width].view(new, width).bool()
            offset += new * width
        elif causal:
            visible = visible.tril(length - new)
        at = table[row, :length].long()
        part = slice(start, start + new)
        out[part] = _attend(query[part], key_pool[at], value_pool[at], visible, scale).to(out.dtype)


torch.ops.sgl_kernel.decode_attention_cpu = _decode_attention
torch.ops.sgl_kernel.extend_attention_cpu = _extend_attention
