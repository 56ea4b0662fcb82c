"""One rank's buckets: where gradients live, when they are full, what happens to those that do not come."""

from collections.abc import Hashable
from typing import Any

import numpy as np

import psframework as psf
from psframework.autograd import Tensor
from psframework.backend import Array
from psframework.ddp.bucket import Bucket
from psframework.ddp.flight import Flight
from psframework.ddp.reducer import Reducer
from psframework.ddp.step import Span, Step
from psframework.errors import ArgumentError
from tests.support.ddp_ranks import Table


class Kept:
    """A departure that keeps what it gets."""

    def __init__(self) -> None:
        self.buckets: list[tuple[list[str], list[float]]] = []
        self.closed = 0

    def launch(self, bucket: Bucket, span: Span) -> None:
        self.buckets.append((list(bucket.names), bucket.buffer.tolist()))

    def close(self) -> None:
        self.closed += 1


def made(parameters: dict[str, Tensor], cap: int = 0, **options: Any) -> Reducer:
    group: Any = Table(1).groups()[0]
    reducer = Reducer(parameters, group, cap, **options)
    arenas: dict[Hashable, Array] = {
        kind: np.full(length, 5.0, like.dtype) for kind, (length, like) in reducer.arenas().items()
    }
    reducer.settle_in(arenas)
    return reducer


def leaves(*names: str, size: int = 8) -> dict[str, Tensor]:
    return {name: psf.tensor(np.full(size, 1.0 + i), requires_grad=True) for i, name in enumerate(names)}


def run(reducer: Reducer, loss: Tensor) -> tuple[Kept, BaseException | None]:
    kept = Kept()
    ends: list[BaseException | None] = []
    step: Step

    def over(error: BaseException | None) -> None:
        reducer.ended(step, error)
        ends.append(error)

    step = Step(Flight(reducer._group, over), kept)  # type: ignore[arg-type]
    reducer.run(step, loss, None, False)
    assert kept.closed == 1 and len(ends) == 1
    return kept, ends[0]


async def test_gradients_live_in_buckets_in_reverse_order_and_padding_is_zero() -> None:
    parameters = leaves("a", "b") | {"c": psf.tensor(np.ones(3), requires_grad=True)}
    reducer = made(parameters, cap=1000)
    assert [bucket.names for bucket in reducer.buckets] == [["c", "b", "a"]]
    a, b, c = parameters.values()
    kept, error = run(reducer, (a * 2 + b * 3).sum() + (c * 4).sum())
    assert error is None
    assert kept.buckets == [(["c", "b", "a"], [4.0] * 3 + [0.0] * 5 + [3.0] * 8 + [2.0] * 8)]
    assert all(each.grad is each.grad_buffer for each in (a, b, c))
    assert np.shares_memory(a.grad, b.grad_buffer) is False


async def test_a_bucket_leaves_before_older_operations_have_run() -> None:
    parameters = leaves("early", "late")
    early, late = parameters.values()
    hidden = early * 2.0
    seen: list[int] = []
    reducer = made(parameters)
    kept = Kept()
    hidden.register_hook(lambda gradient: seen.append(len(kept.buckets)))
    step = Step(Flight(reducer._group, lambda error: None), kept)  # type: ignore[arg-type]
    reducer.run(step, (hidden * late).sum(), None, False)
    assert seen == [1]
    assert [names for names, _ in kept.buckets] == [["late"], ["early"]]
    assert [span.label for span in step.spent] == ["backward 0", "backward 1"]


async def test_another_order_moves_gradients_along() -> None:
    parameters = leaves("a", "b", "c")
    reducer = made(parameters)
    a, b, c = parameters.values()
    run(reducer, (a * 2 + b * 3 + c * 4).sum())
    before = {name: np.array(each.grad) for name, each in parameters.items()}
    own = np.full(8, 9.0)
    b.grad = own
    reducer.coming = [1, 0, 2]
    kept, _ = run(reducer, (a * 2 + b * 3 + c * 4).sum())
    assert [names for names, _ in kept.buckets] == [["b"], ["a"], ["c"]]
    np.testing.assert_array_equal(a.grad, 2 * before["a"])
    np.testing.assert_array_equal(c.grad, 2 * before["c"])
    np.testing.assert_array_equal(b.grad, own + 3)
    assert b.grad is b.grad_buffer and own.tolist() == [9.0] * 8


async def test_a_frozen_parameter_is_left_alone_until_it_is_thawed() -> None:
    parameters = leaves("a", "b")
    a, b = parameters.values()
    b.requires_grad = False
    reducer = made(parameters)
    assert b.grad_buffer is None and run(reducer, (a * b).sum())[1] is None
    b.requires_grad = True
    _, error = run(reducer, (a * b).sum())
    assert "'b' did not require grad when the model was wrapped" in str(error)
    assert a.grad is None


async def test_many_missing_names_are_cut() -> None:
    parameters = leaves(*[f"p{i}" for i in range(9)])
    _, error = run(made(parameters), parameters["p0"].sum())
    assert "parameters 'p1', 'p2', 'p3', 'p4', 'p5' and 3 more got no gradient" in str(error)


async def test_rows_for_a_parameter_in_a_bucket_are_added_to_zeros() -> None:
    table = psf.tensor(np.ones((6, 2)), requires_grad=True)
    reducer = made({"table": table})
    rows = np.array([[0, 0], [2, 2], [0, 0], [0, 0], [1, 1], [0, 0]])
    for times in (1, 2):
        out = psf.nn.functional.embedding(np.array([1, 1, 4]), table, sparse=True)
        assert run(reducer, out.sum())[1] is None
        np.testing.assert_array_equal(table.grad, times * rows)


async def test_a_table_apart_is_in_no_bucket() -> None:
    parameters = leaves("a") | {"table": psf.tensor(np.ones((6, 2)), requires_grad=True)}
    reducer = made(parameters, sparse=["table"])
    out = psf.nn.functional.embedding(np.array([4]), parameters["table"], sparse=True).sum()
    kept, _ = run(reducer, out + parameters["a"].sum())
    assert [names for names, _ in kept.buckets] == [["a"]]
    assert reducer.sparse == [1]
    assert isinstance(parameters["table"].grad, psf.SparseRows)


async def test_release_and_who_was_taken_over() -> None:
    parameters = leaves("a")
    (a,) = parameters.values()
    reducer, second = made(parameters), made(parameters)
    _, error = run(reducer, a.sum())
    assert type(error) is ArgumentError
    assert "another wrapper" in str(error)
    reducer.release()
    assert a.grad_buffer is not None  # it is the second one's
    assert run(second, a.sum())[1] is None
    view = a.grad
    second.release()
    assert getattr(a, "grad_buffer") is None  # noqa: B009 - the type checker remembers the line above
    assert a.grad is not view
    assert a.grad.tolist() == [1.0] * 8
