"""Random programs of changes in place, views, hooks, `retain_grad`: where ours and torch run, they agree."""

import numpy as np
import pytest

from psframework.autograd import no_grad, tensor
from psframework.errors import AutogradError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle


def multiply(values, x, y, c):
    values.append(x * y)


def add(values, x, y, c):
    values.append(x + y)


def exp(values, x, y, c):
    values.append((x * 0.1).exp())


def quotient(values, x, y, c):
    values.append(x / (y * y + 1))


def reshaped(values, x, y, c):
    values.append(x.reshape(2, 3).reshape(3, 2))


def detach(values, x, y, c):
    values.append(x.detach())


def add_in_place(values, x, y, c):
    x += y


def scale_in_place(values, x, y, c):
    x *= c


def assign_a_row(values, x, y, c):
    x[0] = y[1]


def assign_a_number(values, x, y, c):
    x[1] = c


def unseen(values, x, y, c):
    with torch.no_grad(), no_grad():
        x *= c


def retain(values, x, y, c):
    if x.requires_grad:
        x.retain_grad()


def hook(values, x, y, c):
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * c)


PURE = [multiply, add, exp, quotient]
IN_PLACE = [add_in_place, scale_in_place, assign_a_row, assign_a_number, unseen]
# torch's hooks on views that were changed in place crash its process: one or the other.
KINDS = {"views": [*PURE, *IN_PLACE, reshaped, detach], "hooks": [*PURE, *IN_PLACE, retain, hook]}


def run(leaf, steps):
    values = [leaf * 1.0]
    for operation, first, second, c in steps:
        operation(values, values[first % len(values)], values[second % len(values)], c)
    sum((value * (n + 1)).sum() for n, value in enumerate(values)).backward()
    return values


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_random_programs(kind):
    both = 0
    for seed in range(250):
        rng = np.random.default_rng(seed)
        data = rng.normal(size=(3, 2))
        steps = [
            (rng.choice(KINDS[kind]), *rng.integers(0, 60, 2).tolist(), rng.choice([-0.7, 0.9, 1.1]).item())
            for _ in range(8)
        ]
        ours, theirs = tensor(data, True), torch.tensor(data, requires_grad=True)
        try:
            ours_values, their_values = run(ours, steps), run(theirs, steps)
        except (AutogradError, RuntimeError):
            continue  # each refuses what it can't do
        both += 1
        np.testing.assert_allclose(ours.grad, theirs.grad.numpy(), rtol=1e-9, err_msg=str(steps))
        for value, expected in zip(ours_values, their_values):
            np.testing.assert_allclose(value.data, expected.detach().numpy(), err_msg=str(steps))
            assert (value.grad is None) == (expected.grad is None), steps
            if value.grad is not None:
                np.testing.assert_allclose(value.grad, expected.grad.numpy(), err_msg=str(steps))
    assert both >= 25
