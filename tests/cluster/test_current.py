"""Which cluster code belongs to: that of the block it is in, and none outside."""

import asyncio
import contextvars
from typing import Any

import pytest

from psframework.cluster.current import current, current_cluster, enter
from psframework.errors import ArgumentError

ONE: Any = object()
OTHER: Any = object()


async def test_tasks_and_threads_inherit_it_and_blocks_nest() -> None:
    with pytest.raises(ArgumentError, match=r"async with psf\.connect"):
        current_cluster()
    with current(ONE):
        with current(OTHER):
            assert await asyncio.create_task(ask()) is OTHER
            assert await asyncio.to_thread(current_cluster) is OTHER
        assert current_cluster() is ONE
    with pytest.raises(ArgumentError):
        current_cluster()


def test_a_call_enters_for_its_context_only() -> None:
    context = contextvars.copy_context()
    context.run(enter, ONE)
    assert context.run(current_cluster) is ONE
    with pytest.raises(ArgumentError):
        current_cluster()


async def ask() -> object:
    return current_cluster()
