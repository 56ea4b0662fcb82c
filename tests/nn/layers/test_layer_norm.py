"""LayerNorm and RMSNorm."""

from typing import Any

import numpy as np
import pytest
from torch_oracle import assert_module_equals_torch

from psframework.errors import ArgumentError
from psframework.nn import LayerNorm, RMSNorm

X = np.random.default_rng(0).standard_normal((2, 3, 4))


def test_formulas() -> None:
    wanted = (X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(LayerNorm(4, dtype=np.float64)(X).data, wanted)
    wanted = X / np.sqrt((X * X).mean((-1, -2), keepdims=True) + 0.1)
    np.testing.assert_allclose(RMSNorm((3, 4), 0.1, dtype=np.float64)(X).data, wanted)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "options", [{}, {"eps": 0.1}, {"elementwise_affine": False}, {"normalized_shape": [3, 4]}], ids=str
)
def test_equals_torch(options: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    settings = {"normalized_shape": 4} | options
    for name in ("LayerNorm", "RMSNorm"):
        assert_module_equals_torch(name, shape=(2, 3, 4), **settings)
    assert_module_equals_torch("LayerNorm", shape=(2, 3, 4), bias=False, **settings)


def test_names_and_initial_values_are_torchs() -> None:
    state = LayerNorm(2).state_dict()
    np.testing.assert_equal(
        {name: array.tolist() for name, array in state.items()}, {"weight": [1, 1], "bias": [0, 0]}
    )
    assert state["weight"].dtype == np.float32
    assert list(RMSNorm(2).state_dict()) == list(LayerNorm(2, bias=False).state_dict()) == ["weight"]


def test_misuse_is_refused() -> None:
    for layer in (LayerNorm, RMSNorm):
        with pytest.raises(ArgumentError, match="normalized_shape=0"):
            layer(0)
    with pytest.raises(ArgumentError, match="does not end in normalized_shape"):
        LayerNorm(3)(X)


def test_reprs() -> None:
    assert repr(LayerNorm(3)) == "LayerNorm((3,), eps=1e-05, elementwise_affine=True)"
    assert repr(RMSNorm([2, 3])) == "RMSNorm((2, 3), eps=None, elementwise_affine=True)"
