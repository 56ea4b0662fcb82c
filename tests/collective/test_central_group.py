"""One group at the service: ranks, rounds, and how both end."""

import numpy as np
import pytest
from collective import describe, opened

from psframework.collective.algorithms import reference
from psframework.collective.central_group import CentralGroup, Holder, Round, room
from psframework.collective.descriptor import Descriptor, Operation
from psframework.errors import (
    ArgumentError,
    CollectiveMismatch,
    NameTaken,
    PeerLost,
    PermissionDenied,
    PsfError,
)


def group_of(*names: str, lease: float = 5.0) -> CentralGroup:
    group = CentralGroup("g", len(names), 1)
    for number, name in enumerate(names, 1):
        group.seat(Holder(name, secret=number, lease=lease))
    return group


def come(group: CentralGroup, rank: int, said: Descriptor, array=None, now: float = 0.0) -> Round:
    round_ = group.begin(group.holders[rank], said, now, lambda _: None)
    round_.give(rank, array)
    return round_


def run(group: CentralGroup, round_: Round) -> None:
    try:
        group.finish(round_, group.compute(round_), None)
    except PsfError as error:
        group.finish(round_, None, error)


def test_ranks_go_by_wish_then_by_arrival():
    group = CentralGroup("g", 3, 1)
    for name, wanted in (("a", None), ("b", 0), ("c", None)):
        assert not group.complete
        group.seat(Holder(name, wanted=wanted))
    assert group.complete
    assert group.names == ["b", "a", "c"]
    assert [holder.rank for holder in group.holders] == [0, 1, 2]


def test_wishes_that_cannot_be():
    group = CentralGroup("g", 2, 1)
    group.seat(Holder("a", wanted=1))
    with pytest.raises(NameTaken, match="rank 1 of group 'g' is taken by 'a'"):
        group.seat(Holder("b", wanted=1))
    with pytest.raises(ArgumentError, match="ranks 0 to 1, not 2"):
        group.seat(Holder("b", wanted=2))


def test_one_that_gives_up_before_the_group_is_complete_makes_room():
    group = CentralGroup("g", 2, 1)
    gone = Holder("a")
    group.seat(gone)
    group.lose(gone, "has left")
    group.seat(Holder("b"))
    group.seat(Holder("c"))
    assert group.whole
    assert group.names == ["b", "c"]


def test_only_the_holder_acts_for_a_rank():
    group = CentralGroup("g", 2, 1)
    with pytest.raises(PermissionDenied):
        group.find(0, 0, 0)  # nobody is there yet
    group.seat(Holder("a", incarnation=77, secret=1))
    group.seat(Holder("b", secret=2))
    assert group.find(0, 1, 77).name == "a"
    assert group.find(1, 2, 0).name == "b"
    for rank, secret, incarnation in ((0, 2, 77), (0, 1, 78), (1, 1, 0), (2, 1, 0)):
        with pytest.raises(PermissionDenied, match="not yours"):
            group.find(rank, secret, incarnation)


@pytest.mark.parametrize(
    "operation", [each for each in Operation if each.value <= 9], ids=lambda each: each.name
)
def test_results_are_those_of_the_reference(operation):
    group = group_of("a", "b", "c")
    arrays = list(np.random.default_rng(3).standard_normal((3, 6)).astype(np.float32))
    said = describe(operation, arrays[0], root=1)
    gives = operation not in (Operation.BROADCAST, Operation.SCATTER)
    sends = {rank: arrays[rank] if gives or rank == 1 else None for rank in range(3)}
    sends = dict.fromkeys(range(3)) if operation is Operation.BARRIER else sends
    for rank in (2, 0, 1):
        round_ = come(group, rank, said, sends[rank])
    wanted = reference(said, sends, 3)
    run(group, round_)
    assert round_.results is not None
    for rank, array in wanted.items():
        got = round_.results[rank]
        assert (got is None) == (array is None)
        assert array is None or got.tobytes() == array.tobytes()
    assert (group.completed, group.round) == (1, None)
    assert not round_.given, "what was given is let go"


def test_a_mismatch_is_an_end_of_the_operation_only():
    group = group_of("a", "b")
    round_ = come(group, 0, describe(Operation.ALL_REDUCE, np.zeros(3)), np.zeros(3))
    come(group, 1, describe(Operation.ALL_REDUCE, np.zeros(99)), np.zeros(99))
    assert round_.given[1] is None, "nobody needs it"
    run(group, round_)
    assert isinstance(round_.error, CollectiveMismatch)
    assert "rank 0 (a)" in str(round_.error) and "(99,)" in str(round_.error)
    assert group.whole
    assert come(group, 0, Descriptor(2, Operation.BARRIER)).sequence == 2


def test_the_next_operation_only_and_once():
    group = group_of("a", "b")
    with pytest.raises(ArgumentError, match="the next one is 1"):
        come(group, 0, Descriptor(2, Operation.BARRIER))
    come(group, 0, Descriptor(1, Operation.BARRIER))
    with pytest.raises(ArgumentError, match="has come to operation 1 of 'g' already"):
        come(group, 0, Descriptor(1, Operation.BARRIER))


def test_room_is_taken_once_by_the_first_that_knows():
    group = group_of("a", "b")
    taken: list[int] = []
    said = describe(Operation.BROADCAST, np.zeros(4), root=1)
    round_ = group.begin(group.holders[0], opened(said), 0.0, taken.append)
    assert taken == []
    group.begin(group.holders[1], said, 0.0, taken.append)
    assert taken == [round_.reserved] == [32]
    assert room(describe(Operation.ALL_REDUCE, np.zeros(4)), 3) == 4 * 32
    assert room(describe(Operation.ALL_GATHER, np.zeros(4)), 3) == 6 * 32


def test_who_comes_to_no_room_may_come_again():
    group = group_of("a", "b")
    said = describe(Operation.ALL_REDUCE, np.zeros(4))

    def full(nbytes: int) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        group.begin(group.holders[0], said, 0.0, full)
    assert group.round is None
    come(group, 0, said, np.zeros(4))


def test_the_late_are_named_with_their_last_operation():
    group = group_of("a", "b", "c")
    for rank in range(3):
        round_ = come(group, rank, Descriptor(1, Operation.BARRIER))
    run(group, round_)
    come(group, 1, Descriptor(2, Operation.BARRIER))
    text = str(group.late(2.5))
    assert "operation 2 of group 'g'" in text and "2.5 s" in text
    assert "rank 0 (a), whose last was operation 1, rank 2 (c), whose last was operation 1" in text


def test_a_lost_rank_ends_what_waits_but_not_what_is_being_computed():
    group = group_of("a", "b")
    told: list[str] = []
    waiting = come(group, 0, Descriptor(1, Operation.BARRIER))
    waiting.on_settled.append(lambda: told.append("waiting"))
    group.lose(group.holders[1], "has left")
    assert told == ["waiting"]
    assert isinstance(waiting.error, PeerLost)
    assert (waiting.error.peer, waiting.error.rank) == ("b", 1)
    with pytest.raises(PeerLost, match=r"rank 1 \(b\) of group 'g' has left"):
        come(group, 0, Descriptor(1, Operation.BARRIER))

    group = group_of("a", "b")
    for rank in range(2):
        round_ = come(group, rank, Descriptor(1, Operation.BARRIER))
    group.lose(group.holders[1], "died")
    assert not round_.settled
    run(group, round_)
    assert round_.error is None
    with pytest.raises(PeerLost, match="died"):
        come(group, 0, Descriptor(2, Operation.BARRIER))


def test_silence_counts_only_while_others_wait():
    group = group_of("a", "b", lease=5.0)
    assert group.silent(1000.0) == []
    come(group, 0, Descriptor(1, Operation.BARRIER), now=1000.0)
    group.holders[0].calls = 1
    assert group.silent(1004.0) == []
    assert group.silent(1006.0) == [group.holders[1]]
    group.holders[1].calls = 1  # its data is on its way
    assert group.silent(1006.0) == []
