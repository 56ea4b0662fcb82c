"""Who refers to what, as people see it."""

import pytest
import rref_things as things
from rref_crew import Team, until

from psframework.rref.ids import RRefId
from psframework.rref.listing import Holder, RRefInfo, from_info, to_info


def test_there_and_back() -> None:
    info = RRefInfo(RRefId(1, 2), "module.Class", True, False, 1, (Holder("ann", 7, 2, 1),), 1.5)
    assert from_info(to_info(info)) == info


async def test_of_oneself_and_of_others(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    good = ann.rrefs.remote("bob", things.Counter)
    bad = ann.rrefs.remote("bob", things.Counter, (1,), {"fail": True})
    slow = ann.rrefs.remote("bob", things.slow)
    mine = bob.rrefs.rref({1: 2})
    await good.confirmed_by_owner()
    with pytest.raises(ValueError, match="no counter"):
        await bad.confirmed_by_owner()
    await until(lambda: len(bob.rrefs.list()) == 4)
    infos = {info.id: info for info in await ann.rrefs.list_of("bob")}
    assert list(infos) == [info.id for info in bob.rrefs.list()]
    assert [infos[rref.id].type for rref in (good, bad, slow, mine)] == [
        "rref_things.Counter",
        next(info.type for info in infos.values() if info.failed),
        "",
        "dict",
    ]
    assert [infos[rref.id].ready for rref in (good, bad, slow, mine)] == [True, True, False, True]
    assert infos[bad.id].failed and "ValueError" in infos[bad.id].type
    assert infos[good.id].holders == (Holder("ann", ann.me, 1, 0),)
    assert infos[mine.id].handles == 1 and not infos[mine.id].holders
    assert all(0 <= info.age < 60 for info in infos.values())
