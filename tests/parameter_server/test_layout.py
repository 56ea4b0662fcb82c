"""Arena layout: equal models lie equally; bad models and differences are named."""

import pytest

from psframework.errors import ArgumentError, ModelMismatch
from psframework.parameter_server.layout import ALIGNMENT, Layout, ParameterSpec, check_same


def spec(name: str, shape: tuple[int, ...] = (3,), dtype: str = "float32") -> ParameterSpec:
    return ParameterSpec(name, dtype, shape)


def test_fields_are_grouped_by_dtype_aligned_and_disjoint():
    layout = Layout.of([spec("a"), spec("h", (5,), "bfloat16"), spec("b", (100, 2)), spec("empty", (0,))])

    assert [field.spec.name for field in layout.fields] == ["a", "b", "empty", "h"]
    end = 0
    for field in layout.fields:
        assert field.offset == end
        assert field.offset % ALIGNMENT == 0
        assert field.span >= field.spec.nbytes
        end = field.offset + field.span
    assert layout.nbytes == end


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([], "no parameters"),
        ([spec("a"), spec("a")], "two parameters named 'a'"),
        ([spec("n", (2,), "int64")], "'n' has dtype int64"),
    ],
)
def test_bad_models_are_refused(specs, words):
    with pytest.raises(ArgumentError, match=words):
        Layout.of(specs)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([spec("w", (4, 3)), spec("b")], r"'w' has shape \(4, 3\), registered is \(3, 4\)"),
        ([spec("w", (3, 4), "float64"), spec("b")], "'w' has dtype float64, registered is float32"),
        ([spec("x", (3, 4)), spec("b")], "'x' where 'w' is registered"),
        ([spec("w", (3, 4))], "'b' is registered, but missing here"),
        ([spec("w", (3, 4)), spec("b"), spec("c")], "'c' is not registered"),
    ],
)
def test_a_difference_names_the_parameter_and_both_sides(given, words):
    with pytest.raises(ModelMismatch, match=words):
        check_same([spec("w", (3, 4)), spec("b")], given, "net")


def test_equal_models_pass():
    check_same([spec("w"), spec("b")], [spec("w"), spec("b")], "net")
