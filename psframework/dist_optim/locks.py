"""One lock for each parameter of a process, whoever steps it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from weakref import WeakValueDictionary

from psframework.autograd.tensor import Tensor

# By id: a lock lives no longer than those `ParameterLocks` that have it, and they keep its parameter alive.
_locks: WeakValueDictionary[int, threading.Lock] = WeakValueDictionary()
_making = threading.Lock()


class ParameterLocks:
    """The locks of some parameters, shared with all others who step these.

    Args:
        parameters: of this process.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = tuple(parameters)
        with _making:
            self._locks = {id(each): _locks.setdefault(id(each), threading.Lock()) for each in parameters}

    @contextmanager
    def held(self, parameters: Iterable[Tensor] | None = None) -> Iterator[None]:
        """The block runs while nobody else has one of these parameters (all of them by default).

        Everybody takes locks in the order of their numbers, so nobody waits for one who waits for him.
        """
        ids = self._locks if parameters is None else map(id, parameters)
        with ExitStack() as stack:
            for number in sorted(ids):
                stack.enter_context(self._locks[number])
            yield
