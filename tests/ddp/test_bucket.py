"""Bucket: views of the flat buffer."""

import numpy as np

import psframework as psf
from psframework.ddp.bucket import Bucket


def test_views_are_the_gradients_in_their_shapes() -> None:
    weight, bias = psf.nn.Parameter(np.zeros((2, 3))), psf.nn.Parameter(np.zeros(()))
    buffer = np.arange(10.0)
    bucket = Bucket(0, buffer, [weight, bias], ["weight", "bias"], [0, 8], group=None)  # type: ignore[arg-type]
    first, second = bucket.views()
    np.testing.assert_array_equal(first, [[0, 1, 2], [3, 4, 5]])
    assert second.shape == () and second == 8
    first[0, 0] = 7
    assert buffer[0] == 7
