"""One rank on its service: runs that come, are given up or closed; commits that it makes and goes back to."""

import asyncio
import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import psframework as psf
import psframework.nn.functional as F
from psframework import nn, optim
from psframework.errors import ContextClosed, NotRegistered, PeerLost
from psframework.pipeline.host import Host, build, host_of
from psframework.pipeline.plan import Key, Order, PipePlan, StagePlan
from psframework.pipeline.post import KEEP
from tests.support.pipeline_models import CLASSES, WIDTH, Dropped, Head, Hidden, data, square_loss


class Cluster:
    """Of the service "stage-0": notes what is called, and answers at once, or with an error."""

    name = "stage-0"

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.error: Exception | None = None

    def rpc_async(
        self, to: Any, fn: Any, args: Any = (), kwargs: Any = None, timeout: float | None = None
    ) -> asyncio.Future[Any]:
        self.calls.append((to, fn, *args))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.error is None:
            future.set_result(None)
        else:
            future.set_exception(self.error)
        return future


class Gate(nn.Module):
    """Computes when it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES, dtype=np.float64)
        self.inside, self.go = threading.Event(), threading.Event()

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        self.inside.set()
        assert self.go.wait(20)
        return self.layer(x)


def plan(ranks: int = 1, pipe: str = "pipe") -> PipePlan:
    services = tuple((f"stage-{rank}",) for rank in range(ranks))
    return PipePlan(pipe, 1, services, ranks, "1f1b", 0)


def stage(kind: Any, loss: Any = F.cross_entropy) -> StagePlan:
    return StagePlan(0, kind, rule=optim.Adam(lr=0.1).rule.spec(), loss=loss)


def host(kind: Any = Head, cluster: Any = None, ranks: int = 1) -> Host:
    """The first rank of a pipe."""
    pipe, own = plan(ranks), stage(kind, F.cross_entropy if ranks == 1 else None)
    return Host(pipe, (0, 0), {0: build(pipe, own)}, {0: own}, cluster or Cluster())


def order(run: int, **options: Any) -> Order:
    return Order(run, options.pop("step", 0), 1, (1.0,), over=run - 1, **options)


def feed(rank: Host, run: int, seed: int = 0) -> None:
    x, y = data(6, seed)
    rank.deliver(Key(run, "F", 0, 0), x)
    rank.deliver(Key(run, "T", 0, 0), y)


async def trained(rank: Host, run: int, **options: Any) -> float:
    feed(rank, run, run)
    report = await rank.run(order(run, **options))
    return report.losses[0]


async def does(rank: Host, words: str) -> None:
    """Waits until it does that."""
    async with asyncio.timeout(20):
        while not (await rank.standing()).doing.startswith(words):  # noqa: ASYNC110 - a view
            await asyncio.sleep(0.001)


async def weights(rank: Host) -> np.ndarray:
    return (await rank.state_dict())[0]["layer.weight"]


# Who is where


async def test_a_host_is_found_for_as_long_as_somebody_refers_to_it() -> None:
    rank = host()
    assert host_of("pipe", "stage-0") is rank
    for pipe, member in (("other", "stage-0"), ("pipe", "stage-1")):
        with pytest.raises(PeerLost, match=f"{member} holds no stage of this pipeline") as raised:
            host_of(pipe, member)
        assert raised.value.peer == member
    there = weakref.ref(rank._stages[0].module)
    await trained(rank, 1)
    del rank
    gc.collect()
    assert there() is None
    with pytest.raises(PeerLost):
        host_of("pipe", "stage-0")


async def test_the_newest_host_of_a_pipe_counts() -> None:
    """One that was given up while it was being placed does not take the place of the next when it goes."""
    first = host()
    second = host()
    assert host_of("pipe", "stage-0") is second
    del first
    gc.collect()
    assert host_of("pipe", "stage-0") is second


# Runs


async def test_a_run_that_is_over_before_it_comes() -> None:
    rank = host()
    await rank.abort(5, "given up")
    before = await weights(rank)
    for run in (4, 5):
        with pytest.raises(PeerLost, match="given up"):
            await trained(rank, run)
    np.testing.assert_array_equal(await weights(rank), before)
    await trained(rank, 6)
    assert (await weights(rank) != before).any()


async def test_an_abort_leaves_nothing_that_goes_on() -> None:
    """A run that waits for data, and one that computes: neither updates what was restored meanwhile."""
    rank = host(Gate)
    await rank.commit(0, 0)
    module: Any = rank._stages[0].module
    before = await weights(rank)
    for run, words in ((1, "waiting for the data of the forward of stage 0"), (2, "computing F of stage 0")):
        module.go.clear()
        task = asyncio.create_task(rank.run(order(run)))
        if run == 2:
            feed(rank, run)
        await does(rank, words)
        await rank.abort(run, "given up")
        with pytest.raises(PeerLost, match="given up"):
            await task
        module.go.set()
        await rank.go_back(plan(), 0)
        np.testing.assert_array_equal(await weights(rank), before)
        assert (await rank.standing()).doing == ""
    await trained(rank, 3)
    assert len(rank._mailbox) == 0


async def test_letters_before_a_run_wait_and_those_of_old_runs_go() -> None:
    rank = host()
    for run in (1, 2, 3):
        feed(rank, run, 3)
    await rank.run(order(3))
    feed(rank, 2)
    assert len(rank._mailbox) == 0


async def test_an_inference_beside_another_ends_only_itself() -> None:
    rank = host()
    tasks = [
        asyncio.create_task(rank.run(Order(run, 0, 1, update="", over=0, train=False, targets=False)))
        for run in (1, 2)
    ]
    await asyncio.sleep(0.01)
    x = data(6)[0]
    rank.deliver(Key(2, "F", 0, 0), x)
    second = await tasks[1]
    rank.deliver(Key(1, "F", 0, 0), x)
    first = await tasks[0]
    np.testing.assert_array_equal(first.outputs[0], second.outputs[0])
    assert first.outputs[0].shape == (6, CLASSES) and len(rank._mailbox) == 0


async def test_a_neighbour_that_cannot_be_reached_ends_the_run_at_once() -> None:
    """It would wait for an answer that can't come, until a deadline."""
    cluster = Cluster()
    rank = host(Hidden, cluster, ranks=2)
    cluster.error = PeerLost("can't reach stage-1", peer="stage-1")
    rank.deliver(Key(1, "F", 0, 0), data(6)[0])
    async with asyncio.timeout(10):
        with pytest.raises(PeerLost, match="can't reach stage-1"):
            await rank.run(order(1))


# Held updates


async def test_a_held_update_is_made_once() -> None:
    rank = host()
    await rank.commit(0, 0)
    before = await weights(rank)
    await trained(rank, 1, update="held")
    np.testing.assert_array_equal(await weights(rank), before)
    report = await rank.update(1, 0.5)
    assert [span[0] for span in report.spans] == ["F", "B", "U"]
    assert (await weights(rank) != before).any() and tuple((await rank.standing()).commits) == (0, 1)
    with pytest.raises(ContextClosed, match="run 1 is over"):
        await rank.update(1, 0.5)


async def test_a_held_update_that_was_given_up_is_not_made() -> None:
    rank = host()
    await rank.commit(0, 0)
    await trained(rank, 1, update="held")
    await rank.abort(1, "given up")
    await rank.go_back(plan(), 0)
    before = await weights(rank)
    with pytest.raises(ContextClosed, match="run 1 is over"):
        await rank.update(1, 1.0)
    np.testing.assert_array_equal(await weights(rank), before)
    await trained(rank, 2, update="held")
    with pytest.raises(ContextClosed, match="run 1 is over"):
        await rank.update(1, 1.0)


# Commits


async def test_going_back_twice_to_the_same_commit() -> None:
    """What a commit holds is not changed by steps after it was restored, slots of the optimizer included."""
    rank = host()
    await trained(rank, 1)
    after: list[np.ndarray] = []
    await trained(rank, 2, step=1, complete=1)
    for attempt in range(3):
        await rank.abort(10 * attempt + 3, "given up")
        await rank.go_back(plan(), 1)
        assert tuple((await rank.standing()).commits) == (1,)
        feed(rank, 10 * attempt + 4, 4)
        await rank.run(order(10 * attempt + 4, step=1, commit=False))
        after.append(await weights(rank))
    np.testing.assert_array_equal(after[0], after[1])
    np.testing.assert_array_equal(after[0], after[2])


async def test_what_it_does_beside_runs_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, served = host(), asyncio.Event()
    await trained(rank, 1)
    monkeypatch.setattr(rank._updating, "push", served.wait)
    for work in (rank.push(), rank.go_back(rank._plan, 1)):
        task = asyncio.ensure_future(work)
        await does(rank, "waiting for the parameter server")
        assert (await rank.standing()).seconds >= 0
        served.set()
        await task
        served.clear()
        assert not (await rank.standing()).doing


class Silent(Cluster):
    """Where nobody keeps a commit, or joins a group."""

    def rpc_async(self, to: Any, fn: Any, *args: Any, **options: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future() if fn == KEEP else super().rpc_async(to, fn)

    async def process_group(self, *args: Any, **options: Any) -> None:
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("services", "doing"),
    [([("stage-0", "else")], "waiting for the gradients"), ([("stage-0",), ("else",)], "committing")],
)
async def test_who_waits_for_others_at_the_end_is_not_said_to_compute(
    services: list[tuple[str, ...]], doing: str
) -> None:
    """It would be blamed for what they do not do."""
    own = stage(Hidden, square_loss if len(services) == 1 else None)
    pipe = PipePlan("pipe", 1, tuple(services), len(services), "1f1b", 0)
    rank = Host(pipe, (0, 0), {0: build(pipe, own)}, {0: own}, Silent())  # type: ignore[arg-type]
    task = asyncio.ensure_future(rank.run(order(1)))
    for kind in "FTB":
        rank.deliver(Key(1, kind, 0, 0), data(6)[0])
    await does(rank, doing)
    await rank.abort(1, "given up")
    with pytest.raises(PeerLost, match="given up"):
        await task


async def test_going_back_to_a_commit_that_is_not_here() -> None:
    rank = host()
    await trained(rank, 1)
    before = await weights(rank)
    with pytest.raises(NotRegistered, match="no commit 7"):
        await rank.go_back(plan(), 7)
    np.testing.assert_array_equal(await weights(rank), before)


async def test_commits_are_dropped_when_all_have_a_newer_one() -> None:
    rank = host()
    for run in range(1, 6):
        await trained(rank, run, complete=run - 1)
        assert tuple((await rank.standing()).commits) == ((run - 1, run) if run > 1 else (1,))
    await trained(rank, 6, complete=5, commit=False)
    assert tuple((await rank.standing()).commits) == (5,)


async def test_a_commit_is_kept_by_the_next_rank() -> None:
    cluster = Cluster()
    rank = host(Hidden, cluster, ranks=3)
    await rank.commit(7, 4)
    ((to, function, pipe, number, commit, complete, state),) = cluster.calls
    assert (to, function, pipe, number, commit, complete) == ("stage-1", KEEP, "pipe", 0, 7, 4)
    assert rank.kept(0, 7) is state
    alone = Cluster()
    await host(Head, alone).commit(7, 4)
    assert alone.calls == []


async def test_states_of_others() -> None:
    rank = host(ranks=3)
    rank.keep(2, 5, 5, {2: {"number": 5}})
    rank.keep(2, 6, 5, {2: {"number": 6}})
    assert rank.kept(2, 5) == {2: {"number": 5}} and rank.kept(2, 6) == {2: {"number": 6}}
    for other, commit in ((2, 7), (1, 5), (0, 5)):
        with pytest.raises(NotRegistered, match=f"no commit {commit}"):
            rank.kept(other, commit)


async def test_a_newcomer_goes_on_from_the_state_of_another() -> None:
    first = host()
    await trained(first, 1)
    second = host()
    await second.resume(1, first.kept(0, 1), 1)
    with pytest.raises(ContextClosed, match="ended"):
        await trained(second, 1)
    assert await trained(first, 2, step=1) == await trained(second, 2, step=1)
    np.testing.assert_array_equal(await weights(first), await weights(second))


# The end


async def test_a_host_that_is_closed_holds_nothing_and_does_nothing() -> None:
    rank = host(ranks=2)
    await rank.commit(0, 0)
    there = weakref.ref(rank._stages[0].module)
    await rank.close()
    await rank.close()
    gc.collect()
    assert there() is None
    rank.deliver(Key(9, "F", 0, 0), data(6)[0])
    rank.keep(1, 9, 9, {})
    assert len(rank._mailbox) == 0
    with pytest.raises(NotRegistered):
        rank.kept(1, 9)
    with pytest.raises(ContextClosed, match="this pipeline is closed"):
        await rank.run(order(9))


async def test_closing_ends_what_computes() -> None:
    rank = host(Gate)
    module: Any = rank._stages[0].module
    feed(rank, 1)
    task = asyncio.create_task(rank.run(order(1)))
    await asyncio.to_thread(module.inside.wait, 20)
    closing = asyncio.create_task(rank.close())
    with pytest.raises(ContextClosed, match="this pipeline is closed"):
        await asyncio.wait_for(task, 10)
    module.go.set()
    await asyncio.wait_for(closing, 10)


# Making stages


def test_values_come_of_the_seed_and_the_stage() -> None:
    """Wherever and whenever it is made, whatever was drawn before."""

    def values(seed: int, index: int) -> np.ndarray:
        psf.manual_seed(index + 3 * seed)
        pipe = PipePlan("pipe", 1, (("stage-0",),), 4, "1f1b", seed)
        return build(pipe, StagePlan(index, Dropped)).module.state_dict()["layer.weight"]  # type: ignore[no-any-return]

    np.testing.assert_array_equal(values(1, 2), values(1, 2))
    assert (values(1, 2) != values(1, 3)).any() and (values(1, 2) != values(2, 2)).any()


def test_a_module_that_was_made_before_is_taken_as_it_is() -> None:
    module = Hidden()
    made = build(plan(), StagePlan(0, module, precision="bfloat16"))
    assert made.module is module and made.options.dtype is not None
    assert made.options.dtype.name == "bfloat16" and not made.options.needs_input_gradient
