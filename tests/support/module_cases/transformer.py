"""Transformer layers and stacks."""

from functools import partial

import numpy as np
from module_case import ModuleCase

from psframework import nn

rng = np.random.default_rng(0)
X, MEMORY = rng.standard_normal((3, 2, 4)), rng.standard_normal((2, 2, 4))
PADDING = np.array([[False, True, False], [False, False, False]])


def smooth(kind, dtype, **options):
    """A layer without kinks, for finite differences."""
    return getattr(nn, f"Transformer{kind}Layer")(4, 2, 3, 0.0, "gelu", dtype=dtype, **options)


def stack(kind, dtype):
    layer = smooth(kind, dtype, norm_first=True)
    return getattr(nn, f"Transformer{kind}")(layer, 2, nn.LayerNorm(4, dtype=dtype))


CASES = [
    ModuleCase("TransformerEncoderLayer", partial(smooth, "Encoder"), [X]),
    ModuleCase(
        "TransformerEncoderLayer: padding",
        partial(smooth, "Encoder", norm_first=True),
        [X],
        [PADDING],
        call=lambda module, x, padding: module(x, src_key_padding_mask=padding, is_causal=True),
    ),
    ModuleCase(
        "TransformerEncoderLayer: dropout",
        lambda dtype: nn.TransformerEncoderLayer(4, 2, 3, 0.5, dtype=dtype),
        [X],
        random=True,
    ),
    ModuleCase("TransformerEncoder", partial(stack, "Encoder"), [X]),
    ModuleCase("TransformerDecoderLayer", partial(smooth, "Decoder"), [X, MEMORY]),
    ModuleCase("TransformerDecoder", partial(stack, "Decoder"), [X, MEMORY]),
]
