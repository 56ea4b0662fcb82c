"""The parameter server as real processes: bitwise as one process, exact under faults, alive after deaths."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from psframework import nn, optim
from psframework.cluster.connect import connect
from psframework.cluster.handle import Cluster
from psframework.cluster.local import LocalCluster, local_cluster
from psframework.errors import PeerLost, PsfError
from psframework.optim.optimizer import Optimizer
from psframework.parameter_server.handle import ParameterServer
from psframework.parameter_server.policy import ASP, BSP, Policy
from psframework.rpc.deadline import Deadline
from psframework.testing.cluster import program
from psframework.testing.faults import FaultyLink


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[LocalCluster]:
    async with local_cluster(parameter_servers=2) as cluster:
        yield cluster


class Vector(nn.Module):
    def __init__(self, size: int = 100_000) -> None:
        super().__init__()
        self.w = nn.Parameter(np.zeros(size, np.float32))

    def fill(self, value: float) -> None:
        self.w.grad = np.full_like(self.w.data, value)


_names = iter(range(10_000))


async def opened(
    cluster: Cluster, policy: Policy, name: str, optimizer: Optimizer | None = None
) -> tuple[Vector, ParameterServer]:
    model = Vector()
    ps = await cluster.parameter_server(
        model, name=name, optimizer=optimizer or optim.SGD(lr=1.0), consistency=policy
    )
    return model, ps


COMMON = """
    import hashlib, os
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # bitwise oracles run with one BLAS thread
    import numpy as np
    import psframework as psf
    from psframework import nn, optim
    import psframework.nn.functional as F

    STEPS, BATCH = 50, 16
    OPTIMIZERS = {
        "sgd": lambda: optim.SGD(lr=0.05, momentum=0.9, weight_decay=1e-3),
        "adam": lambda: optim.Adam(lr=0.01),
        "adamw": lambda: optim.AdamW(lr=0.01),
        "adagrad": lambda: optim.Adagrad(lr=0.05),
        "rmsprop": lambda: optim.RMSprop(lr=0.01),
        "ftrl": lambda: optim.FTRL(lr=0.1, l1=1e-3, beta=1.0),
    }

    def make():
        psf.manual_seed(0)
        return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))

    def loss(model, step, rank):
        rng = np.random.default_rng((step, rank))
        x = rng.standard_normal((BATCH, 20)).astype(np.float32)
        return F.cross_entropy(model(psf.tensor(x)), rng.integers(0, 10, BATCH))

    def digest(model):
        h = hashlib.sha256()
        for parameter in model.parameters():
            h.update(np.ascontiguousarray(parameter.data).tobytes())
        return h.hexdigest()
"""

TRAINER = """
    import asyncio, sys
    from common import *

    async def main():
        rank = int(sys.argv[2])
        async with psf.connect(sys.argv[1], name=f"rank-{rank}", job="oracle") as cluster:
            for name, optimizer in OPTIMIZERS.items():
                # ranks come in this order, so that sums are in it
                model = make()
                if rank:
                    await cluster.barrier(f"{name}-first", 2)
                opening = asyncio.ensure_future(cluster.parameter_server(
                    model, name=name, optimizer=optimizer(), consistency=psf.BSP(trainers=2)))
                if not rank:
                    ps = await opening
                    await cluster.barrier(f"{name}-first", 2)
                ps = await opening
                for step in range(STEPS):
                    loss(model, step, rank).backward()
                    await ps.push_pull()
                print(name, digest(model), flush=True)
                await ps.close()
        print("done", flush=True)

    if __name__ == "__main__":
        asyncio.run(main())
"""

ALONE = """
    from common import *

    for name, optimizer in OPTIMIZERS.items():
        model = make()
        rule = optimizer().rule
        states = [rule.init_state(p.data) for p in model.parameters()]
        for step in range(STEPS):
            gradients = []
            for rank in range(2):
                loss(model, step, rank).backward()
                gradients.append([p.grad for p in model.parameters()])
                for p in model.parameters():
                    p.grad = None
            for p, a, b, state in zip(model.parameters(), *gradients, states):
                rule.update(p.data, (a + b) / 2, state, step + 1)
        print(name, digest(model), flush=True)
    print("done", flush=True)
"""


async def test_two_bsp_trainers_equal_one_process_bitwise_for_each_optimizer(
    local: LocalCluster, tmp_path: Path
):
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(program(tmp_path, "common", COMMON))
        alone = await stack.enter_async_context(program(tmp_path, "alone", ALONE))
        ranks = [
            await stack.enter_async_context(program(tmp_path, "trainer", TRAINER, [local.address, str(rank)]))
            for rank in range(2)
        ]
        for each in (alone, *ranks):
            await each.line("done", timeout=50)
        for name in ("sgd", "adam", "adamw", "adagrad", "rmsprop", "ftrl"):
            digests = {(await each.line(f"{name} ")) for each in (alone, *ranks)}
            assert len(digests) == 1, name


async def test_two_workers_push_ones_a_hundred_times(local: LocalCluster):
    """byteps#142: the sum of asynchronous pushes is exact."""
    name = f"model-{next(_names)}"
    async with connect(local.address) as one, connect(local.address) as two:
        (m0, a), (m1, b) = await asyncio.gather(opened(one, ASP(), name), opened(two, ASP(), name))

        async def push(model: Vector, ps: ParameterServer) -> None:
            for _ in range(100):
                model.fill(1.0)
                await ps.push()

        await asyncio.gather(push(m0, a), push(m1, b))
        await a.pull()
        assert np.all(m0.w.data == -200)


@pytest.mark.parametrize("policy", [ASP(), BSP(trainers=2)], ids=lambda p: p.name)
@pytest.mark.parametrize(
    ("lanes", "sockets"), [("inline,striped,shm", "0"), ("inline,striped", "0"), ("inline,striped", "1")]
)
async def test_sums_are_exact_with_cut_connections_and_duplicated_messages(
    local, monkeypatch, policy, lanes, sockets
):
    monkeypatch.setenv("PSF_LANES", lanes)
    monkeypatch.setenv("PSF_SOCKETS", sockets)
    seed = random.randrange(10**6)
    print("seed", seed)
    rng = random.Random(seed)
    name = f"model-{next(_names)}"
    async with AsyncExitStack() as stack:
        proxies = {
            shard: await stack.enter_async_context(FaultyLink(local.processes[shard].address))
            for shard in ("parameter-server-0", "parameter-server-1")
        }
        clusters = [await stack.enter_async_context(connect(local.address)) for _ in range(2)]
        for cluster in clusters:
            _route(cluster, proxies)
        pairs = await asyncio.gather(*(opened(cluster, policy, name) for cluster in clusters))
        sums = [0, 0]

        async def train(rank: int, model: Vector, ps: ParameterServer) -> None:
            for link in ps._links:
                _duplicate(link._peer, rng)
            for _ in range(15):
                value = 2 * rng.randrange(1, 50)
                model.fill(value)
                proxy = rng.choice(list(proxies.values()))
                if rng.random() < 0.5:
                    if sockets == "1":  # what passes through sockets is not counted, but ends with the rest
                        asyncio.get_running_loop().call_later(0.03 * rng.random(), proxy.cut)
                    else:
                        proxy.after(rng.randrange(500_000), proxy.cut)
                await (ps.push_pull(timeout=30) if rng.random() < 0.5 else ps.push(timeout=30))
                sums[rank] += value

        await asyncio.gather(*(train(rank, *pair) for rank, pair in enumerate(pairs)))
        for model, ps in pairs:
            await ps.pull(timeout=30)
            total = sum(sums) // (2 if isinstance(policy, BSP) else 1)
            assert np.all(model.w.data == -total)
        for _, ps in pairs:
            await ps.close()


def _route(cluster: Cluster, proxies: dict[str, FaultyLink]) -> None:
    """Calls to shards go through proxies that cut connections."""
    dial = cluster.agent.connect

    async def through_a_proxy(addresses, *, name, **changes):
        return await dial((proxies[name].address,), name=name, **changes)

    cluster.agent.connect = through_a_proxy  # type: ignore[method-assign]


def _duplicate(peer, rng: random.Random) -> None:
    """Sends some requests twice, the repetition at the same time as the first."""
    call = peer.call

    async def twice(method, request, response_type, *, parts=(), deadline, on_part=None):
        if rng.random() < 0.4 and method.endswith(("Push", "Commit")):
            again = type(request)()
            again.CopyFrom(request)
            results = await asyncio.gather(
                call(method, request, response_type, parts=parts, deadline=deadline, on_part=on_part),
                call(method, again, response_type, parts=parts, deadline=deadline),
                return_exceptions=True,
            )
            if isinstance(results[0], BaseException):
                raise results[0]
            return results[0]
        return await call(method, request, response_type, parts=parts, deadline=deadline, on_part=on_part)

    peer.call = twice


KILLED = """
    import asyncio, sys
    import numpy as np
    import psframework as psf
    from psframework import nn, optim

    class Vector(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(np.zeros(100_000, np.float32))

    async def main():
        async with psf.connect(sys.argv[1]) as cluster:
            model = Vector()
            policy = psf.ASP() if sys.argv[3] == "asp" else psf.BSP(trainers=2)
            ps = await cluster.parameter_server(
                model, name=sys.argv[2], optimizer=optim.SGD(lr=1.0), consistency=policy)
            for sent in range(1, 1_000_000):
                model.w.grad = np.full(100_000, 6.0, np.float32)
                print("sent", sent, flush=True)
                await ps.push_pull()
                print("acknowledged", sent, flush=True)

    if __name__ == "__main__":
        asyncio.run(main())
"""


@pytest.mark.parametrize("policy", [ASP(), BSP(trainers=2)], ids=lambda p: p.name)
async def test_a_killed_trainer_counts_no_push_twice_and_blocks_nobody(local, tmp_path, policy):
    name = f"model-{next(_names)}"
    async with connect(local.address) as cluster, AsyncExitStack() as stack:
        opening = asyncio.ensure_future(opened(cluster, policy, name))
        victim = await stack.enter_async_context(
            program(tmp_path, "victim", KILLED, [local.address, name, policy.name])
        )
        model, ps = await opening
        await victim.line("sent 1")
        mine = 0

        async def step() -> None:
            nonlocal mine
            model.fill(2.0)
            mine += 1
            await ps.push_pull(timeout=20)

        for _ in range(20):
            await step()
        await victim.line("acknowledged 1")
        victim.process.kill()
        await victim.process.wait(10)
        for _ in range(5):
            await step()
        sent = _last(victim, "sent")
        acknowledged = _last(victim, "acknowledged")
        total = -model.w.data
        if isinstance(policy, BSP):
            # mean(2, 6) = 4 in a step of both, 2 in a step alone; the same steps on every shard
            counted = (total - 2 * mine) / 2
            assert np.all(counted == counted[0])
        else:
            counted = (total - 2 * mine) / 6
        assert np.all((counted >= acknowledged) & (counted <= sent)) and np.all(counted == counted.round())
        await ps.close()


def _last(victim, word: str) -> int:
    lines = [line.split() for line in victim.process.output if line.startswith(word + " ")]
    whole = [line for line in lines if len(line) == 2]  # it may be killed in the midst of one
    return int(whole[-1][1]) if whole else 0


async def test_a_killed_shard_is_named_and_the_model_can_be_made_anew(local: LocalCluster):
    name = f"model-{next(_names)}"
    async with connect(local.address) as cluster:
        model, ps = await opened(cluster, BSP(), name)
        model.fill(1.0)
        await ps.push_pull()
        local.processes["parameter-server-1"].kill()
        model.fill(1.0)
        with pytest.raises(PeerLost, match="parameter-server-1") as caught:
            await ps.push_pull(timeout=20)
        assert caught.value.peer == "parameter-server-1"
        await local.restart("parameter-server-1")
        await cluster.membership.wait_for(lambda view: view.find("parameter-server-1"), Deadline.after(10))
        again, ps = await opened(cluster, BSP(), f"{name}-again")
        again.fill(1.0)
        await ps.push_pull()
        assert np.all(again.w.data == -1)


async def test_training_goes_on_while_the_coordinator_restarts(local: LocalCluster):
    name = f"model-{next(_names)}"
    async with connect(local.address) as one, connect(local.address) as two:
        (m0, a), (m1, b) = await asyncio.gather(
            opened(one, BSP(trainers=2), name), opened(two, BSP(trainers=2), name)
        )

        async def steps(count: int) -> None:
            for _ in range(count):
                m0.fill(1.0)
                m1.fill(3.0)
                await asyncio.gather(a.push_pull(timeout=20), b.push_pull(timeout=20))

        await steps(5)
        local.processes["coordinator"].kill()
        await steps(5)
        await local.restart("coordinator")
        await steps(5)
        await a.leave()
        m1.fill(1.0)
        await b.push_pull(timeout=20)
        assert np.all(m1.w.data == -31)


async def test_thirty_two_trainers_on_one_machine(local: LocalCluster):
    name = f"model-{next(_names)}"
    policy = BSP(trainers=32)
    async with AsyncExitStack() as stack:
        clusters = await asyncio.gather(
            *(stack.enter_async_context(connect(local.address, timeout=60)) for _ in range(32))
        )
        pairs = await asyncio.gather(*(opened(cluster, policy, name) for cluster in clusters))

        async def step(rank: int, model: Vector, ps: ParameterServer) -> str:
            model.fill(float(rank))
            await ps.push_pull(timeout=40)
            return hashlib.sha256(model.w.data.tobytes()).hexdigest()

        digests = await asyncio.gather(*(step(rank, *pair) for rank, pair in enumerate(pairs)))
        assert len(set(digests)) == 1
        assert np.all(pairs[0][0].w.data == -15.5)


async def test_closing_a_cluster_whose_shards_are_gone_raises_nothing():
    async with local_cluster(parameter_servers=1) as own:
        async with connect(own.address) as cluster:
            await opened(cluster, ASP(), "net")
            own.processes["parameter-server-0"].kill()
            own.processes["coordinator"].kill()
        assert issubclass(PeerLost, PsfError)
