"""Waiting for a word of shared memory, between threads and between processes."""

import subprocess
import sys
import threading
import time

from psframework.collective.futex import Futex
from psframework.wire.shm import Segment

WAKER = """
import sys
from psframework.collective.futex import Futex
from psframework.wire.shm import Segment

words = Segment.from_fd(int(sys.argv[1])).array(0, (2,), "uint32")
sys.stdin.readline()
words[1] = 7
Futex(words.ctypes.data + 4).wake()
"""


def test_a_changed_word_is_not_waited_for():
    with Segment.create(4096) as segment:
        word = segment.array(0, (1,), "uint32")
        start = time.monotonic()
        Futex(word.ctypes.data).wait(5, 10)
        assert time.monotonic() - start < 5


def test_waiting_ends_with_its_time():
    with Segment.create(4096) as segment:
        word = segment.array(0, (1,), "uint32")
        start = time.monotonic()
        Futex(word.ctypes.data).wait(0, 0.05)
        assert time.monotonic() - start >= 0.04


def test_other_threads_run_meanwhile():
    with Segment.create(4096) as segment:
        word = segment.array(0, (1,), "uint32")
        futex = Futex(word.ctypes.data)
        waiter = threading.Thread(target=futex.wait, args=(0, 20))
        waiter.start()
        while waiter.is_alive():  # wakes it whether or not it sleeps yet
            word[0] = 1
            futex.wake()
        waiter.join()


def test_another_process_wakes():
    with Segment.create(4096) as segment:
        words = segment.array(0, (2,), "uint32")
        waker = subprocess.Popen(
            [sys.executable, "-c", WAKER, str(segment.fd)], stdin=subprocess.PIPE, pass_fds=[segment.fd]
        )
        waiter = threading.Thread(target=Futex(words.ctypes.data + 4).wait, args=(0, 30))
        waiter.start()
        waker.communicate(b"\n", timeout=20)
        waiter.join(5)  # the wake itself, not the end of 30 s
        assert not waiter.is_alive()
        assert words.tolist() == [0, 7]
