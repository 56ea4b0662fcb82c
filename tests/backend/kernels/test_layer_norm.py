import numpy as np
import pytest


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(
    "shape", [(1, 1), (3, 5), (20, 35)]
)  # more rows than a share, more columns than a block
def test_against_the_formulas(device, kernels, shape, centred):
    rng = np.random.default_rng(1)
    x, g = rng.standard_normal(shape), rng.standard_normal(shape)
    weight, bias = rng.standard_normal((2, shape[1]))
    mean = x.mean(1, keepdims=True) if centred else np.zeros((shape[0], 1))
    scale = 1 / np.sqrt(((x - mean) ** 2).mean(1, keepdims=True) + 0.1)
    normal = (x - mean) * scale
    there = [device.to_device(a) for a in (x, weight, bias, g)]
    y, means, scales = kernels.layer_norm(*there[:3], 0.1, centred)
    for ours, theirs in ((y, normal * weight + bias), (means, mean[:, 0]), (scales, scale[:, 0])):
        np.testing.assert_allclose(device.asnumpy(ours), theirs, rtol=1e-12, atol=1e-14)
    back = g * weight
    into = back - normal * (back * normal).mean(1, keepdims=True)
    into = (into - back.mean(1, keepdims=True) if centred else into) * scale
    ours = kernels.layer_norm_gradient(there[3], there[0], there[1], (means, scales), centred)
    np.testing.assert_allclose(device.asnumpy(ours), into, rtol=1e-11, atol=1e-13)
    along, total = kernels.layer_norm_columns(there[3], there[0], (means, scales))
    np.testing.assert_allclose(device.asnumpy(along), (g * normal).sum(0), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(device.asnumpy(total), g.sum(0), rtol=1e-11, atol=1e-13)


def test_without_weight_and_empty(device, kernels):
    x = device.to_device(np.array([[1.0, 3.0]]))
    y, *saved = kernels.layer_norm(x, None, None, 0.0)
    assert y.tolist() == [[-1, 1]]
    assert kernels.layer_norm_gradient(device.ones((1, 2)), x, None, saved).tolist() == [[0, 0]]
    empty = device.zeros((0, 2))
    assert kernels.layer_norm(empty, None, None, 0.0)[0].shape == (0, 2)
    assert kernels.layer_norm_columns(empty, empty, (device.zeros(0), device.zeros(0)))[0].tolist() == [0, 0]
