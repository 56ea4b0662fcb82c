"""A member in a process of its own: prints its address and incarnation, and serves until its stdin closes."""

import asyncio
import sys

import called  # noqa: F401 - what it serves

from psframework.testing.workers import Phonebook, worker


async def main(name: str) -> None:
    book = Phonebook()
    async with worker(name, book) as me:
        print(me.address, me.agent.identity.incarnation, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
