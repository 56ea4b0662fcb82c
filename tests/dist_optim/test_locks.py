"""One lock for each parameter, taken in one order."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np

from psframework.autograd.tensor import Tensor
from psframework.dist_optim import locks
from psframework.dist_optim.locks import ParameterLocks


def tensors(n: int) -> list[Tensor]:
    return [Tensor(np.zeros((2, 2)), requires_grad=True) for _ in range(n)]


def test_disjoint_parameters_overlap() -> None:
    one, other = tensors(2)
    both = ParameterLocks([one, other])
    meet = threading.Barrier(2, timeout=10)

    def hold(parameter: Tensor) -> None:
        with both.held([parameter]):
            meet.wait()

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(hold, each) for each in (one, other)]:
            done.result(10)


def test_a_shared_parameter_is_held_by_one_whoever_made_the_locks() -> None:
    one, both, other = tensors(3)
    first, second = ParameterLocks([one, both]), ParameterLocks([both, other])
    inside, most = 0, 0
    count = threading.Lock()

    def hold(mine: ParameterLocks) -> None:
        nonlocal inside, most
        for _ in range(500):
            with mine.held():
                with count:
                    inside += 1
                    most = max(most, inside)
                with count:
                    inside -= 1

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(hold, each) for each in (first, second, first, second)]:
            done.result(20)
    assert most == 1


def test_locks_are_taken_in_one_order_however_parameters_are_listed() -> None:
    """Else two steps could each have what the other waits for."""
    params = tensors(6)
    for listed in (params, params[::-1]):
        made, taken = ParameterLocks(listed), list[int]()
        made._locks = {number: cast(Any, _Noted(number, taken)) for number in made._locks}
        with made.held(listed):
            assert taken == sorted(map(id, params))
        taken.clear()
        with made.held():
            assert taken == sorted(map(id, params))


class _Noted:
    def __init__(self, number: int, taken: list[int]) -> None:
        self.number = number
        self.taken = taken

    def __enter__(self) -> None:
        self.taken.append(self.number)

    def __exit__(self, *error: object) -> None:
        pass


def test_an_error_in_the_block_gives_the_locks_back_and_nothing_is_kept() -> None:
    gc.collect()
    before = len(locks._locks)
    params = tensors(2)
    made = ParameterLocks(params)
    try:
        with made.held():
            raise ValueError
    except ValueError:
        pass
    with made.held(params):
        assert len(locks._locks) == before + 2
    del made
    gc.collect()
    assert len(locks._locks) == before
