import numpy as np
import pytest

from psframework import ops
from psframework.autograd import tensor
from psframework.errors import ArgumentError

KINKS = [-7.0, -3, -1, -0.5, 0, 0.5, 1, 3, 6, 7]


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("silu", {}),
        ("mish", {}),
        ("logsigmoid", {}),
        ("hardsigmoid", {}),
        ("hardswish", {}),
        ("softsign", {}),
        ("leaky_relu", {"negative_slope": 0.3}),
        ("elu", {"alpha": 0.5}),
        ("selu", {}),
        ("celu", {"alpha": 2.0}),
        ("softplus", {"beta": 2.0, "threshold": 5.0}),
        ("hardtanh", {"min_val": -3.0, "max_val": 0.5}),
        ("relu6", {}),
    ],
)
def test_values_and_derivatives_are_torchs_at_the_kinks_too(name, options):
    torch = pytest.importorskip("torch")
    mine, other = tensor(KINKS, True), torch.tensor(KINKS, dtype=torch.float64, requires_grad=True)
    out = getattr(ops, name)(mine, **options)
    expected = getattr(torch.nn.functional, name)(other, **options)
    np.testing.assert_allclose(out.data, expected.detach().numpy(), atol=1e-14)
    out.sum().backward()
    expected.sum().backward()
    # torch holds the 1/6 of hardsigmoid in float32
    np.testing.assert_allclose(mine.grad, other.grad.numpy(), atol=1e-8 if name == "hardsigmoid" else 1e-14)


@pytest.mark.oracle
def test_weighted_and_gated_are_torchs():
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    rng = np.random.default_rng(0)
    for ours, theirs, arrays in (
        (ops.prelu, functional.prelu, [rng.standard_normal((2, 3, 4)), rng.standard_normal(3)]),
        (ops.prelu, functional.prelu, [rng.standard_normal(4), np.array([0.2])]),
        (ops.glu, functional.glu, [rng.standard_normal((2, 6))]),
        (lambda x: ops.glu(x, 1), lambda x: functional.glu(x, 1), [rng.standard_normal((2, 4, 3))]),
    ):
        mine = [tensor(a, True) for a in arrays]
        other = [torch.tensor(a, requires_grad=True) for a in arrays]
        (ours(*mine) ** 2).sum().backward()
        (theirs(*other) ** 2).sum().backward()
        for a, b in zip(mine, other):
            np.testing.assert_allclose(a.grad, b.grad.numpy(), atol=1e-12)


def test_nothing_overflows():
    x = np.array([-1e4, -100, 0, 100, 1e4], np.float32)
    with np.errstate(all="raise", under="ignore"):
        for name in ("silu", "mish", "logsigmoid", "softplus", "elu", "selu", "celu", "softsign"):
            t = tensor(x, True)
            out = getattr(ops, name)(t)
            out.sum().backward()
            assert np.isfinite(out.data).all() and np.isfinite(t.grad).all(), name


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ops.hardtanh(np.ones(2), 1, -1), "hardtanh: min_val 1 is above max_val -1"),
        (lambda: ops.prelu(np.ones((2, 3)), np.ones(2)), r"prelu: weight of shape \(2,\) for 3 channels"),
        (lambda: ops.glu(np.ones((2, 3))), "glu: axis -1 of shape .* must be even"),
        (lambda: ops.silu("x"), "silu takes a tensor or an array, not str"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
