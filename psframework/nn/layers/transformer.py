"""Transformer layers (Vaswani et al., 2017), as torch's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeAlias

from psframework.autograd import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import functional as F
from psframework.nn import making
from psframework.nn.layers.attention import Mask, MultiheadAttention
from psframework.nn.layers.container import ModuleList
from psframework.nn.layers.dropout import Dropout
from psframework.nn.layers.layer_norm import LayerNorm
from psframework.nn.layers.linear import Linear
from psframework.nn.module import Module

Operand: TypeAlias = Tensor | Array
Activation: TypeAlias = str | Callable[[Tensor], Tensor]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


class _Layer(Module):
    """What encoder and decoder layers share: the feed-forward part, and where a part is normalized."""

    self_attn: MultiheadAttention
    linear1: Linear
    linear2: Linear
    dropout: Dropout
    norm1: LayerNorm
    norm2: LayerNorm
    dropout1: Dropout
    dropout2: Dropout
    norm_first: bool

    def _set_activation(self, activation: Activation) -> None:
        if isinstance(activation, str) and activation not in _ACTIVATIONS:
            raise ArgumentError(
                f"{type(self).__name__}: activation must be 'relu', 'gelu' or a function, not {activation!r}"
            )
        self.activation = _ACTIVATIONS[activation] if isinstance(activation, str) else activation

    def _add(self, x: Tensor, part: Callable[[Tensor], Tensor], norm: LayerNorm, dropout: Dropout) -> Tensor:
        """`x` plus a part of it, normalized before the part (`norm_first`) or after the sum."""
        total: Tensor = x + dropout(part(norm(x) if self.norm_first else x))
        result: Tensor = total if self.norm_first else norm(total)
        return result

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))  # type: ignore[no-any-return]


class TransformerEncoderLayer(_Layer):
    """Self-attention, then a network for each place; each is added to its input and normalized.

    Args:
        d_model: features, a multiple of `nhead`.
        nhead: attention heads.
        dim_feedforward: hidden features of the network.
        dropout: probability, of attention weights, hidden features, and both parts' results.
        activation: of the network: "relu", "gelu" or a function of a Tensor.
        layer_norm_eps: added to variances.
        batch_first: (batch, time, d_model) instead of (time, batch, d_model).
        norm_first: normalize before each part instead of after the sum.
        bias: whether projections, network and norms have biases.
        dtype: of the parameters; float32 if None.

    Attributes:
        self_attn, linear1, linear2, norm1, norm2: the parts, named and shaped as torch's.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: Any = None,
    ):
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first, dtype=dtype
        )
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype=dtype)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self._set_activation(activation)

    def forward(
        self,
        src: Operand,
        src_mask: Mask = None,
        src_key_padding_mask: Mask = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Applies the layer; masks as in `MultiheadAttention.forward`.

        Args:
            src: (time, batch, d_model), with batch first if `batch_first`; or without batch.
            src_mask: (time, time), which places a place must not look at.
            src_key_padding_mask: (batch, time), True for padding.
            is_causal: a place looks at those up to its own only.
        """

        def attend(x: Tensor) -> Tensor:
            out: Tensor = self.self_attn(x, x, x, src_key_padding_mask, False, src_mask, is_causal=is_causal)[
                0
            ]
            return out

        x = self._add(src, attend, self.norm1, self.dropout1)  # type: ignore[arg-type]
        return self._add(x, self._feed_forward, self.norm2, self.dropout2)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to an encoder's result, then a network for each place.

    Arguments are those of `TransformerEncoderLayer`.

    Attributes:
        self_attn, multihead_attn, linear1, linear2, norm1, norm2, norm3: the parts, as torch's.
    """

    multihead_attn: MultiheadAttention
    norm3: LayerNorm
    dropout3: Dropout

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: Any = None,
    ):
        for name in ("self_attn", "multihead_attn"):
            attention = MultiheadAttention(
                d_model, nhead, dropout, bias, batch_first=batch_first, dtype=dtype
            )
            self.add_module(name, attention)
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype=dtype)
        self.norm_first = norm_first
        for k in (1, 2, 3):
            self.add_module(f"norm{k}", LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype))
        for k in (1, 2, 3):
            self.add_module(f"dropout{k}", Dropout(dropout))
        self._set_activation(activation)

    def forward(
        self,
        tgt: Operand,
        memory: Operand,
        tgt_mask: Mask = None,
        memory_mask: Mask = None,
        tgt_key_padding_mask: Mask = None,
        memory_key_padding_mask: Mask = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Applies the layer; masks as in `MultiheadAttention.forward`.

        Args:
            tgt: (time, batch, d_model), with batch first if `batch_first`; or without batch.
            memory: what the encoder answered, likewise.
            tgt_mask: (time, time), which places of `tgt` a place must not look at.
            memory_mask: (time, memory's time), which places of `memory` it must not look at.
            tgt_key_padding_mask: (batch, time), True for padding.
            memory_key_padding_mask: (batch, memory's time), likewise.
            tgt_is_causal: a place looks at places of `tgt` up to its own only.
            memory_is_causal: likewise for `memory`.
        """

        def attend(x: Tensor) -> Tensor:
            out: Tensor = self.self_attn(
                x, x, x, tgt_key_padding_mask, False, tgt_mask, is_causal=tgt_is_causal
            )[0]
            return out

        def look_up(x: Tensor) -> Tensor:
            out: Tensor = self.multihead_attn(
                x, memory, memory, memory_key_padding_mask, False, memory_mask, is_causal=memory_is_causal
            )[0]
            return out

        x = self._add(tgt, attend, self.norm1, self.dropout1)  # type: ignore[arg-type]
        x = self._add(x, look_up, self.norm2, self.dropout2)
        return self._add(x, self._feed_forward, self.norm3, self.dropout3)


class TransformerEncoder(Module):
    """Copies of one layer on top of each other; they begin with equal parameters, as torch's.

    Args:
        encoder_layer: a TransformerEncoderLayer.
        num_layers: how many.
        norm: applied to the result; None for nothing.
    """

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None):
        self.layers, self.num_layers, self.norm = _copies(self, encoder_layer, num_layers), num_layers, norm

    def forward(
        self,
        src: Operand,
        mask: Mask = None,
        src_key_padding_mask: Mask = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Applies the layers; arguments as `TransformerEncoderLayer.forward`."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)  # type: ignore[return-value]


class TransformerDecoder(Module):
    """Copies of one layer on top of each other; they begin with equal parameters, as torch's.

    Args:
        decoder_layer: a TransformerDecoderLayer.
        num_layers: how many.
        norm: applied to the result; None for nothing.
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None):
        self.layers, self.num_layers, self.norm = _copies(self, decoder_layer, num_layers), num_layers, norm

    def forward(
        self,
        tgt: Operand,
        memory: Operand,
        tgt_mask: Mask = None,
        memory_mask: Mask = None,
        tgt_key_padding_mask: Mask = None,
        memory_key_padding_mask: Mask = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Applies the layers; arguments as `TransformerDecoderLayer.forward`."""
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, tgt_is_causal, memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)  # type: ignore[return-value]


def _copies(owner: Module, layer: Module, count: int) -> ModuleList:
    if count < 1:
        raise ArgumentError(f"{type(owner).__name__}: num_layers={count}: one or more")
    arrays = [*layer.buffers(), *(parameter.data for parameter in layer.parameters())]
    making.count(count * sum(array.nbytes for array in arrays))
    return ModuleList([copy.deepcopy(layer) for _ in range(count)])
