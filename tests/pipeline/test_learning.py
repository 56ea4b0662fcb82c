"""The parameters of a stage."""

import math
from contextlib import nullcontext

import numpy as np
import pytest

import psframework as psf
from psframework import backend, nn, optim
from psframework.autograd import SparseRows
from psframework.autograd.engine import backward
from psframework.errors import ArgumentError
from psframework.pipeline.learning import Learning, dense


def stage(dtype: str = "float64") -> tuple[nn.Linear, Learning]:
    module = nn.Linear(3, 2).to(backend.dtype_from_name(dtype))
    return module, Learning(module, optim.SGD(lr=0.5, momentum=0.9).rule)


@pytest.mark.parametrize(("dtype", "summed"), [("float64", "float64"), ("bfloat16", "float32")])
def test_gradients_are_added_up_wide(dtype: str, summed: str) -> None:
    module, learning = stage(dtype)
    for _ in range(3):
        learning.add({module.bias: np.full(2, 1.0, module.bias.dtype)})
    assert module.bias.grad.dtype == summed
    np.testing.assert_array_equal(module.bias.grad, [3, 3])


def backwards(learning: Learning, module: nn.Linear, times: int = 3) -> list[np.ndarray]:
    """The arrays that answered for the weight."""
    answered = []
    for _ in range(times):
        loss = module(psf.tensor(np.ones((4, 3), module.weight.dtype))).sum()
        with learning.summing():
            found = backward(loss)
        if module.weight in found:
            answered.append(found[module.weight])
        learning.add(found)
    return answered


def test_only_the_first_product_is_made_apart() -> None:
    module, learning = stage()
    (first,) = backwards(learning, module)
    assert module.weight.grad is first
    np.testing.assert_array_equal(first, np.full((2, 3), 12.0))
    np.testing.assert_array_equal(module.bias.grad, [12, 12])


def test_the_next_sum_has_the_memory_of_the_one_before() -> None:
    module, learning = stage()

    def address() -> int:
        backwards(learning, module, 2)
        np.testing.assert_array_equal(module.weight.grad, np.full((2, 3), 8.0))
        return module.weight.grad.ctypes.data

    first = address()
    learning.step()
    assert module.weight.grad is None and address() == first
    learning.forget()
    with learning.summing():
        pass  # nobody took it
    assert address() == first
    kept = module.weight.grad  # and what somebody else still looks at is left alone
    learning.step()
    assert address() != first
    np.testing.assert_array_equal(kept, np.full((2, 3), 8.0))


@pytest.mark.parametrize("case", ["hook", "bfloat16", "read-only", "anomaly"])
def test_gradients_that_somebody_looks_at_or_that_fit_no_total_are_answered(case: str) -> None:
    module, learning = stage("bfloat16" if case == "bfloat16" else "float64")
    seen: list[float] = []
    if case == "hook":
        module.weight.register_hook(lambda gradient: seen.append(gradient.sum()))
    if case == "read-only":
        module.weight.grad = np.zeros((2, 3))
        module.weight.grad.flags.writeable = False
    with psf.detect_anomaly() if case == "anomaly" else nullcontext():
        answered = backwards(learning, module)
    assert len(answered) >= (3 if case != "read-only" else 1)
    assert seen == ([24.0] * 3 if case == "hook" else [])
    np.testing.assert_array_equal(module.weight.grad, np.full((2, 3), 12.0))


def test_sparse_gradients_are_widened_too() -> None:
    table = nn.Embedding(4, 2, sparse=True).to(backend.bfloat16)
    learning = Learning(table, None)
    rows = SparseRows(np.array([1, 1]), np.ones((2, 2), backend.bfloat16), (4, 2))
    learning.add({table.weight: rows})
    assert table.weight.grad.dtype == np.float32
    np.testing.assert_array_equal(dense(table.weight.grad), [[0, 0], [2, 2], [0, 0], [0, 0]])


def test_power_is_the_sum_of_squares() -> None:
    module, learning = stage()
    assert learning.power() == 0
    learning.add({module.bias: np.array([3.0, 4.0]), module.weight: np.ones((2, 3))})
    assert learning.power() == 31
    assert learning.power({"bias"}) == 6
    module.bias.grad[0] = math.inf
    assert not math.isfinite(learning.power())


def test_a_step_updates_and_forgets() -> None:
    module, learning = stage()
    before = module.bias.data.copy()
    learning.add({module.bias: np.ones(2)})
    learning.scale(0.5)
    learning.step()
    np.testing.assert_allclose(module.bias.data, before - 0.25)
    assert module.bias.grad is None


def test_frozen_parameters_are_left_alone() -> None:
    module = nn.Linear(3, 2)
    module.requires_grad_(False)
    learning = Learning(module, optim.SGD(lr=0.5).rule)
    assert not learning.parameters
    learning.step()


def test_a_snapshot_has_all_that_a_step_changes() -> None:
    module, learning = stage()
    learning.add({module.bias: np.ones(2)})
    learning.step()
    snapshot = learning.snapshot()

    def again() -> list[float]:
        learning.restore(snapshot)
        learning.add({module.bias: np.ones(2)})
        learning.step()
        return module.bias.data.tolist()  # type: ignore[no-any-return]

    assert again() == again()


def test_no_parameter_of_that_name() -> None:
    _, learning = stage()
    assert learning.named("bias").shape == (2,)
    with pytest.raises(ArgumentError, match=r"no parameter 'offset' .*Linear, which has weight, bias"):
        learning.named("offset")
