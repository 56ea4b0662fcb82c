"""One rank of a pipe, on its service: the stages that it holds, its runs and its commits."""

from __future__ import annotations

import time
import weakref
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from psframework.backend import dtype_from_name
from psframework.errors import ContextClosed, ModelMismatch, PeerLost
from psframework.nn.module import Module
from psframework.nn.random import drawing_from
from psframework.optim.rule import rule_from_spec
from psframework.pipeline.commits import Commits, State
from psframework.pipeline.mailbox import Mailbox
from psframework.pipeline.plan import Key, Order, PipePlan, Report, StagePlan, Standing
from psframework.pipeline.post import KEEP, Post
from psframework.pipeline.runner import Runner
from psframework.pipeline.schedule import Action, actions, forward_only, own
from psframework.pipeline.stage import LocalStage, StageOptions
from psframework.pipeline.trees import Tree
from psframework.pipeline.updating import Cluster, Updating
from psframework.pipeline.work import Work
from psframework.rpc.compute import compute
from psframework.rpc.registry import remote

_hosts: weakref.WeakValueDictionary[tuple[str, str], Host] = weakref.WeakValueDictionary()


def host_of(pipe: str, member: str) -> Host:
    """The rank of a pipe that this member holds.

    Raises:
        PeerLost: it holds none: it was closed, or has begun another life.
    """
    host = _hosts.get((pipe, member))
    if host is None:
        text = f"{member} holds no stage of this pipeline (any more)"
        raise PeerLost(text, peer=member, reason="incarnation", may_have_run=False)
    return host


@remote(name="psframework.pipeline.Host")
class Host:
    """A rank. Made by `place`, and kept by the driver's reference to it: it goes when the driver does.

    Args:
        plan: of the pipe.
        seat: this one's rank, and its number among the replicas of the rank.
        stages: those that it holds.
        plans: theirs.
        cluster: calls the other ranks.
    """

    def __init__(
        self,
        plan: PipePlan,
        seat: tuple[int, int],
        stages: Mapping[int, LocalStage],
        plans: Mapping[int, StagePlan],
        cluster: Cluster,
    ) -> None:
        self._plan, (self._rank, self._replica) = plan, seat
        self._stages, self._plans = dict(stages), dict(plans)
        self._cluster = cluster
        self._mailbox = Mailbox()
        self._post = Post(plan.pipe, cluster, self._mailbox)
        self._updating = Updating(self._stages, seat, cluster)
        self._running: set[Runner] = set()
        self._beside = ("", 0.0)  # what it does beside runs, and since when
        self._work = Work()
        self._held: Runner | None = None  # the run whose update is held
        self._commits = Commits()
        self._kept: dict[int, Commits] = {}  # of other ranks
        self._closed = False
        _hosts[plan.pipe, cluster.name] = self

    # For the other ranks

    def deliver(self, key: Key, tree: Tree) -> None:
        """Something for an action."""
        self._mailbox.put(key, tree)

    def keep(self, rank: int, number: int, complete: int, state: State) -> None:
        """Keeps a commit of another rank, and the newest one that all ranks have."""
        if not self._closed:
            self._kept.setdefault(rank, Commits()).add(number, complete, state)

    def kept(self, rank: int, number: int) -> State:
        """The state of another rank, or of this one's replicas.

        Raises:
            NotRegistered: it is not here.
        """
        return (self._commits if rank == self._rank else self._kept.get(rank, Commits()))[number]

    # For the driver

    async def run(self, order: Order) -> Report:
        """Takes part in a run; returns when this rank's share is done, updated and committed.

        Raises:
            ContextClosed: the pipeline was closed.
            PeerLost: another rank is gone, or the run was aborted.
            Exception: of a stage.
        """
        self._check(order.run)
        self._mailbox.end_through(order.over, ContextClosed("this run has ended"))
        self._commits.forget_before(order.complete)
        runner = Runner(self._plan, order, self._stages, self._plans, self._mailbox, self._post)
        await self._do(runner, self._run(runner))
        return runner.report()

    async def update(self, run: int, coefficient: float | None) -> Report:
        """The update of a run that held it; returns the run's report as it is then.

        Args:
            run: its number.
            coefficient: what gradients are multiplied by first; None: parameters stay as they are.

        Raises:
            ContextClosed: the run is not the newest one any more.
        """
        runner, self._held = self._held, None
        if runner is None or runner.order.run != run:
            raise ContextClosed(f"run {run} is over: its gradients are gone")
        await self._do(runner, self._update(runner, coefficient))
        return runner.report()

    async def open(self, *, first: bool = True) -> None:
        """The last part of being made: what others keep for it; `first` if it replaces nobody."""
        await self._updating.open(self._plan.job, self._plans, first=first)

    async def push(self) -> None:
        """Has parameter servers update what they keep; after a commit."""
        with self._at("waiting for the parameter server"):
            await self._updating.push()

    async def commit(self, number: int, complete: int) -> None:
        """Takes a snapshot of all stages, and has it kept elsewhere too.

        Args:
            number: the run that it is named by.
            complete: the newest commit that all ranks have.
        """
        self._commits.add(number, complete, await compute(self._snapshot))
        await self.keep_elsewhere(number, complete)

    async def keep_elsewhere(self, number: int, complete: int) -> None:
        """Sends a commit of its own to its buddy."""
        buddy = self._plan.buddy_of(self._rank)
        if buddy is not None:
            given = (self._plan.pipe, self._rank, number, complete, self._commits[number])
            await self._cluster.rpc_async(buddy, KEEP, given, timeout=0)

    async def go_back(self, plan: PipePlan, commit: int) -> None:
        """Restores a commit of its own, and goes on under another plan."""
        with self._at("going back to the last commit"):
            await self._updating.reset()  # first, since it may write into buffers still
            await compute(self._restore, self._commits[commit])
        self._commits.keep_only(commit)
        self._plan = plan
        await self.push()

    async def resume(self, commit: int, state: State, run: int) -> None:
        """Begins with the state of a rank that is gone, after the run in which it went."""
        self._mailbox.end_through(run, ContextClosed("this run has ended"))
        await compute(self._restore, state)
        self._commits.add(commit, commit, state)
        await self.push()

    async def state_dict(self) -> dict[int, dict[str, Any]]:
        """Stage -> parameters and buffers, by name."""
        return await compute(self._states)

    async def load_state_dict(self, states: dict[int, dict[str, Any]]) -> None:
        """Stage -> parameters and buffers, by name."""
        await compute(self._load, states)

    async def shared(self, names: list[tuple[int, str]]) -> dict[tuple[int, str], Any]:
        """Parameters that are tied, by (stage, name)."""
        return {(stage, name): self._stages[stage].learning.named(name) for stage, name in names}

    async def share(self, values: dict[tuple[int, str], Any]) -> None:
        """Gives tied parameters the value of the first."""
        for (stage, name), array in values.items():
            self._stages[stage].learning.named(name)[...] = array

    async def standing(self) -> Standing:
        """Where it is."""
        running = next(iter(self._running), None)
        doing, since = self._beside if running is None else (running.doing, running.since)
        return Standing(tuple(self._commits.numbers), doing, time.monotonic() - since if doing else 0.0)

    async def abort(self, run: int, why: str) -> None:
        """All runs up to this one have failed; on return nothing of them goes on."""
        await self._end(run, PeerLost(why, reason="aborted"))

    async def close(self) -> None:
        """Frees all that it holds."""
        self._closed = True
        await self._end(1 << 62, ContextClosed("this pipeline is closed"))
        self._stages.clear()
        self._commits.clear()
        self._kept.clear()
        await self._updating.close()

    @contextmanager
    def _at(self, doing: str) -> Iterator[None]:
        self._beside = (doing, time.monotonic())
        try:
            yield
        finally:
            self._beside = ("", 0.0)

    async def _end(self, run: int, error: BaseException) -> None:
        self._mailbox.end_through(run, error)
        self._held = None
        await self._work.end(error)

    def _check(self, run: int) -> None:
        """Refuses a run that has ended before it came."""
        error = self._mailbox.ended(run)
        if error is not None:
            raise error

    async def _do(self, runner: Runner, work: Coroutine[Any, Any, None]) -> None:
        self._running.add(runner)
        try:
            await self._work.do(work)
        finally:
            self._running.discard(runner)

    async def _run(self, runner: Runner) -> None:
        order = runner.order
        if order.train:
            await compute(self._begin, order.fresh)
        await runner.go(self._actions(order), self._updating.settle if order.update else None)
        if order.update == "now":
            await self._update(runner)
        elif order.update == "held":
            self._held = runner

    def _actions(self, order: Order) -> Sequence[Action]:
        plan = self._plan
        if order.train:
            found = actions(plan.schedule, self._rank, plan.ranks, order.microbatches, plan.virtual_stages)
        else:
            found = forward_only(self._rank, plan.ranks, order.microbatches, plan.virtual_stages)
        return own(found, self._replica, len(plan.services[self._rank]))

    async def _update(self, runner: Runner, coefficient: float | None = 1.0) -> None:
        await self._updating.run(runner, coefficient)
        if runner.order.commit:
            runner.now("committing")
            await self.commit(runner.order.run, runner.order.complete)

    def _begin(self, fresh: bool) -> None:
        for stage in self._stages.values():
            stage.begin(fresh)

    def _snapshot(self) -> State:
        return {index: stage.snapshot() for index, stage in self._stages.items()}

    def _restore(self, state: State) -> None:
        for index, stage in self._stages.items():
            stage.restore(state[index])

    def _states(self) -> dict[int, dict[str, Any]]:
        return {index: stage.module.state_dict() for index, stage in self._stages.items()}

    def _load(self, states: dict[int, dict[str, Any]]) -> None:
        for index, state in states.items():
            try:
                self._stages[index].module.load_state_dict(state)
            except ModelMismatch as error:
                raise ModelMismatch(f"stage {index}: {error}") from None


def build(plan: PipePlan, stage: StagePlan) -> LocalStage:
    """Makes a stage; in the compute thread."""
    with drawing_from(np.random.default_rng([plan.seed, stage.index])):
        made = stage.module if isinstance(stage.module, Module) else stage.module(*stage.args, **stage.kwargs)
    rule = None if stage.rule is None else rule_from_spec(stage.rule)
    dtype = dtype_from_name(stage.precision) if stage.precision else None
    options = StageOptions(
        stage.index,
        plan.seed,
        stage.recompute,
        needs_input_gradient=stage.index > 0,
        dtype=dtype,
        served=bool(stage.parameter_server),
    )
    return LocalStage(made, options, rule, stage.loss)
