import copy
import inspect

import numpy as np
import pytest

import psframework as psf
from psframework.autograd import spelling


@pytest.fixture
def x():
    return psf.tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)


def test_names_of_torch_are_answered_with_ours(x):
    for name, message in {
        "view": r"x\.reshape\(shape\)",
        "numel": r"x\.size",
        "erf": r"psf\.ops\.erf\(x\)",
        "zero_": r"writing into x\.data",
        "nonsense": "a Tensor has no 'nonsense'$",
    }.items():
        with pytest.raises(AttributeError, match=message) as caught:
            getattr(x, name)
        assert caught.value.name == name
    with pytest.raises(AttributeError, match="NumPy calls it concatenate"):
        _ = psf.ops.cat
    with pytest.raises(AttributeError, match=r"psf\.ops has no 'nonsense'$"):
        _ = psf.ops.nonsense


def test_the_tables_are_true(x):
    assert not [name for name in spelling.TENSOR if hasattr(x, name)]
    assert not [name for name in spelling.OPERATIONS if name in psf.ops.__all__]
    assert set(spelling.OPERATIONS.values()) <= set(psf.ops.__all__)
    y = psf.tensor(np.ones((2, 3)))
    names = {"x": x, "y": y, "np": np, "psf": psf, "shape": (3, 2), "low": 0, "high": 1, "data": [1.0]}
    names.update(dtype=np.float32, condition=x > 1)
    for name, ours in spelling.TENSOR.items():
        if name not in ("contiguous", "mm", "bmm", "mv", "matmul"):
            eval(ours, names)


def test_keywords_of_torch_are_answered_with_ours(x):
    with pytest.raises(TypeError, match=r"Tensor\.mean takes NumPy's axis=, not dim="):
        x.mean(dim=1)
    with pytest.raises(TypeError, match="keepdims=, not keepdim="):
        x.max(1, keepdim=True)
    with pytest.raises(TypeError, match="ddof=, not unbiased="):
        x.std(unbiased=False)
    with pytest.raises(TypeError, match="nonsense"):
        x.sum(nonsense=1)


def test_methods_stay_what_they_are(x):
    assert list(inspect.signature(psf.Tensor.sum).parameters) == ["self", "axis", "keepdims"]
    assert psf.Tensor.sum.__qualname__ == "Tensor.sum" and psf.Tensor.sum.__doc__
    assert copy.deepcopy(x).tolist() == x.tolist() and not hasattr(x, "__cuda_array_interface__")
