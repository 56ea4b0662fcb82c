import numpy as np
import pytest

from psframework.autograd import Function, SparseRows, detect_anomaly, recompute, tensor, watch
from psframework.autograd.record import record, record_many
from psframework.errors import AutogradError


def loss_of(x):
    return ((x - x).sqrt() * 0.0).sum()  # the derivative of sqrt at 0 is infinite, and 0 times that a NaN


def test_the_operation_the_input_and_the_line_of_the_forward_are_named():
    x = tensor(np.ones(2), True)
    with detect_anomaly(), np.errstate(all="ignore"):
        loss = loss_of(x)
        with pytest.raises(AutogradError, match=r"'sqrt' made a NaN in the gradient of its input 0") as info:
            loss.backward()
    text = str(info.value)
    assert "test_anomaly.py" in text and "in loss_of" in text and "(x - x).sqrt()" in text
    assert "record.py" not in text and "has one already" not in text and "came up first" not in text


def test_the_first_nan_of_the_forward_is_told():
    x = tensor(np.array([-1.0, 1.0]), True)
    with detect_anomaly(), np.errstate(invalid="ignore"), pytest.raises(AutogradError) as info:
        (x.log() * x).sum().backward()
    text = str(info.value)
    assert "backward of 'multiply' made a NaN in the gradient of its input 1" in text
    assert "a NaN came up first in the forward of 'log'" in text


def test_a_nan_that_was_given_and_a_forward_outside():
    x = tensor(np.ones(2), True)
    h = x * 2
    with (
        detect_anomaly(),
        pytest.raises(AutogradError, match=r"NaN came with the seed.*of 'multiply'; its forward ran outs"),
    ):
        h.backward(np.array([1.0, np.nan]))


@pytest.mark.parametrize("leaf", [True, False])
def test_a_nan_of_a_hook_or_of_a_sum(leaf):
    def differ(x):
        return x if leaf else x * 1

    def by_hook():
        x = differ(tensor(np.ones(2), True))
        x.register_hook(lambda g: g * np.nan)
        return x * 2

    def by_sum():  # inf - inf
        x = differ(tensor(np.zeros(2), True))
        with np.errstate(all="ignore"):
            return x.sqrt() + x.sqrt() * -1

    for make in (by_hook, by_sum):
        with (
            detect_anomaly(),
            np.errstate(all="ignore"),
            pytest.raises(AutogradError, match="from a hook, or from adding inf") as info,
        ):
            make().sum().backward()
        assert ("a leaf of shape (2,)" if leaf else "return x if leaf else x * 1") in str(info.value)


def test_off_it_costs_nothing_and_raises_nothing():
    x = tensor(np.ones(2), True)
    before = watch.blocks
    block = detect_anomaly()
    with block, block:
        assert watch.blocks == before + 2
    assert watch.blocks == before
    with np.errstate(all="ignore"):
        loss_of(x).backward()
    assert np.isnan(x.grad).all()


@pytest.mark.parametrize("kind", ["rows", "several", "narrow", "recompute"])
def test_gradients_of_every_kind_are_looked_at(kind):
    x = tensor(np.ones((2, 1), np.float16 if kind == "narrow" else np.float32), True)
    bad = np.full((1, 1), np.nan, np.float32)

    def rows():
        return record("bad", x.data[:1], lambda g: (SparseRows(np.array([0]), bad, (2, 1)),), (x,))

    def several():
        return record_many("bad", (x.data, x.data), lambda g: (np.broadcast_to(bad, (2, 1)),), (x,))[1]

    make = {
        "rows": rows,
        "several": several,
        "narrow": lambda: record("bad", x.data, lambda g: (np.full((2, 1), np.nan, np.float16),), (x,)),
        "recompute": lambda: recompute(rows),
    }
    with detect_anomaly(), pytest.raises(AutogradError, match="backward of 'bad' made a NaN") as info:
        make[kind]().sum().backward()
    assert "test_anomaly.py" in str(info.value)


class Failing(Function):
    @staticmethod
    def forward(ctx, x):
        return x + 1

    @staticmethod
    def backward(ctx, gradient):
        raise KeyError("mine")


@pytest.mark.parametrize("watched", [True, False])
def test_an_error_in_a_rule_carries_the_operation(watched):
    x = tensor(np.ones(()), True)

    def run():
        with pytest.raises(KeyError) as info:
            Failing.apply(x).backward()
        (note,) = info.value.__notes__
        return note

    if watched:
        with detect_anomaly():
            note = run()
        assert "Failing.apply(x)" in note
    else:
        note = run()
    assert note.startswith("in the backward of 'Failing'")
