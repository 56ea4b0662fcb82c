"""What a service that drives pipes keeps for its clients, and for how long."""

import asyncio
import gc
from typing import Any

import pytest

import psframework.nn.functional as F
from psframework.errors import NameTaken, NotRegistered
from psframework.pipeline.blueprint import blueprint
from psframework.pipeline.driver import Driver
from psframework.pipeline.driver_host import DriverHost, attach, drive
from psframework.pipeline.spec import PipelineOptions
from psframework.rpc.call import PeerInfo
from psframework.rpc.current import current
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.context import Caller, Running, enter
from tests.support.pipeline_models import chain, data
from tests.support.pipeline_world import driver_service


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[Driver]:
    """Drivers that were closed."""
    found: list[Driver] = []
    close = Driver.close

    async def noted(driver: Driver) -> None:
        found.append(driver)
        await close(driver)

    monkeypatch.setattr(Driver, "close", noted)
    return found


def calls(job: str = "default") -> None:
    """From here on this test is a call by a client of a job."""
    enter(Running(Caller(PeerInfo("trainer-0", "trainer", job, 1)), Deadline.NEVER))


async def opened(name: str = "") -> DriverHost:
    current.set(driver_service(8))
    calls()
    options = PipelineOptions(name=name)
    plan = blueprint(chain(2), None, PipelineOptions(loss=F.cross_entropy))
    return await drive(plan, options, 0, 30.0)


async def test_it_drives() -> None:
    host = await opened()
    assert await host.services() == ("stage-0", "stage-1")
    x, y = data(8)
    step = await host.step(x, y, None, True)
    assert step.loss == pytest.approx(await host.evaluate(x, y, None))
    assert (await host.infer(x, None)).shape == (8, 5)
    await host.load_state_dict(await host.state_dict(None), None)
    assert (await host.statistics())["steps"] == 1
    await host.close()


async def test_when_nobody_refers_to_it_its_stages_are_freed(closed: list[Driver]) -> None:
    host: Any = await opened()
    driver = host._driver
    await host.step(*data(8), None, True)
    await host.infer(data(3)[0], None)
    gc.disable()  # it takes no search for cycles
    try:
        del host
        async with asyncio.timeout(5):
            while driver not in closed:  # noqa: ASYNC110 - a task of the loop
                await asyncio.sleep(0)
    finally:
        gc.enable()


async def test_a_pipe_is_found_by_its_name_in_its_job() -> None:
    host = await opened("lm")
    assert await attach("lm") is host
    calls("other")
    with pytest.raises(NotRegistered, match="no pipeline named 'lm' for job 'other'"):
        await attach("lm")
    await host.close()
    calls()
    with pytest.raises(NotRegistered):
        await attach("lm")


async def test_a_name_is_taken_until_the_pipe_is_closed(closed: list[Driver]) -> None:
    first = await opened("lm")
    with pytest.raises(NameTaken, match="driver already drives a pipeline named 'lm'"):
        await opened("lm")
    await first.close()
    second = await opened("lm")
    assert await attach("lm") is second
    await second.close()


async def test_of_two_that_open_at_once_one_has_the_name(closed: list[Driver]) -> None:
    answers = await asyncio.gather(opened("lm"), opened("lm"), return_exceptions=True)
    (host,) = [each for each in answers if isinstance(each, DriverHost)]
    assert sorted(type(each).__name__ for each in answers) == ["DriverHost", "NameTaken"]
    assert closed and host._driver not in closed
    current.set(driver_service(0))
    calls()
    assert await attach("lm") is host
    await host.close()


async def test_a_pipe_without_a_name_is_found_by_nobody() -> None:
    host = await opened()
    with pytest.raises(NotRegistered):
        await attach("")
    await host.close()
