"""Multi-head attention (Vaswani et al., 2017), as torch's."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from psframework import backend
from psframework.autograd import Tensor
from psframework.autograd.ops.attention import attention_with_weights, scaled_dot_product_attention
from psframework.autograd.ops.join import split, unbind
from psframework.autograd.ops.matmul import linear
from psframework.autograd.ops.shape import reshape, transpose, unsqueeze
from psframework.autograd.record import as_tensor
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import init
from psframework.nn.layers.linear import Linear
from psframework.nn.making import empty
from psframework.nn.module import Module
from psframework.nn.parameter import Parameter
from psframework.nn.random import generator

Operand: TypeAlias = Tensor | Array
Mask: TypeAlias = Tensor | Array | None


class MultiheadAttention(Module):
    """Several attentions side by side, each over its own projections of the same inputs.

    Args:
        embed_dim: features of the query and of the result, a multiple of `num_heads`.
        num_heads: how many.
        dropout: probability with which an attention weight is dropped in training.
        bias: whether the projections have biases.
        kdim: features of the key; `embed_dim` if None.
        vdim: features of the value; `embed_dim` if None.
        batch_first: inputs and the result are (batch, time, features) instead of (time, batch, features).
        dtype: of the parameters; float32 if None.

    Attributes:
        in_proj_weight: (3 * embed_dim, embed_dim), for query, key and value; Xavier-uniform, as torch's. With
            `kdim` or `vdim`: q_proj_weight, k_proj_weight and v_proj_weight (embed_dim, features).
        in_proj_bias: (3 * embed_dim,), zeros; or None.
        out_proj: a Linear from embed_dim to embed_dim.
    """

    in_proj_weight: Parameter
    in_proj_bias: Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        dtype: Any = None,
    ):
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ArgumentError(
                f"MultiheadAttention: embed_dim={embed_dim} must be a multiple of num_heads={num_heads}"
            )
        if not 0 <= dropout < 1:
            raise ArgumentError(f"MultiheadAttention: dropout must lie in [0, 1), not {dropout}")
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.batch_first = batch_first
        self._packed = self.kdim == self.vdim == embed_dim
        if self._packed:
            self.in_proj_weight = Parameter(empty((3 * embed_dim, embed_dim), dtype))
        else:
            self.q_proj_weight = Parameter(empty((embed_dim, embed_dim), dtype))
            self.k_proj_weight = Parameter(empty((embed_dim, self.kdim), dtype))
            self.v_proj_weight = Parameter(empty((embed_dim, self.vdim), dtype))
        self.register_parameter("in_proj_bias", Parameter(empty(3 * embed_dim, dtype)) if bias else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new initial values."""
        for name, parameter in self.named_parameters(recurse=False):
            if name == "in_proj_bias":
                init.zeros_(parameter)
            else:
                init.xavier_uniform_(parameter)
        self.out_proj.reset_parameters()
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Operand,
        key: Operand,
        value: Operand,
        key_padding_mask: Mask = None,
        need_weights: bool = True,
        attn_mask: Mask = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Applies the layer.

        Args:
            query: (queries, batch, embed_dim), with batch first if `batch_first`; or without batch.
            key: (keys, batch, kdim), likewise.
            value: (keys, batch, vdim), likewise.
            key_padding_mask: (batch, keys), of booleans, True where a key must be ignored; or of floats,
                added to the scores.
            need_weights: whether to answer the weights.
            attn_mask: (queries, keys) or (batch * num_heads, queries, keys), of booleans, True where a query
                must not look (the opposite of `F.scaled_dot_product_attention`, as in torch); or of floats.
            average_attn_weights: the mean of the weights over all heads, instead of each head's.
            is_causal: a query looks at keys up to its own place only; `attn_mask` need not say so.

        Returns:
            The result, shaped as `query`; and the weights (batch, queries, keys), with an axis of heads after
            the batch unless averaged, or None. A query that may look nowhere gets zeros before `out_proj`.
        """
        single = as_tensor(query, "MultiheadAttention").ndim == 2
        if single:
            place = 0 if self.batch_first else 1
            batched = {id(x): unsqueeze(x, place) for x in (query, key, value)}  # one stays one
            query, key, value = [batched[id(x)] for x in (query, key, value)]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        self._check(query, key, value)
        self._check_masks(attn_mask, key_padding_mask, query, key)
        q, k, v = self._project(query, key, value)
        mask = self._mask(attn_mask, key_padding_mask, q.shape[0])
        drop = self.dropout if self.training else 0.0
        how: dict[str, Any] = {"dropout_p": drop, "is_causal": is_causal, "rng": generator(query)}
        weights = None
        if need_weights:
            heads, weights = attention_with_weights(q, k, v, mask, **how)
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            heads = scaled_dot_product_attention(q, k, v, mask, **how)
        heads = transpose(heads, (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3))
        out = self.out_proj(reshape(heads, query.shape))
        if single:
            return out.squeeze(place), None if weights is None else weights[0]
        return out, weights

    def _check(self, query: Operand, key: Operand, value: Operand) -> None:
        widths = {"query": self.embed_dim, "key": self.kdim, "value": self.vdim}
        for (name, width), x in zip(widths.items(), (query, key, value)):
            if as_tensor(x, "MultiheadAttention").ndim != 3 or x.shape[-1] != width:
                order = "batch, time" if self.batch_first else "time, batch"
                raise ArgumentError(
                    f"MultiheadAttention: {name} must be ({order}, {width}), or that without batch, "
                    f"not {x.shape}"
                )
        time, batch = (1, 0) if self.batch_first else (0, 1)
        if key.shape[:2] != value.shape[:2] or query.shape[batch] != key.shape[batch]:
            raise ArgumentError(
                f"MultiheadAttention: query {query.shape}, key {key.shape} and value {value.shape} need one "
                f"batch (axis {batch}), key and value one time (axis {time})"
            )

    def _check_masks(self, attn_mask: Mask, key_padding_mask: Mask, query: Operand, key: Operand) -> None:
        """A mask that broadcasts is nearly always a mistake."""
        time, batch = (1, 0) if self.batch_first else (0, 1)
        count, scores = query.shape[batch], (query.shape[time], key.shape[time])
        for name, mask, shapes in (
            ("attn_mask", attn_mask, [scores, (count * self.num_heads, *scores)]),
            ("key_padding_mask", key_padding_mask, [(count, scores[1])]),
        ):
            if mask is not None and mask.shape not in shapes:
                wanted = " or ".join(map(str, shapes))
                raise ArgumentError(f"MultiheadAttention: {name} must have shape {wanted}, not {mask.shape}")

    def _project(self, query: Operand, key: Operand, value: Operand) -> tuple[Tensor, ...]:
        """Query, key and value as (batch, heads, time, embed_dim / heads)."""
        heads, width = self.num_heads, self.embed_dim // self.num_heads
        bias = self.in_proj_bias
        if self._packed and query is key is value:
            all_three = linear(query, self.in_proj_weight, bias)
            all_three = reshape(all_three, (*query.shape[:2], 3, heads, width))
            return unbind(transpose(all_three, (2, 0, 3, 1, 4) if self.batch_first else (2, 1, 3, 0, 4)))
        if self._packed:
            weights: tuple[Tensor, ...] = split(self.in_proj_weight, 3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None, None, None) if bias is None else split(bias, 3)
        axes = (0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3)
        return tuple(
            [
                transpose(reshape(linear(x, weight, b), (*x.shape[:2], heads, width)), axes)
                for x, weight, b in zip((query, key, value), weights, biases)
            ]
        )

    def _mask(self, attn_mask: Mask, key_padding_mask: Mask, batch: int) -> Mask:
        """One mask, as `scaled_dot_product_attention` has it, for scores (batch, heads, queries, keys)."""
        masks: list[Operand] = []
        if attn_mask is not None:
            if attn_mask.ndim == 3:
                attn_mask = reshape(attn_mask, (batch, self.num_heads, *attn_mask.shape[1:]))
            masks.append(attn_mask)
        if key_padding_mask is not None:
            masks.append(key_padding_mask[:, None, None])
        if not masks:
            return None
        if all(mask.dtype == bool for mask in masks):
            hidden = [mask._data if isinstance(mask, Tensor) else mask for mask in masks]
            return ~hidden[0] if len(hidden) == 1 else ~(hidden[0] | hidden[1])
        floats = [_as_summand(mask) for mask in masks]
        return floats[0] if len(floats) == 1 else floats[0] + floats[1]

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        text = f"{self.embed_dim}, {self.num_heads}"
        text += f", dropout={self.dropout}" if self.dropout else ""
        text += "" if self._packed else f", kdim={self.kdim}, vdim={self.vdim}"
        return text + (", batch_first=True" if self.batch_first else "")


MultiHeadAttention = MultiheadAttention


def _as_summand(mask: Operand) -> Operand:
    if mask.dtype != bool:
        return mask
    hidden = mask._data if isinstance(mask, Tensor) else mask
    return backend.xp(hidden).where(hidden, np.float32(-np.inf), np.float32(0))  # type: ignore[no-any-return]
