"""Nodes of each kind that do not hold what they should, and arrays of devices."""

import sys
import time

import numpy as np
import pytest

import psframework as psf
from psframework import backend
from psframework.errors import WireError
from psframework.proto.v1.remote_pb2 import Value
from psframework.rpc.values import kinds as k
from psframework.rpc.values.arguments import decode, encode
from psframework.rpc.values.journey import Journey
from psframework.testing.strict_device import strict_devices
from psframework.wire.device_bytes import DEVICE_BYTES, DeviceBytes

F4 = k.NUMBERS[np.dtype("f4")]


def read(outline, parts=(), **columns):
    return decode(Value(outline=bytes(outline), **columns), parts, Journey(outgoing=False))


def array(*shape, number=F4):
    return [k.ARRAY, number, len(shape), *shape]


@pytest.mark.parametrize(
    ("outline", "columns"),
    [
        (array(2), {"blobs": [b"1234"]}),
        (array(1), {"blobs": [b"12345"]}),
        (array(0), {"blobs": [b"1"]}),
        (array(1, number=99), {"blobs": [b"1234"]}),
        (array(1, number=0), {"blobs": [b"1234"]}),
        ([k.ARRAY, F4, 65, *[1] * 65], {"blobs": [b"1234"]}),
        ([k.ARRAY, F4, 2, 0, *[0xFF] * 8, 0x7F], {"blobs": [b""]}),
        ([k.ARRAY, F4, 2, *[0xFF] * 8, 0x7F, *[0xFF] * 8, 0x7F], {"blobs": [b"1234"]}),
        ([k.ARRAY, F4], {"blobs": [b"1234"]}),
        ([k.SCALAR, F4], {"blobs": [b"123"]}),
        ([k.SCALAR, 77], {"blobs": [b"1234"]}),
        ([k.ENCODED_TEXT], {"blobs": [b"\xff"]}),
        ([k.DICT, 1, k.LIST, 0, k.NONE], {}),
        ([k.SET, 1, k.LIST, 0], {}),
        ([k.RANGE, k.INTEGER, k.INTEGER, k.INTEGER], {"integers": [1, 2, 0]}),
        ([k.RANGE, k.NONE, k.NONE, k.NONE], {}),
        ([k.DATE], {"texts": ["yesterday"]}),
        ([k.TIME, 0, k.NONE], {"texts": ["25:00"]}),
        ([k.TIME, 9, k.NONE], {"texts": ["05:00"]}),
        ([k.DATETIME, 0, k.TRUE], {"texts": ["2026-11-30T00:00:00"]}),
        ([k.DURATION], {"integers": [2**62, 0, 0]}),
        ([k.FIXED_ZONE, k.DURATION, k.NONE], {"integers": [3, 0, 0]}),
        ([k.FIXED_ZONE, k.NONE, k.NONE], {}),
        ([k.NAMED_ZONE], {"texts": ["../../etc/passwd"]}),
        ([k.NAMED_ZONE], {"texts": ["Nowhere/Near"]}),
        ([k.PYTHON_TYPE], {"texts": ["object"]}),
        ([k.SCALAR_TYPE, 0], {}),
        ([k.ON_DEVICE, k.NONE], {"texts": ["cpu"]}),
    ],
    ids=str,
)
def test_refused(outline, columns):
    with pytest.raises(WireError) as caught:
        read(outline, parts=[b"1234"], **columns)
    assert len(str(caught.value)) < 1000


def test_an_array_on_a_device_goes_to_one_of_that_kind():
    with strict_devices("gpu-0") as (device,):
        held = backend.to_device(np.arange(6.0, dtype="f4").reshape(2, 3), device.device)
        journey = Journey()
        message = encode({"a": held, "t": psf.Tensor(held)}, journey)
        found = decode(message, journey.parts, Journey(outgoing=False))
        assert backend.device_of(found["a"]) == device.device == found["t"].device
        np.testing.assert_array_equal(backend.asnumpy(found["a"]), np.arange(6.0).reshape(2, 3))
    found = decode(message, journey.parts, Journey(outgoing=False))
    assert isinstance(found["a"], np.ndarray) and found["t"].device == backend.CPU, "there is none here"


@pytest.mark.parametrize("dtype", [np.float32, np.int8, bool, np.complex128])
def test_an_array_that_came_on_a_device_stays_there(dtype):
    with strict_devices("gpu-0") as (device,):
        host = np.arange(DEVICE_BYTES).astype(dtype).reshape(-1, 2, 8)
        journey = Journey()
        message = encode([device.to_device(host), psf.Tensor(device.to_device(host)), host], journey)
        assert [type(part) for part in journey.parts] == [DeviceBytes, DeviceBytes, memoryview]
        arrived = [
            DeviceBytes(device.to_device(np.frombuffer(bytes(part), np.uint8))) for part in journey.parts
        ]
        device.synchronisations = 0
        array, tensor, plain = decode(message, arrived, Journey(outgoing=False))
        assert device.synchronisations == 1, "what goes to the host"
        assert backend.device_of(array) == tensor.device == device.device and type(plain) is np.ndarray
        for found in (array.host, tensor.data.host, plain):
            np.testing.assert_array_equal(found, host)
            assert found.dtype == dtype and found.shape == host.shape
    found = decode(message, [bytes(host)] * 3, Journey(outgoing=False))
    assert all(type(each) is np.ndarray for each in (found[0], found[1].data)), "there is none here"


def test_what_is_on_a_device_and_is_not_what_its_node_says():
    with strict_devices("gpu-0") as (device,):
        part = DeviceBytes(device.to_device(np.zeros(8, np.uint8)))
        for tail in (array(3), array(1, number=99), [k.ARRAY, F4, 33, *[1] * 33], [k.ARRAY], [k.BYTES, 0]):
            with pytest.raises(WireError):
                read([k.ON_DEVICE, k.PART, *tail], [part], texts=["gpu-0"])
        with pytest.raises(WireError, match="part 0"):
            read([k.ON_DEVICE, k.PART, *array(2)], texts=["gpu-0"])
        assert read([k.PART, k.BYTES], [part]) == bytes(8)
        assert read([k.PART, *array(2)], [part]).tolist() == [0, 0]


SAME_HASH = [(i + 9) * sys.hash_info.modulus for i in range(20_000)]


@pytest.mark.parametrize("kind", [k.SET, k.FROZENSET, k.DICT])
def test_keys_that_were_chosen_to_have_one_hash_cost_no_time(kind):
    keys = SAME_HASH if kind != k.DICT else [x for key in SAME_HASH for x in (key, key)]
    message = encode(keys, Journey())
    outline = bytearray(encode(SAME_HASH, Journey()).outline)
    head = len(outline) - len(SAME_HASH)
    message.outline = bytes([kind]) + bytes(outline[1:head]) + message.outline[-len(keys) :]
    started = time.process_time()
    with pytest.raises(WireError, match="have one hash"):
        decode(message, (), Journey(outgoing=False))
    assert time.process_time() - started < 5


def test_large_dicts_and_sets_of_mixed_keys():
    for value in (
        {i * 1.5: i for i in range(500)}
        | {str(i): i for i in range(500)}
        | {(i, "x"): i for i in range(500)},
        set(range(-1000, 1000)) | {None, 2.5, (1,)},
        frozenset(map(str, range(1000))),
    ):
        journey = Journey()
        found = decode(encode(value, journey), journey.parts, Journey(outgoing=False))
        assert found == value
        assert not isinstance(value, dict) or list(found) == list(value)
    with pytest.raises(WireError, match="unhashable"):
        read([k.DICT, 100, *[k.LIST, 0, k.NONE] * 100])
