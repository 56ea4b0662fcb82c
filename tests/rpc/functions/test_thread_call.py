"""A function on its way through the pool: whoever is first, the loop or the thread, decides."""

import threading

from psframework.rpc.functions.thread_call import PUT_OFF, ThreadCall
from psframework.rpc.room import Room


def test_given_up_before_it_began_it_never_runs() -> None:
    ran: list[int] = []
    call = ThreadCall(lambda: ran.append(1))
    assert not call.give_up(lambda: ran.append(2))
    assert call() is None
    assert ran == []


def test_given_up_while_it_runs_it_tells_of_its_end() -> None:
    begun, gate, told = threading.Event(), threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        assert gate.wait(10)
        assert not told.is_set()

    call = ThreadCall(run)
    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(10)
    assert call.give_up(told.set) and not told.is_set()
    gate.set()
    thread.join()
    assert told.is_set()


def test_given_up_after_its_end_there_is_nothing_to_tell() -> None:
    call = ThreadCall(lambda: 3)
    assert call() == 3
    assert not call.give_up(lambda: None)


async def test_without_room_it_is_put_off_and_may_begin_later() -> None:
    room = Room("ann", enough=10, most=100)
    room.hold(11)
    call = ThreadCall(lambda: 3, room)
    assert call() is PUT_OFF
    room.let_go(11)
    assert call() == 3
