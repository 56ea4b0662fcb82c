"""Segments: sealed, reserved, checked, and without leaks; hostile descriptors are refused."""

import errno
import fcntl
import gc
import mmap
import os
import subprocess
import sys
import textwrap
import threading

import ml_dtypes
import numpy as np
import pytest

from psframework.errors import ArgumentError, ConfigurationError, ResourceExhausted, WireError
from psframework.wire import shm
from psframework.wire.shm import Segment

pytestmark = pytest.mark.skipif(not shm.available(), reason="sealed segments need Linux")

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.fixture(autouse=True)
def _no_descriptor_leaks():
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before  # others may close theirs meanwhile


def hostile(size=4096, seals=SEALS, reserve=True):
    """A memfd as a peer might make it."""
    fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    (os.posix_fallocate(fd, 0, size) if reserve else os.ftruncate(fd, size)) if size else None
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def test_both_mappings_show_the_same_bytes():
    with Segment.create(10_000) as mine:
        assert mine.nbytes == 10_000
        assert bytes(mine.buffer) == bytes(10_000)
        with Segment.from_fd(os.dup(mine.fd)) as theirs:
            mine.array(4, (2, 3), "float32")[:] = [[1, 2, 3], [4, 5, 6]]
            assert theirs.array(4, (6,), np.float32).tolist() == [1, 2, 3, 4, 5, 6]
            theirs.view(0, 4)[:] = b"head"
            assert mine.read(0, 4) == b"head"


def test_it_can_neither_shrink_nor_grow_nor_lose_its_seals():
    with Segment.create(8192) as segment:
        for size in (0, 4096, 16_384):
            with pytest.raises(PermissionError):
                os.ftruncate(segment.fd, size)
        assert fcntl.fcntl(segment.fd, fcntl.F_GET_SEALS) & SEALS == SEALS
        with pytest.raises(PermissionError):
            fcntl.fcntl(segment.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert os.fstat(segment.fd).st_blocks * 512 >= 8192
        assert not os.get_inheritable(segment.fd)


@pytest.mark.parametrize(
    "place", [(-1, 1), (0, -1), (0, 101), (100, 1), (101, 0), (1 << 63, 1), (1, 1 << 63), (50, 51)]
)
def test_ranges_outside_are_refused(place):
    with Segment.create(100) as segment:
        for look in (segment.view, segment.read):
            with pytest.raises(WireError, match="segment of 100 bytes"):
                look(*place)
        assert len(segment.view(100, 0)) == 0


@pytest.mark.parametrize(
    ("offset", "shape", "dtype"),
    [
        (0, (26,), "float32"),
        (0, (1 << 62, 4), "float32"),
        (0, (-1,), "float32"),
        (0, (1,), object),
        (0, (1,), "V0"),
        (97, (1,), "float32"),
        (-4, (1,), "float32"),
    ],
)
def test_arrays_outside_or_of_pointers_are_refused(offset, shape, dtype):
    with Segment.create(100) as segment, pytest.raises(WireError):
        segment.array(offset, shape, dtype)


def test_arrays_of_any_shape_and_dtype():
    with Segment.create(100) as segment:
        assert segment.array(0, (), "int64").shape == ()
        assert segment.array(100, (0, 3), "int64").shape == (0, 3)
        bfloat = segment.array(1, (2, 2), ml_dtypes.bfloat16)  # not aligned, still right
        bfloat[:] = 1.5
        assert segment.array(1, (4,), ml_dtypes.bfloat16).tolist() == [1.5] * 4


def test_closing_with_views_alive_leaves_them_valid():
    segment = Segment.create(1 << 16)
    array, view = segment.array(0, (16,), "float32"), segment.view(64, 4)
    array[:] = 3
    segment.close()
    segment.close()
    assert segment.closed
    array += 1
    view[:] = b"abcd"
    assert array.tolist() == [4.0] * 16
    for use in (lambda: segment.fd, lambda: segment.buffer, lambda: segment.view(0, 1)):
        with pytest.raises(ArgumentError, match="closed"):
            use()
    segment.touch()


def test_a_forgotten_segment_gives_everything_back():
    for _ in range(50):
        Segment.create(1 << 16)


def test_touch_keeps_the_contents():
    with Segment.create(9 << 20) as segment:
        segment.view(5 << 20, 3)[:] = b"abc"
        segment.touch()
        segment.touch(seconds=0)
        assert segment.read(5 << 20, 3) == b"abc"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hostile(seals=0), "not sealed"),
        (lambda: hostile(seals=fcntl.F_SEAL_GROW), "not sealed"),
        (lambda: hostile(seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW), "not sealed"),
        (lambda: hostile(size=0), "of 0 bytes"),
        (lambda: hostile(size=2 << 20), "1 to 1048576 are allowed"),
        (lambda: hostile(size=1 << 20, reserve=False), "not reserved"),
        (lambda: hostile(size=1 << 60, reserve=False), "are allowed"),
        (lambda: hostile(seals=SEALS | fcntl.F_SEAL_WRITE), "mapped for writing"),
        (lambda: os.open("/dev/zero", os.O_RDWR), "not a segment"),
        (lambda: os.open("/", os.O_RDONLY), "not a segment"),
        (lambda: os.open(__file__, os.O_RDONLY), "not a segment"),
        (lambda: os.eventfd(0), "not a segment"),
    ],
)
def test_descriptors_that_could_harm_us_are_refused_and_closed(make, words):
    fd = make()
    with pytest.raises(WireError, match=words):
        Segment.from_fd(fd, max_bytes=1 << 20)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_read_only_descriptor_is_refused():
    with Segment.create(4096) as segment:
        fd = os.open(f"/proc/self/fd/{segment.fd}", os.O_RDONLY)
        with pytest.raises(WireError, match="read-only"):
            Segment.from_fd(fd)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM])
def test_no_room_is_an_error_to_fall_back_on(monkeypatch, code):
    def full(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ResourceExhausted, match="no room for a shared segment of 4096 bytes"):
        Segment.create(4096)


def test_more_than_the_machine_has_is_refused_at_once():
    with pytest.raises(ResourceExhausted, match="are available"):
        Segment.create(1 << 60)
    with pytest.raises(ArgumentError):
        Segment.create(0)


def test_systems_without_sealing_say_so(monkeypatch):
    monkeypatch.setattr(shm, "available", lambda: False)
    with pytest.raises(ConfigurationError, match="inline,striped"):
        Segment.create(1)


def test_real_limits_of_a_real_process():
    """The kernel's own refusals: file size, address space, descriptors."""
    code = """
        import os, resource
        from psframework.errors import ResourceExhausted
        from psframework.wire.shm import Segment

        def refused(limit, value, nbytes):
            old = resource.getrlimit(limit)
            resource.setrlimit(limit, (value, old[1]))
            try:
                Segment.create(nbytes)
            except ResourceExhausted:
                print("refused")
            finally:
                resource.setrlimit(limit, old)

        before = len(os.listdir("/proc/self/fd"))
        refused(resource.RLIMIT_FSIZE, 1 << 20, 2 << 20)
        refused(resource.RLIMIT_AS, 1 << 20, 64 << 20)
        refused(resource.RLIMIT_NOFILE, 3, 4096)
        assert len(os.listdir("/proc/self/fd")) <= before  # others may close theirs meanwhile
        Segment.create(2 << 20).close()
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=30, check=False
    )
    assert result.stdout.split() == ["refused"] * 3, result.stderr
    assert result.returncode == 0, result.stderr


def test_an_inherited_segment_survives_its_maker():
    """A child writes into the mapping and dies by SIGKILL; what it wrote is there, nothing else happens."""
    code = """
        import os, signal, sys
        from psframework.wire.shm import Segment
        segment = Segment.from_fd(int(sys.argv[1]))
        segment.array(0, (4,), "float64")[:] = 7
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with Segment.create(mmap.PAGESIZE) as segment:
        child = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), str(segment.fd)],
            pass_fds=[segment.fd],
            timeout=30,
            check=False,
        )
        assert child.returncode == -9
        assert segment.array(0, (4,), "float64").tolist() == [7.0] * 4


def test_other_threads_run_while_a_large_segment_is_made():
    made = []
    thread = threading.Thread(target=lambda: made.append(Segment.create(64 << 20)))
    thread.start()
    ticks = 0
    while thread.is_alive():
        ticks += 1
        thread.join(0.001)
    made.pop().close()
    assert ticks > 3


@pytest.mark.soak
def test_a_segment_of_more_than_2_gib():
    nbytes = 2_254_857_832
    with Segment.create(nbytes) as mine, Segment.from_fd(os.dup(mine.fd)) as theirs:
        mine.array(nbytes - 8, (1,), "float64")[:] = 2.5
        assert theirs.array(0, (nbytes // 8,), "float64")[-1] == 2.5
