import gc
import threading
import tracemalloc
import weakref

import numpy as np
import pytest

from psframework.autograd import Function, SparseRows, backward, grad, no_grad, tensor
from psframework.autograd.ops.activation import relu
from psframework.autograd.ops.batch_norm import batch_norm
from psframework.autograd.ops.conv import conv2d
from psframework.autograd.ops.cross_entropy import cross_entropy
from psframework.autograd.ops.matmul import linear
from psframework.autograd.ops.pool import max_pool2d
from psframework.autograd.record import record, record_many
from psframework.errors import ArgumentError, AutogradError

X = np.array([1.0, 2.0, 3.0])


def test_gradients_are_a_dict_and_grad_is_untouched():
    x, y = tensor(X, True), tensor(X, True)
    found = backward([(x * y).sum(), x.sum()])
    assert set(found) == {x, y}
    np.testing.assert_array_equal(found[x], X + 1)
    np.testing.assert_array_equal(found[y], X)
    assert x.grad is None and y.grad is None


def test_grad_accumulates_over_uses_and_over_backwards():
    x = tensor(X, True)
    h = x * x + x  # a diamond
    (h * h).sum().backward()
    expected = 2 * (X * X + X) * (2 * X + 1)
    np.testing.assert_allclose(x.grad, expected)
    x.sum().backward()
    np.testing.assert_allclose(x.grad, expected + 1)


def test_many_uses_of_one_leaf():
    x = tensor(np.float32(1.0).reshape(1), True)
    total = x * 1
    for i in range(2, 11):
        total = total + x * i
    total.backward()
    assert x.grad.dtype == np.float32 and x.grad[0] == 55


DEEP = {
    "add": lambda h, x: h + x,
    "multiply": lambda h, x: h * x,
    "slice": lambda h, x: h[:],
    "own function": lambda h, x: Twice.apply(h) - h,
    "several results": lambda h, x: record_many("two", (h.data, h.data), lambda g: (g[1],), (h,))[1],
}


@pytest.mark.parametrize("kind", DEEP)
@pytest.mark.parametrize("run_backward", [True, False])
def test_one_hundred_thousand_operations_in_a_row(kind, run_backward):
    """Neither backward nor freeing a graph recurses: the stack is that of a small thread."""
    step, x = DEEP[kind], tensor(np.zeros(1), True)
    done = []

    def run():
        h = x
        for _ in range(100_000 if kind == "add" else 10_000):
            h = step(h, x)
        if run_backward:
            h.backward()
        del h
        done.append(kind)

    old = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(60)
    finally:
        threading.stack_size(old)
    assert done and (x.grad is not None) == run_backward
    if run_backward and kind == "add":
        assert x.grad[0] == 100_001


def test_saved_arrays_are_freed_as_backward_proceeds():
    x, saved, alive = tensor(X, True), [], []
    h = x
    for _ in range(20):
        h = h.tanh()
        saved.append(weakref.ref(h.data))
        h.register_hook(lambda g: alive.append(sum(ref() is not None for ref in saved)))
    loss = h.sum()
    del h
    loss.backward()
    # The hook of a result runs while the rule before it may still be held: one array more, at most.
    assert all(count <= 21 - i for i, count in enumerate(alive)) and alive[0] >= 19


def test_backward_needs_little_more_memory_than_forward_left():
    x = tensor(np.full(50_000, 0.1), True)
    gc.collect()
    tracemalloc.start()
    h = x
    for _ in range(40):
        h = h.tanh()
    loss = h.sum()
    del h
    left = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    loss.backward()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    array = x.data.nbytes
    assert left > 39 * array
    assert peak - left < 5 * array


@pytest.mark.parametrize("seed", [X, tensor(X), [1, 2, 3], X.astype(np.float32)])
def test_seeds(seed):
    x = tensor(X, True)
    (x * 2).backward(seed)
    np.testing.assert_array_equal(x.grad, 2 * X)
    assert x.grad.dtype == np.float64


def test_a_leaf_as_root_and_a_root_twice():
    x = tensor(X, True)
    seed = np.ones(3)
    x.backward(seed)
    assert not np.shares_memory(x.grad, seed)
    h = x * 2
    found = backward([h, h], [seed, seed])
    np.testing.assert_array_equal(found[x], [4, 4, 4])


def test_a_graph_is_freed_by_backward():
    x = tensor(X, True)
    loss = x.exp().sum()
    loss.backward()
    with pytest.raises(AutogradError, match=r"'sum' was freed.*run the forward again.*retain_graph=True"):
        loss.backward()
    kept = x.exp().sum()
    kept.backward(retain_graph=True)
    kept.backward()
    np.testing.assert_allclose(x.grad, 3 * np.exp(X))


def test_two_roots_over_a_shared_part_that_was_freed():
    shared = tensor(X, True).exp()
    first, second = shared.sum(), (shared * 2).sum()
    first.backward()
    with pytest.raises(AutogradError, match="'exp' was freed"):
        second.backward()


def test_saved_arrays_are_released_by_backward_while_the_root_lives():
    hidden = tensor(X, True).exp()
    saved = weakref.ref(hidden.data)
    loss = (hidden * hidden).sum()
    del hidden
    assert saved() is not None
    loss.backward()
    assert saved() is None


def test_arrays_that_no_rule_needs_are_not_kept():
    hidden = tensor(X, True) + 1
    data = weakref.ref(hidden.data)
    loss = (hidden - 1).sum()
    del hidden
    assert data() is None
    loss.backward()


class Twice(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def every_kind_of_graph(x, w, image, kernel):
    h = linear(x, w).relu().softmax() * 2 - x.sum() ** 2
    h = Twice.apply(h).reshape(-1)[:2].exp()
    pooled = max_pool2d(relu(batch_norm(conv2d(image, kernel, None, 1, 1), None)), 2)
    return h.sum() + cross_entropy(pooled.flatten(1), np.array([0, 1])) + pooled.var().sqrt()


@pytest.mark.parametrize("run_backward", [True, False])
def test_graphs_have_no_reference_cycles(run_backward):
    rng = np.random.default_rng(0)
    leaves = [tensor(rng.standard_normal(s), True) for s in ((2, 3), (3, 3), (2, 1, 4, 4), (2, 1, 3, 3))]
    gc.collect()
    gc.disable()
    try:
        loss = every_kind_of_graph(*leaves)
        loss.retain_grad()
        nodes, stack = [], [loss.node]
        while stack:
            node = stack.pop()
            nodes.append(weakref.ref(node))
            stack += [edge for edge in node.edges if type(edge) is type(node)]
        del node
        if run_backward:
            loss.backward()
        dead = weakref.ref(loss)
        del loss
        assert dead() is None
        assert len(nodes) > 20 and not [n for n in nodes if n() is not None]
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (lambda x, w: x * w, "multiply"),
        (linear, "linear"),
        (lambda x, w: x @ w, "matmul"),
        (lambda x, w: w.log(), "log"),
        (lambda x, w: w.exp(), "exp"),
        (lambda x, w: conv2d(x.reshape(1, 1, 3, 3), w.reshape(1, 1, 3, 3)), "conv2d"),
        (lambda x, w: Twice.apply(w), "Twice"),
    ],
)
def test_a_saved_array_changed_in_place_is_noticed(operation, name):
    x, w = tensor(np.ones((3, 3)), True), tensor(np.ones((3, 3)), True)
    out = operation(x, w)
    loss = out.sum()
    with no_grad():
        changed = out if name == "exp" else w
        changed *= 2
    with pytest.raises(AutogradError, match=f"backward of '{name}' needs was changed in place 1 time"):
        loss.backward()


def test_changes_that_no_rule_sees_are_allowed():
    x, w = tensor(X, True), tensor(X, True)
    loss = (x + w).sum()
    with no_grad():
        w += 1
    loss.backward()
    product = (x * w).sum()
    w.data = w.data * 2  # as an optimizer does: the graph does not look at .data
    w.data += 1
    product.backward()


def test_a_leaf_gets_its_own_contiguous_array():
    x, y, z = (tensor(np.ones((3, 2)), True) for _ in range(3))
    (x + y + z.T.reshape(3, 2)).backward(np.ones((3, 2)))
    for a, b in ((x, y), (y, z), (x, z)):
        assert not np.shares_memory(a.grad, b.grad)
    w = tensor(np.ones((2, 3)), True)
    w.T.backward(np.arange(6.0).reshape(3, 2))
    w.expand(4, 2, 3).sum().backward()
    assert all(
        t.grad.flags.c_contiguous and t.grad.flags.writeable and t.grad.flags.owndata for t in (x, y, z, w)
    )


def test_grad_is_changed_in_place_and_may_be_assigned():
    x = tensor(X, True)
    x.grad = start = np.zeros(3)
    x.sum().backward()
    assert x.grad is start
    x.grad = np.broadcast_to(np.float64(1), 3)  # not writeable
    x.sum().backward()
    np.testing.assert_array_equal(x.grad, [2, 2, 2])


def test_grad_buffer():
    x, buffer = tensor(X, True), np.full(3, 7.0)
    x.grad_buffer = buffer
    (x * 2).sum().backward()
    assert x.grad is buffer
    np.testing.assert_array_equal(buffer, [2, 2, 2])
    (x * 2).sum().backward()
    np.testing.assert_array_equal(buffer, [4, 4, 4])
    x.grad = None
    assert x.grad_buffer is buffer
    x.sum().backward()
    assert x.grad is buffer
    np.testing.assert_array_equal(buffer, [1, 1, 1])
    x.grad = np.full(3, 10.0)
    x.sum().backward()
    assert x.grad is buffer
    np.testing.assert_array_equal(buffer, [11, 11, 11])


def test_grad_of_leaves_and_of_results():
    x, unused = tensor(X, True), tensor(X, True)
    h = x * 2
    into_x, into_h = grad((h * h).sum(), [x, h])
    np.testing.assert_array_equal(into_h, 4 * X)
    np.testing.assert_array_equal(into_x, 8 * X)
    assert x.grad is None
    assert grad(x.sum(), [x, unused], allow_unused=True)[1] is None
    with pytest.raises(AutogradError, match="allow_unused=True"):
        grad(x.sum(), unused)
    with pytest.raises(AutogradError, match="does not require grad"):
        grad(x.sum(), tensor(X))


def test_grad_runs_only_what_leads_to_the_inputs():
    """As in torch: `h.backward(*grad(loss, h))` is one backward in two steps."""
    x, w, seen = tensor(X, True), tensor(X, True), []
    x.register_hook(seen.append)
    h = x * x
    h.register_hook(lambda g: g * 2)
    loss = (h * h + (w * w)).sum()
    (into_h,) = grad(loss, h)
    np.testing.assert_array_equal(into_h, 4 * X**2)
    assert not seen
    h.backward(into_h)  # the hook of h sees both
    np.testing.assert_array_equal(x.grad, 2 * 8 * X**3)
    assert len(seen) == 1 and w.grad is None
    with pytest.raises(AutogradError, match="freed"):
        loss.backward()
    y = tensor(np.zeros(2), True)  # an edge may be a tensor that is false, or neither
    (into_y,) = grad([(y * 2).sum(), y], (leaf for leaf in [y]), [None, np.ones(2)])
    np.testing.assert_array_equal(into_y, [3, 3])


def test_grad_through_a_freed_part():
    x = tensor(X, True)
    h = x * x
    h.sum().backward()
    np.testing.assert_array_equal(grad((h * 3).sum(), h)[0], [3, 3, 3])
    with pytest.raises(AutogradError, match="'multiply' was freed"):
        grad((h * 3).sum(), x)
    with pytest.raises(AutogradError, match="an earlier backward freed"):
        grad((h * 3).sum(), [x, h])


def test_one_tensor_as_root_and_one_seed():
    x = tensor(X, True)
    np.testing.assert_array_equal(backward(x * 2, X)[x], 2 * X)
    np.testing.assert_array_equal(backward((x * x).sum())[x], 2 * X)


def test_threads_that_share_a_leaf_lose_nothing():
    x = tensor(np.zeros(100_000), True)

    def run():
        for _ in range(30):
            x.sum().backward()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(x.grad, 120.0)


def test_what_was_added_is_freed_before_the_next_rule():
    n, held = 100_000, []
    x = tensor(np.ones(n), True)

    def rule(gradient):
        held.append(tracemalloc.get_traced_memory()[0])
        return (gradient,)

    h = record("look", x.data, rule, (x,))
    loss = (h * np.ones(n) + h * np.ones(n)).sum()
    tracemalloc.start()
    try:
        loss.backward()
    finally:
        tracemalloc.stop()
    assert held[0] < 1.5 * 8 * n  # the sum, and not what it was made of


def test_rows_and_then_16_bit_arrays_are_summed_in_float32():
    x = tensor(np.zeros((2, 1), np.float16), True)
    one = np.ones((1, 1), np.float16)
    rows = record("rows", x.data[:1], lambda g: (SparseRows(np.array([0]), 2048 * one, (2, 1)),), (x,))
    out = sum((x for _ in range(8)), start=rows)
    out.sum().backward()
    np.testing.assert_array_equal(x.grad, [[2056], [8]])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: tensor(X).backward(), AutogradError, "does not require grad.*requires_grad=True"),
        (lambda x: x.detach().backward(X), AutogradError, "does not require grad"),
        (lambda x: (x * 2).backward(), AutogradError, r"shape \(3,\) needs a seed"),
        (
            lambda x: (x * 2).backward(X[:2]),
            ArgumentError,
            r"seed of shape \(2,\) for a tensor of shape \(3,\)",
        ),
        (lambda x: backward([x, x], [X]), ArgumentError, "2 roots, but 1 seeds"),
    ],
)
def test_bad_input(call, error, words):
    with pytest.raises(error, match=words):
        call(tensor(X, True))


def test_one_root_twice_without_axes_is_still_an_array():
    x = tensor(2.0, requires_grad=True)
    (gradient,) = backward([x, x]).values()
    assert isinstance(gradient, np.ndarray) and gradient == 2.0


def test_16_bit_gradients_are_summed_in_float32():
    x = tensor(np.ones(1, np.float16), True)
    h = x * 1
    total = sum((h * 0.1 for _ in range(4000)), start=h * 0)
    seen = []
    h.register_hook(seen.append)
    total.backward()
    assert seen[0].dtype == x.grad.dtype == np.float16
    np.testing.assert_allclose(x.grad, 400, rtol=1e-3)
    y = tensor(np.ones(1, np.float16), True)
    sum((y * 0.1 for _ in range(4000)), start=y * 0).backward()
    np.testing.assert_allclose(y.grad, 400, rtol=1e-3)
