"""Every collective on real processes equals NumPy; bitwise equal on all ranks, and from run to run.

Cases of others (CASES.md), besides those in tests/collective:
- pytorch#192920, strided input; gloo#154, one rank; pytorch#76527, input of others; pytorch#111131, bfloat16;
  torchcomms#287, AVG: test_every_operation
- pytorch#84525, #174844, ray#49300, a different shape or dtype; chainermn#236, one rank raises: test_mismatch
"""

import math
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import collective_cases as cases
import pytest
from collective_cases import Case

import psframework as psf
from psframework.cluster.local import LocalCluster, LocalOptions
from psframework.cluster.process import ServiceProcess

SIZES = (1, 2, 3, 4, 7)
IN_RANK_ORDER = ("alone", "shm", "direct", "central")
REPEATED = 40
HOSTS = ("one", "one", "other", "other", "third", "one", "other")
"""Of worker-0, worker-1, ...: by the folder in which they hand over memory."""


class Hosts(LocalCluster):
    """Workers of several hosts, as far as shared memory can tell; made of a folder each."""

    def __init__(self, options: LocalOptions, folder: Path) -> None:
        super().__init__(options)
        self._hosts = folder

    def _add(
        self, name: str, module: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> ServiceProcess:
        kind, _, number = name.partition("-")
        if kind == "worker":
            folder = self._hosts / HOSTS[int(number)]
            folder.mkdir(mode=0o700, exist_ok=True)
            environment = {**(environment or {}), "PSF_SHM_DIR": str(folder)}
        return super()._add(name, module, arguments, environment)


@pytest.fixture(scope="module")
async def one_host() -> AsyncIterator[psf.Cluster]:
    async with (
        psf.local_cluster(workers=max(SIZES), allreduce=1, imports=["collective_cases"]) as local,
        psf.connect(local.address, name="caller") as cluster,
    ):
        yield cluster


@pytest.fixture(scope="module")
async def hosts(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[psf.Cluster]:
    workers = max(SIZES) if "PSF_SOAK" in os.environ else 4
    options = LocalOptions(workers=workers, imports=("collective_cases",))
    async with (
        Hosts(options, tmp_path_factory.mktemp("hosts")) as local,
        psf.connect(local.address, name="caller") as cluster,
    ):
        yield cluster


async def everywhere(cluster: psf.Cluster, size: int, function: Any, *args: Any) -> list[Any]:
    names = [f"worker-{rank}" for rank in range(size)]
    return await cluster.rpc_all(names, function, args, timeout=1000.0)


async def group(cluster: psf.Cluster, size: int, algorithm: str | None) -> tuple[str, str]:
    """The name and transport of a group; it is made when it is first asked for, and used again."""
    name = f"matrix-{algorithm}-{size}"
    transports = await everywhere(cluster, size, cases.join, name, size, algorithm)
    assert len(set(transports)) == 1
    return name, transports[0]


async def compare(cluster: psf.Cluster, size: int, algorithm: str | None, chosen: Sequence[Case]) -> None:
    name, transport = await group(cluster, size, algorithm)
    assert transport == ("alone" if size == 1 else algorithm)
    plain = [tuple(case) for case in chosen]
    first = await everywhere(cluster, size, cases.run, name, plain, transport in IN_RANK_ORDER)
    again = await everywhere(cluster, size, cases.run, name, plain[:REPEATED], transport in IN_RANK_ORDER)
    for _, wrong in first:
        assert not wrong, f"{len(wrong)} are wrong, such as {wrong[0]}"
    for (digests, _), (repeated, _) in zip(first, again, strict=True):
        assert digests[:REPEATED] == repeated, "another result from run to run"
    for number, case in enumerate(chosen):
        if case.operation in cases.ALIKE:
            digests = {digests[number] for digests, _ in first}
            assert len(digests) == 1, f"{case}: ranks differ"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", ["shm", "direct", "ring", "central"])
async def test_every_operation(one_host: psf.Cluster, algorithm: str, size: int) -> None:
    """Every pair of properties with shared memory; for the others each size has a third of the cases."""
    chosen = cases.pairwise()
    await compare(one_host, size, algorithm, chosen if algorithm == "shm" else chosen[size % 3 :: 3])


@pytest.mark.parametrize("size", [3, 4])
async def test_every_operation_over_hosts(hosts: psf.Cluster, size: int) -> None:
    await compare(hosts, size, "hierarchical", cases.pairwise()[size % 2 :: 2])


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", ["shm", "direct", "ring", "central"])
async def test_every_combination(one_host: psf.Cluster, algorithm: str, size: int) -> None:
    await compare(one_host, size, algorithm, list(cases.everything()))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("size", SIZES[1:])
async def test_every_combination_over_hosts(hosts: psf.Cluster, size: int) -> None:
    await compare(hosts, size, "hierarchical", list(cases.everything()))


@pytest.mark.parametrize("algorithm", ["shm", "direct", "ring", "central"])
@pytest.mark.parametrize("what", cases.MISTAKES)
async def test_mismatch(one_host: psf.Cluster, algorithm: str, what: str) -> None:
    """All ranks learn of it, at once, by name; and the group can be used on."""
    name, _ = await group(one_host, 3, algorithm)
    found = await everywhere(one_host, 3, cases.mistake, name, what, 1)
    own = {"argument": "ArgumentError", "object": "CannotTravel"}.get(what, "CollectiveMismatch")
    assert [kind for kind, _, _ in found] == ["CollectiveMismatch", own, "CollectiveMismatch"]
    for rank in (0, 2):
        assert "rank 1 (worker-1)" in found[rank][1]
    assert max(seconds for _, _, seconds in found) < 1
    await compare(one_host, 3, algorithm, cases.pairwise()[:5])


def test_pairs_are_complete() -> None:
    chosen, every = cases.pairwise(), list(cases.everything())
    covered = {pair for case in chosen for pair in cases.pairs(case)}
    assert covered == {pair for case in every for pair in cases.pairs(case)}
    assert len(chosen) < len(every) / 10
    assert {case.dtype for case in every} == set(cases.DTYPES)
    assert math.prod((len(cases.DTYPES), len(cases.OPERATIONS))) < len(chosen)
