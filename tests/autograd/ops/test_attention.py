"""Attention against its formula and torch's; masks, dropout, misuse."""

import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from psframework.autograd import Tensor, tensor
from psframework.autograd.ops.attention import attention_with_weights, scaled_dot_product_attention
from psframework.errors import ArgumentError

HEADS, QUERIES, KEYS, WIDTH = (2, 3), 4, 5, 6


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


def operands() -> list[Tensor]:
    shapes = [(*HEADS, QUERIES, WIDTH), (*HEADS, KEYS, WIDTH), (*HEADS, KEYS, WIDTH + 1)]
    return [tensor(draw(*shape), requires_grad=True) for shape in shapes]


ALLOWED = np.arange(QUERIES * KEYS).reshape(QUERIES, KEYS) % 3 > 0


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("mask", "options"),
    [
        (None, {}),
        (None, {"scale": 0.7}),
        (None, {"is_causal": True}),
        (ALLOWED, {}),
        (draw(2, 1, QUERIES, KEYS), {}),
    ],
    ids=["plain", "scale", "causal", "booleans", "floats"],
)
def test_results_and_gradients_are_torchs(mask: np.ndarray | None, options: dict[str, object]) -> None:
    torch = pytest.importorskip("torch")
    ours = operands()
    theirs = [torch.tensor(leaf.data, requires_grad=True) for leaf in ours]
    out = scaled_dot_product_attention(*ours, mask, **options)  # type: ignore[arg-type]
    given = None if mask is None else torch.tensor(mask)
    expected = torch.nn.functional.scaled_dot_product_attention(*theirs, given, **options)
    np.testing.assert_allclose(out.data, expected.detach().numpy(), rtol=1e-9, atol=1e-12)
    seed = draw(*out.shape, seed=1)
    out.backward(seed)
    expected.backward(torch.tensor(seed))
    for leaf, other in zip(ours, theirs):
        np.testing.assert_allclose(leaf.grad, other.grad.numpy(), rtol=1e-9, atol=1e-12)


def test_weights_are_softmax_of_the_scores() -> None:
    q, k, v = operands()
    out, weights = attention_with_weights(q, k, v)
    scores = np.exp(q.data @ k.data.swapaxes(-1, -2) / np.sqrt(WIDTH))
    expected = scores / scores.sum(-1, keepdims=True)
    np.testing.assert_allclose(weights.data, expected, atol=1e-14)
    np.testing.assert_allclose(out.data, expected @ v.data, atol=1e-14)


@pytest.mark.parametrize("kind", [bool, np.float64])
def test_a_query_that_may_look_nowhere_gets_zeros(kind: type) -> None:
    q, k, v = operands()
    allowed = np.ones((QUERIES, KEYS), bool)
    allowed[1] = False
    mask = allowed if kind is bool else np.where(allowed, 0.0, -np.inf)
    out = scaled_dot_product_attention(q, k, v, mask)
    assert not out.data[..., 1, :].any() and np.isfinite(out.data).all()
    out.sum().backward()
    for leaf in (q, k, v):
        assert leaf.grad is not None and np.isfinite(leaf.grad).all()
    assert not q.grad[..., 1, :].any()  # type: ignore[index]


def test_causal_goes_with_a_mask() -> None:
    q, k, v = operands()
    both = np.tril(np.ones((QUERIES, KEYS), bool)) & ALLOWED
    expected = scaled_dot_product_attention(q, k, v, both).data
    np.testing.assert_array_equal(
        scaled_dot_product_attention(q, k, v, ALLOWED, is_causal=True).data, expected
    )
    floats = np.where(ALLOWED, 0.0, -np.inf)
    np.testing.assert_array_equal(
        scaled_dot_product_attention(q, k, v, floats, is_causal=True).data, expected
    )


def test_large_scores_do_not_overflow() -> None:
    q, k, v = [leaf.data.astype(np.float32) for leaf in operands()]
    out = scaled_dot_product_attention(q * 1e18, k * 1e18, v)
    assert np.isfinite(out.data).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bits_are_computed_in_float32(dtype: type) -> None:
    q, k, v = [leaf.data.astype(dtype) for leaf in operands()]
    out = scaled_dot_product_attention(q, k, v)
    exact = scaled_dot_product_attention(*[array.astype(np.float32) for array in (q, k, v)])
    assert out.dtype == dtype
    np.testing.assert_array_equal(out.data, exact.data.astype(dtype))


def test_dropout_keeps_the_expected_weight_and_passes_gradients_on() -> None:
    q, k = tensor(np.zeros((200, 1))), tensor(np.zeros((50, 1)))
    v = tensor(np.ones((50, 1)), requires_grad=True)
    out, weights = attention_with_weights(q, k, v, dropout_p=0.4, rng=np.random.default_rng(0))
    dropped = weights.data == 0
    assert 0.38 < dropped.mean() < 0.42
    np.testing.assert_allclose(weights.data[~dropped], 1 / 50 / 0.6)
    out.sum().backward()
    np.testing.assert_allclose(v.grad, weights.data.sum(0)[:, None])


def test_gradients_pass_through_what_dropout_left() -> None:
    q, k, v = operands()
    options = {"dropout_p": 0.5, "is_causal": True}

    def total() -> Tensor:
        out = scaled_dot_product_attention(q, k, v, rng=np.random.default_rng(3), **options)  # type: ignore[arg-type]
        return (out * out).sum()

    total().backward()
    step = 1e-6
    for leaf in (q, k, v):
        found = leaf.grad
        place = (1, 2, 1, 3)
        value = leaf.data[place]
        leaf.data[place] = value + step
        above = total().item()
        leaf.data[place] = value - step
        below = total().item()
        leaf.data[place] = value
        assert found is not None and abs(found[place] - (above - below) / (2 * step)) < 1e-7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": draw(6)}, "query needs at least two axes, not shape (6,)"),
        ({"query": draw(4, 5)}, "query (4, 5) and key (2, 3, 5, 6) differ in their last axis"),
        ({"value": draw(2, 3, 4, 6)}, "differ in the axis of keys"),
        ({"key": np.ones((5, 6), int)}, "key of dtype int64 is not floating"),
        ({"attn_mask": np.ones((4, 5), int)}, "attn_mask must be of booleans or floats, not int64"),
        ({"attn_mask": np.ones((4, 3))}, "shape mismatch"),
        ({"dropout_p": 1.0}, "dropout_p=1.0 must lie in [0, 1)"),
        ({"dropout_p": 0.5}, "dropout needs rng"),
    ],
)
def test_misuse_is_refused(change: dict[str, object], message: str) -> None:
    arguments = dict(zip(["query", "key", "value"], operands())) | change
    with pytest.raises(ArgumentError, match="^scaled_dot_product_attention: .*" + re.escape(message)):
        scaled_dot_product_attention(**arguments)  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(
    batch=hnp.mutually_broadcastable_shapes(num_shapes=4, max_dims=2, max_side=3),
    sizes=st.tuples(*[st.integers(0, 3)] * 4),
    causal=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_shapes(batch: hnp.BroadcastableShapes, sizes: tuple[int, ...], causal: bool, seed: int) -> None:
    (queries, keys, width, features), (first, second, third, fourth) = sizes, batch.input_shapes
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((*first, queries, width)), rng.standard_normal((*second, keys, width))
    v, allowed = rng.standard_normal((*third, keys, features)), rng.random((*fourth, queries, keys)) < 0.7
    out = scaled_dot_product_attention(q, k, v, allowed, is_causal=causal, scale=0.8).data
    scores = np.exp(q @ k.swapaxes(-1, -2) * 0.8) * (np.tril(allowed) if causal else allowed)
    total = scores.sum(-1, keepdims=True)
    np.testing.assert_allclose(out, scores / np.where(total, total, 1) @ v, atol=1e-12)
