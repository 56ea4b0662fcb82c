import numpy as np
import pytest

from psframework.backend.pinned import Staging, pieces


class Event:
    def __init__(self, done=False):
        self.done, self.waited = done, 0

    def synchronize(self):
        self.waited += 1
        self.done = True


@pytest.fixture
def staging():
    made = []

    def allocate(size):
        made.append(np.empty(size, np.uint8))
        return made[-1]

    staging = Staging(allocate, size=8, kept=2)
    staging.made = made
    return staging


def test_a_buffer_is_used_again_only_when_the_device_has_passed_it(staging):
    first, event = staging.take(), Event()
    staging.give_back(first, event)
    second = staging.take()
    assert second is not first
    event.done = True
    assert staging.take() is first and len(staging.made) == 2 and not event.waited


def test_it_waits_rather_than_make_one_too_many(staging):
    events = [Event(), Event()]
    buffers = [staging.take() for _ in events]
    for buffer, event in zip(buffers, events):
        staging.give_back(buffer, event)
    assert staging.take() is buffers[0] and [event.waited for event in events] == [1, 0]


def test_what_is_over_is_let_go_when_the_device_has_passed_it(staging):
    buffers, event = [staging.take() for _ in range(3)], Event()
    for buffer in buffers[:2]:
        staging.give_back(buffer)
    staging.give_back(buffers[2], event)
    assert event.waited == 1 and len(staging._free) == 2


def test_pieces():
    array = np.arange(5, dtype=np.int16).reshape(5, 1)
    parts = list(pieces(array, 4))
    assert [part.size for part in parts] == [4, 4, 2] and all(np.shares_memory(p, array) for p in parts)
    assert np.concatenate(parts).view(np.int16).tolist() == [0, 1, 2, 3, 4]
    assert not list(pieces(np.empty((0, 2)), 4))
