"""Gradients of graphs over many processes, compared with those of one process."""

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import dist_programs as programs
import numpy as np
import pytest
from dist_programs import Inline, Remote
from hypothesis import given, settings
from hypothesis import strategies as st

import psframework as psf
from psframework.autograd.engine import backward
from psframework.dist_autograd.handle import Mode

ME = "caller"
EXAMPLES = 120


@pytest.fixture(scope="module")
async def cluster() -> AsyncIterator[psf.Cluster]:
    async with (
        psf.local_cluster(workers=5, imports=["dist_programs"]) as local,
        psf.connect(local.address, name=ME) as cluster,
    ):
        yield cluster


async def here(program: Any, roots: int) -> dict[tuple[str, int], Any]:
    """The gradients of one process."""
    found = await programs.run(Inline(), ME, program, [])
    losses = [value.sum() for value in ([found] if roots == 1 else found)]
    owners = {parameter: key for key, parameter in programs.parameters.items()}
    return {owners[leaf]: gradient for leaf, gradient in backward(losses).items()}


async def everywhere(
    cluster: psf.Cluster, places: list[str], program: Any, roots: int, mode: Mode
) -> dict[tuple[str, int], Any]:
    """Those of many."""
    async with cluster.dist_autograd() as ctx:
        found = await programs.run(Remote(), ME, program, [])
        await ctx.backward([value.sum() for value in ([found] if roots == 1 else found)], mode=mode)
        gradients = await cluster.rpc_all(places, programs.gradients_here, (tuple(ctx.id),))
    return {(place, n): each for place, own in zip(places, gradients) for n, each in own.items()}


async def compare(cluster: psf.Cluster, random: Random, *, use_all: bool) -> None:
    places = [ME, *(f"worker-{index}" for index in range(random.randint(2, 5)))]
    roots = random.randint(1, 3)
    program = programs.program(random, places, 3, results=roots, use_all=use_all)
    modes: list[Mode] = ["smart", "fast"] if use_all else ["smart", "smart"]
    expected = await here(program, roots)
    found = [await everywhere(cluster, places, program, roots, mode) for mode in modes]
    assert found[0].keys() == found[1].keys() == expected.keys()
    for key, gradient in expected.items():
        scale = max(1.0, float(np.abs(gradient).max()))
        np.testing.assert_allclose(found[0][key], gradient, rtol=1e-12, atol=1e-12 * scale, err_msg=str(key))
        assert found[0][key].tobytes() == found[1][key].tobytes(), f"{key} differs from run to run"


@settings(max_examples=EXAMPLES)
@given(random=st.randoms(use_true_random=False))
async def test_programs_that_use_only_some_of_what_they_make(cluster: psf.Cluster, random: Random) -> None:
    await compare(cluster, random, use_all=False)


@settings(max_examples=EXAMPLES)
@given(random=st.randoms(use_true_random=False))
async def test_programs_that_use_all_of_it_in_both_modes(cluster: psf.Cluster, random: Random) -> None:
    await compare(cluster, random, use_all=True)


@pytest.mark.soak
@pytest.mark.timeout(1500)
@settings(max_examples=3_000)
@given(random=st.randoms(use_true_random=False), use_all=st.booleans())
async def test_many_programs(cluster: psf.Cluster, random: Random, use_all: bool) -> None:
    await compare(cluster, random, use_all=use_all)
