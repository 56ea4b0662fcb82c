"""NumPy's functions and operators on Tensors: they record the graph, or refuse; nothing is lost silently."""

import ml_dtypes
import numpy as np
import pytest

import psframework as psf
from psframework import ops
from psframework.autograd import Tensor, tensor
from psframework.errors import ArgumentError, AutogradError
from psframework.testing.gradcheck import gradcheck
from psframework.testing.strict_device import StrictDevice

A = np.random.default_rng(8).uniform(0.5, 1.5, (2, 3))
MASK = A > 1

RECORDED = {
    "concatenate": lambda t: np.concatenate([t, A], axis=1),
    "stack": lambda t: np.stack([A, t]),
    "vstack": lambda t: np.vstack((t, t)),
    "where": lambda t: np.where(MASK, t, 0.5),
    "mean": lambda t: np.mean(t, 0, keepdims=True),
    "mean by name": lambda t: np.mean(a=t, axis=1),
    "sum": lambda t: np.sum(t, axis=(0, 1)),
    "var": lambda t: np.var(t, 1, None, None, 1),
    "std": lambda t: np.std(t, axis=1, ddof=1, keepdims=True),
    "max": lambda t: np.max(t, 1),
    "amin": np.amin,
    "prod": lambda t: np.prod(t, 0),
    "cumsum": lambda t: np.cumsum(t, 1),
    "diff": lambda t: np.diff(t, axis=1),
    "sort": lambda t: np.sort(t, kind="stable"),
    "median": lambda t: np.median(t, 1),
    "average": lambda t: np.average(t, 1, weights=np.array([1.0, 2, 3])),
    "clip": lambda t: np.clip(t, 0.8, a_max=1.2),
    "clip by new names": lambda t: np.clip(t, min=0.8, max=1.2),
    "einsum": lambda t: np.einsum("ij,kj->ik", t, A, optimize=True),
    "tensordot": lambda t: np.tensordot(t, A, axes=([1], [1])),
    "dot": lambda t: np.dot(t, A.T),
    "outer": lambda t: np.outer(t[0], A[1]),
    "reshape": lambda t: np.reshape(t, (3, 2)),
    "transpose": np.transpose,
    "swapaxes": lambda t: np.swapaxes(t, 0, axis2=1),
    "broadcast_to": lambda t: np.broadcast_to(t, (2, 2, 3)),
    "split": lambda t: np.split(t, [1], axis=1)[1],
    "flip": lambda t: np.flip(t, 0),
    "roll": lambda t: np.roll(t, 1, axis=1),
    "repeat": lambda t: np.repeat(t, 2, axis=0),
    "pad": lambda t: np.pad(t, 1, constant_values=2),
    "take": lambda t: np.take(t, [0, 0, 1], axis=0),
    "norm": lambda t: np.linalg.norm(t, axis=1),
    "nan_to_num": lambda t: np.nan_to_num(t, nan=1.0),
    "copy": np.copy,
    "array + t": lambda t: A + t,
    "array @ t": lambda t: A.T @ t,
    "array without axes": lambda t: np.array(2.0) * t,
    "scalar": lambda t: np.float64(2) / t,
    "scalar ** t": lambda t: np.float64(2) ** t,
    "array += t": lambda t: 1 + A - t,
}


@pytest.mark.parametrize("name", RECORDED)
def test_it_records_the_graph(name):
    call = RECORDED[name]
    t = tensor(A, True)
    out = call(t)
    assert isinstance(out, Tensor) and out.requires_grad
    np.testing.assert_allclose(out.data, call(A), atol=1e-15)
    gradcheck(call, [A.copy()])


def test_second_names_and_several_results():
    t = tensor(A, True)
    assert [part.shape for part in np.split(t, 2)] == [(1, 3), (1, 3)]
    np.testing.assert_array_equal(np.around(t, 1).data, np.around(A, 1))
    rows, columns = np.where(t > 1)
    np.testing.assert_array_equal([rows.data, columns.data], np.where(MASK))
    assert np.argmax(t, axis=1).tolist() == A.argmax(1).tolist()


@pytest.mark.parametrize(
    "call",
    [
        np.linalg.svd,
        np.unique,
        lambda t: np.interp(t, [0, 1], [0, 1]),
        lambda t: np.copyto(np.zeros((2, 3)), t),
        np.asarray,
        lambda t: np.array([t, t]),
        lambda t: np.array([t[0, 0], t[0, 1]]),
        lambda t: np.full(2, t[0, 0]),
        lambda t: np.zeros((2, 3)).__setitem__(0, t[0]),
        lambda t: psf.tensor([t, t]),
    ],
)
def test_what_would_lose_the_graph_is_refused(call):
    with pytest.raises(AutogradError, match=r"(svd|unique|interp|copyto|this tensor).*\.detach\(\)"):
        call(tensor(A, True))
    with psf.no_grad():
        call(tensor(A, True))
    call(tensor(A))


@pytest.mark.parametrize("ufunc", [np.sin, np.exp, np.sqrt, np.isnan], ids=lambda f: f.__name__)
def test_ufuncs_refuse(ufunc):
    with pytest.raises(TypeError, match="does not support ufuncs"):
        ufunc(tensor(A, True))
    with pytest.raises(TypeError, match="does not support ufuncs"):
        np.add(A, tensor(A, True))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda t: np.sum(t, dtype=np.float32),
            r"numpy\.sum .* no .dtype.: it is psf\.ops\.sum\(x, axis",
        ),
        (lambda t: np.mean(t, where=MASK), "numpy.mean .* no 'where'"),
        (lambda t: np.linalg.norm(t, "fro"), "norm: ord='?fro"),
    ],
)
def test_arguments_without_a_counterpart_are_named(call, words):
    with pytest.raises(ArgumentError, match=words):
        call(tensor(A, True))


def test_questions_about_an_array_are_answered():
    t = tensor(A, True)
    assert np.shape(t) == (2, 3) and np.ndim(t) == 2 and np.size(t) == 6
    assert np.allclose(t, A) and np.array_equal(t, A)
    assert type(np.zeros_like(t)) is np.ndarray


def test_constants_convert():
    constant = tensor(A)
    np.testing.assert_array_equal(np.array([constant, constant]), [A, A])
    assert psf.tensor([constant, constant]).shape == (2, 2, 3)
    assert isinstance(np.linalg.svd(constant)[0], np.ndarray)
    np.testing.assert_array_equal(np.asarray(tensor(A, True).detach()), A)
    np.testing.assert_array_equal(tensor(A, True).numpy(), A)


def test_numbers_of_numpy_keep_the_dtype():
    for dtype in (np.float16, np.float32, ml_dtypes.bfloat16):
        t = tensor(A, True, dtype=dtype)
        for out in (2.5 * t, t / 2, 1 - t, 2**t, t**0.5, ops.maximum(t, 1.0), t > 1, ops.where(MASK, t, 0.0)):
            assert out.dtype in (dtype, np.bool_)
    assert (np.float32(2) * tensor(A, True, dtype=np.float32)).dtype == np.float32


def test_functions_stay_on_the_device():
    device = StrictDevice("gpu-7")
    try:
        t = Tensor(device.to_device(A), True)
        out = np.concatenate([np.mean(t, 0), np.sort(t[0])])
        assert type(out.data) is device.ndarray and out.requires_grad
        with pytest.raises(AutogradError, match="requires grad"):
            np.asarray(t)
    finally:
        device.forget()


def test_the_value_of_full_like_is_no_way_out_of_the_graph():
    t = tensor([1.0, 2.0], True)
    assert np.full_like(t, 3).tolist() == [3, 3]
    with pytest.raises(AutogradError, match="full_like"):
        np.full_like(t, t.sum())
