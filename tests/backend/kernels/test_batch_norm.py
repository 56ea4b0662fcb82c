import numpy as np
import pytest


@pytest.mark.parametrize("shape", [(4, 3, 1), (2, 2, 40), (1, 1, 2)])
@pytest.mark.parametrize("training", [True, False])
def test_against_the_formulas(device, kernels, shape, training):
    rng = np.random.default_rng(2)
    x, g = rng.standard_normal(shape), rng.standard_normal(shape)
    mean, var = (x.mean((0, 2)), x.var((0, 2))) if training else rng.uniform(0.5, 1, (2, shape[1]))
    weight, bias = rng.standard_normal((2, shape[1]))
    there = device.to_device(x)
    if training:
        for ours, theirs in zip(kernels.batch_statistics(there), (mean, var)):
            np.testing.assert_allclose(device.asnumpy(ours), theirs, rtol=1e-12, atol=1e-14)
    scale = 1 / np.sqrt(var + 0.1)
    statistics = [device.to_device(a) for a in (mean, scale, scale * weight)]
    y = kernels.batch_norm(there, statistics[0], statistics[2], device.to_device(bias))
    normal = (x - mean[:, None]) * scale[:, None]
    np.testing.assert_allclose(
        device.asnumpy(y), normal * weight[:, None] + bias[:, None], rtol=1e-11, atol=1e-13
    )
    along, total = (g * normal).sum((0, 2)), g.sum((0, 2))
    into = g - training * (total[:, None] + normal * along[:, None]) / (shape[0] * shape[2])
    found = kernels.batch_norm_gradient(device.to_device(g), there, tuple(statistics), training)
    for ours, theirs in zip(found, (into * (scale * weight)[:, None], along, total)):
        np.testing.assert_allclose(device.asnumpy(ours), theirs, rtol=1e-10, atol=1e-12)


def test_empty(device, kernels):
    empty = device.zeros((0, 2, 3))
    assert [a.tolist() for a in kernels.batch_statistics(empty)] == [[0, 0], [0, 0]]
    assert kernels.batch_norm(empty, *(device.zeros(2) for _ in range(3))).shape == (0, 2, 3)
