"""Who is in a group: decided from what candidates wrote."""

import random

import pytest

from psframework.collective import rendezvous
from psframework.errors import ArgumentError, RendezvousTimeout
from psframework.proto.v1 import collective_pb2 as pb
from psframework.rpc.status import detail_to_error


def candidate(
    name: str, incarnation: int, size: int = 2, rank: int | None = None, **more: object
) -> pb.Candidate:
    made = pb.Candidate(name=name, incarnation=incarnation, ticket=1, spec=pb.GroupSpec(world_size=size))
    if rank is not None:
        made.rank = rank
    for key, value in more.items():
        setattr(made, key, value)
    return made


def names(sealed: pb.Sealed | None) -> list[str]:
    assert sealed is not None
    assert not sealed.HasField("error"), sealed.error
    return [member.name for member in sealed.members]


def fault(sealed: pb.Sealed | None) -> str:
    assert sealed is not None
    error = detail_to_error(sealed.error)
    assert isinstance(error, ArgumentError)
    return str(error)


def test_natural_order() -> None:
    found = ["trainer-10", "a2b10", "trainer-2", "trainer", "10", "9", "a2b9", "a"]
    assert sorted(found, key=rendezvous.natural) == [
        "9", "10", "a", "a2b9", "a2b10", "trainer", "trainer-2", "trainer-10",
    ]  # fmt: skip


def test_a_group_is_sealed_when_it_is_complete() -> None:
    record = pb.GroupRecord(generation=6)
    came = [candidate("t-10", 1), candidate("t-2", 2), candidate("t-1", 3)]
    assert rendezvous.seal("g", record, []) is None
    assert rendezvous.seal("g", record, came[:1]) is None
    assert names(rendezvous.seal("g", record, came)) == ["t-2", "t-10"]  # the first two that came
    sealed = rendezvous.seal("g", record, came[1:])
    assert names(sealed) == ["t-1", "t-2"]
    assert sealed is not None
    assert sealed.generation == 7
    assert rendezvous.ranks_of(sealed) == {3: 0, 2: 1}


def test_wanted_ranks_are_given() -> None:
    came = [candidate("a", 1, 3, 2), candidate("b", 2, 3, 0), candidate("c", 3, 3, 1)]
    assert names(rendezvous.seal("g", pb.GroupRecord(), came)) == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((0, 0), "rank 0 by a and b"),
        ((0, 2), "rank 2 of 2 by b"),
        ((1, None), "none by b"),
        ((5, 5), "rank 5 by a and b, rank 5 of 2 by a"),
    ],
)
def test_ranks_that_can_not_be(ranks: tuple[int | None, ...], text: str) -> None:
    came = [
        candidate(name, index, 2, rank) for index, (name, rank) in enumerate(zip("ab", ranks, strict=True))
    ]
    said = fault(rendezvous.seal("g", pb.GroupRecord(), came))
    assert said == f"group 'g': ranks 0 to 1 are needed, asked was {text}"


def test_different_wishes_are_named() -> None:
    came = [candidate("a", 1, 2), candidate("b", 2, 3), candidate("c", 3, 2)]
    sealed = rendezvous.seal("g", pb.GroupRecord(), came)
    assert (
        fault(sealed)
        == "group 'g': its members ask for different things: world_size=2 (a, c); world_size=3 (b)"
    )
    assert sealed is not None
    assert len(sealed.members) == 3  # all of them hear it
    came = [candidate("a", 1), candidate("b", 2)]
    came[1].spec.deterministic, came[1].spec.algorithm = True, "ring"
    assert "world_size=2 (a); world_size=2, deterministic=True, algorithm='ring' (b)" in fault(
        rendezvous.seal("g", pb.GroupRecord(), came)
    )


def test_who_is_in_a_generation_is_free_no_more_until_it_asks_again() -> None:
    came = [candidate("a", 1), candidate("b", 2), candidate("c", 3)]
    sealed = rendezvous.seal("g", pb.GroupRecord(), came)
    assert sealed is not None
    record = rendezvous.append(pb.GroupRecord(), sealed, came)
    assert rendezvous.free(record, came) == came[2:]
    assert rendezvous.find(record, (1, 1)) == sealed
    assert rendezvous.find(record, (3, 1)) is None
    again = candidate("a", 1, ticket=2)
    assert rendezvous.free(record, [again]) == [again]
    assert rendezvous.find(record, (1, 2)) is None


def test_a_generation_stays_until_all_its_members_know() -> None:
    came = [candidate("a", 1), candidate("b", 2), candidate("c", 3), candidate("d", 4)]
    first = rendezvous.seal("g", pb.GroupRecord(), came[:2])
    assert first is not None
    record = rendezvous.append(pb.GroupRecord(), first, came)
    second = rendezvous.seal("g", record, rendezvous.free(record, came))
    assert second is not None
    left = came[1:]  # a knows, and took its candidate away
    assert [each.generation for each in rendezvous.append(record, second, left).sealed] == [1, 2]
    assert [each.generation for each in rendezvous.append(record, second, left[1:]).sealed] == [2]
    assert rendezvous.append(record, second, left).generation == 2


def survivor(name: str, incarnation: int, completed: int, departed: tuple[int, ...] = ()) -> pb.Candidate:
    made = candidate(name, incarnation, 0, shrinks=4, completed=completed)
    made.departed.extend(departed)
    return made


def test_survivors_keep_their_order() -> None:
    old = [candidate(name, index, 4) for index, name in enumerate("zyxw")]
    came = [survivor("w", 3, 12), survivor("z", 0, 11)]
    record = pb.GroupRecord(generation=4)
    assert rendezvous.seal_survivors(record, came, old, {1}) is None  # x lives, and did not ask
    sealed = rendezvous.seal_survivors(record, came, old, {1, 2})
    assert names(sealed) == ["z", "w"]
    assert sealed is not None
    assert (sealed.generation, sealed.completed) == (5, 11)
    forgotten = rendezvous.seal_survivors(pb.GroupRecord(), came, old, {1, 2})
    assert forgotten is not None
    assert forgotten.generation == 5
    came[1].departed.append(2)  # one of them knows that x has closed the group
    assert names(rendezvous.seal_survivors(record, came, old, {1})) == ["z", "w"]
    assert rendezvous.seal_survivors(record, [], old, {0, 1, 2, 3}) is None
    assert rendezvous.seal("g", record, came) is None  # they are not for a group that is new


def test_who_came_and_how_many_did_not() -> None:
    error = rendezvous.timed_out("g", 5.0, 4, ["t-10", "t-9"], ["t-9", "t-10", "t-11"])
    assert isinstance(error, RendezvousTimeout)
    assert error.missing == ("t-11",)
    assert str(error) == (
        "group 'g': 2 of 4 members came within 5 s: t-9, t-10; 2 did not; members that did not ask: t-11"
    )
    error = rendezvous.timed_out("g", 29.9996, 3, ["r-1"], ["r-1"], [1])
    assert str(error) == "group 'g': 1 of 3 members came within 30 s: r-1; 2 did not: rank 0, 2"
    assert "and 92 more" in str(rendezvous.timed_out("g", 5.0, 101, [f"t-{n}" for n in range(100)], []))


def test_any_order_of_events_puts_each_into_one_generation() -> None:
    """Members come, groups are sealed by whoever looks, members take note at any time; many times over."""
    for seed in range(200):
        chance = random.Random(seed)
        record, waiting, to_come = pb.GroupRecord(), [], [candidate(f"t-{n}", n, 3) for n in range(12)]
        seen: dict[int, int] = {}
        while to_come or waiting:
            what = chance.randrange(3)
            if what == 0 and to_come:
                waiting.append(to_come.pop(chance.randrange(len(to_come))))
            elif what == 1:
                sealed = rendezvous.seal("g", record, rendezvous.free(record, waiting))
                if sealed is not None:
                    record = rendezvous.append(record, sealed, waiting)
            elif waiting:
                each = chance.choice(waiting)
                found = rendezvous.find(record, rendezvous.ticket(each))
                if found is not None:
                    assert each.incarnation not in seen
                    seen[each.incarnation] = found.generation
                    waiting.remove(each)
        assert sorted(seen) == list(range(12))
        assert sorted(seen.values()) == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
        assert len(record.sealed) <= 4
