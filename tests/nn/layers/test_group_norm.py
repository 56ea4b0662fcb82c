"""GroupNorm, InstanceNorm1d and InstanceNorm2d."""

import numpy as np
import pytest
from torch_oracle import assert_module_equals_torch

from psframework.errors import ArgumentError
from psframework.nn import GroupNorm, InstanceNorm1d, InstanceNorm2d

X = np.random.default_rng(0).standard_normal((2, 4, 3, 5)) * 3 + 1


def test_each_group_of_each_image_is_normal() -> None:
    out = GroupNorm(2, 4, dtype=np.float64)(X).data.reshape(2, 2, -1)
    np.testing.assert_allclose(out.mean(-1), 0, atol=1e-12)
    np.testing.assert_allclose(out.var(-1), 1, rtol=1e-4)


@pytest.mark.oracle
@pytest.mark.parametrize("affine", [True, False])
def test_equals_torch(affine: bool) -> None:
    pytest.importorskip("torch")
    for shape in ((3, 6), (3, 6, 4), (2, 6, 3, 2)):
        for groups in (1, 2, 6):
            if groups < 6 or len(shape) > 2:
                assert_module_equals_torch("GroupNorm", groups, 6, shape=shape, affine=affine, eps=1e-3)
    assert_module_equals_torch("InstanceNorm1d", 6, shape=(3, 6, 4), affine=affine)
    assert_module_equals_torch("InstanceNorm2d", 6, shape=(2, 6, 3, 2), affine=affine, eps=0.1)


def test_names_and_initial_values_are_torchs() -> None:
    for layer in (GroupNorm(1, 2), InstanceNorm1d(2, affine=True)):
        state = {name: array.tolist() for name, array in layer.state_dict().items()}
        assert state == {"weight": [1, 1], "bias": [0, 0]}
    assert InstanceNorm2d(2).state_dict() == {}


def test_misuse_is_refused() -> None:
    with pytest.raises(ArgumentError, match="5 channels must be a multiple of 2 groups"):
        GroupNorm(2, 5)
    with pytest.raises(ArgumentError, match="InstanceNorm1d needs at least one channel"):
        InstanceNorm1d(0)
    with pytest.raises(ArgumentError, match="takes 3 dimensions with 4 channels, not shape"):
        InstanceNorm1d(4)(X)


def test_reprs() -> None:
    assert repr(GroupNorm(2, 4)) == "GroupNorm(2, 4, eps=1e-05, affine=True)"
    assert repr(InstanceNorm2d(4)) == "InstanceNorm2d(4, eps=1e-05, affine=False)"
