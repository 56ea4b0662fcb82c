import math

import numpy as np

from psframework import backend


def test_erf():
    x = np.linspace(-7, 7, 2001)
    exact = np.array([math.erf(v) for v in x])
    np.testing.assert_array_equal(backend.erf(x), exact)
    single = backend.erf(x.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, exact, rtol=1e-6, atol=1e-7)
    for shape in ((), (0, 3), (2, 1)):
        for dtype in (np.float32, np.float64):
            assert backend.erf(np.zeros(shape, dtype)).shape == shape
