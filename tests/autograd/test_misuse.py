"""What users get wrong: each message names the operation, what did not fit, and what to do."""

import numpy as np
import pytest

import psframework as psf
import psframework.nn.functional as F
from psframework import ops
from psframework.autograd import Tensor, no_grad, recompute
from psframework.errors import ArgumentError, AutogradError
from psframework.testing.strict_device import StrictDevice


def ones(*shape, dtype=np.float64):
    return psf.tensor(np.ones(shape, dtype), True)


@pytest.mark.parametrize("dtype", ["int64", "bool", "uint8", "complex128"])
def test_only_floating_tensors_require_grad(dtype):
    with pytest.raises(AutogradError, match=rf"dtype {dtype} cannot require grad.*\.astype\(np\.float32\)"):
        psf.tensor(np.ones(2, dtype), requires_grad=True)


OPERATIONS = {
    "multiply": lambda x, w: x * w,
    "divide": lambda x, w: x / w,
    "power": lambda x, w: x**w,
    "maximum": ops.maximum,
    "log": lambda x, w: w.log(),
    "exp": lambda x, w: w.exp(),
    "matmul": lambda x, w: x @ w,
    "linear": F.linear,
    "softmax": lambda x, w: w.softmax(),
    "gelu": lambda x, w: F.gelu(w),
    "conv2d": lambda x, w: F.conv2d(x.reshape(1, 1, 3, 3), w.reshape(1, 1, 3, 3)),
    "einsum": lambda x, w: ops.einsum("ij,jk->ik", x, w),
    "recompute": lambda x, w: recompute(lambda a: a * w, x),
}
SAVES_ITS_RESULT = {"exp", "softmax"}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_second_backward(name):
    loss = OPERATIONS[name](ones(3, 3), ones(3, 3)).sum()
    loss.backward()
    with pytest.raises(AutogradError, match=r"'sum' was freed.*run the forward again.*retain_graph=True"):
        loss.backward()
    part = OPERATIONS[name](ones(3, 3), ones(3, 3))
    part.sum().backward()
    with pytest.raises(AutogradError, match=rf"the graph of '{name}' was freed"):
        (part * 2).sum().backward()


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_saved_array_changed_in_place(name):
    x, w = ones(3, 3), ones(3, 3)
    out = OPERATIONS[name](x, w)
    loss = out.sum()
    with no_grad():
        changed = out if name in SAVES_ITS_RESULT else w
        changed *= 2
        changed[0] = 1.0
    words = (
        rf"the backward of '{name}' needs was changed in place 2 time\(s\).*not in place, or change a copy"
    )
    with pytest.raises(AutogradError, match=words):
        loss.backward()


@pytest.mark.parametrize("name", ["multiply", "linear", "matmul"])
def test_an_optimizer_step_between_forward_and_backward(name):
    x, w = ones(3, 3), psf.nn.Parameter(np.ones((3, 3)))
    loss = OPERATIONS[name](x, w).sum()
    w.grad = np.ones((3, 3))
    psf.optim.SGD([w], lr=0.1).step()
    with pytest.raises(AutogradError, match=f"backward of '{name}' needs was changed in place"):
        loss.backward()


SHAPES = {
    r"add: .*\(2,\) float64, \(3,\) float64": lambda: ones(2) + ones(3),
    r"power: .*\(2,\) float64, \(3,\) float64": lambda: ones(2) ** ones(3),
    r"maximum: .*\(2,\).*\(3,\)": lambda: ops.maximum(ones(2), ones(3)),
    r"where: .*\(2,\).*\(3,\)": lambda: ops.where(np.ones(2, bool), ones(2), ones(3)),
    r"clip: .*\(3,\).*\(2,\)": lambda: ops.clip(ones(3), np.zeros(2)),
    r"matmul: shapes \(2, 3\) and \(2, 3\)": lambda: ones(2, 3) @ ones(2, 3),
    r"tensordot: .*\(2, 3\).*\(4, 5\)": lambda: ops.tensordot(ones(2, 3), ones(4, 5), 1),
    r"einsum.*\(2, 3\).*\(4, 5\)": lambda: ops.einsum("ij,jk->ik", ones(2, 3), ones(4, 5)),
    r"linear: .*\(2, 3\).*\(4, 4\)": lambda: F.linear(ones(2, 3), ones(4, 4)),
    r"conv2d: 2 channels.*\(3, 3, 2, 2\)": lambda: F.conv2d(ones(1, 2, 4, 4), ones(3, 3, 2, 2)),
    r"concatenate: .*\(2, 3\).*\(2, 4\)": lambda: ops.concatenate([ones(2, 3), ones(2, 4)], 0),
    r"stack: .*\(2,\), \(3,\)": lambda: ops.stack([ones(2), ones(3)]),
    r"reshape: 2 elements of shape \(2,\) into 3": lambda: ones(2).reshape(3),
    r"expand: shape \(2, 3\).*\(4, 5\)": lambda: ones(2, 3).expand(4, 5),
    r"index 5: .*axis 0 with size 3": lambda: ones(3)[5],
    r"sum: axis 5 of an array of 2 axes": lambda: ones(2, 3).sum(5),
    r"softmax: axis 4 of an array of 2 axes": lambda: ones(2, 3).softmax(4),
    r"layer_norm: .*\(2, 3\).*\(4,\)": lambda: F.layer_norm(ones(2, 3), (4,)),
    r"mse_loss: input \(2,\) and target \(3,\)": lambda: F.mse_loss(ones(2), ones(3)),
    r"cross_entropy: logits \(2, 3\) need targets of shape \(2,\)": lambda: F.cross_entropy(
        ones(2, 3), np.array([0])
    ),
    r"pad: ": lambda: ops.pad(ones(2), (1, 2, 3)),
    r"take_along_axis: .*\(2, 2, 2\).*\(2, 3\)": lambda: ops.take_along_axis(
        ones(2, 3), np.zeros((2, 2, 2), int), 1
    ),
}


@pytest.mark.parametrize("words", SHAPES)
def test_shapes_that_do_not_fit(words):
    with pytest.raises(ArgumentError, match=words) as info:
        SHAPES[words]()
    assert type(info.value).__name__ == "ArgumentError"


MIXED = {
    "add": lambda a, b: a + b,
    "maximum": ops.maximum,
    "matmul": lambda a, b: a @ b,
    "linear": F.linear,
    "concatenate": lambda a, b: ops.concatenate([a, b]),
    "where": lambda a, b: ops.where(a.data > 0, a, b),
    "einsum": lambda a, b: ops.einsum("ij,ij->i", a, b),
    "mse_loss": F.mse_loss,
}


@pytest.mark.parametrize("name", MIXED)
def test_operands_on_different_devices(name):
    device = StrictDevice("gpu-misuse")
    there, here = Tensor(device.to_device(np.ones((3, 3))), True), ones(3, 3)
    with pytest.raises(
        ArgumentError, match=rf"{name}.*gpu-misuse.* and cpu: move one with \.to\('gpu-misuse'\)"
    ):
        MIXED[name](there, here)


def test_backward_of_what_is_no_single_number_or_has_no_graph():
    x = ones(3)
    with pytest.raises(AutogradError, match=r"shape \(3,\) needs a seed of that shape"):
        (x * 2).backward()
    with pytest.raises(ArgumentError, match=r"seed of shape \(2,\) for a tensor of shape \(3,\)"):
        (x * 2).backward(np.ones(2))
    for constant in (x.detach(), psf.tensor(1.0), x.argmax()):
        with pytest.raises(AutogradError, match=r"no_grad, by detach, .*set requires_grad=True on an input"):
            constant.backward()
    with no_grad():
        loss = x.sum()
    with pytest.raises(AutogradError, match="made under no_grad"):
        loss.backward()


def test_in_place_where_a_graph_needs_the_old_values():
    leaf = ones(3)
    with pytest.raises(AutogradError, match=r"add_: a leaf that requires grad.*under no_grad\(\) only"):
        leaf += 1
    h = leaf * 1
    _ = h[:2]
    with pytest.raises(AutogradError, match=r"multiply_: views share this memory.*clone\(\) first"):
        h *= 2


def test_a_gradient_of_another_shape_or_kind():
    x = ones(3)
    with pytest.raises(ArgumentError, match=r"gradient of shape \(2,\) for a tensor of shape \(3,\)"):
        x.grad = np.ones(2)
    with pytest.raises(ArgumentError, match=r"must be an array or None, not Tensor"):
        x.grad = ones(3)


@pytest.mark.parametrize("value", ["text", [1.0], {}])
def test_operands_that_are_nothing_to_compute_with(value):
    with pytest.raises(ArgumentError, match=r"add takes tensors, arrays and numbers.*psf\.tensor"):
        ones(3) + value


@pytest.mark.parametrize(
    "call",
    [
        lambda t, z: t * z,
        lambda t, z: t @ z,
        lambda t, z: psf.ops.einsum("ij,jk", t, z),
        lambda t, z: psf.ops.concatenate([t, z]),
        psf.ops.linear,
        lambda t, z: t.astype(np.complex64),
    ],
)
def test_complex_results_have_no_gradients(call):
    t, z = psf.tensor(np.ones((2, 2)), True), np.ones((2, 2)) * 1j
    with pytest.raises(AutogradError, match="complex"):
        call(t, z)
    with no_grad():
        assert call(t, z).dtype.kind == "c"
