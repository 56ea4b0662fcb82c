import numpy as np
import pytest

from psframework.autograd.ops import thin
from psframework.autograd.ops.thin import long_product, wide_product

rng = np.random.default_rng(4)


@pytest.mark.parametrize(("m", "k", "n"), [(3, 2, 100), (2, 5, 61), (4, 4, 7), (3, 2, 0), (1, 1, 1)])
@pytest.mark.parametrize("small", [60, 1_000_000], ids=["in parts", "whole"])
def test_products(m, k, n, small, monkeypatch):
    monkeypatch.setattr(thin, "SMALL", small)
    left, right, outputs = (
        rng.standard_normal((m, k)),
        rng.standard_normal((k, n)),
        rng.standard_normal((m, n)),
    )
    np.testing.assert_allclose(wide_product(left, right), left @ right, atol=1e-12)
    np.testing.assert_allclose(wide_product(left.T, outputs), left.T @ outputs, atol=1e-12)
    np.testing.assert_allclose(long_product(outputs, right), outputs @ right.T, atol=1e-12)
    single = wide_product(left.astype(np.float32), right.astype(np.float32))
    assert single.dtype == long_product(single, right.astype(np.float32)).dtype == np.float32


def test_large_matrices_are_not_cut(monkeypatch):
    monkeypatch.setattr(thin, "SMALL", 10)
    for limit in ("WEIGHTS", "GRADIENTS"):
        monkeypatch.setattr(thin, limit, 5)
    left, right = rng.standard_normal((3, 2)), rng.standard_normal((2, 50))
    np.testing.assert_allclose(wide_product(left, right), left @ right)
    np.testing.assert_allclose(long_product(left @ right, right), left @ right @ right.T)
