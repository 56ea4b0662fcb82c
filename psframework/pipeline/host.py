"""One rank of a pipe, on its service: the stages that it holds, its runs and its commits."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from psframework.backend import dtype_from_name
from psframework.errors import ContextClosed, NotRegistered, PeerLost
from psframework.nn.module import Module
from psframework.nn.random import drawing_from
from psframework.optim.rule import rule_from_spec
from psframework.pipeline.mailbox import Mailbox
from psframework.pipeline.plan import Key, Order, PipePlan, Report, StagePlan, Standing
from psframework.pipeline.post import KEEP, Post
from psframework.pipeline.runner import Runner
from psframework.pipeline.schedule import Action, actions, forward_only, own
from psframework.pipeline.stage import LocalStage, StageOptions
from psframework.pipeline.trees import Tree
from psframework.pipeline.updating import Cluster, Updating
from psframework.rpc.compute import compute
from psframework.rpc.registry import remote

State = dict[int, dict[str, Any]]
"""Stage -> its snapshot."""

KEPT: Final = 2
"""Commits of one rank that its buddy keeps."""

_hosts: weakref.WeakValueDictionary[tuple[str, str], Host] = weakref.WeakValueDictionary()


def host_of(pipe: str, member: str) -> Host:
    """The rank of a pipe that this member holds.

    Raises:
        NotRegistered: it holds none.
    """
    host = _hosts.get((pipe, member))
    if host is None:
        raise NotRegistered(f"{member} holds no stage of this pipeline (any more)")
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
        self._held: Runner | None = None  # the newest run
        self._commits: dict[int, State] = {}
        self._kept: dict[int, dict[int, State]] = {}  # rank -> commit -> state
        self._closed = False
        _hosts[plan.pipe, cluster.name] = self

    # For the other ranks

    def deliver(self, key: Key, tree: Tree) -> None:
        """Something for an action."""
        self._mailbox.put(key, tree)

    def keep(self, rank: int, commit: int, state: State) -> None:
        """Keeps the state of another rank, and the one before."""
        kept = self._kept.setdefault(rank, {})
        kept[commit] = state
        for old in sorted(kept)[:-KEPT]:
            del kept[old]

    def kept(self, rank: int, commit: int) -> State:
        """The state of another rank, or of this one's replicas.

        Raises:
            NotRegistered: it is not here.
        """
        states = self._commits if rank == self._rank else self._kept.get(rank, {})
        if commit not in states:
            raise NotRegistered(f"{self._cluster.name} has no commit {commit} of rank {rank}")
        return states[commit]

    # For the driver

    async def run(self, order: Order) -> Report:
        """Takes part in a run; returns when this rank's share is done, updated and committed.

        Raises:
            ContextClosed: the pipeline was closed.
            PeerLost: another rank is gone.
            Exception: of a stage.
        """
        if self._closed:
            raise ContextClosed("this pipeline is closed")
        self._mailbox.end_through(order.over, ContextClosed("this run has ended"))
        for commit in [commit for commit in self._commits if commit < order.complete]:
            del self._commits[commit]
        runner = Runner(self._plan, order, self._stages, self._plans, self._mailbox, self._post)
        self._running.add(runner)
        try:
            if order.train:
                await compute(self._begin, order.fresh)
            await runner.go(self._actions(order), self._updating.settle if order.update else None)
            if order.update == "now":
                await self._update(runner)
            self._held = runner
            return runner.report()
        finally:
            self._running.discard(runner)

    async def update(self, run: int, coefficient: float | None) -> Report:
        """The update of a run that held it; returns the run's report as it is then.

        Args:
            run: its number.
            coefficient: what gradients are multiplied by first; None: parameters stay as they are.

        Raises:
            ContextClosed: the run is not the newest one any more.
        """
        runner = self._held
        if runner is None or runner.order.run != run:
            raise ContextClosed(f"run {run} is over: its gradients are gone")
        self._running.add(runner)
        try:
            await self._update(runner, coefficient)
            return runner.report()
        finally:
            self._running.discard(runner)

    async def open(self) -> None:
        """The last part of being made: what others keep for it."""
        await self._updating.open(self._plan.job, self._plans)

    async def push(self) -> None:
        """Has parameter servers update what they keep; after a commit."""
        await self._updating.push()

    async def commit(self, number: int) -> None:
        """Takes a snapshot of all stages, and has it kept elsewhere too."""
        self._commits[number] = await compute(self._snapshot)
        await self.keep_elsewhere(number)

    async def keep_elsewhere(self, number: int) -> None:
        """Sends a commit of its own to its buddy."""
        buddy = self._plan.buddy_of(self._rank)
        if buddy is not None:
            state = self._commits[number]
            await self._cluster.rpc_async(
                buddy, KEEP, (self._plan.pipe, self._rank, number, state), timeout=0
            )

    async def go_back(self, plan: PipePlan, commit: int) -> None:
        """Restores a commit of its own, and goes on under another plan."""
        await self._updating.reset()  # first, since it may write into buffers still
        await compute(self._restore, self._commits[commit])
        self._commits = {commit: self._commits[commit]}
        self._plan = plan
        await self.push()

    async def resume(self, commit: int, state: State, run: int) -> None:
        """Begins with the state of a rank that is gone, after the run in which it went."""
        self._mailbox.end_through(run, ContextClosed("over"))
        await compute(self._restore, state)
        self._commits = {commit: state}
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
        doing, since = ("", 0.0) if running is None else (running.doing, time.monotonic() - running.since)
        return Standing(tuple(sorted(self._commits)), doing, since)

    async def abort(self, run: int, why: str) -> None:
        """All runs up to this one have failed."""
        self._mailbox.end_through(run, PeerLost(why, reason="aborted"))

    async def close(self) -> None:
        """Frees all that it holds."""
        self._closed = True
        self._mailbox.end_through(1 << 62, ContextClosed("this pipeline is closed"))
        for held in (self._stages, self._commits, self._kept):
            held.clear()
        await self._updating.close()

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
            await self.commit(runner.order.step + 1)

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
            self._stages[index].module.load_state_dict(state)


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
