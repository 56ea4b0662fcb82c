"""Attention: masks of both kinds, causal, broadcast, nothing to look at, and the weights."""

from functools import partial

import numpy as np
from op_case import Case

from psframework.autograd.ops.attention import attention_with_weights, scaled_dot_product_attention

rng = np.random.default_rng(0)
Q, K, V = rng.standard_normal((2, 3, 2)), rng.standard_normal((2, 4, 2)), rng.standard_normal((2, 4, 3))
ALLOWED = np.array([[True, False, True, True], [False, False, False, False], [True, True, True, False]])
BIAS = rng.standard_normal((3, 4))
NAME = "scaled_dot_product_attention"


def masked(q, k, v, mask, **options):
    return scaled_dot_product_attention(q, k, v, mask, **options)


CASES = [
    Case(NAME, scaled_dot_product_attention, [Q, K, V]),
    Case(f"{NAME}: causal", partial(scaled_dot_product_attention, is_causal=True), [Q, K, V]),
    Case(f"{NAME}: booleans, one row of nothing", masked, [Q, K, V], [ALLOWED]),
    Case(f"{NAME}: booleans and causal", partial(masked, is_causal=True), [Q, K, V], [ALLOWED]),
    Case(f"{NAME}: floats", masked, [Q, K, V, BIAS]),
    Case(f"{NAME}: floats and causal", partial(masked, is_causal=True, scale=0.3), [Q, K, V, BIAS]),
    Case(f"{NAME}: heads, mask a batch", masked, [Q[:, None], K[:, None], V[:, None], BIAS[:2, None, None]]),
    Case(f"{NAME}: broadcast", scaled_dot_product_attention, [Q[0], K, V[:1]]),
    Case(f"{NAME}: mask with more axes", masked, [Q[0], K[0], V[0], np.stack([BIAS, -BIAS])]),
    Case(f"{NAME}: no queries", scaled_dot_product_attention, [Q[:, :0], K, V]),
    Case(f"{NAME}: no keys", scaled_dot_product_attention, [Q, K[:, :0], V[:, :0]]),
    Case("attention_with_weights", attention_with_weights, [Q, K, V]),
    Case(
        "attention_with_weights: only them",
        lambda q, k, v: attention_with_weights(q, k, v, is_causal=True)[1],
        [Q, K, V],
    ),
]
