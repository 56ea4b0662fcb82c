"""Who gets into which group of the service, and how much memory operations take."""

import numpy as np
import pytest
from collective import describe

from psframework.collective.central_desk import ABANDONED_SECONDS, Ask, CentralDesk
from psframework.collective.central_group import CentralGroup, Holder
from psframework.collective.descriptor import Descriptor, Operation
from psframework.errors import ArgumentError, NameTaken, NotRegistered, PeerLost, ResourceExhausted, StaleTerm


@pytest.fixture
def desk() -> CentralDesk:
    return CentralDesk(1000)


def ask(desk: CentralDesk, name: str, generation: int = 0, **more) -> CentralGroup | None:
    return desk.join(Ask("g", 2, Holder(name, lease=5.0, **more), generation))


def test_the_first_makes_the_group_and_the_last_completes_it(desk):
    group = ask(desk, "a")
    assert group is not None and not group.complete
    assert ask(desk, "b") is group
    assert group.complete
    assert desk.find("g", group.generation) is group


def test_others_wait_while_a_group_is_whole_and_take_the_place_of_one_that_is_not(desk):
    first = ask(desk, "a")
    ask(desk, "b")
    assert ask(desk, "c") is None
    desk.lose(first, first.holders[0], "has left")
    second = ask(desk, "c")
    assert second is not None
    assert second.generation > first.generation
    with pytest.raises(StaleTerm, match="is over"):
        desk.find("g", first.generation)


def test_members_agree_on_a_generation_by_themselves(desk):
    first = ask(desk, "a", 5)
    ask(desk, "b", 5)
    with pytest.raises(StaleTerm, match="5 has begun"):
        ask(desk, "c", 4)
    with pytest.raises(StaleTerm):
        ask(desk, "c", 5)
    second = ask(desk, "c", 6)
    assert second.generation == 6
    assert isinstance(first.error, StaleTerm), "its operations end"


def test_a_failed_generation_does_not_come_back(desk):
    group = ask(desk, "a", 5)
    ask(desk, "b", 5)
    desk.lose(group, group.holders[0], "died")
    with pytest.raises(StaleTerm):
        ask(desk, "a", 5)
    assert ask(desk, "a", 6).generation == 6


def test_what_cannot_be(desk):
    with pytest.raises(ArgumentError, match="1 to 65536 ranks"):
        desk.join(Ask("g", 0, Holder("a")))
    with pytest.raises(ArgumentError, match="1 to 400 characters"):
        desk.join(Ask("", 2, Holder("a")))
    with pytest.raises(ArgumentError):
        desk.join(Ask("g", 2, Holder("a", wanted=2)))
    assert not desk.groups, "what came to nothing is not kept"
    ask(desk, "a", wanted=0)
    with pytest.raises(ArgumentError, match="'b' wants group 'g' to have 3 ranks, 'a': 2"):
        desk.join(Ask("g", 3, Holder("b")))
    with pytest.raises(NameTaken):
        ask(desk, "b", wanted=0)
    with pytest.raises(NotRegistered, match="'h'"):
        desk.find("h", 1)


def test_a_generation_counts_on_from_the_one_before(desk):
    desk.join(Ask("g", 2, Holder("a"), 2, completed=60))
    with pytest.raises(ArgumentError, match="'b' goes on after operation 0 of group 'g', 'a' after 60"):
        desk.join(Ask("g", 2, Holder("b"), 2))
    group = desk.join(Ask("g", 2, Holder("b"), 2, completed=60))
    first = Descriptor(61, Operation.BARRIER)
    assert group.begin(group.holders[0], first, 0.0, desk.reserve).sequence == 61
    assert "1 (b), whose last was operation 60" in str(group.late(1.0))


def test_the_last_one_out_closes_the_door(desk):
    group = ask(desk, "a")
    ask(desk, "b")
    desk.lose(group, group.holders[0], "has left")
    assert desk.groups
    desk.lose(group, group.holders[1], "has left")
    assert not desk.groups
    waiting = ask(desk, "a")
    desk.lose(waiting, waiting.holders[0], "gave up")
    assert not desk.groups, "also of one that never was complete"


def test_a_lost_member_is_lost_in_all_its_groups(desk):
    groups = [
        desk.join(Ask(name, 2, Holder(f"m{incarnation}", incarnation)))
        for name in ("g", "h")
        for incarnation in (1, 2)
    ]
    desk.lose_member(2, "was lost: lease", "lease")
    for group in groups:
        assert isinstance(group.error, PeerLost)
        assert (group.error.peer, group.error.reason, group.error.rank) == ("m2", "lease", 1)
    desk.lose_member(1, "left", "closed")
    assert not desk.groups


def test_silent_clients_are_lost_while_others_wait(desk):
    group = ask(desk, "a", heard=100.0)
    ask(desk, "b", heard=100.0)
    desk.expire(200.0)
    assert group.whole, "nobody waits for them"
    group.begin(group.holders[0], describe(Operation.BARRIER, None), 200.0, desk.reserve)
    group.holders[0].calls = 1
    desk.expire(204.0)
    assert group.whole
    desk.expire(206.0)
    assert isinstance(group.error, PeerLost)
    assert (group.error.peer, group.error.reason) == ("b", "lease")
    group.holders[0].calls, group.holders[0].heard = 0, 206.0
    desk.expire(212.0)
    assert not desk.groups, "of a group that has failed nobody is waited for"


def test_abandoned_groups_are_forgotten(desk):
    ask(desk, "a", heard=0.0)
    ask(desk, "b", heard=10.0)
    desk.expire(ABANDONED_SECONDS + 5)
    assert desk.groups
    desk.expire(ABANDONED_SECONDS + 11)
    assert not desk.groups


def test_room_is_for_whole_operations(desk):
    group = ask(desk, "a")
    ask(desk, "b")
    said = describe(Operation.ALL_REDUCE, np.zeros(30))
    round_ = group.begin(group.holders[0], said, 0.0, desk.reserve)
    assert desk.used == 3 * 240
    with pytest.raises(ResourceExhausted, match="takes 300 bytes here; 720 of 1000") as caught:
        desk.reserve(300)
    assert caught.value.retry_after > 0
    with pytest.raises(ResourceExhausted) as caught:
        desk.reserve(1001)
    assert caught.value.retry_after == 0, "a retry can't help"
    group.begin(group.holders[1], said, 0.0, desk.reserve)
    desk.let_go(round_)
    assert desk.used == 720
    desk.let_go(round_)
    assert desk.used == 0
