import numpy as np
import pytest

from psframework.autograd import backward, grad, no_grad, ops, tensor
from psframework.autograd.record import (
    as_tensor,
    constant,
    explain,
    guarded,
    record,
    record_many,
    recording,
    share_memory,
    sum_to,
    value_of,
)
from psframework.errors import ArgumentError, AutogradError
from psframework.testing.strict_device import strict_devices


def test_recording():
    leaf, plain = tensor(1.0, True), tensor(1.0)
    assert recording(plain, leaf) and not recording(plain, 1.0, None)
    with no_grad():
        assert not recording(leaf)


def test_record_links_inputs_and_versions():
    x, y = tensor(np.ones(2), True), tensor(np.ones(2))
    out = record("mine", np.zeros(2), lambda g: (g, None), (x, y), (y,), saves_output=True)
    assert out.requires_grad and out.node.name == "mine" and out.node.edges == (x, None)
    assert [count for _, count in out.node.saved] == [0, 0]


def test_scalars_of_numpy_become_arrays():
    assert isinstance(constant(np.float32(1)).data, np.ndarray)
    assert isinstance((tensor(np.float32(1), True) * 2).data, np.ndarray)


def test_share_memory():
    base = tensor(np.ones(2))
    view = share_memory(constant(base.data[:1]), base)
    base += 1
    assert view.version == 1


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), 24.0),
        ((4,), np.full(4, 6.0)),
        ((3, 1), np.full((3, 1), 8.0)),
        ((1, 1, 4), np.full((1, 1, 4), 6.0)),
    ],
)
def test_sum_to_undoes_broadcasting(shape, expected):
    out = sum_to(np.ones((2, 3, 4)), shape, np.dtype(np.float32))
    assert out.shape == shape and out.dtype == np.float32
    np.testing.assert_array_equal(out, expected)


def test_sum_to_adds_16_bits_in_float32():
    out = sum_to(np.full((4000, 1), 0.1, np.float16), (1,), np.dtype(np.float16))
    np.testing.assert_allclose(out, 400, rtol=1e-3)


def test_operands():
    assert value_of(2, "op") == 2 and as_tensor(2.0, "op").shape == ()
    for function in (value_of, as_tensor):
        with pytest.raises(ArgumentError, match=r"op takes.*not list"):
            function([1], "op")


@guarded("mix")
def mix(first, second=0, *, parts=()):
    if isinstance(first, str):
        raise AutogradError(first)
    return first.data + second.data + sum(part[5] for part in parts)


def test_guarded_operations_name_themselves_the_shapes_and_the_dtypes():
    a, b = tensor(np.ones(2)), tensor(np.ones((3, 1), np.float32))
    with pytest.raises(ArgumentError, match=r"mix: .*broadcast.*operands: \(2,\) float64, \(4,\) float64"):
        mix(a, tensor(np.ones(4)))
    with pytest.raises(ArgumentError, match=r"mix: .*out of bounds.*\(3, 1\) float32"):
        mix(a, b, parts=[b.data])
    with pytest.raises(IndexError):
        mix(a, b, parts=[b.data])
    assert mix.__name__ == "mix" and mix(a, b).shape == (3, 2)


def test_guarded_operations_pass_typed_errors_and_wrong_calls():
    with pytest.raises(AutogradError, match=r"^mine$"):
        mix("mine")
    with pytest.raises(TypeError, match="unexpected keyword"):
        mix(tensor(1.0), other=2)
    mine = ArgumentError("mine")
    assert explain("mix", mine, 1) is mine


def test_operands_on_two_devices_are_told_with_the_fix():
    message = r"mix: operands are on cpu and gpu-0: move one with \.to\('gpu-0'\)"
    with strict_devices("gpu-0") as (device,), pytest.raises(ArgumentError, match=message):
        mix(tensor(np.ones(2)), constant(device.to_device(np.ones(2))))


def split(x, inputs=None):
    """(2x, x squared, the index of the largest) of a vector."""
    data = x.data

    def rule(gradients):
        seen.append(gradients)
        double, square, index = gradients
        assert index is None
        total = np.zeros_like(data)
        if double is not None:
            total += 2 * double
        if square is not None:
            total += 2 * data * square
        return (total,)

    seen = []
    results = record_many("split", (2 * data, data**2, data.argmax(keepdims=True)), rule, (x,), (x,))
    return results, seen


X = np.array([1.0, 3.0])


def test_several_results_and_one_node():
    x = tensor(X, True)
    (double, square, index), seen = split(x)
    assert double.requires_grad and square.requires_grad and not index.requires_grad
    (double.sum() + (square * 3).sum()).backward()
    assert len(seen) == 1
    np.testing.assert_array_equal(x.grad, 2 + 6 * X)


def test_unused_results_have_no_gradient():
    x = tensor(X, True)
    (_, square, _), seen = split(x)
    square.sum().backward()
    assert seen[0][0] is None
    np.testing.assert_array_equal(x.grad, 2 * X)


def test_each_result_has_hooks_and_a_gradient_of_its_own():
    x = tensor(X, True)
    (double, square, _), _ = split(x)
    double.register_hook(lambda g: g * 10)
    into_double, into_square, into_x = grad((double + square * square).sum(), [double, square, x])
    np.testing.assert_array_equal(into_double, [10, 10])
    np.testing.assert_array_equal(into_square, 2 * X**2)
    np.testing.assert_array_equal(into_x, 20 + 4 * X**3)


def test_the_graph_of_several_results_is_freed_kept_and_guarded():
    x = tensor(X, True)
    (double, square, _), _ = split(x)
    backward([double, square], [X, X], retain_graph=True)
    backward([square], [X])
    with pytest.raises(AutogradError, match="'split' was freed"):
        backward([double], [X])
    (double, _, _), _ = split(x)
    x.bump_version()
    with pytest.raises(AutogradError, match="'split' needs was changed in place 1 time"):
        double.sum().backward()


def test_a_saved_result_of_several_is_guarded():
    x = tensor(X, True)
    out = np.exp(X)
    first, second = record_many("both", (out, -out), lambda g: (g[0] * out,), (x,), saves_output=True)
    second.bump_version()
    with pytest.raises(AutogradError, match="'both' needs was changed"):
        first.sum().backward()


def test_what_is_no_operand_is_named_with_its_home():
    class Tensor:  # another library's
        pass

    for call, words in (
        (lambda: tensor(X) + Tensor(), "numbers, not"),
        (lambda: ops.exp(Tensor()), "array, not"),
    ):
        with pytest.raises(ArgumentError, match=rf"{words} \S*test_record\.Tensor: .*psf\.tensor"):
            call()
