"""Linux futexes: threads of several processes wait for a word of shared memory to change.

The words are not private to the process, so the kernel finds waiters through the mapped file. A waiter sleeps
without the GIL. Only 32-bit words, as the kernel has it.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from typing import Final

_SYS_FUTEX: Final = 202  # of x86-64
_WAIT, _WAKE, _EVERYONE = 0, 1, 0x7FFFFFFF
_ARGUMENTS: Final = (
    ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p,
    ctypes.c_uint32,
)  # fmt: skip


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


def available() -> bool:
    """Whether this machine has futexes, and stores become visible in the order in which they were made.

    The second is what readers of shared words count on here, and x86-64 promises.
    """
    return sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")


class Futex:
    """The futex at one address.

    Args:
        address: of an aligned 32-bit word, which the caller keeps mapped.
    """

    __slots__ = ("_address",)

    def __init__(self, address: int) -> None:
        self._address = address

    def wait(self, seen: int, seconds: float) -> None:
        """Sleeps until somebody wakes the word, at most `seconds`; not at all if its value is not `seen`.

        It may also return for no reason: look at the word again.
        """
        whole = int(seconds)
        timeout = _Timespec(whole, int((seconds - whole) * 1e9))
        _sleeping(_SYS_FUTEX, self._address, _WAIT, seen, ctypes.addressof(timeout), None, 0)

    def wake(self) -> None:
        """Wakes all who sleep on the word: call it after the word was changed."""
        _at_once(_SYS_FUTEX, self._address, _WAKE, _EVERYONE, None, None, 0)


if sys.platform == "linux":
    # Of the two ways to call C, the one lets other threads run meanwhile; the other is quicker.
    _sleeping = ctypes.CDLL(None).syscall
    _at_once = ctypes.PyDLL(None).syscall
    _sleeping.argtypes = _at_once.argtypes = _ARGUMENTS
    _sleeping.restype = _at_once.restype = ctypes.c_long
