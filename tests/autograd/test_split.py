"""A backward in two halves gives what one gives, to the last bit, and leaves the products for the second."""

import gc
import weakref
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from module_case import ModuleCase
from op_case import Case, collect, dense, one_tensor
from random_programs import make_program

import psframework as psf
from psframework import nn
from psframework.autograd import Function, Tensor, backward, ops
from psframework.autograd.record import record
from psframework.autograd.sparse import SparseRows
from psframework.autograd.split import split_backward
from psframework.errors import AutogradError

MODULES: list[ModuleCase] = list(collect("module_cases"))
products = import_module("psframework.autograd.ops.matmul")  # the function has the same name
SEVERAL: list[Case] = [case for case in collect("op_cases") if len(case.inputs) > 1]


def seed_of(out: Tensor) -> np.ndarray:
    return np.linspace(0.5, 1.5, out.size).reshape(out.shape).astype(out.dtype)


def in_halves(roots: Sequence[Tensor], inputs: Sequence[Tensor]) -> dict[Any, Any]:
    """Both halves in one dict, as `backward` answers; the second has nothing of the inputs."""
    first, later = split_backward(roots, [seed_of(root) for root in roots], inputs)
    second = later.run()
    assert not set(second) & set(inputs)
    return {tensor: g for tensor, g in zip(inputs, first, strict=True) if g is not None} | second


def check(make: Callable[[], tuple[Sequence[Tensor], Sequence[Tensor], dict[str, Tensor]]]) -> None:
    """`make` runs a forward: the roots, the inputs, and all leaves by name."""
    roots, _, leaves = make()
    whole = backward(roots, [seed_of(root) for root in roots])
    expected = {name: dense(whole[leaf]) for name, leaf in leaves.items() if leaf in whole}
    roots, inputs, leaves = make()
    halves = in_halves(roots, inputs)
    found = {name: dense(halves[leaf]) for name, leaf in leaves.items() if leaf in halves}
    assert len(halves) == len(whole)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        np.testing.assert_array_equal(gradient, expected[name], err_msg=name)


@pytest.mark.parametrize("case", MODULES, ids=repr)
def test_every_module(case: ModuleCase) -> None:
    nn.manual_seed(3)
    module = case.make(dtype=np.float64)

    def make() -> Any:
        nn.manual_seed(4)  # of dropout
        inputs = [Tensor(array, True) for array in case.inputs]
        out = one_tensor(case.run(module, inputs, case.constants))
        return [out], inputs, dict(enumerate(inputs)) | dict(module.named_parameters())

    check(make)


@pytest.mark.parametrize("case", SEVERAL, ids=repr)
def test_every_operation_for_each_operand_alone(case: Case) -> None:
    for place in range(len(case.inputs)):

        def make(place: int = place) -> Any:
            leaves = [Tensor(array, True) for array in case.inputs]
            out = one_tensor(case.op(*leaves, *case.constants))
            return [out], [leaves[place]], dict(enumerate(leaves))

        if make()[0][0].requires_grad:
            check(make)


@pytest.mark.oracle
@pytest.mark.parametrize("chosen", [(), (0,), (1, 3), (0, 1, 2, 3)], ids=str)
def test_random_programs(chosen: tuple[int, ...]) -> None:
    pytest.importorskip("torch")  # the catalogue of their operations has torch's beside ours
    from random_program_ops import SCALE
    from random_program_products import OPS

    for number in range(25):
        program = make_program(number, OPS, SCALE)

        def make(program: Any = program) -> Any:
            leaves = [Tensor(leaf, True) for leaf in program.leaves]
            values: list[Any] = list(leaves)
            for step in program.steps:
                values.append(step.op.ours(*(values[i] for i in step.operands), *step.options))
            outs = [values[i] for i in program.open_values()]
            roots = [out for out in outs if out.requires_grad]
            return roots, [leaves[i] for i in chosen], dict(enumerate(leaves))

        check(make)


def test_a_weight_that_several_layers_use() -> None:
    rng = np.random.default_rng(0)
    start = rng.standard_normal((5, 8)), rng.standard_normal((8, 8))

    def make() -> Any:
        x, w = (Tensor(array, True) for array in start)
        h = ops.tanh(ops.linear(x, w))
        y = ops.linear(h * w.sum(), ops.tanh(w) + w.T) + h
        return [y, h], [x], {"x": x, "w": w}

    check(make)


class Counted:
    """How often each kind of product was made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.weights: list[tuple[int, ...]] = []
        self.inputs = 0
        into_weight, product = products._into_weight, products.product

        def counted_weight(g: Any, rows: Any, *places: Any) -> Any:
            self.weights.append((g.shape[1], rows.shape[1]))
            return into_weight(g, rows, *places)

        def counted(a: Any, b: Any) -> Any:
            self.inputs += 1
            return product(a, b)

        monkeypatch.setattr(products, "_into_weight", counted_weight)
        monkeypatch.setattr(products, "product", counted)


def test_each_product_is_made_once_and_those_of_weights_later(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    x = psf.tensor(np.ones((7, 3), np.float32), requires_grad=True)
    out = model(x)
    counted = Counted(monkeypatch)
    _, later = split_backward([out], [seed_of(out)], [x])
    assert (counted.weights, counted.inputs) == ([], 3)
    found = later.run()
    assert counted.weights == [(2, 5), (5, 4), (4, 3)]
    assert counted.inputs == 6  # `_into_weight` makes its product by `product`
    assert set(found) == set(model.parameters())


def test_a_branch_that_leads_to_parameters_only_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = (psf.tensor(np.ones((3, 3)), requires_grad=True) for _ in range(2))
    branch = ops.matmul(ops.matmul(w, w), w)
    out = ops.matmul(x, branch)
    counted = Counted(monkeypatch)
    _, later = split_backward(out, seed_of(out), x)
    assert counted.inputs == 1
    later.run()
    assert counted.inputs == 6


class Twin(Function):
    """Says how often its backward ran."""

    runs = 0

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        return a + 2 * b

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        Twin.runs += 1
        return gradients[0], 2 * gradients[0]


def test_a_rule_that_answers_all_at_once_runs_once() -> None:
    x, w = leaves(2)
    Twin.runs = 0
    first, later = split_backward(Twin.apply(x, w), np.ones(3), x)
    assert (Twin.runs, first[0].tolist()) == (1, [1, 1, 1])
    assert later.run()[w].tolist() == [2, 2, 2]
    assert Twin.runs == 1


def test_a_rule_with_a_default_of_another_meaning_runs_once() -> None:
    x, w = leaves(2)
    factors = []

    def rule(gradient: Any, factor: float = 3.0) -> Any:
        factors.append(factor)
        return gradient * factor, gradient

    first, later = split_backward(record("own", x.data * 3 + w.data, rule, (x, w)), np.ones(3), x)
    assert first[0].tolist() == [3, 3, 3]
    assert later.run()[w].tolist() == [1, 1, 1]
    assert factors == [3.0]


def leaves(count: int) -> list[Tensor]:
    return [psf.tensor(np.array([1.0, 2.0, 3.0]), requires_grad=True) for _ in range(count)]


def test_an_input_without_a_use_and_a_root_that_is_a_leaf() -> None:
    x, unused, w = leaves(3)
    first, later = split_backward([x * w, x, w], [np.ones(3)] * 3, [x, unused])
    assert first[1] is None
    assert first[0].tolist() == [2, 3, 4]
    assert later.run()[w].tolist() == [2, 3, 4]


def test_what_owners_get_is_theirs() -> None:
    x, w = leaves(2)
    seed = np.ones(3)
    first, later = split_backward(x + w, seed, x)
    first[0][:] = 9
    gradient = later.run()[w]
    assert gradient.tolist() == seed.tolist() == [1, 1, 1]
    assert not np.shares_memory(gradient, seed)


def test_rows_of_an_embedding_stay_sparse() -> None:
    table = psf.tensor(np.ones((5, 3)), requires_grad=True)
    (x,) = leaves(1)
    out = x * ops.embedding(np.array([1, 1, 4]), table, sparse=True)
    _, later = split_backward(out, seed_of(out), x)
    gradient = later.run()[table]
    assert isinstance(gradient, SparseRows)
    assert gradient.rows.tolist() == [1, 4]


def test_hooks_run_once_each_in_the_half_of_their_gradient() -> None:
    x, w, v = leaves(3)
    seen: list[str] = []
    h = x * w
    u = v * 2.0
    for name, tensor in {"x": x, "w": w, "v": v, "h": h, "u": u}.items():
        tensor.register_hook(lambda g, name=name: seen.append(name))
    h.register_hook(lambda g: g * 10)
    first, later = split_backward(h + u, np.ones(3), x)
    assert seen == ["h", "x"]
    assert first[0].tolist() == [10, 20, 30]
    found = later.run()
    assert sorted(seen) == ["h", "u", "v", "w", "x"]
    assert found[w].tolist() == [10, 20, 30]


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_nan_is_found_in_either_half() -> None:
    for place, name in ((0, "x"), (1, "w")):
        with psf.detect_anomaly():
            x, w = leaves(2)
            given = [x, w]
            given[place] = given[place] * 0.0
            out = ops.sqrt(given[place]) * given[1 - place]
            first = [] if name == "w" else [x]
            with pytest.raises(AutogradError, match=r"'sqrt' made a NaN(.|\n)*test_split"):
                split_backward(out, np.full(3, 0.0), first)[1].run()


def test_saved_arrays_are_freed_as_soon_as_nothing_reads_them() -> None:
    (x,) = leaves(1)
    w = psf.tensor(np.ones((3, 3)), requires_grad=True)
    hidden = ops.tanh(x)
    kept = weakref.ref(hidden.data)  # by tanh, and by matmul for its weight
    squared = ops.exp(ops.matmul(hidden, w))
    only_first = weakref.ref(squared.data)
    out = squared.sum()
    del hidden, squared
    _, later = split_backward(out, None, x)
    gc.collect()
    assert only_first() is None
    assert kept() is not None
    later.run()
    gc.collect()
    assert kept() is None


def test_a_second_half_that_is_dropped_frees_its_graph() -> None:
    (x,) = leaves(1)
    w = psf.tensor(np.ones((3, 3)), requires_grad=True)
    hidden = ops.tanh(x)
    kept = weakref.ref(hidden.data)
    out = ops.matmul(hidden, w)
    del hidden
    later = split_backward(out, np.ones(3), x)[1]
    del out
    assert kept() is not None
    del later
    assert kept() is None  # without the collector: nothing refers to itself


def test_errors_say_what_to_do() -> None:
    x, w = leaves(2)
    out = x * w
    with pytest.raises(AutogradError, match="no leaf, or does not require grad"):
        split_backward(out * 2.0, np.ones(3), out)
    with pytest.raises(AutogradError, match="no leaf, or does not require grad"):
        split_backward(out, np.ones(3), psf.tensor(np.ones(3)))
    later = split_backward(out, np.ones(3), x)[1]
    with pytest.raises(AutogradError, match="graph of 'multiply' was freed"):
        out.backward(np.ones(3))
    later.run()
    with pytest.raises(AutogradError, match="second half of this backward ran before"):
        later.run()


def test_a_change_between_the_halves_is_noticed() -> None:
    x, w = leaves(2)
    h = x * 1.0
    first, later = split_backward(ops.matmul(h, w), None, x)
    assert first[0].tolist() == [1, 2, 3]
    with psf.no_grad():
        h += 1.0
    with pytest.raises(AutogradError, match="backward of 'matmul' needs was changed in place"):
        later.run()


def test_a_first_half_that_fails_leaves_the_rest_of_the_graph_whole() -> None:
    x, w = leaves(2)
    inner = x * w
    outer = ops.tanh(inner)

    def fail(gradient: Any) -> None:
        raise RuntimeError("no")

    remove = outer.register_hook(fail)
    with pytest.raises(RuntimeError, match="no"):
        split_backward(outer, np.ones(3), x)
    remove()
    inner.backward(np.ones(3))
    assert w.grad is not None
    assert w.grad.tolist() == [1, 2, 3]
