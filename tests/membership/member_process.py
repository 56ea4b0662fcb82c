"""A member in a process of its own, told by lines on stdin what to do; answers with lines of JSON."""

import asyncio
import json
import sys
import time

from psframework.errors import PsfError
from psframework.membership.client import JoinRequest, Membership
from psframework.rpc.deadline import Deadline


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


async def obey(member: Membership, command: str, arguments: list[str]) -> None:
    if command == "block":
        time.sleep(float(arguments[0]))  # noqa: ASYNC251 - the loop stands still
        say("unblocked", holds_lease=member.holds_lease)
    elif command == "barrier":
        names = await member.barrier(arguments[0], int(arguments[1]), Deadline.after(float(arguments[2])))
        say("through", names=names)
    elif command == "status":
        say("status", incarnation=member.member.incarnation, term=member.term, lease=member.holds_lease)
    elif command == "put":
        say("written", revision=await member.kv.put(arguments[0], arguments[1].encode()))
    elif command == "rejoin":
        say("joined", name=(await member.rejoin()).name, incarnation=member.member.incarnation)


async def main(addresses: str, options: str) -> None:
    request = JoinRequest(**json.loads(options))
    async with (
        asyncio.TaskGroup() as tasks,
        Membership.join(addresses.split(","), request, timeout=20) as member,
    ):
        member.on_lost(lambda gone, reason: say("lost", name=gone.name, reason=reason))
        member.on_evicted(lambda error: say("evicted", message=str(error)))
        say("joined", name=member.member.name, incarnation=member.member.incarnation)
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

        async def run(command: str, *arguments: str) -> None:
            try:
                await obey(member, command, list(arguments))
            except PsfError as error:
                say("error", type=type(error).__name__, message=str(error))

        while line := await reader.readline():
            tasks.create_task(run(*line.decode().split()))


asyncio.run(main(*sys.argv[1:]))
