"""Processes that are the ranks of groups over shared memory, used for many groups one after the other."""

import math
import os
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from psframework import backend
from psframework.collective.shm import segment_bytes
from psframework.wire.shm import Segment

SUPPORT = Path(__file__).parent


class Member:
    """One process."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        path = os.pathsep.join([str(SUPPORT), str(SUPPORT.parent.parent)])
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, str(SUPPORT / "shm_rank.py"), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            )
        self._socket = ours
        self._orders = Connection(os.dup(ours.fileno()))

    def tell(self, name: str, *arguments: Any, segment: Segment | None = None, **options: Any) -> None:
        self._orders.send((name, arguments, options))
        if segment is not None:
            socket.send_fds(self._socket, [b"x"], [segment.fd])

    def answer(self, seconds: float = 60) -> Any:
        assert self._orders.poll(seconds), "the rank does not answer"
        value, error = self._orders.recv()
        if error is not None:
            raise error
        return value

    def end(self) -> None:
        self._orders.close()
        self._socket.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


class Crew:
    """Several; a group is made of the first of them."""

    def __init__(self, count: int) -> None:
        self.members = [Member() for _ in range(count)]

    def enter(self, size: int, cores: int = 2) -> list[Member]:
        """Makes a group of `size` ranks."""
        ranks = self.members[:size]
        with Segment.create(segment_bytes(size)) as segment:
            for rank, member in enumerate(ranks):
                member.tell("enter", rank, size, cores, segment=segment)
            for member in ranks:
                member.answer()
        return ranks

    def reside(self, ranks: list[Member], shape: tuple[int, ...], dtype: str) -> None:
        """Makes a resident array on all ranks."""
        region = -(-math.prod(shape) * backend.dtype_from_name(dtype).itemsize // 4096) * 4096
        with Segment.create(max(region, 1) * len(ranks)) as segment:
            for member in ranks:
                member.tell("reside", shape, dtype, segment=segment)
            for member in ranks:
                member.answer()

    def end(self) -> None:
        for member in self.members:
            member.end()


def every(ranks: list[Member], name: str, *arguments: list[Any], **options: Any) -> list[Any]:
    """The same command on all ranks at once; each argument is a list, by rank."""
    for rank, member in enumerate(ranks):
        member.tell(name, *(each[rank] for each in arguments), **options)
    return [member.answer() for member in ranks]
