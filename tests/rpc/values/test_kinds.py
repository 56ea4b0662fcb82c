import numpy as np

from psframework.backend import bfloat16
from psframework.proto.v1 import remote_pb2 as pb
from psframework.rpc.values import arguments, kinds  # noqa: F401 - all kinds are taught
from psframework.rpc.values.decoder import READERS, _unknown


def test_every_kind_has_its_constant_and_its_reader():
    for name, number in pb.ValueKind.items():
        if number:
            assert getattr(kinds, name.removeprefix("VALUE_KIND_")) == number < 128
            assert READERS[number] is not _unknown, name
    assert sum(reader is not _unknown for reader in READERS) == len(pb.ValueKind.items()) - 1


def test_every_element_type_is_a_dtype():
    assert {dtype.name for dtype in kinds.DTYPES.values()} == {
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "float32", "float64", "complex64", "complex128", "bfloat16",
    }  # fmt: skip
    assert kinds.SCALARS[np.float32] == kinds.NUMBERS[np.dtype("f4")]
    assert kinds.SCALARS[bfloat16.type] == kinds.NUMBERS[bfloat16]
    assert kinds.SCALARS[np.longlong] == kinds.SCALARS[np.int64]


def test_a_refusal_is_a_type_error_and_one_of_ours():
    assert issubclass(kinds.CannotTravel, TypeError) and issubclass(kinds.CannotTravel, ValueError)
