"""Settings of a process that are left to chance otherwise: BLAS threads, allocator, switch interval, parent.

Why each is set, as measured on two cores (docs/operations.md): two processes with BLAS threads for all cores
each ran at a fifth of their speed; an MLP step ran 336-390 times a second with glibc's defaults and 770-800
with these; a call beside Python-heavy compute took 5.3 ms at the default switch interval, now 0.6-0.8 ms.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import threadpoolctl

from psframework.errors import ConfigurationError

SWITCH_SECONDS = 0.0005
MMAP_THRESHOLD = 1 << 30  # bytes; below it memory is kept and reused instead of going back to the kernel
TRIM_THRESHOLD = (1 << 31) - 1  # the largest int; mallopt takes no more
EXIT_SECONDS = 5.0  # how long a process may drain after its parent died
PARENT_FD = "PSF_PARENT_FD"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_BLAS_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
_allocator = "default"


def configure_process(local_processes: int | None = None, *, service: bool = False) -> None:
    """Sets BLAS threads and allocator of this process, and in services the switch interval. Call it early.

    Args:
        local_processes: how many processes of the job share this machine; default PSF_LOCAL_PROCESSES, or 1.
            Each gets cores / local_processes BLAS threads, unless PSF_BLAS_THREADS or a variable of the BLAS
            library (OMP_NUM_THREADS, ...) says otherwise.
        service: also let waiting threads have the GIL after 0.5 ms instead of 5 ms.

    Raises:
        ConfigurationError: one of these variables is no number, or PSF_ALLOCATOR is unknown.
    """
    threads = blas_threads(local_processes)
    if threads is not None:
        threadpoolctl.threadpool_limits(limits=threads, user_api="blas")
    set_allocator(os.environ.get("PSF_ALLOCATOR") or "tuned")
    if service:
        sys.setswitchinterval(SWITCH_SECONDS)


def blas_threads(local_processes: int | None = None) -> int | None:
    """How many threads BLAS should use here; None if the user has set that with a variable of the library."""
    wanted = _number("PSF_BLAS_THREADS")
    if wanted is not None:
        return wanted
    if any(os.environ.get(name) for name in _BLAS_VARIABLES):
        return None
    return max(1, cores() // max(1, local_processes or _number("PSF_LOCAL_PROCESSES") or 1))


def cores() -> int:
    """The cores this process may use: its affinity, and the quota of its container (cgroup v2)."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(available, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return available


def set_allocator(choice: str) -> bool:
    """Tells glibc to keep freed memory: pages that are given back fault in again at the next step.

    The price: memory once used stays with the process until it ends. One arena serves all threads, since the
    arenas of other threads hold no block above 64 MiB, and larger ones would go back to the kernel again.

    Args:
        choice: "tuned", or "default" to leave the allocator alone.

    Returns:
        Whether it is tuned now; False on another C library.
    """
    global _allocator
    if choice not in ("tuned", "default"):
        raise ConfigurationError(f"PSF_ALLOCATOR={choice!r}: choose 'tuned' or 'default'")
    libc = _glibc()
    if choice == "default" or libc is None:
        return False
    kept = bool(libc.mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD)) or bool(
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the most that older versions take
    )
    kept = kept and bool(libc.mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD))
    libc.mallopt(_M_ARENA_MAX, 1)
    _allocator = "tuned" if kept else "default"
    return kept


def facts() -> dict[str, object]:
    """What is in force in this process, measured where that can be; for tests and bug reports."""
    pools = threadpoolctl.threadpool_info()
    return {
        "pid": os.getpid(),
        "cores": cores(),
        "blas_threads": max((pool["num_threads"] for pool in pools if pool["user_api"] == "blas"), default=0),
        "blas": sorted({str(pool["internal_api"]) for pool in pools if pool["user_api"] == "blas"}),
        "allocator": _allocator,
        "large_blocks_return_to_kernel": _large_blocks_are_mapped(),
        "switch_interval": sys.getswitchinterval(),
    }


class _Mallinfo2(ctypes.Structure):
    """struct mallinfo2; `hblks` counts the blocks that are mapped from the kernel one by one."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def _large_blocks_are_mapped() -> bool | None:
    """Asks the allocator itself, by one block of 16 MiB; None where it can't tell."""
    libc = _glibc()
    if libc is None or not hasattr(libc, "mallinfo2"):
        return None
    libc.mallinfo2.restype, libc.malloc.restype = _Mallinfo2, ctypes.c_void_p
    libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    before = libc.mallinfo2().hblks
    block = libc.malloc(16 << 20)
    mapped: bool = libc.mallinfo2().hblks > before
    libc.free(block)
    return mapped


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigurationError(f"{name}={text!r}: a number from 1 on")
    return int(text)


@dataclass(frozen=True, slots=True)
class ParentPipe:
    """A pipe by which children notice that this process died, however it died.

    Pass `child_fd` in `pass_fds` and `environment` to each child; keep the object as long as they shall live.
    """

    child_fd: int
    own_fd: int

    @classmethod
    def open(cls) -> ParentPipe:
        return cls(*os.pipe())

    @property
    def environment(self) -> dict[str, str]:
        return {PARENT_FD: str(self.child_fd)}

    def close(self) -> None:
        """Lets go of both ends: children that still run begin to drain."""
        os.close(self.own_fd)
        os.close(self.child_fd)


def exit_with_parent(
    *, drain_seconds: float = EXIT_SECONDS, leave: Callable[[int], object] = os._exit
) -> bool:
    """Ends this process when its parent's pipe (PSF_PARENT_FD) closes: SIGTERM first, then for good.

    Args:
        drain_seconds: how long SIGTERM's handler may take, in seconds.
        leave: ends the process at once.

    Returns:
        Whether there is a pipe to watch.
    """
    descriptor = os.environ.get(PARENT_FD)
    if not descriptor:
        return False
    if not descriptor.isdecimal():
        raise ConfigurationError(f"{PARENT_FD}={descriptor!r}: a file descriptor's number")

    def watch(fd: int) -> None:
        try:
            while os.read(fd, 4096):
                pass
        except OSError:
            return  # not a descriptor of ours, as in a grandchild: there is nothing to watch
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(drain_seconds)
        leave(1)

    threading.Thread(target=watch, args=(int(descriptor),), name="psf-parent", daemon=True).start()
    return True
