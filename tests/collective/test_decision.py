"""How a group works, from what its members found out."""

import pytest

from psframework.collective import decision
from psframework.errors import ArgumentError, ConfigurationError, PeerLost
from psframework.proto.v1 import collective_pb2 as pb


def members(places: str, algorithm: str = "", listens: str = "*") -> list[pb.Candidate]:
    """One for each letter, which says where it is; "-": it shares no memory."""
    return [
        pb.Candidate(
            name=f"t-{rank}",
            place="" if place == "-" else place,
            host=place,
            listens=listens,
            spec=pb.GroupSpec(world_size=len(places), algorithm=algorithm),
        )
        for rank, place in enumerate(places)
    ]


def ready(places: str) -> dict[int, pb.Ready]:
    hosts = decision.by_place(members(places), pb.GroupSpec())
    return {
        rank: pb.Ready(local=next((ranks for ranks in hosts if ranks[0] == rank), []))
        for rank in range(len(places))
    }


def start(places: str, algorithm: str = "", *, central: bool = False, **found: pb.Ready) -> pb.Start:
    said = ready(places) | {int(rank.removeprefix("r")): each for rank, each in found.items()}
    return decision.decide("g", members(places, algorithm), said, central=central)


def hosts(made: pb.Start) -> list[list[int]]:
    return [list(each.ranks) for each in made.hosts]


@pytest.mark.parametrize(
    ("places", "transport", "on"),
    [
        ("a", "alone", [[0]]),
        ("aaa", "shm", [[0, 1, 2]]),
        ("abab", "hierarchical", [[0, 2], [1, 3]]),
        ("aba-", "hierarchical", [[0, 2], [1], [3]]),
        ("abc", "direct", [[0], [1], [2]]),
        ("---", "direct", [[0], [1], [2]]),
        ("-" * 16, "direct", [[rank] for rank in range(16)]),
        ("-" * 17, "ring", [[rank] for rank in range(17)]),
    ],
)
def test_the_best_that_there_is(places: str, transport: str, on: list[list[int]]) -> None:
    made = start(places)
    assert (made.transport, hosts(made)) == (transport, on)


@pytest.mark.parametrize("algorithm", ["direct", "ring", "central"])
def test_an_algorithm_that_keeps_ranks_apart(algorithm: str) -> None:
    assert decision.by_place(members("aab"), pb.GroupSpec(algorithm=algorithm)) == [[0], [1], [2]]
    made = start("aab", algorithm, central=True)
    assert (made.transport, hosts(made)) == (algorithm, [[0], [1], [2]])


def test_a_deterministic_group_adds_in_the_order_of_ranks_wherever_they_are() -> None:
    spec = pb.GroupSpec(deterministic=True)
    assert decision.by_place(members("aaa"), spec) == [[0, 1, 2]], "shared memory adds in that order too"
    assert decision.by_place(members("aab"), spec) == [[0], [1], [2]]
    found = {rank: pb.Ready(local=[]) for rank in range(3)}
    assert decision.decide("g", members("aab"), found, central=False).transport == "direct"


def test_algorithms_that_can_not_be_had() -> None:
    with pytest.raises(ConfigurationError, match=r"rank 0 \(t-0\) and rank 1 \(t-1\) share no memory"):
        start("ab", "shm")
    with pytest.raises(ConfigurationError, match="needs an allreduce service"):
        start("ab", "central")
    with pytest.raises(ArgumentError, match="algorithm='quick': one of shm, direct"):
        decision.check_algorithm("quick")
    for each in ("", *decision.ALGORITHMS):
        decision.check_algorithm(each)


def test_a_rank_that_got_no_memory_is_alone() -> None:
    made = start("aaa", r0=pb.Ready(local=[0, 2]))
    assert (made.transport, hosts(made)) == ("hierarchical", [[0, 2], [1]])
    assert start("aaa", r0=pb.Ready(local=[0])).transport == "direct"


def test_ranks_that_can_not_reach_each_other() -> None:
    cut = pb.Ready(local=[1], unreachable=[2], trouble="no route")
    with pytest.raises(PeerLost, match=r"rank 1 \(t-1\) can't reach rank 2 \(t-2\): no route") as lost:
        start("abc", r1=cut)
    assert (lost.value.rank, lost.value.peer) == (2, "t-2")
    with pytest.raises(PeerLost):
        start("abc", "ring", r1=cut, central=True)  # it was asked for
    assert start("abc", r1=cut, central=True).transport == "central"


def test_who_can_dial_whom() -> None:
    nobody, here, there, all_ = (
        pb.Candidate(host="a", listens=""),
        pb.Candidate(host="a", listens="a"),
        pb.Candidate(host="b", listens="b"),
        pb.Candidate(host="b", listens="*"),
    )
    assert [decision.can_dial(nobody, other) for other in (nobody, here, there, all_)] == [
        False,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(("count", "listens"), [(2, "*"), (5, "*"), (16, "*"), (17, "*"), (40, "*"), (5, "")])
def test_of_each_pair_one_dials(count: int, listens: str) -> None:
    all_ = members("-" * count, listens=listens)
    leaders = list(range(count))
    pairs = [tuple(sorted((a, b))) for a in leaders for b in decision.dialled(a, leaders, all_)]
    assert len(pairs) == len(set(pairs))
    if count <= decision.DIRECT_HOSTS:
        assert len(pairs) == count * (count - 1) // 2
    else:
        assert set(pairs) == {tuple(sorted((a, (a + 1) % count))) for a in leaders}


def test_who_can_not_listen_dials() -> None:
    all_ = members("---")
    all_[2].listens = ""
    assert [decision.dialled(rank, [0, 1, 2], all_) for rank in range(3)] == [[1], [], [0, 1]]
