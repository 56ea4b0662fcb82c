"""One rank in a process of its own: does what the test that started it says, over a socket (see shm_crew)."""

import asyncio
import gc
import os
import socket
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from psframework import backend
from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.shm import SharedMemory
from psframework.collective.work import Work
from psframework.rpc.deadline import Deadline
from psframework.wire.shm import Segment


class Rank:
    """The commands."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self.transport: SharedMemory | None = None
        self.residents: list[np.ndarray] = []
        self.kept: np.ndarray | None = None
        self.rank = self.size = self.sequence = 0
        self.running: tuple[Work, threading.Event, list] | None = None

    def segment(self) -> Segment:
        return Segment.from_fd(socket.recv_fds(self._channel, 1, 1)[1][0])

    def enter(self, rank: int, size: int, cores: int) -> None:
        self.close()
        names = {each: f"trainer-{each}" for each in range(size)}
        self.transport = SharedMemory(rank, size, self.segment(), names, cores, "test", self.share)
        self.rank, self.size, self.sequence = rank, size, 0

    def begin(self, operation, send, receive, op=None, root=-1, seconds=20.0, opened=False, note=""):
        """Starts an operation; `receive` is a length, None, or "same" for the memory of `send`."""
        self.sequence += 1
        if isinstance(receive, str):
            receive = send
        elif receive is not None:
            receive = np.zeros(receive, send.dtype)
        known = send if send is not None else receive
        dtype = "" if known is None or opened else backend.dtype_name(known.dtype)
        shape = () if known is None or opened else (len(known),)
        descriptor = Descriptor(self.sequence, operation, dtype, shape, op, root, opened, note)
        ended, errors = threading.Event(), []

        def done(_work: Work, error: BaseException | None) -> None:
            errors.append(error)
            ended.set()

        def allocate(told: Descriptor):
            n = told.shape[0] // (self.size if operation is Operation.SCATTER else 1)
            return np.zeros(n, backend.dtype_from_name(told.dtype))

        work = Work(descriptor, send, receive, Deadline.after(seconds), done, allocate)
        self.running = (work, ended, errors)
        self.transport.start(work)

    def result(self, seconds=30.0):
        """(what it received, what it sent as it is now, the error)."""
        work, ended, errors = self.running
        assert ended.wait(seconds), "done was not called"
        assert len(errors) == 1, "done was called twice"
        return work.receive, work.send, errors[0]

    async def share(self, _nbytes: int) -> Segment:
        return self.segment()

    def reside(self, shape, dtype) -> None:
        """Makes a resident array."""
        self.residents.append(asyncio.run(self.transport.empty(shape, dtype)))

    def reduce_resident(self, number: int, cut: slice, values, op) -> tuple:
        """(what the array holds after an all-reduce of its part `cut`, barriers that it took, the error)."""
        array = self.residents[number].reshape(-1)[cut]
        array[:] = values
        before = self.transport._step
        _, _, error = self.run(Operation.ALL_REDUCE, array, "same", op)
        return self.residents[number], self.transport._step - before, error

    def forget(self, number: int, keep: slice | None = None) -> int:
        """Gives a resident array up, but for a part of it; how many are known then."""
        self.kept = None if keep is None else self.residents[number].reshape(-1)[keep]
        self.running = self.residents[number] = None
        gc.collect()
        return len(self.transport._residents._live)

    def choose(self, far: bool) -> None:
        """Makes the transport use its many slots, or its few, as if it had timed its copies."""
        self.transport._reach.far, self.transport._reach._left = far, 1000

    def waits(self, seconds: float) -> bool:
        """Whether the operation is still running after so long."""
        return not self.running[1].wait(seconds)

    def run(self, *arguments, **options):
        self.begin(*arguments, **options)
        return self.result()

    def abort(self, error: BaseException) -> None:
        self.transport.abort(error)

    def close(self) -> list[str]:
        """Closes the transport; the threads and mappings that are left of it."""
        if self.transport is not None:
            asyncio.run(self.transport.close())
        self.running, self.residents, self.kept = None, [], None
        gc.collect()
        threads = [each.name for each in threading.enumerate() if each.name.startswith("psf-shm")]
        large = [each for each in Path("/proc/self/maps").read_text().splitlines() if _large(each)]
        return threads + large


def _large(line: str) -> bool:
    start, stop = (int(each, 16) for each in line.split()[0].split("-"))
    return "memfd:psframework" in line and stop - start > 1 << 20


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    orders = Connection(os.dup(channel.fileno()))
    rank = Rank(channel)
    while True:
        try:
            name, arguments, options = orders.recv()
        except EOFError:
            return
        try:
            answer = getattr(rank, name)(*arguments, **options)
        except Exception as error:
            orders.send((None, error))
        else:
            orders.send((answer, None))


if __name__ == "__main__":
    main()
