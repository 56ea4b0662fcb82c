"""Hooks: what a user's hook may be, and what it may answer."""

import asyncio
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import psframework as psf
from psframework.backend import Array
from psframework.ddp.hooks import Bucket, Hook, run_hook


def bucket() -> Bucket:
    parameter = psf.nn.Parameter(np.zeros(3))
    return Bucket(0, np.ones(3), [parameter], ["p"], [0], group=None)  # type: ignore[arg-type]


async def in_place(bucket: Bucket) -> None:
    await asyncio.sleep(0)
    bucket.buffer *= 2


async def another_array(bucket: Bucket) -> Array:
    return (bucket.buffer * 2).astype(np.float16)


async def a_tensor(bucket: Bucket) -> Any:
    return psf.tensor(bucket.buffer * 2)


def without_await(bucket: Bucket) -> None:
    bucket.buffer *= 2


def an_awaitable(bucket: Bucket) -> Any:
    return asyncio.ensure_future(another_array(bucket))


def assigned(bucket: Bucket) -> None:
    bucket.buffer = bucket.buffer * 2


@pytest.mark.parametrize("hook", [in_place, another_array, a_tensor, without_await, an_awaitable, assigned])
async def test_the_outcome_is_in_the_buffer(hook: Hook) -> None:
    given = bucket()
    buffer = given.buffer
    await run_hook(hook, given)
    assert given.buffer is buffer
    np.testing.assert_array_equal(buffer, [2, 2, 2])


@pytest.mark.parametrize(("answer", "text"), [(np.ones(2), r"shape \(2,\)"), (3, "int")])
async def test_another_answer_is_refused(answer: Any, text: str) -> None:
    with pytest.raises(psf.ArgumentError, match=text):
        await run_hook(lambda bucket: answer, bucket())


async def test_errors_of_the_hook_come_through() -> None:
    async def hook(bucket: Bucket) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        await run_hook(hook, bucket())


@pytest.mark.parametrize("fails", [True, False])
async def test_the_bucket_keeps_its_buffer(fails: bool) -> None:
    """Gradients are views into it: with another one the next backward would be averaged elsewhere."""
    given = bucket()
    buffer = given.buffer

    def hook(bucket: Bucket) -> Array:
        bucket.buffer = np.full(3, 7.0)
        if fails:
            raise ZeroDivisionError
        return buffer

    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        await run_hook(hook, given)
    assert given.buffer is buffer
    np.testing.assert_array_equal(buffer, [1, 1, 1])
