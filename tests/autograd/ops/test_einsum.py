import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframework import ops
from psframework.autograd import no_grad, tensor
from psframework.errors import ArgumentError, AutogradError
from psframework.testing.gradcheck import gradcheck

rng = np.random.default_rng(10)


def n(*shape):
    return rng.standard_normal(shape)


@st.composite
def programs(draw):
    sizes = {letter: draw(st.integers(0, 3)) for letter in "abcd"}
    terms = draw(st.lists(st.text("abcd", max_size=3), min_size=1, max_size=3))
    used = sorted(set("".join(terms)))
    output = "".join(
        draw(st.permutations(draw(st.lists(st.sampled_from(used), unique=True)) if used else []))
    )
    shapes = []
    for term in terms:
        ones = {letter for letter in set(term) if draw(st.booleans()) and draw(st.booleans())}
        shapes.append([1 if letter in ones else sizes[letter] for letter in term])
    return f"{','.join(terms)}->{output}", shapes


@settings(max_examples=60)
@given(programs())
def test_as_numpy(program):
    subscripts, shapes = program
    operands = [np.asarray(rng.standard_normal(shape)) for shape in shapes]
    np.testing.assert_allclose(
        ops.einsum(subscripts, *operands).data, np.einsum(subscripts, *operands), atol=1e-12
    )
    gradcheck(lambda *xs: ops.einsum(subscripts, *xs), operands)


PAIRS = [
    ((), ()),
    ((), (3,)),
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((2, 4, 3), (5, 3, 2)),
    ((3,), (2, 3, 2)),
]


@pytest.mark.parametrize("shapes", PAIRS)
def test_dot_as_numpy(shapes):
    a, b = (np.asarray(rng.standard_normal(shape)) for shape in shapes)
    np.testing.assert_allclose(ops.dot(a, b).data, np.dot(a, b), atol=1e-12)


@pytest.mark.parametrize("shapes", [((), (2,)), ((3,), (3,)), ((2, 3), (4, 3)), ((2, 1, 3), (3,))])
def test_inner_outer_and_kron_as_numpy(shapes):
    a, b = (np.asarray(rng.standard_normal(shape)) for shape in shapes)
    np.testing.assert_allclose(ops.inner(a, b).data, np.inner(a, b), atol=1e-12)
    np.testing.assert_allclose(ops.outer(a, b).data, np.outer(a, b), atol=1e-12)
    np.testing.assert_allclose(ops.kron(a, b).data, np.kron(a, b), atol=1e-12)
    np.testing.assert_allclose(ops.vdot(a, a).data, np.vdot(a, a), atol=1e-12)


@pytest.mark.parametrize("axes", [0, 1, 2, (-1, 0), ([1, 2], [0, 1]), ([2, 1], [1, 0])])
def test_tensordot_as_numpy(axes):
    a, b = n(2, 3, 3), n(3, 3, 4)
    np.testing.assert_allclose(ops.tensordot(a, b, axes).data, np.tensordot(a, b, axes), atol=1e-12)


def test_results_have_memory_of_their_own():
    t = tensor(n(3, 3))
    for subscripts in ("ij", "ij->ji", "ii->i"):
        out = ops.einsum(subscripts, t)
        with no_grad():
            out += 1
        assert t.version == 0 and not np.shares_memory(out.data, t.data)


def test_a_change_of_what_is_kept_is_noticed_and_of_the_rest_is_not():
    a, b = tensor(n(2, 3), True), tensor(n(3, 2))
    out = ops.einsum("ij,jk->ik", a, b)
    with no_grad():
        a *= 2  # only the gradient of b would need it
    out.sum().backward(retain_graph=True)
    with no_grad():
        b *= 2
    with pytest.raises(AutogradError, match=r"'einsum'.*changed in place"):
        out.sum().backward()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bits_accumulate_in_float32(dtype):
    x = tensor(np.full((2, 4000), 0.1, dtype), True)
    for out in (
        ops.einsum("ij,kj->ik", x, x),
        ops.einsum("ij,ij,ij->i", x, x, np.full((2, 4000), 10, dtype)) / 10,
    ):
        assert out.dtype == dtype
        exact = float(x.data[0, 0]) ** 2 * 4000
        np.testing.assert_allclose(out.data.astype(float), exact, rtol=3 * float(ml_dtypes.finfo(dtype).eps))
    out.sum().backward()
    assert x.grad.dtype == dtype


def test_dtypes_mix():
    a, b = tensor(n(2, 3).astype(np.float32), True), tensor(n(3, 2), True)
    out = ops.einsum("ij,jk", a, b)
    assert out.dtype == np.float64
    out.sum().backward()
    assert (a.grad.dtype, b.grad.dtype) == (np.float32, np.float64)
    assert ops.einsum("i,i", np.arange(3), np.arange(3)).dtype == np.int64


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: ops.einsum("ij,jk", n(2, 3), n(2, 3)),
            r"einsum 'ij,jk': 'j' is 3 and 2 long in shapes \[\(2, 3\)",
        ),
        (lambda: ops.einsum("ii", n(2, 3)), "diagonal of axes that differ"),
        (lambda: ops.einsum("ii", n(1, 3)), "diagonal of axes that differ"),
        (lambda: ops.einsum("ij", n(2)), "for operand 0"),
        (
            lambda: ops.einsum(
                "",
            ),
            "terms for 0 operands",
        ),
        (lambda: ops.tensordot(n(2, 3), n(2, 3)[:, :1], 1), "differ in length"),
        (lambda: ops.tensordot(n(2), n(2), 2), "2 axes of shapes"),
        (lambda: ops.tensordot(n(2), n(2), (1, 0)), "axis 1"),
        (lambda: ops.dot(n(2, 3), n(2)), "do not fit"),
        (lambda: ops.inner(n(2, 3), n(2)), "differ in length"),
        (lambda: ops.vdot(n(2, 3), n(2)), "do not fit"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
