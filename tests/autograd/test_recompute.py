import asyncio
import gc
import tracemalloc
import weakref
from collections import namedtuple
from contextvars import ContextVar

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework import manual_seed, nn, optim
from psframework.autograd import (
    SparseRows,
    backward,
    grad,
    is_grad_enabled,
    is_recomputing,
    no_grad,
    recompute,
    replayable,
    tensor,
)
from psframework.autograd.ops.batch_norm import Running, batch_norm
from psframework.autograd.record import record
from psframework.errors import AutogradError

X, W = np.array([0.5, 1.0, 1.5]), np.array([2.0, -1.0, 3.0])


def leaves():
    return tensor(X, True), tensor(W, True)


def test_gradients_reach_arguments_and_what_the_function_closes_over():
    x, w = leaves()

    def loss(call):
        outside = w * 2  # no leaf

        def function(x, scale=1.0):
            return (x * outside).exp() * scale + w

        return (call(function, x, scale=3.0) * outside).sum()

    wanted = backward([loss(lambda f, *args, **kwargs: f(*args, **kwargs))])
    found = backward([loss(recompute)])
    assert set(found) == {x, w}
    for leaf in (x, w):
        np.testing.assert_allclose(found[leaf], wanted[leaf], rtol=1e-14)
    assert x.grad is None and w.grad is None
    loss(recompute).backward()
    assert x.grad is not None and w.grad is not None


def test_the_function_runs_without_a_graph_and_again_in_backward():
    x, w = leaves()
    runs, saved = [], []

    def function(x):
        runs.append((is_grad_enabled(), is_recomputing()))
        hidden = (x * w).exp()
        saved.append(weakref.ref(hidden.data))
        return (hidden * hidden).sum()

    out = recompute(function, x)
    assert out.node.name == "recompute" and saved[0]() is None
    with no_grad():
        out.backward()
    assert runs == [(True, False), (True, True)] and not is_recomputing()


def test_a_function_of_constants_or_under_no_grad_is_just_called():
    x, w = leaves()
    assert not recompute(lambda a: a * 2, tensor(X)).requires_grad
    with no_grad():
        assert not recompute(lambda a: a * w, x).requires_grad
    assert recompute(lambda a: a, x) is x


Pair = namedtuple("Pair", "left right")


def test_results_of_every_form():
    x, w = leaves()

    def function(x):
        product = x * w
        return {
            "pair": Pair(product, [product + 1, "text"]),
            "index": product.argmax(),
            "x": x,
            "again": product,
        }

    out = recompute(function, x)
    assert isinstance(out["pair"], Pair) and out["pair"].right[1] == "text" and out["x"] is x
    assert out["again"] is out["pair"].left and not out["index"].requires_grad
    (out["pair"].left.sum() + (out["pair"].right[0] * 2).sum()).backward()
    np.testing.assert_array_equal(x.grad, 3 * W)
    unused = recompute(function, x)
    x.grad = None
    unused["pair"].right[0].sum().backward()
    np.testing.assert_array_equal(x.grad, W)


def test_nested():
    x, w = leaves()
    runs = []

    def inner(a):
        runs.append("inner")
        return (a * w).tanh()

    def outer(a):
        runs.append("outer")
        return recompute(inner, recompute(inner, a) * 2) + w

    (wanted_x, wanted_w) = grad(outer(x).sum(), [x, w])
    runs.clear()
    found = grad(recompute(outer, x).sum(), [x, w])
    np.testing.assert_array_equal(found, [wanted_x, wanted_w])
    assert runs == ["outer", "inner", "inner"] * 2 + ["inner", "inner"]


def test_random_numbers_are_drawn_again():
    x, _ = leaves()
    generator = np.random.default_rng(3)
    masks = []

    def dropout(a):
        mask = replayable(generator).random(3) < 0.5
        masks.append(mask)
        return a * mask

    def two(a):
        return recompute(dropout, dropout(a + 1)) + dropout(a)

    out = recompute(two, x)
    after = generator.bit_generator.state
    out.sum().backward()
    assert generator.bit_generator.state == after
    np.testing.assert_array_equal(masks[3:], [*masks[:3], masks[1]])
    np.testing.assert_array_equal(x.grad, (masks[0] & masks[1]) * 1.0 + masks[2])


current = ContextVar("current", default="nobody")


def test_the_second_run_sees_the_context_of_the_first():
    x, _ = leaves()
    seen = []

    async def forward():
        current.set("task")
        return recompute(lambda a: seen.append(current.get()) or a * 2, x)

    asyncio.run(forward()).sum().backward()
    assert seen == ["task", "task"] and current.get() == "nobody"


def test_retain_graph_and_a_freed_graph():
    x, w = leaves()
    out = recompute(lambda a: a * w, x).sum()
    out.backward(retain_graph=True)
    out.backward()
    np.testing.assert_array_equal(x.grad, 2 * W)
    with pytest.raises(AutogradError, match="was freed"):
        out.backward()


def test_hooks_run_once_and_rows_stay_rows():
    x, w = leaves()
    seen = []
    w.register_hook(lambda g: seen.append("w"))

    def function(a):
        h = a * w
        h.register_hook(lambda g: seen.append("h"))
        return h

    (recompute(function, x) + w).sum().backward()
    assert seen == ["h", "w"]
    table = tensor(np.ones((4, 2)), True)

    def rows(ids):
        return record("rows", table.data[ids], lambda g: (SparseRows(ids, g, (4, 2)),), (table,))

    recompute(rows, np.array([1, 1])).sum().backward()
    assert isinstance(table.grad, SparseRows) and table.grad.values[0, 0] == 2


def test_16_bit_sums_inside_come_out_in_their_dtype():
    x = tensor(np.ones(2, np.float16), True)
    seen = []
    h = x * 1
    h.register_hook(lambda g: seen.append(g.dtype))
    recompute(lambda: h + h + h).sum().backward()
    assert seen == [np.float16] and x.grad.dtype == np.float16


def test_a_changed_argument_or_parameter_is_noticed():
    for which in (0, 1):
        x, w = leaves()
        out = recompute(lambda a, w=w: a * w, x).sum()
        with no_grad():
            (x, w)[which].__imul__(2)
        with pytest.raises(AutogradError, match="'recompute' needs was changed in place 1 time"):
            out.backward()


def test_a_parameter_that_got_another_array_is_noticed():
    """A step by gradients of a context leaves the old array as it is for graphs; here nobody has it."""
    x, w = tensor(np.ones(2), True), tensor(np.full(2, 3.0), True)
    y = recompute(lambda t: t * w, x)
    optim.SGD([w], lr=1.0).apply({w: np.ones(2)})
    with pytest.raises(AutogradError, match="step after the backward"):
        y.sum().backward()
    recompute(lambda t: t * w, x).sum().backward()
    np.testing.assert_array_equal(x.grad, [2.0, 2.0])


def test_a_function_that_does_not_do_the_same_again():
    x, w = leaves()
    lengths, used, kept = [3, 2], [w, tensor(W, True)], []
    out = recompute(lambda a: (a * 2)[: lengths.pop(0)], x).sum()
    with pytest.raises(AutogradError, match=r"gave \(3,\) float64 at first and \(2,\) float64 when"):
        out.backward()
    out = recompute(lambda a: a * used.pop(0), x).sum()
    with pytest.raises(AutogradError, match="used other tensors than at first"):
        out.backward()
    with pytest.raises(AutogradError, match="changed an argument in place"):
        recompute(lambda a: a.__imul__(2), x * w)
    recompute(lambda a: kept.append(a * w) or kept[0] * 2, x)
    with pytest.raises(AutogradError, match="only if it is returned"):
        kept[0].sum().backward()


def test_a_view_of_an_argument_keeps_its_version():
    x, _ = leaves()
    h = x * 1
    out = recompute(lambda a: a[:2], h)
    loss = (out * out).sum()
    with no_grad():
        h *= 2
    with pytest.raises(AutogradError, match="changed in place"):
        loss.backward()


@pytest.mark.parametrize("run_backward", [True, False])
def test_no_reference_cycles(run_backward):
    x, w = leaves()
    gc.collect()
    gc.disable()
    try:
        h = recompute(lambda a: (a * w, a.exp()), x)
        loss = (h[0] + h[1]).sum()
        dead = [weakref.ref(h[0]), weakref.ref(h[0].node), weakref.ref(h[0].node.edges[0])]
        if run_backward:
            loss.backward()
        del h, loss
        assert not [reference for reference in dead if reference() is not None]
    finally:
        gc.enable()


def peak_of(blocks, wrap):
    """Peak memory of forward and backward through `blocks` blocks of 8 saved arrays, in arrays."""
    x = tensor(np.full(50_000, 0.1), True)

    def block(h):
        for _ in range(8):
            h = h.tanh()
        return h

    gc.collect()
    tracemalloc.start()
    h = x
    for _ in range(blocks):
        h = wrap(block, h)
    h.sum().backward()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / x.data.nbytes


def test_memory_falls():
    plain, less = peak_of(12, lambda f, h: f(h)), peak_of(12, recompute)
    assert plain > 12 * 8
    assert less < 12 + 8 + 6  # what enters each block, one block's arrays, and a few in flight


def test_running_statistics_count_a_batch_once():
    rng = np.random.default_rng(0)
    x = tensor(rng.standard_normal((8, 3)), True)
    found = []
    for call in (lambda function, *args: function(*args), recompute):
        running = Running(np.zeros(3), np.ones(3))
        call(lambda a, running=running: batch_norm(a, running), x).sum().backward()
        found.append(np.stack(running))
    np.testing.assert_array_equal(*found)
    layer = nn.BatchNorm1d(3, dtype=np.float64)
    recompute(layer, x).sum().backward()
    assert layer.num_batches_tracked == 1


def test_dropout_drops_the_same_and_goes_on_as_without():
    x = tensor(np.ones(50), True)
    manual_seed(3)
    plain, after = F.dropout(x, 0.5), F.dropout(x, 0.5)
    manual_seed(3)
    out, loss = recompute(F.dropout, x, 0.5), None
    np.testing.assert_array_equal(out.data, plain.data)
    loss = (out * out).sum()
    loss.backward()
    np.testing.assert_array_equal(x.grad, 2 * out.data * (out.data > 0) * 2)
    np.testing.assert_array_equal(F.dropout(x, 0.5).data, after.data)
    manual_seed(3)
    np.testing.assert_array_equal(F.dropout(x, 0.5).data, plain.data)
