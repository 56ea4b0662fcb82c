"""What ranks say of their next operation: it survives the wire, and differences are named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.collective.descriptor import ANY, SLOT_BYTES, Descriptor, Operation, check_agreement
from psframework.collective.ops import ReduceOp
from psframework.errors import ArgumentError, CollectiveMismatch, WireError

NAMES = {0: "a", 1: "b", 2: "c"}
SUM = Descriptor(4, Operation.ALL_REDUCE, "float32", (3, 4), ReduceOp.SUM)

descriptors = st.builds(
    Descriptor,
    st.integers(0, 2**64 - 1),
    st.sampled_from(Operation),
    st.sampled_from(["", "float32", "bfloat16", "complex128"]),
    st.lists(st.integers(0, 2**62), max_size=64).map(tuple),
    st.none() | st.sampled_from(ReduceOp),
    st.integers(ANY, 10_000),
    st.booleans(),
    st.text(max_size=100),
)


@given(descriptors)
def test_round_trip_in_a_slot(said):
    data = said.encode()
    assert len(data) <= SLOT_BYTES
    assert Descriptor.decode(data) == said
    assert Descriptor.decode(data.ljust(SLOT_BYTES, b"\xff")) == said, "what follows is ignored"


@given(st.binary(max_size=200))
def test_nonsense_is_a_wire_error_or_a_descriptor(data):
    try:
        assert isinstance(Descriptor.decode(data), Descriptor)
    except WireError:
        pass


def test_a_long_note_is_cut_and_too_many_axes_are_refused():
    said = Descriptor(1, Operation.REFUSE, note="é" * 1000)
    assert len(said.encode()) <= SLOT_BYTES
    assert Descriptor.decode(said.encode()).note == "é" * 200
    with pytest.raises(ArgumentError, match="65 axes"):
        Descriptor(1, Operation.ALL_REDUCE, "int8", (1,) * 65).encode()


def test_text_for_people():
    assert str(SUM) == "all_reduce(float32 of shape (3, 4), SUM)"
    assert str(Descriptor(1, Operation.BARRIER)) == "barrier()"
    assert str(Descriptor(1, Operation.SCATTER, root=2, open=True)) == "scatter(no array, root 2)"
    assert str(Descriptor(1, Operation.REFUSE, note="why")) == "refused: why"
    assert str(Descriptor(1, Operation.BARRIER, note=str(SUM))) == str(SUM), "of what it is a step"


def check(*said: Descriptor) -> str:
    """The message; empty if all agree."""
    try:
        check_agreement("g", dict(enumerate(said)), NAMES)
    except CollectiveMismatch as error:
        return str(error)
    return ""


def test_ranks_that_agree():
    root = Descriptor(1, Operation.BROADCAST, "int8", (2,), root=1)
    opened = Descriptor(1, Operation.BROADCAST, root=1, open=True)
    assert check(SUM, SUM, SUM) == ""
    assert check(opened, root, opened) == ""
    assert check(opened, opened) == ""


@pytest.mark.parametrize(
    "other",
    [
        Descriptor(4, Operation.ALL_REDUCE, "float16", (3, 4), ReduceOp.SUM),
        Descriptor(4, Operation.ALL_REDUCE, "float32", (), ReduceOp.SUM),
        Descriptor(4, Operation.ALL_REDUCE, "float32", (3, 4), ReduceOp.AVG),
        Descriptor(4, Operation.BARRIER),
        Descriptor(5, Operation.ALL_REDUCE, "float32", (3, 4), ReduceOp.SUM),
    ],
    ids=str,
)
def test_a_difference_names_ranks_and_both_operations(other):
    assert check(SUM, other, SUM) == (
        f"operation 4 of group 'g' differs: ranks 0 (a), 2 (c): {SUM}; rank 1 (b): {other}"
    )


def test_open_ranks_are_compared_too():
    root = Descriptor(1, Operation.BROADCAST, "int8", (2,), root=1)
    assert check(root, Descriptor(1, Operation.BROADCAST, root=0, open=True))
    assert check(root, Descriptor(1, Operation.SCATTER, root=1, open=True))
    assert check(root, Descriptor(1, Operation.BROADCAST, "int8", (3,), root=1))
    wants_object = Descriptor(1, Operation.BROADCAST, root=1, open=True, note="broadcast_object(root 1)")
    assert "broadcast(int8 of shape (2,), root 1)" in check(root, wants_object)
    assert "broadcast_object(root 1)" in check(root, wants_object)


def test_steps_of_different_operations_differ():
    one = Descriptor(4, Operation.BARRIER, note="barrier()")
    two = Descriptor(4, Operation.BARRIER, note=str(SUM))
    assert check(one, one) == ""
    assert (
        check(one, two, one)
        == f"operation 4 of group 'g' differs: ranks 0 (a), 2 (c): barrier(); rank 1 (b): {SUM}"
    )


def test_a_refusal_is_told_to_all():
    refusal = Descriptor(4, Operation.REFUSE, note="no gradient for 'w'")
    assert check(SUM, refusal, SUM) == "group 'g': rank 1 (b): no gradient for 'w'"
    assert check(refusal) == "group 'g': rank 0 (a): no gradient for 'w'"
    passed_on = Descriptor(4, Operation.REFUSE, open=True, note="group 'g': rank 7 (h): no array")
    assert check(passed_on, SUM) == check(SUM, passed_on, passed_on) == passed_on.note
    assert check(passed_on, refusal) == f"{passed_on.note}; group 'g': rank 1 (b): no gradient for 'w'"


def test_many_ranks_are_not_all_listed():
    said = dict.fromkeys(range(100), SUM) | {100: Descriptor(4, Operation.BARRIER)}
    with pytest.raises(CollectiveMismatch) as caught:
        check_agreement("g", said, {rank: f"t{rank}" for rank in said})
    assert "5 (t5) ...: all_reduce" in str(caught.value)
    assert "rank 100 (t100): barrier()" in str(caught.value)
