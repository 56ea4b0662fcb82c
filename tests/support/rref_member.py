"""A member in its process: `rref_member.py NAME INCARNATION`. Prints its address; ends with its input.

Each line of its input says where another member is: NAME ADDRESS INCARNATION.
"""

import asyncio
import itertools
import sys

import rref_things

from psframework.rpc.functions.routes import Address
from psframework.rref.client import RRefs
from psframework.testing import workers
from psframework.testing.workers import Phonebook, worker

assert rref_things


async def main(name: str, incarnation: int) -> None:
    workers._incarnations = itertools.count(incarnation)
    book = Phonebook()
    async with worker(name, book) as made:
        async with RRefs(made.agent, made.remote, book, made.service):
            print(made.address, incarnation, flush=True)
            while line := await asyncio.to_thread(sys.stdin.readline):
                other, address, number = line.split()
                book.known[other] = Address([address], "worker", int(number))


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
