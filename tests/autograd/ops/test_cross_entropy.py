"""Cross-entropy: values against log_softmax, examples that do not count, targets that are distributions."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframework.autograd import tensor
from psframework.autograd.ops.cross_entropy import cross_entropy
from psframework.autograd.ops.softmax import log_softmax
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

rng = np.random.default_rng(8)
LOGITS, TARGETS = rng.standard_normal((6, 5)), np.array([4, 0, 1, 3, 2, 2])
IMAGES, PIXELS = rng.standard_normal((2, 5, 3, 4)), rng.integers(0, 5, (2, 3, 4))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    ("logits", "targets"),
    [(LOGITS, TARGETS), (LOGITS.copy(order="F"), TARGETS), (LOGITS[:, ::-1], TARGETS), (IMAGES, PIXELS)],
)
def test_cross_entropy(reduction, logits, targets):
    gradcheck(lambda x: cross_entropy(x, targets, reduction=reduction), [logits])
    logs = np.take_along_axis(log_softmax(logits, 1).data, np.expand_dims(targets, 1), 1).squeeze(1)
    expected = -logs if reduction == "none" else getattr(np, reduction)(-logs)
    np.testing.assert_allclose(cross_entropy(logits, targets, reduction=reduction).data, expected)


def test_targets_of_any_integer_dtype_and_as_tensor():
    expected = cross_entropy(LOGITS, TARGETS).item()
    for dtype in (np.int8, np.uint8, np.int32, np.uint64):
        assert cross_entropy(LOGITS, TARGETS.astype(dtype)).item() == expected
    assert cross_entropy(LOGITS, tensor(TARGETS)).item() == expected


def test_a_second_backward_over_a_retained_graph_gives_the_same():
    t = tensor(LOGITS, True)
    loss = cross_entropy(t, TARGETS)
    loss.backward(retain_graph=True)
    first = t.grad.copy()
    loss.backward()
    np.testing.assert_array_equal(t.grad, 2 * first)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bits_are_computed_in_float32(dtype):
    t = tensor(np.zeros((3, 4000)), True, dtype=dtype)
    loss = cross_entropy(t, np.zeros(3, int))
    loss.backward()
    assert loss.dtype == t.grad.dtype == dtype
    np.testing.assert_allclose(float(loss), np.log(4000), rtol=float(ml_dtypes.finfo(dtype).eps))


def test_large_logits():
    assert cross_entropy(np.array([[1e4, 0.0]], np.float32), np.array([1])).item() == 1e4


@given(
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    smoothing=st.sampled_from([0.0, 0.25]),
    weighted=st.booleans(),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_any_shape_against_the_definition(shape, smoothing, weighted, reduction, seed):
    draw = np.random.default_rng(seed)
    logits, classes = draw.standard_normal(shape), shape[1]
    labels = draw.integers(0, classes, [shape[0], *shape[2:]])
    labels[draw.random(labels.shape) < 0.2] = -100
    weight = draw.uniform(0.5, 2, classes) if weighted else np.ones(classes)
    options = {"label_smoothing": smoothing, "weight": weight if weighted else None}
    chances = np.eye(classes)[np.maximum(labels, 0)] * (1 - smoothing) + smoothing / classes
    logs = np.moveaxis(log_softmax(logits, 1).data, 1, -1)
    counts = labels != -100
    # The weight of an example is that of its class, while smoothing spreads by all classes' weights.
    losses = -(chances * weight * logs).sum(-1) * counts
    total = (weight[np.maximum(labels, 0)] * counts).sum()
    expected = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / total if total else np.nan}
    found = cross_entropy(logits, labels, reduction=reduction, **options).data
    np.testing.assert_allclose(found, expected[reduction], rtol=1e-9)
    if total:
        gradcheck(lambda x: cross_entropy(x, labels, reduction=reduction, **options), [logits])


def test_ignored_examples_do_not_count():
    """Neither in the sum, nor in what the mean divides by, nor in the gradient, whatever their logits are."""
    targets = np.where(np.arange(6) % 2, -100, TARGETS)
    t = tensor(LOGITS, True)
    loss = cross_entropy(t, targets)
    loss.backward()
    np.testing.assert_allclose(loss.item(), cross_entropy(LOGITS[::2], TARGETS[::2]).item())
    assert not t.grad[1::2].any() and t.grad[::2].all()
    assert cross_entropy(LOGITS, targets, reduction="none").data[1::2].tolist() == [0, 0, 0]
    padding = cross_entropy(LOGITS, TARGETS, ignore_index=2)  # a label that is a class, too
    np.testing.assert_allclose(padding.item(), cross_entropy(LOGITS[:4], TARGETS[:4]).item())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_mean_of_no_example_is_nan_and_its_gradient_zero(smoothing):
    t = tensor(LOGITS, True)
    loss = cross_entropy(t, np.full(6, -100), label_smoothing=smoothing)
    assert np.isnan(loss.item())
    loss.backward()
    np.testing.assert_array_equal(t.grad, np.zeros_like(LOGITS))
    assert cross_entropy(t, np.full(6, -100), label_smoothing=smoothing, reduction="sum").item() == 0
    assert np.isnan(cross_entropy(LOGITS[:0], TARGETS[:0]).item())


def test_masked_logits_take_part_with_no_chance():
    logits = np.array([[0.0, -np.inf, 0.0]])
    t = tensor(logits, True)
    loss = cross_entropy(t, np.array([2]), weight=np.ones(3))
    loss.backward()
    np.testing.assert_allclose([loss.item(), *t.grad[0]], [np.log(2), 0.5, 0, -0.5])


def test_one_hot_probabilities_are_classes():
    hot = np.eye(5)[TARGETS]
    for options in ({}, {"label_smoothing": 0.2}):
        expected = cross_entropy(LOGITS, TARGETS, **options).item()
        np.testing.assert_allclose(cross_entropy(LOGITS, hot, **options).item(), expected)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cross_entropy(LOGITS, TARGETS + 1), "targets from .* to 5 for 5 classes"),
        (lambda: cross_entropy(LOGITS, TARGETS - 5), "targets from -5"),
        (lambda: cross_entropy(LOGITS, TARGETS[:3]), r"need targets of shape \(6,\), got \(3,\)"),
        (
            lambda: cross_entropy(LOGITS, TARGETS.astype(float)),
            r"integers of shape \(6,\) as targets, or prob",
        ),
        (lambda: cross_entropy(LOGITS, [1, 2]), "array of integers"),
        (lambda: cross_entropy(LOGITS[0], TARGETS[0]), "array of integers"),
        (lambda: cross_entropy(LOGITS, TARGETS, reduction="max"), "'max' is none of mean, sum, none"),
        (lambda: cross_entropy(LOGITS, TARGETS, ignore_index=4, weight=np.ones(4)), "for 5 classes: one w"),
        (lambda: cross_entropy(LOGITS, TARGETS - 1, ignore_index=4), r"-1 to 3 .* or 4 \(ignore_index\)"),
        (lambda: cross_entropy(LOGITS, TARGETS, label_smoothing=2), "label_smoothing 2 is not in"),
        (lambda: cross_entropy(LOGITS, LOGITS, ignore_index=1), "goes with targets of integers"),
        (lambda: cross_entropy(LOGITS, TARGETS, weight=tensor(np.ones(5), True)), r"weight.detach\(\)"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
