"""Modules travel as class, arguments and state."""

import copy
import importlib
from pathlib import Path

import module_cases
import numpy as np
import pytest

import psframework as psf
from psframework import nn
from psframework.errors import WireError
from psframework.proto.v1.remote_pb2 import Value
from psframework.rpc.values import kinds, modules
from psframework.rpc.values.arguments import CannotTravel, decode, encode
from psframework.rpc.values.journey import Journey


def cases():
    for folder in module_cases.__path__:
        for path in sorted(Path(folder).glob("[a-z]*.py")):
            yield from importlib.import_module(f"module_cases.{path.stem}").CASES


def back(value, **options):
    journey = Journey()
    message = Value.FromString(encode(value, journey).SerializeToString())
    return decode(message, [bytes(part) for part in journey.parts], Journey(outgoing=False), **options)


def assert_equal(first, second):
    assert type(first) is type(second) and repr(first) == repr(second)
    one, two = first.state_dict(), second.state_dict()
    assert one.keys() == two.keys()
    for name in one:
        assert one[name].dtype == two[name].dtype
        np.testing.assert_array_equal(one[name], two[name])
    assert [m.training for m in first.modules()] == [m.training for m in second.modules()]
    assert [p.requires_grad for p in first.parameters()] == [p.requires_grad for p in second.parameters()]


@pytest.mark.parametrize("case", list(cases()), ids=repr)
def test_every_module_of_nn(case):
    module = case.make(dtype=np.float32)
    for parameter in module.parameters():
        parameter.data = parameter.data + np.float32(0.25)
    assert_equal(back(module), module)


@psf.remote
class Net(nn.Module):
    def __init__(self, width, *, deep=False):
        super().__init__()
        self.first = nn.Linear(4, width)
        self.norm = nn.BatchNorm1d(width)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(width, 2)) if deep else None
        self.register_buffer("steps", np.zeros((), np.int64))

    def forward(self, x):
        return self.norm(self.first(x))


@psf.remote
class Wrapped(nn.Module):
    def __init__(self, inner, others=()):
        super().__init__()
        self.inner = inner
        self.others = list(others)  # not registered: these are no submodules


@psf.remote
class Fussy(nn.Module):
    def __init__(self, size):
        super().__init__()
        if size > 64:
            raise ValueError(f"{size} is too much")
        self.w = nn.Parameter(np.ones(size))


class Unregistered(nn.Module):
    pass


def test_a_users_module_with_its_state():
    net = Net(8, deep=True)
    net.steps = np.array(7)
    net.norm.running_mean[:] = 3
    net.first.weight.requires_grad = False
    net.rest[1].eval()
    found = back([net])[0]
    assert_equal(found, net)
    assert found.steps == 7 and found.first is not net.first
    x = np.ones((3, 4), "f4")
    np.testing.assert_array_equal(found.eval()(x).data, copy.deepcopy(net).eval()(x).data)


def test_what_changed_its_dtype_keeps_it():
    for change in (nn.Module.half, nn.Module.double, nn.Module.bfloat16):
        net = change(Net(3))
        assert_equal(back(net), net)


def test_values_arrive_as_copies():
    large = nn.Linear(600, 600)  # above what is copied in any case
    found = back(large)
    assert found.weight.data.flags.writeable
    found.weight.data += 1
    np.testing.assert_array_equal(found.weight.data, large.weight.data + 1)


def test_the_state_of_a_submodule_travels_once():
    inner = nn.Linear(200, 200, bias=False)
    journey = Journey()
    encode(nn.Sequential(nn.Sequential(inner)), journey)
    assert sum(part.nbytes for part in journey.parts) == 200 * 200 * 4


def test_a_module_in_two_places_stays_one():
    inner = nn.Linear(2, 2)
    shared = nn.Sequential(nn.Sequential(inner), inner)
    found, again = back((shared, inner))
    assert_equal(found, shared)
    assert found[1] is found[0][0] is again


def test_parameters_that_were_tied_later_arrive_equal():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    assert back(net).state_dict()["1.weight"].tolist() == net[0].weight.data.tolist()


def test_modules_that_are_only_arguments_keep_their_state():
    other = nn.Linear(2, 2)
    found = back(Wrapped(nn.Linear(3, 3), [other]))
    assert_equal(found.others[0], other)


def test_a_module_of_an_unregistered_class_is_refused():
    with pytest.raises(CannotTravel, match=r"value\[0\]: .*Unregistered is not registered.*@psf\.remote"):
        encode([Unregistered()], Journey())
    with pytest.raises(CannotTravel, match=r"value\.__init__\[0\]: .*Unregistered"):
        encode(nn.Sequential(Unregistered()), Journey())


def test_a_constructor_that_refuses():
    message = encode(Fussy(3), Journey())
    message.integers[0] = 65
    with pytest.raises(WireError, match=r"Fussy could not be made again: ValueError: 65 is too much"):
        decode(message, [], Journey())
    message.texts[0] = f"{__name__}.nothing"
    with pytest.raises(WireError, match="nothing is registered here"):
        decode(message, [], Journey())
    message.texts[0] = "psframework.nn.functional.relu"
    with pytest.raises(WireError, match="no Module class"):
        decode(message, [], Journey())


def test_a_module_that_no_memory_holds():
    message = encode(nn.Linear(2, 3), Journey())
    assert list(message.integers) == [2, 3]
    for sizes in ((1 << 40, 1 << 40), (1 << 25, 1 << 25)):
        message.integers[:] = sizes
        with pytest.raises(WireError, match=r"nn\.Linear could not be made again"):
            decode(message, [], Journey())


def test_a_state_that_does_not_fit_is_named():
    net = Net(3)
    good = modules.state_of(net)
    modules.restore(Net(3), good)
    for change, reason in [
        ({"arrays": {}}, "first.weight is missing"),
        ({"arrays": good["arrays"] | {"extra": np.ones(1)}}, "extra is unexpected"),
        (
            {"arrays": good["arrays"] | {"first.weight": np.ones((9, 9), "f4")}},
            r"first\.weight has shape \(9, 9\)",
        ),
        ({"arrays": good["arrays"] | {"steps": np.ones(())}}, "steps is int64 here, float64 arrived"),
        ({"arrays": [1]}, "arrays by name"),
        ({"resting": ["second"]}, "no 'second' here"),
        ({"resting": None}, "lists of names"),
        ({"frozen": ["steps"]}, "no 'steps' here"),
        ({"frozen": [1] * 4}, "lists of names"),
        ({"other": 1}, "not complete"),
    ]:
        with pytest.raises(WireError, match=reason):
            modules.restore(Net(3), good | change)
    for state in (None, 3, {}, []):
        with pytest.raises(WireError):
            modules.restore(Net(3), state)


def test_only_registered_module_classes_are_made():
    journey = Journey()
    message = encode(Fussy(2), journey)
    assert message.outline[0] == kinds.MODULE
    for name in ("builtins.dict", "psframework.nn.Parameter", "psframework.nn.Module", "os.system"):
        message.texts[0] = name
        with pytest.raises(WireError):
            decode(message, journey.parts, Journey())
