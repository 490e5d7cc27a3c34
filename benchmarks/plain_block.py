"""Straightforward one-sequence DFlash, DSpark and DLite, as one would write them from the papers: for comparison only.

Context and block go through the same projections in one fused call, key and value caches grow by concatenation and are
cropped after the block, key heads are expanded. No rows, no static buffers. Weights are read by checkpoint name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass
class Plain:
    """Weights and sizes of a draft; subclasses keep the state of one sequence."""

    weights: Mapping[str, Tensor]
    config: Mapping[str, Any]
    embedding: Tensor
    """[V, H]."""
    head: Tensor | None = None
    """[V, H]; None for DLite."""

    def norm(self, x: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return self.weights[f"{name}.weight"] * (x.float() * scale).to(x.dtype)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [heads, n, d] at positions [n]."""
        d = self.config["head_dim"]
        frequency = self.config["rope_theta"] ** (-torch.arange(0, d, 2).float() / d)
        angle = torch.outer(positions.float(), frequency).repeat(1, 2)
        first, second = x.chunk(2, -1)
        return x * angle.cos() + torch.cat((-second, first), -1) * angle.sin()

    def heads(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1, self.config["head_dim"]).transpose(0, 1)

    def project(self, context: Tensor, x: Tensor, layer: str, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x [n, H]; keys and values of context [c, H] and x together."""
        joined = torch.cat((context, x))
        queries = self.norm(self.heads(self.linear(x, f"{layer}.self_attn.q_proj")), f"{layer}.self_attn.q_norm")
        keys = self.norm(self.heads(self.linear(joined, f"{layer}.self_attn.k_proj")), f"{layer}.self_attn.k_norm")
        values = self.heads(self.linear(joined, f"{layer}.self_attn.v_proj"))
        return self.rotate(queries, positions[-len(x) :]), self.rotate(keys, positions), values

    def finish(self, x: Tensor, queries: Tensor, keys: Tensor, values: Tensor, layer: str) -> Tensor:
        groups = self.config["num_attention_heads"] // self.config["num_key_value_heads"]
        keys, values = keys.repeat_interleave(groups, 0), values.repeat_interleave(groups, 0)
        mixed = F.scaled_dot_product_attention(queries[None], keys[None], values[None])[0]
        x = x + self.linear(mixed.transpose(0, 1).reshape(len(x), -1), f"{layer}.self_attn.o_proj")
        normed = self.norm(x, f"{layer}.post_attention_layernorm")
        inner = F.silu(self.linear(normed, f"{layer}.mlp.gate_proj")) * self.linear(normed, f"{layer}.mlp.up_proj")
        return x + self.linear(inner, f"{layer}.mlp.down_proj")

    def masked(self, real: Tensor, masks: int, mask_id: int) -> Tensor:
        return F.embedding(torch.cat((real, torch.full((masks,), mask_id))), self.embedding)


class PlainBlock(Plain):
    """DFlash (both families) and DSpark with a vanilla Markov head."""

    def start(self) -> None:
        self.cache: list[tuple[Tensor, Tensor] | None] = [None] * self.config["num_hidden_layers"]
        self.length = 0

    def draft(self, pending: Tensor, anchor: Tensor) -> Tensor:
        """pending [c, S * H] raw target states not yet in the cache, anchor [1] -> tokens [K]."""
        context = self.norm(self.linear(pending, "fc"), "hidden_norm")
        block = self.config["block_size"]
        end = self.length + len(pending)
        positions = torch.arange(self.length, end + block)
        x = self.masked(anchor, block - 1, self.config["mask_token_id"])
        for index in range(self.config["num_hidden_layers"]):
            layer = f"layers.{index}"
            queries, keys, values = self.project(context, self.norm(x, f"{layer}.input_layernorm"), layer, positions)
            before = self.cache[index]
            if before is not None:
                keys, values = torch.cat((before[0], keys), 1), torch.cat((before[1], values), 1)
            self.cache[index] = keys[:, :end], values[:, :end]
            x = self.finish(x, queries, keys, values, layer)
        self.length = end
        return self.read(self.norm(x, "norm"), anchor)

    def read(self, states: Tensor, anchor: Tensor) -> Tensor:
        assert self.head is not None
        if self.config["own_slot"]:
            return F.linear(states[1:], self.head).argmax(-1)
        if "markov_head.markov_w1.weight" not in self.weights:
            return F.linear(states, self.head).argmax(-1)
        token, tokens = anchor, []
        for logits in F.linear(states, self.head):
            bias = self.linear(
                F.embedding(token, self.weights["markov_head.markov_w1.weight"]), "markov_head.markov_w2"
            )
            token = (logits + bias).argmax(-1)
            tokens.append(token)
        return torch.cat(tokens)


class PlainDLite(Plain):
    """DLite with one real token in the query."""

    def draft(self, pivot: Tensor, anchor: Tensor) -> Tensor:
        """pivot [S, H] target states of the position before the anchor [1] -> tokens [K]."""
        k = self.config["block_size"] - 1
        depth = self.weights["layer_depth_embedding.weight"][self.config["target_layer_ids"]]
        context = self.norm(pivot + depth, "context_norm")
        positions = torch.cat((torch.zeros(len(pivot), dtype=torch.int64), torch.arange(k + 1)))
        x = self.masked(anchor, k, self.config["mask_token_id"])
        for index in range(self.config["num_hidden_layers"]):
            layer = f"layers.{index}"
            queries, keys, values = self.project(context, self.norm(x, f"{layer}.input_layernorm"), layer, positions)
            x = self.finish(x, queries, keys, values, layer)
        return self.read(self.norm(x, "norm")[-k:], anchor)

    def read(self, states: Tensor, anchor: Tensor) -> Tensor:
        state = torch.zeros(1, self.config["sequential_rank"])
        token, tokens = anchor, []
        for hidden in states:
            embedded = F.embedding(token, self.weights["sequential_head.prev_token_embedding.weight"])
            gate, candidate = self.linear(torch.cat((state, embedded), -1), "sequential_head.state_proj").chunk(2, -1)
            state = gate.sigmoid() * state + (1 - gate.sigmoid()) * candidate.tanh()
            latent = self.linear(torch.cat((state, hidden[None]), -1), "sequential_head.state_hidden_mlp")
            token = self.linear(latent, "sequential_head.output_proj").argmax(-1)
            tokens.append(token)
        return torch.cat(tokens)
