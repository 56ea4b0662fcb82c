"""What workers run."""

import asyncio

import psframework as psf


@psf.remote
def add(x, y):
    return x + y


@psf.remote
async def name():
    return psf.current_cluster().name, psf.current_caller().name


@psf.remote
async def sleep(seconds):
    await asyncio.sleep(seconds)
