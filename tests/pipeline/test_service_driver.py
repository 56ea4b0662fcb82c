"""Drivers on services: which one is taken, and what becomes of calls to it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import psframework.nn.functional as F
from psframework.errors import ArgumentError, ContextClosed, DeadlineExceeded, Evicted, PeerLost
from psframework.membership.view import Member, MemberState
from psframework.pipeline.service_driver import ServiceDriver, driver_service
from psframework.pipeline.spec import PipelineOptions
from tests.support.pipeline_models import chain, data
from tests.support.pipeline_world import pipeline


class Cluster:
    """Members."""

    def __init__(self, *members: Member) -> None:
        self._members = members

    def members(self, role: str | None = None) -> tuple[Member, ...]:
        return tuple(each for each in self._members if role in (None, each.role))


def chosen(cluster: Cluster, **options: Any) -> str | None:
    return driver_service(cluster, PipelineOptions(**options))  # type: ignore[arg-type]


TWO = Cluster(
    Member("stage-0", "pipeline-stage"),
    Member("pipeline-10", "pipeline"),
    Member("pipeline-1", "pipeline", state=MemberState.STALLED),
    Member("pipeline-2", "pipeline"),
)
NONE = Cluster(Member("stage-0", "pipeline-stage"))


def test_the_first_that_answers_drives_or_this_process() -> None:
    assert chosen(TWO) == "pipeline-2"
    assert chosen(NONE) is None
    assert chosen(TWO, driver="here") is None
    assert chosen(TWO, driver="pipeline-10") == "pipeline-10"


@pytest.mark.parametrize("driver", ["pipeline-1", "stage-0", "nobody"])
def test_who_does_not_drive(driver: str) -> None:
    with pytest.raises(ArgumentError, match=f"'{driver}' is no pipeline .*pipeline-2, pipeline-10"):
        chosen(TWO, driver=driver)


@pytest.mark.parametrize(("cluster", "driver"), [(NONE, None), (TWO, "here")])
def test_a_name_needs_a_service(cluster: Cluster, driver: str | None) -> None:
    with pytest.raises(ArgumentError, match=r"name='lm'.*psf serve pipeline"):
        chosen(cluster, name="lm", driver=driver)


class Host:
    """A driver elsewhere, that answers with what it is given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls: list[tuple[str, float | None]] = []
        self.closed = False

    def rpc_async(self, timeout: float | None = None) -> Any:
        host = self

        class Calls:
            def __getattr__(self, name: str) -> Any:
                async def call(*args: Any) -> Any:
                    host.calls.append((name, timeout))
                    if isinstance(host.answer, Exception):
                        raise host.answer
                    return host.answer

                return call

        return Calls()

    def close(self) -> None:
        self.closed = True


def of(answer: Any, owned: bool = True) -> tuple[ServiceDriver, Host]:
    host = Host(answer)
    return ServiceDriver(host, "pipeline-0", 60.0, owned), host  # type: ignore[arg-type]


async def test_the_service_has_more_time_than_the_work_so_that_it_can_say_who_was_late() -> None:
    driver, host = of(1.0)
    await driver.evaluate(*data(4))
    await driver.evaluate(*data(4), timeout=5.0)
    await driver.evaluate(*data(4), timeout=0)
    (_, usual), (_, told), (_, endless) = host.calls
    assert usual is not None and told is not None and 60 < usual < 90 and 5 < told < 35 and endless == 0


@pytest.mark.parametrize("told", [300.0, 0.0])
async def test_who_attached_has_the_time_that_the_pipe_has(told: float) -> None:
    host = Host(told)
    cluster: Any = SimpleNamespace(remote=lambda *_, **__: host)
    driver = await ServiceDriver.attach(cluster, "pipeline-0", PipelineOptions(name="lm"), 30.0)
    await driver.evaluate(*data(4))
    seconds = host.calls[-1][1]
    assert seconds is not None and (seconds > told if told else seconds == 0)


async def test_a_service_that_is_lost_is_named_with_what_to_do() -> None:
    driver, _ = of(PeerLost("closed", peer="pipeline-0", reason="lease"))
    with pytest.raises(PeerLost, match="pipeline-0, which drove this pipeline, is lost: open") as raised:
        await driver.step(*data(4))
    assert (raised.value.peer, raised.value.reason) == ("pipeline-0", "lease")


async def test_a_stage_that_is_lost_is_named_as_the_driver_names_it() -> None:
    lost = PeerLost("stage 1 on stage-1 is lost", peer="stage-1")
    driver, _ = of(lost)
    with pytest.raises(PeerLost) as raised:
        await driver.infer(data(4)[0])
    assert raised.value is lost


@pytest.mark.parametrize(
    "answer",
    [None, PeerLost("gone"), ContextClosed("closed"), DeadlineExceeded("late"), Evicted("join again")],
)
async def test_closing_lets_go_whatever_the_service_says(answer: Any) -> None:
    driver, host = of(answer)
    await driver.close()
    assert host.closed and [name for name, _ in host.calls] == ["close"]


async def test_who_attached_only_lets_go() -> None:
    driver, host = of(None, owned=False)
    await driver.close()
    assert host.closed and not host.calls
    with pytest.raises(ContextClosed, match="this pipeline is closed"):
        await driver.infer(data(4)[0])


async def test_clients_share_a_pipe() -> None:
    async with pipeline(chain(2), drivers=1, loss=F.cross_entropy, name="lm") as pipe:
        assert isinstance(pipe._driver, ServiceDriver)
        await asyncio.gather(*[pipe.infer(data(3, seed)[0]) for seed in range(8)])
        assert (await pipe.statistics())["infer_requests"] == 8
