"""Stage services in this process that die, begin another life, or do not answer, when a test says so.

Hosts are real, values are copied as they would be on their way, and there is no network.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psframework as psf
import psframework.nn.functional as F
from psframework import optim
from psframework.errors import DeadlineExceeded, PeerLost
from psframework.membership.view import Member, MemberState
from psframework.optim.schedule import Step
from psframework.pipeline import host as hosts
from psframework.pipeline.client import Pipeline, open_pipeline
from psframework.pipeline.placement import ROLE
from psframework.pipeline.spec import PipelineOptions
from psframework.rpc.current import current
from psframework.rpc.registry import find
from tests.support.pipeline_models import chain
from tests.support.pipeline_oracle import Oracle, modules
from tests.support.pipeline_world import Meeting, Seat, travelled


class Life:
    """One life of a service, as much of a cluster as it needs itself."""

    def __init__(self, town: Town, name: str, incarnation: int) -> None:
        self.name, self._town = name, town
        self.incarnation = incarnation
        self.dead = self.stuck = False
        self.state = MemberState.LIVE
        self.tasks: set[asyncio.Future[Any]] = set()

    def members(self, role: str | None = None) -> tuple[Member, ...]:
        return tuple(each for each in self._town.members() if role in (None, each.role))

    def rpc_async(
        self, to: str, fn: str, args: Any = (), kwargs: Any = None, timeout: float | None = None
    ) -> asyncio.Future[Any]:
        arrived, function = travelled(args), find(fn).target
        life, what = self._town.lives[to], fn.rpartition(".")[2]
        return asyncio.ensure_future(self._town.call(life, what, function, arrived, timeout))

    def check_caller(self, function: Any) -> None:
        """All may call all."""

    def job_of_names(self) -> str:
        return "default"

    async def process_group(self, name: str, world_size: int, *, rank: int, **options: Any) -> Seat:
        return Seat(self._town.groups.setdefault(name, Meeting(world_size)), rank)

    def remote(
        self, to: str, fn: str, args: Any = (), kwargs: Any = None, timeout: float | None = None
    ) -> Reference:
        arrived, function = travelled(args), find(fn).target
        life, what = self._town.lives[to], fn.rpartition(".")[2]
        made = self._town.call(life, what, function, arrived, timeout, answers=False)
        return Reference(self._town, life, asyncio.ensure_future(made))


class Reference:
    """Of a host: it lives until this is closed."""

    def __init__(self, town: Town, life: Life, made: asyncio.Future[Any]) -> None:
        self._town, self._life = town, life
        self._made: asyncio.Future[Any] | None = made

    async def confirmed_by_owner(self) -> None:
        assert self._made is not None
        await asyncio.wait([self._made])
        self._made.result()

    def rpc_async(self, timeout: float | None = None) -> Any:
        return Calls(self._town, self._life, self._made, timeout)

    def close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made.cancel()


class Calls:
    """Methods of a host, called from elsewhere."""

    def __init__(self, *given: Any) -> None:
        self._town, self._life, self._made, self._timeout = given

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> asyncio.Future[Any]:
            arrived, host = travelled(args), self._made.result()
            return asyncio.ensure_future(
                self._town.call(self._life, name, getattr(host, name), arrived, self._timeout)
            )

        return call


class Town:
    """Services "stage-0", "stage-1", ...

    Attributes:
        lives: those that a name leads to now.
        calls: (what, whose) of all calls, in their order.
        driver: a member that drives.
    """

    def __init__(self, services: int) -> None:
        self._incarnations = 0
        self._unnoticed: list[Life] = []
        self._triggers: dict[tuple[str, str], Callable[[], None]] = {}
        self.lives: dict[str, Life] = {}
        self.calls: list[tuple[str, str]] = []
        self.groups: dict[str, Meeting] = {}
        for number in range(services):
            self.begin(f"stage-{number}")
        self.driver = Life(self, "driver", 0)

    def begin(self, name: str) -> None:
        """A life of this name begins."""
        self._incarnations += 1
        self.lives[name] = Life(self, name, self._incarnations)

    def kill(self, name: str, noticed: bool = True) -> None:
        """A service dies; whoever lists members sees that now, or not at all."""
        life = self.lives[name]
        life.dead = True
        if not noticed:
            self._unnoticed.append(life)
        for task in life.tasks:
            task.cancel()
        for key in [key for key in hosts._hosts if key[1] == name]:
            del hosts._hosts[key]

    def restart(self, name: str) -> None:
        """A service dies and is back at once."""
        self.kill(name)
        self.begin(name)

    def members(self) -> tuple[Member, ...]:
        there = [life for life in self.lives.values() if not life.dead]
        return tuple(
            Member(each.name, ROLE, incarnation=each.incarnation, state=each.state)
            for each in there + self._unnoticed
        )

    def at(self, what: str, whose: str, then: Callable[[], None]) -> None:
        """Does something once, just before a function runs on a service."""
        self._triggers[what, whose] = then

    async def call(
        self, life: Life, what: str, function: Any, args: Any, timeout: float | None, answers: bool = True
    ) -> Any:
        self.calls.append((what, life.name))
        trigger = self._triggers.pop((what, life.name), None)
        if trigger is not None:
            trigger()
        await asyncio.sleep(0)  # so that whoever was cancelled by it is
        try:
            async with asyncio.timeout(timeout or None):
                return await self._run(life, function, args, answers)
        except TimeoutError:
            raise DeadlineExceeded(f"{life.name} did not answer in time") from None

    async def _run(self, life: Life, function: Any, args: Any, answers: bool) -> Any:
        if life.dead:
            raise self._lost(life)
        if life.state is MemberState.STALLED:
            raise PeerLost(f"{life.name} is stalled", peer=life.name, reason="stalled")
        if life.stuck:
            await asyncio.get_running_loop().create_future()
        token = current.set(life)
        task = asyncio.ensure_future(function(*args))
        current.reset(token)
        life.tasks.add(task)
        try:
            result = await task
        except asyncio.CancelledError:
            if life.dead:
                raise self._lost(life) from None
            raise
        finally:
            life.tasks.discard(task)
        return travelled(result) if answers else result

    def _lost(self, life: Life) -> PeerLost:
        return PeerLost(f"{life.name} is dead", peer=life.name)


class Training:
    """A pipeline in a town, and the same model in one process."""

    def __init__(self, town: Town, pipe: Pipeline, oracle: Oracle) -> None:
        self.town, self.pipe, self.oracle = town, pipe, oracle

    @property
    def driver(self) -> Any:
        return self.pipe._driver

    async def step(self, x: Any, y: Any, timeout: float = 30.0) -> None:
        """A step of both."""
        loss = await self.pipe.step(x, y, timeout)
        assert abs(loss - self.oracle.step(x, y)) < 1e-12

    async def check(self) -> None:
        """Both have the same parameters."""
        assert self.oracle.difference(await self.pipe.state_dict()) < 1e-12


RULE = {"lr": Step(0.1, 2, 0.5), "momentum": 0.9}


@asynccontextmanager
async def training(
    services: int, stages: int = 3, model: Any = None, **options: Any
) -> AsyncIterator[Training]:
    """Begins to train, with a rate that changes with the steps."""
    psf.manual_seed(0)
    town = Town(services)
    model = model or chain(stages)
    given = {"loss": F.cross_entropy, "optimizer": optim.SGD(**RULE), "microbatches": 4} | options
    pipe = await open_pipeline(town.driver, model, None, PipelineOptions(**given), 30.0)  # type: ignore[arg-type]
    oracle = Oracle(modules(model), F.cross_entropy, lambda each: optim.SGD(each, **RULE))
    async with pipe:
        oracle.whole.load_state_dict(await pipe.state_dict())
        yield Training(town, pipe, oracle)
