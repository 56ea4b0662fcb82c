import numpy as np
import pytest

import psframework as psf

NUMBERS = np.array([2.75, -2.75, 0.0, -0.0, 8.0, 1e-310, 1e300])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_parts_are_numpys(dtype):
    x = NUMBERS[:5].astype(dtype)
    for ours, numpys in ((psf.ops.modf, np.modf), (psf.ops.frexp, np.frexp)):
        for mine, theirs in zip(ours(x), numpys(x), strict=True):
            np.testing.assert_array_equal(mine.data, theirs)
            assert mine.dtype == theirs.dtype
    for mine, theirs in zip(psf.ops.divmod(x, dtype(2)), np.divmod(x, dtype(2)), strict=True):
        np.testing.assert_array_equal(mine.data, theirs)


def test_mantissas_of_the_smallest_and_largest_numbers():
    mantissa, exponent = psf.ops.frexp(NUMBERS)
    np.testing.assert_array_equal(mantissa.data, np.frexp(NUMBERS)[0])
    np.testing.assert_array_equal(psf.ops.ldexp(mantissa, exponent).data, NUMBERS)


def test_whole_parts_are_flat():
    x = psf.tensor([2.75, -2.75], requires_grad=True)
    psf.ops.modf(x)[1].sum().backward()
    assert x.grad.tolist() == [0, 0]
