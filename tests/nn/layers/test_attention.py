"""Multi-head attention: torch's results, gradients, names and masks."""

from typing import Any

import numpy as np
import pytest

from psframework import nn
from psframework.autograd import Tensor, tensor
from psframework.errors import ArgumentError

QUERIES, KEYS, BATCH, WIDTH, HEADS = 4, 5, 2, 6, 3


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


def make(**options: Any) -> nn.MultiheadAttention:
    nn.manual_seed(0)
    return nn.MultiheadAttention(WIDTH, HEADS, dtype=np.float64, **options)


def compare(
    torch: Any, inputs: list[np.ndarray], options: dict[str, Any], how: dict[str, Any], own: bool
) -> None:
    """Ours and torch's module with the same weights (loading fails if names or shapes differ)."""
    ours = make(**options)
    for name, p in ours.named_parameters():
        if name.endswith("bias"):
            p.data[...] = draw(*p.shape)
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS, dtype=torch.float64, **options)
    theirs.load_state_dict({name: torch.tensor(array) for name, array in ours.state_dict().items()})
    leaves = [tensor(array, requires_grad=True) for array in inputs]
    others = [torch.tensor(array, requires_grad=True) for array in inputs]
    given, those = (leaves * 3, others * 3) if own else (leaves, others)
    theirs_how = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in how.items()}
    out, weights = ours(*given, **how)
    expected, their_weights = theirs(*those, **theirs_how)
    np.testing.assert_allclose(out.data, expected.detach().numpy(), rtol=1e-9, atol=1e-12)
    loss, other = (out * draw(*out.shape)).sum(), (expected * torch.tensor(draw(*out.shape))).sum()
    if how.get("need_weights", True):
        np.testing.assert_allclose(weights.data, their_weights.detach().numpy(), rtol=1e-9, atol=1e-12)
        loss = loss + (weights * draw(*weights.shape)).sum()
        other = other + (their_weights * torch.tensor(draw(*weights.shape))).sum()
    else:
        assert weights is None
    loss.backward()
    other.backward()
    for leaf, that in zip(leaves, others):
        np.testing.assert_allclose(leaf.grad, that.grad.numpy(), rtol=1e-9, atol=1e-11)
    for name, p in ours.named_parameters():
        wanted = theirs.get_parameter(name).grad.numpy()
        np.testing.assert_allclose(p.grad, wanted, rtol=1e-9, atol=1e-11, err_msg=name)


PADDING = np.array([[False, False, False, True, True], [False, False, True, False, False]])
FUTURE = np.triu(np.ones((QUERIES, KEYS), bool), 1)
HOW: list[dict[str, Any]] = [
    {},
    {"need_weights": False},
    {"key_padding_mask": PADDING, "attn_mask": FUTURE, "average_attn_weights": False},
    {"key_padding_mask": np.where(PADDING, -2.0, 0.5), "attn_mask": draw(QUERIES, KEYS)},
    {"attn_mask": draw(BATCH * HEADS, QUERIES, KEYS) > 1},
]


@pytest.mark.oracle
@pytest.mark.parametrize("how", HOW, ids=["weights", "no weights", "booleans", "floats", "a mask a head"])
@pytest.mark.parametrize(
    "options", [{}, {"batch_first": True, "bias": False}, {"kdim": 4, "vdim": 3}], ids=str
)
def test_attention_to_another_sequence_is_torchs(options: dict[str, Any], how: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    shapes = [(QUERIES, WIDTH), (KEYS, options.get("kdim", WIDTH)), (KEYS, options.get("vdim", WIDTH))]
    place = 0 if "batch_first" in options else 1
    inputs = [np.stack([draw(*s, seed=b) for b in range(BATCH)], place) for s in shapes]
    compare(torch, inputs, options, how, own=False)


@pytest.mark.oracle
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("shape", [(3, 4, WIDTH), (4, WIDTH)], ids=["batch", "alone"])
def test_self_attention_is_torchs(batch_first: bool, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    compare(torch, [draw(*shape)], {"batch_first": batch_first}, {}, own=True)


def test_one_input_three_times_is_three_equal_inputs() -> None:
    layer, x = make(batch_first=True), tensor(draw(2, 4, WIDTH), requires_grad=True)
    once, _ = layer(x, x, x)
    apart, _ = layer(x, x.clone(), x.clone())
    np.testing.assert_allclose(once.data, apart.data, atol=1e-14)


def test_causal_needs_no_mask() -> None:
    layer, x = make(), draw(4, 2, WIDTH)
    future = np.triu(np.ones((4, 4), bool), 1)
    expected = layer(x, x, x, attn_mask=future)[0].data
    for mask in (None, future, Tensor(future)):
        np.testing.assert_array_equal(layer(x, x, x, attn_mask=mask, is_causal=True)[0].data, expected)


def test_masks_of_both_kinds_go_together() -> None:
    layer, x = make(batch_first=True), draw(BATCH, KEYS, WIDTH)
    floats = draw(KEYS, KEYS)
    out, weights = layer(x, x, x, key_padding_mask=PADDING, attn_mask=floats)
    both = floats + np.where(PADDING[:, None, None], -np.inf, 0)
    expected, _ = layer(x, x, x, attn_mask=np.repeat(both, HEADS, 1).reshape(-1, KEYS, KEYS))
    np.testing.assert_allclose(out.data, expected.data, atol=1e-14)
    assert weights is not None and not weights.data[0][:, 3:].any()


def test_a_sequence_of_padding_only_is_finite() -> None:
    layer, x = make(batch_first=True), tensor(draw(2, 3, WIDTH), requires_grad=True)
    out, _ = layer(x, x, x, key_padding_mask=np.array([[True] * 3, [False] * 3]))
    assert layer.out_proj.bias is not None
    np.testing.assert_array_equal(out.data[0], np.tile(layer.out_proj.bias.data, (3, 1)))
    out.sum().backward()
    assert x.grad is not None and np.isfinite(x.grad).all() and not x.grad[0].any()


def test_names_and_initial_values_are_torchs() -> None:
    state = nn.MultiheadAttention(40, 2).state_dict()
    assert list(state) == ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
    bound = np.sqrt(6 / 160)
    assert 0.98 * bound < np.abs(state["in_proj_weight"]).max() <= bound
    assert not state["in_proj_bias"].any() and not state["out_proj.bias"].any()
    assert nn.MultiHeadAttention is nn.MultiheadAttention
    assert "6, 3, kdim=4" in repr(make(kdim=4))


def test_dropout_acts_in_training_only() -> None:
    layer, x = make(dropout=0.5), draw(4, 2, WIDTH)
    _, weights = layer(x, x, x, average_attn_weights=False)
    assert 0.2 < (weights.data == 0).mean() < 0.8
    layer.eval()
    np.testing.assert_array_equal(layer(x, x, x)[0].data, layer(x, x, x)[0].data)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.MultiheadAttention(6, 4), "embed_dim=6 must be a multiple of num_heads=4"),
        (lambda: nn.MultiheadAttention(6, 3, dropout=1.0), r"dropout must lie in \[0, 1\)"),
        (lambda: make()(*[draw(4, 2, 5)] * 3), r"query must be \(time, batch, 6\)"),
        (lambda: make(kdim=4)(*[draw(4, 2, 6)] * 3), r"key must be \(time, batch, 4\)"),
        (lambda: make()(*[draw(4, 2, 6)] * 3, attn_mask=draw(3, 3)), r"attn_mask must .* \(6, 4, 4\)"),
        (lambda: make()(*[draw(4, 2, 6)] * 3, attn_mask=draw(1, 4)), r"attn_mask must .* not \(1, 4\)"),
        (lambda: make()(*[draw(4, 2, 6)] * 3, draw(4, 2)), r"key_padding_mask must have shape \(2, 4\)"),
        (lambda: make()(*[draw(4, 6)] * 3, draw(1)), r"key_padding_mask must have shape \(1, 4\)"),
        (lambda: make()(draw(4, 2, 6), *[draw(4, 1, 6)] * 2), r"query \(4, 2, 6\), .* one batch \(axis 1\)"),
        (lambda: make()(*[draw(4, 2, 6)] * 2, draw(3, 2, 6)), r"key and value one time \(axis 0\)"),
        (lambda: make()([[1.0]], [[1.0]], [[1.0]]), "MultiheadAttention takes a tensor or"),
    ],
)  # fmt: skip
def test_misuse_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
