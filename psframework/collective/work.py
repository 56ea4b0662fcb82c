"""One operation on its way through a transport, and what transports have in common. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from psframework.collective.descriptor import Descriptor
from psframework.rpc.deadline import Deadline

Flat = npt.NDArray[Any]
"""A host array with one axis, C-contiguous, of native byte order."""


@dataclass(slots=True, eq=False)
class Work:
    """One collective of one rank. Made by the group; a transport runs it and calls `done` once.

    With n elements of the array that the user passed, and p ranks:

        operation       send                  receive
        ALL_REDUCE      n                     n: the same memory as `send`
        BROADCAST       n (root)              n (others)
        REDUCE          n                     n at the root: the same memory as `send`
        ALL_GATHER      n                     p * n, by rank
        GATHER          n                     p * n at the root
        SCATTER         n (root)              n / p
        REDUCE_SCATTER  n                     n / p
        ALL_TO_ALL      n                     n: part r comes from rank r
        BARRIER         -                     -
        REFUSE          -                     -

    `send` is not written to (but where it is `receive`), and may be read until `done`. What a rank needs not
    is None.

    Args:
        descriptor: what the rank is about to do; its `sequence` is set by the group just before it runs.
        send: what this rank gives.
        receive: where the result goes; None on a rank whose descriptor is open: the transport then sets an
            array made by `allocate` once it knows the root's descriptor.
        deadline: when to give up.
        done: called once with the error, or None; from whichever thread the transport runs in.
        allocate: makes `receive` from the root's descriptor (an open rank of SCATTER or BROADCAST).
    """

    descriptor: Descriptor
    send: Flat | None
    receive: Flat | None
    deadline: Deadline
    done: Callable[[Work, BaseException | None], None]
    allocate: Callable[[Descriptor], Flat] | None = None


class Transport(Protocol):
    """Runs the collectives of one rank of one group, one after the other.

    Every operation first compares descriptors (`check_agreement`); data moves only after that.
    """

    @property
    def name(self) -> str:
        """For people and the flight recorder: "shm", "direct", "ring", "hierarchical", "central", "alone"."""
        ...

    @property
    def lives_on(self) -> bool:
        """Whether all ranks find a mismatch alike, so that the group can be used after one; else it ends."""
        ...

    def start(self, work: Work) -> None:
        """Begins `work`; the group starts the next one only after `done` was called. Any thread may call it.

        Where the result comes within some microseconds it may call `done` before it returns.
        """
        ...

    def abort(self, error: BaseException) -> None:
        """Nobody shall wait any more: the running work ends with `error`, soon. Any thread may call it."""
        ...

    async def close(self) -> None:
        """Gives everything back. Nothing runs any more."""
        ...
