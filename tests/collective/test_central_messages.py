"""Descriptors survive the way to the service; what can't be is refused there."""

import numpy as np
import pytest
from collective import describe, opened

from psframework.collective import central_messages as messages
from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.ops import ReduceOp
from psframework.errors import ArgumentError, WireError
from psframework.proto.v1 import allreduce_pb2 as pb

SEAT = pb.Seat(group="g", generation=1, rank=1, secret=7)


def test_numbers_are_those_of_the_descriptor():
    sent = [each for each in Operation if each not in (Operation.SEND, Operation.RECV)]
    assert {f"COLLECTIVE_OPERATION_{each.name}": int(each) for each in sent} == {
        name: number for name, number in pb.CollectiveOperation.items() if number
    }
    assert {f"REDUCTION_{each.name}": int(each) for each in ReduceOp} == {
        name: number for name, number in pb.Reduction.items() if number
    }


@pytest.mark.parametrize("operation", [each for each in Operation if each.value < 9], ids=lambda o: o.name)
def test_round_trip(operation):
    said = describe(operation, np.zeros(6, np.float16), op=ReduceOp.MAX, root=0, sequence=9)
    assert messages.to_descriptor(messages.to_request(said, SEAT), 3) == said


@pytest.mark.parametrize(
    "said",
    [
        Descriptor(3, Operation.BARRIER),
        Descriptor(3, Operation.REFUSE, note="no gradient"),
        opened(describe(Operation.SCATTER, np.zeros(6), root=0)),
    ],
    ids=str,
)
def test_round_trip_without_an_array(said):
    assert messages.to_descriptor(messages.to_request(said, SEAT), 3) == said
    assert messages.nbytes(said) == 0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"operation": 0}, "no operation of this service"),
        ({"operation": 99}, "no operation of this service"),
        ({"operation": Operation.SEND}, "send is no operation of all ranks"),
        ({"reduction": 99}, "no operation of this service"),
        ({"reduction": 0}, "all_reduce needs a reduction"),
        ({"dtype": "object"}, "dtype 'object'"),
        ({"dtype": ""}, "dtype ''"),
        ({"dtype": "int64", "reduction": ReduceOp.AVG}, "AVG of int64"),
        ({"operation": Operation.REDUCE}, "reduce needs a root from 0 to 2"),
        ({"operation": Operation.REDUCE, "root": 3}, "not 3"),
        ({"operation": Operation.REDUCE_SCATTER, "shape": [4]}, "cuts axis 0"),
        ({"operation": Operation.ALL_TO_ALL, "shape": []}, "cuts axis 0"),
        ({"shape": [1] * 65}, "65 axes"),
    ],
)
def test_what_cannot_be(changes, text):
    fields = {"operation": Operation.ALL_REDUCE, "reduction": ReduceOp.SUM, "dtype": "float32", "shape": [3]}
    with pytest.raises(ArgumentError, match=text):
        messages.to_descriptor(pb.RunRequest(seat=SEAT, sequence=1, **(fields | changes)), 3)


def test_the_root_is_never_open():
    said = describe(Operation.BROADCAST, np.zeros(2), root=1)
    request = messages.to_request(said, SEAT)
    request.open = True
    assert messages.to_descriptor(request, 3) == said


def test_bytes_must_be_as_many_as_the_shape_says():
    said = Descriptor(1, Operation.BROADCAST, "float32", (2, 2), root=1)
    assert messages.to_array(said, 0, memoryview(b"")) is None, "only the root gives"
    array = messages.to_array(said, 1, memoryview(np.arange(4, dtype=np.float32)).cast("B"))
    assert array is not None and array.tolist() == [0, 1, 2, 3]
    with pytest.raises(WireError, match="takes 16 bytes of data, 15 came"):
        messages.to_array(said, 1, memoryview(bytes(15)))
    huge = Descriptor(1, Operation.BROADCAST, "float32", (1 << 62, 1 << 62), root=1)
    with pytest.raises(WireError):
        messages.to_array(huge, 1, memoryview(b""))
