"""Modules travel as class, arguments and state."""

import contextlib
import copy
import importlib
import tracemalloc
from pathlib import Path

import module_cases
import numpy as np
import pytest

import psframework as psf
from psframework import nn
from psframework.errors import WireError
from psframework.proto.v1.remote_pb2 import Value
from psframework.rpc.call import PeerInfo
from psframework.rpc.values import kinds, modules
from psframework.rpc.values.arguments import CannotTravel, decode, decode_call, encode, no_modules
from psframework.rpc.values.encoder import Encoder
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


@psf.remote
class Head(nn.Linear):
    """A layer with another forward."""

    def forward(self, x):
        return super().forward(x) * 2


@psf.remote
class Bent(nn.PReLU):
    """A layer that makes more than its base."""

    def __init__(self, size):
        super().__init__(size)
        self.register_buffer("factor", np.full(size, 4.0), persistent=False)


@psf.remote
class Tabled(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary = nn.RotaryEmbedding(4, 50)
        self.register_buffer("own", np.array([1, 2]), persistent=False)


@psf.remote
class Doubled(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.twin = nn.Linear(2, 3)
        self.twin.weight = inner.weight
        self.shape = inner.weight.shape
        self.hidden = [nn.Linear(2, 3)]


@psf.remote
class Twins(nn.Module):
    """Its constructor ties."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.second.weight = self.first.weight


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


def test_parameters_that_were_tied_later_stay_one():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    net[1].weight = net[2][0].weight = net[0].weight
    net[1].weight.requires_grad = False
    found = back(net)
    assert_equal(found, net)
    assert found[0].weight is found[1].weight is found[2][0].weight and not found[0].weight.requires_grad
    assert len(list(found.parameters())) == 4


def test_parameters_that_were_tied_at_first_and_are_no_more():
    net = Twins()
    same = back(net)
    assert same.first.weight is same.second.weight
    net.second.weight = nn.Parameter(net.first.weight.data + 1)
    found = back(net)
    assert_equal(found, net)
    assert found.first.weight is not found.second.weight


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


def peak_of(function):
    """The most that is allocated while it runs."""
    tracemalloc.start()
    try:
        with contextlib.suppress(WireError):
            function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("case", list(cases()), ids=repr)
def test_arguments_that_ask_for_more_than_arrived(case):
    """Whichever of them it is: nothing beyond what the message is itself is allocated."""
    journey = Journey()
    message = encode(case.make(dtype=np.float32), journey)
    integers, parts = list(message.integers), [bytes(part) for part in journey.parts]
    decode(message, parts, Journey())  # imports
    frame = message.ByteSize() + sum(map(len, parts))
    for at in range(len(integers)):
        for size in (4096, 1 << 20, 1 << 33, 1 << 62):
            message.integers[:] = integers
            message.integers[at] = size
            assert peak_of(lambda: decode(message, parts, Journey())) < 50_000 + 40 * frame


def test_a_large_message_allocates_what_it_is():
    net, journey = nn.Sequential(nn.Linear(700, 700), nn.Linear(2, 2)), Journey()
    message = encode(net, journey)
    frame = message.ByteSize() + sum(len(part) for part in journey.parts)
    assert message.integers[:2] == [700, 700]
    assert peak_of(lambda: decode(message, journey.parts, Journey())) < 2 * frame + 50_000
    for sizes in ((701, 700), (900, 900), (990, 990), (2000, 2000), (20_000, 20_000)):
        message.integers[:2] = sizes
        assert peak_of(lambda: decode(message, journey.parts, Journey())) < 2 * frame + 50_000
        with pytest.raises(WireError):
            decode(message, journey.parts, Journey())


def test_many_modules_share_what_one_message_may_take():
    message = encode([nn.Linear(2, 3) for _ in range(50)], Journey())
    message.integers[:] = [100, 100] * 50
    with pytest.raises(WireError, match="larger than the state that came with it"):
        decode(message, [], Journey())


def test_a_module_without_its_state_is_refused():
    inner = nn.Linear(2, 3)
    for value in (inner, [nn.ReLU(), inner]):
        journey = Journey()
        encoder = Encoder(journey)
        encoder._inside = frozenset({id(inner)})  # as if a module around it brought its state
        encoder.put(value)
        message = Value()
        encoder.fill(message, 0)
        with pytest.raises(WireError, match="modules without their states: Linear"):
            decode(message, [], Journey())
        with pytest.raises(WireError, match="modules without their states: Linear"):
            decode_call(call_of(message), [], Journey())


def call_of(value):
    """A call with one argument."""
    call = Value.FromString(value.SerializeToString())
    call.outline = bytes([kinds.TUPLE, 2, kinds.TUPLE, 1]) + value.outline + bytes([kinds.DICT, 0])
    return call


def test_each_class_is_asked_for_once_and_before_it_is_made():
    asked = []
    journey = Journey(PeerInfo("someone", "worker", "", 7), outgoing=False)

    def authorize(entry, peer):
        asked.append((entry.name.rpartition(".")[2], peer.name))

    message = encode([nn.Sequential(nn.ReLU(), nn.ReLU()), nn.ReLU()], Journey())
    decode(message, [], journey, authorize=authorize)
    assert asked == [("Sequential", "someone"), ("ReLU", "someone")]


def test_where_no_module_may_stand():
    journey = Journey(PeerInfo("someone", "worker", "", 7), outgoing=False)
    assert decode(encode([1], Journey()), [], journey, authorize=no_modules) == [1]
    with pytest.raises(WireError, match=r"a Module, psframework\.nn\.ReLU, where none may stand"):
        decode(encode([nn.ReLU()], Journey()), [], journey, authorize=no_modules)


def test_a_users_layer_that_nns_own_code_makes_is_bounded_too():
    found = back(Head(2, 3))
    assert type(found) is Head and modules.is_layer(Head) and not modules.is_layer(Bent)
    assert back(Bent(2)).factor.tolist() == [4.0, 4.0]
    message = encode(Head(2, 3), Journey())
    message.integers[:] = [20_000, 20_000]
    with pytest.raises(WireError, match="larger than the state that came with it"):
        decode(message, [], Journey())


def test_a_layer_of_a_range_is_refused():
    """Which is a few bytes here, and as a tuple more than any memory."""
    message = encode([range(1 << 40)], Journey())
    layer = encode(nn.LayerNorm((3,)), Journey())
    layer.outline = layer.outline.replace(bytes([kinds.TUPLE, 1, kinds.INTEGER]), message.outline[2:], 1)
    layer.integers[:1] = message.integers
    with pytest.raises(WireError, match=r"nn\.LayerNorm of a range"):
        decode(layer, [], Journey())


def test_tables_that_layers_compute_travel_too():
    net = nn.Sequential(nn.RotaryEmbedding(4, 300), nn.SinusoidalPositionalEncoding(6, 200).half())
    net[1].table[3] = 7
    net = nn.Sequential(net, Tabled())
    journey = Journey()
    message = encode(net, journey)
    found = decode(message, journey.parts, Journey())
    np.testing.assert_array_equal(found[0][0].phases, net[0][0].phases)
    np.testing.assert_array_equal(found[0][1].table, net[0][1].table)
    np.testing.assert_array_equal(found[1].rotary.phases, net[1].rotary.phases)
    assert found[0][1].table.dtype == np.float16 and found[0][1].table[3, 0] == 7
    assert found[1].own.tolist() == [1, 2] and "own" not in repr(list(message.texts))
    state = modules.state_of(net)
    for change in ({}, {"1.rotary.phases": np.zeros(3)}, {"1.rotary.phases": np.zeros((50, 2))}):
        arrays = {path: array for path, array in state["arrays"].items() if path != "1.rotary.phases"}
        with pytest.raises(WireError, match=r"1\.rotary\.phases"):
            modules.restore(
                nn.Sequential(copy.deepcopy(net[0]), Tabled()), state | {"arrays": arrays | change}
            )


def test_layers_among_a_users_arguments_have_their_shapes_and_then_their_values():
    other = Doubled(nn.Linear(2, 3))
    other.inner.weight.data[:] = 5
    again = back(other)
    assert again.shape == (3, 2) and again.twin.weight is again.inner.weight
    assert again.inner.weight.data.tolist() == [[5, 5]] * 3 == again.twin.weight.data.tolist()
    assert again.hidden[0].weight.data.any(), "what is no part of the state has initial values"


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
        ({"shared": [["first.weight", "second.weight"]]}, "no 'second.weight' here"),
        ({"shared": [["first.weight", "first.bias"]]}, "first.weight has shape|first.bias has shape"),
        ({"shared": ["first.weight"]}, "lists of names"),
        ({"shared": [[]]}, "lists of names"),
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
