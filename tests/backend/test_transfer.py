import numpy as np

from psframework import backend


def test_values_become_arrays():
    assert backend.asnumpy([1, 2]).tolist() == [1, 2]
    assert backend.array_like([1, 2], np.ones(1, np.float32), np.dtype(np.int8)).dtype == np.int8
