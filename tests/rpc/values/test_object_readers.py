"""Tensors, Modules and names that do not hold what they should; nothing is imported for a peer."""

import sys

import numpy as np
import pytest

import psframework as psf
from psframework import backend, nn
from psframework.errors import PermissionDenied, WireError
from psframework.proto.v1.remote_pb2 import Value
from psframework.rpc.call import PeerInfo
from psframework.rpc.security.allow import EVERYONE
from psframework.rpc.values import kinds as k
from psframework.rpc.values.arguments import decode, decode_call, encode, encode_call
from psframework.rpc.values.journey import Journey
from psframework.testing.strict_device import strict_devices

F4 = k.NUMBERS[np.dtype("f4")]


I8 = k.NUMBERS[np.dtype("i8")]
SPARSE = [k.SPARSE_ROWS, k.ARRAY, I8, 1, 1, k.ARRAY, F4, 1, 1, k.TUPLE, 1]


def read(outline, parts=(), **columns):
    return decode(Value(outline=bytes(outline), **columns), parts, Journey(outgoing=False))


def array(*shape, number=F4):
    return [k.ARRAY, number, len(shape), *shape]


@pytest.mark.parametrize(
    ("outline", "columns"),
    [
        ([k.TENSOR, k.NONE], {}),
        ([k.TENSOR], {}),
        ([k.TENSOR, k.PART, k.BYTES], {}),
        ([k.PARAMETER, k.TRUE, *array(1, number=k.NUMBERS[np.dtype("i4")])], {"blobs": [b"1234"]}),
        ([k.SPARSE_ROWS, *array(1), *array(1), k.NONE], {"blobs": [b"1234"] * 2}),
        (
            [k.SPARSE_ROWS, *array(1), *array(), k.TUPLE, 1, k.INTEGER],
            {"blobs": [b"1234"] * 2, "integers": [3]},
        ),
        ([*SPARSE, k.INTEGER], {"blobs": [(5).to_bytes(8, "little"), b"1234"], "integers": [5]}),
        ([*SPARSE, k.INTEGER], {"blobs": [bytes(8), b"1234" * 2], "integers": [5]}),
        (
            [k.SPARSE_ROWS, *array(1), *array(1), k.TUPLE, 1, k.INTEGER],
            {"blobs": [bytes(4)] * 2, "integers": [3]},
        ),
        ([*SPARSE, k.INTEGER], {"blobs": [b"\xff" * 8, b"1234"], "integers": [5]}),
        ([*SPARSE, k.LARGE_INTEGER], {"blobs": [bytes(8), b"1234", b"\x01" * 5000]}),
        ([k.GENERATOR, k.NONE], {}),
        ([k.GENERATOR, k.DICT, 0], {}),
        ([k.ENUM, 1], {"texts": ["os.path", "join"]}),
        ([k.ENUM, 100], {"texts": ["re.RegexFlag"] + ["I"] * 100}),
        ([k.RECORD, 0], {"texts": ["os.stat_result"]}),
        ([k.FUNCTION], {"texts": ["os.system"]}),
        ([k.MODULE, k.NONE, k.NONE, k.NONE], {"texts": ["psframework.nn.ReLU"]}),
        (
            [k.MODULE, k.TUPLE, 0, k.DICT, 1, k.INTEGER, k.NONE, k.NONE],
            {"texts": ["psframework.nn.ReLU"], "integers": [1]},
        ),
        ([k.MODULE, k.TUPLE, 0, k.DICT, 0, k.TRUE], {"texts": ["psframework.nn.ReLU"]}),
        ([k.SAME_MODULE, 0], {}),
        ([k.PASSENGER, 0], {"texts": ["nobody"], "blobs": [b""]}),
    ],
    ids=str,
)
def test_refused(outline, columns):
    with pytest.raises(WireError) as caught:
        read(outline, parts=[b"1234"], **columns)
    assert len(str(caught.value)) < 1000


def test_no_name_of_a_peer_is_imported():
    before = set(sys.modules)
    for name in (
        "xmlrpc.server.SimpleXMLRPCServer",
        "antigravity.x",
        "this.c",
        "psframework.testing.faults.X",
    ):
        for outline in ([k.FUNCTION], [k.ENUM, 1], [k.RECORD, 0], [k.MODULE, k.TUPLE, 0, k.DICT, 0, k.NONE]):
            with pytest.raises(WireError):
                read(outline, texts=[name, "A"])
    assert set(sys.modules) - before == set()


def test_a_module_on_a_device_stays_on_one():
    with strict_devices("gpu-0") as (device,):
        net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(device.device)
        journey = Journey()
        found = decode(encode(net, journey), journey.parts, Journey(outgoing=False))
        assert found[0].weight.device == device.device
        assert backend.device_of(found[1].running_mean) == device.device
        np.testing.assert_array_equal(
            backend.asnumpy(found[0].weight.data), backend.asnumpy(net[0].weight.data)
        )


def test_a_device_that_is_not_here_is_the_hosts_memory():
    assert read([k.DEVICE], texts=["cpu"]) == backend.CPU
    assert read([k.DEVICE], texts=["gpu-7"]) == backend.CPU


@psf.remote(roles=("trainer",))
class Guarded(nn.Module):
    """A class that only trainers may make."""

    made = 0

    def __init__(self):
        Guarded.made += 1
        if Guarded.made > 2:
            raise SystemExit(1)


def test_a_module_is_made_only_for_those_who_may_call_its_class():
    def sent_by(role):
        journey = Journey(PeerInfo("someone", role, "default", 7), outgoing=False)
        return decode_call(message, [], journey, authorize=authorize)

    def authorize(entry, peer):
        EVERYONE.check(peer, entry.name, entry.roles)

    message = encode_call((Guarded(),), None, Journey())
    assert Guarded.made == 1
    with pytest.raises(PermissionDenied, match="'stranger'"):
        sent_by("stranger")
    assert Guarded.made == 1
    ((found,), _) = sent_by("trainer")
    assert type(found) is Guarded and Guarded.made == 2
    with pytest.raises(WireError, match="could not be made again: SystemExit"):
        sent_by("trainer")


def test_a_module_that_arrives_draws_no_numbers_of_this_process():
    journey = Journey()
    message = encode(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3)), journey)
    psf.manual_seed(0)
    expected = nn.Linear(4, 4).weight.data
    psf.manual_seed(0)
    decode(message, journey.parts, Journey(outgoing=False))
    np.testing.assert_array_equal(nn.Linear(4, 4).weight.data, expected)
