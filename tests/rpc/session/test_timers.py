"""Many deadlines, one timer."""

import asyncio

from psframework.rpc.deadline import Deadline, boottime
from psframework.rpc.session.timers import Alarms


async def test_alarms_go_off_in_time_and_only_those_not_discarded() -> None:
    expired: dict[int, float] = {}
    done = asyncio.Event()

    def on_expired(call: int) -> None:
        expired[call] = boottime()
        if call == 3:
            done.set()

    alarms, start = Alarms(on_expired), boottime()
    alarms.add(3, Deadline.after(0.06))
    tick = alarms.add(2, Deadline.after(0.04))
    alarms.add(1, Deadline.after(0.02))
    assert alarms.add(4, Deadline.NEVER) == 0
    alarms.discard(2, tick)
    async with asyncio.timeout(5):
        await done.wait()
    assert list(expired) == [1, 3]
    assert expired[1] - start >= 0.02
    alarms.close()


async def test_a_closed_one_is_silent() -> None:
    expired: list[int] = []
    alarms = Alarms(expired.append)
    alarms.add(1, Deadline.after(0.0))
    alarms.close()
    await asyncio.sleep(0.03)
    assert expired == []
