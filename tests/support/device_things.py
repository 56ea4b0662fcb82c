"""A member with a device, in a process of its own: `device_things.py NAME DEVICE`; and what it serves.

DEVICE is "cuda", or the name of a strict device. Prints its address and incarnation; ends with its input.
"""

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from psframework import backend
from psframework.rpc.registry import remote
from psframework.testing.strict_device import StrictDevice, strict_devices
from psframework.testing.workers import Phonebook, Worker, worker
from psframework.wire.lanes import Lane, LaneStats

here: list[Worker] = []
fetched: list[StrictDevice] = []


def traffic(stats: LaneStats) -> dict[str, int]:
    """Bytes that came in and left by each lane."""
    return {lane.value: stats.received[lane].nbytes + stats.sent[lane].nbytes for lane in Lane}


@remote
def where(x: Any) -> str:
    return str(backend.device_of(x))


@remote
def echo(x: Any) -> Any:
    return x


@remote
def add_up(x: Any, labels: Any) -> tuple[float, float, str]:
    return float(x.sum()), float(labels.sum()), type(labels).__name__


@remote
def double_in_place(x: Any) -> Any:
    x *= 2
    return x


@remote
def times(x: Any, count: int) -> Iterator[Any]:
    for n in range(count):
        yield x * n


@remote
async def facts(name: str) -> tuple[dict[str, int], int]:
    """Traffic with a member by lane, and how often something was fetched from the device."""
    peer = here[0].agent.peer_for(name)
    assert peer is not None
    return traffic(peer.stats), sum(device.synchronisations for device in fetched)


async def main(name: str, device: str) -> None:
    with contextlib.ExitStack() as stack:
        if device != "cuda":
            fetched.extend(stack.enter_context(strict_devices(device)))
        async with worker(name, Phonebook()) as me:
            here.append(me)
            print(me.address, me.agent.identity.incarnation, flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    import device_things  # under the name that callers know

    asyncio.run(device_things.main(*sys.argv[1:]))
