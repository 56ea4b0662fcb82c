"""The schedule of the ring, its cuts, and that all ranks get the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from collective import Mail, collect, describe
from hypothesis import given
from hypothesis import strategies as st

from psframework import backend
from psframework.collective import plan
from psframework.collective.descriptor import Operation
from psframework.collective.network import Network
from psframework.collective.ops import ReduceOp
from psframework.collective.ring import gather_hops, lanes, parts, reduce_hops
from psframework.collective.tuning import Table

RING = Table().only("ring", deterministic=False)


@given(st.integers(2, 40))
def test_what_goes_out_comes_in_next_door(size: int) -> None:
    for hops in (reduce_hops, gather_hops):
        for rank in range(size):
            sent = [hop.sends for hop in hops(rank, size)]
            taken = [hop.takes for hop in hops((rank + 1) % size, size)]
            assert sent == taken and len(sent) == size - 1


@given(st.integers(2, 12))
def test_each_part_meets_all_ranks_and_ends_at_its_own(size: int) -> None:
    has = [{part: {rank} for part in range(size)} for rank in range(size)]  # whose is in it
    for step in range(size - 1):
        moving = [has[rank][reduce_hops(rank, size)[step].sends] for rank in range(size)]
        for rank in range(size):
            part = reduce_hops(rank, size)[step].takes
            has[rank][part] = has[rank][part] | moving[(rank - 1) % size]
    assert all(has[rank][rank] == set(range(size)) for rank in range(size))
    known = [{rank} for rank in range(size)]
    for step in range(size - 1):
        for rank in range(size):
            hop = gather_hops(rank, size)[step]
            assert hop.sends in known[rank], "only what is known goes on"
        for rank in range(size):
            known[rank].add(gather_hops(rank, size)[step].takes)
    assert all(each == set(range(size)) for each in known)


@given(st.integers(0, 200), st.integers(1, 9))
def test_lanes_cover_each_part_once(n: int, size: int) -> None:
    array = np.arange(n)
    found = [[] for _ in range(size)]
    for cuts in lanes(array, size):
        for part, cut in enumerate(cuts):
            found[part] += parts(array, size)[part][cut].tolist()
    assert [each for part in found for each in part] == array.tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("size", [2, 3, 5])
async def test_all_ranks_get_the_same_bits_and_16_bits_are_rounded_once(
    dtype: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan.chunks, "__defaults__", (64,))
    monkeypatch.setattr(plan.parts, "__defaults__", (64,))
    random = np.random.default_rng(1)
    sends = [random.standard_normal(500).astype(backend.dtype_from_name(dtype)) for _ in range(size)]
    exact = sum(each.astype(np.float64) for each in sends) / size
    mail = Mail(size, seed=2)
    transports = [Network(post, RING) for post in mail.posts]
    got = await collect(transports, [describe(Operation.ALL_REDUCE, sends[0], op=ReduceOp.AVG)] * size, sends)
    for each in transports:
        await each.close()
    assert len({array.tobytes() for array in got}) == 1
    eps = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-22}[dtype]
    np.testing.assert_allclose(got[0].astype(np.float64), exact, rtol=eps * 1.01, atol=1e-6)
    data = [letter for letter in mail.sent if letter[3]]
    assert {(source, to) for source, to, *_ in data} == {(rank, (rank + 1) % size) for rank in range(size)}
