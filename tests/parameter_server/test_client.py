"""Opening a model: the first values win, differences are named, and whoever fails leaves nothing behind."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from psframework import nn, optim
from psframework.errors import (
    ArgumentError,
    ModelMismatch,
    RendezvousTimeout,
    ResourceExhausted,
    UnknownTable,
)
from psframework.parameter_server import client
from psframework.parameter_server.client import open_parameter_server, trainers_of
from psframework.parameter_server.partition import FixedShards, Hash
from psframework.parameter_server.policy import ASP, BSP, SSP
from psframework.rpc.deadline import Deadline
from psframework.testing.servers import Servers, servers


class Net(nn.Module):
    def __init__(self, hidden: int = 8, dtype: type = np.float32, fill: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(np.full((hidden, 4), fill, dtype))
        self.b = nn.Parameter(np.full(hidden, fill, dtype))


SGD = optim.SGD(lr=0.5)


@pytest.fixture(scope="module")
async def two_shards():
    async with servers(2) as made:
        yield made


def entries(made: Servers, table: str):
    return made.keeper.models.find(table).current().roster.open_entries()


async def test_the_first_registrants_values_win_bitwise(two_shards: Servers):
    async with two_shards.trainer() as one, two_shards.trainer() as two:
        first, second = Net(fill=0.1), Net(fill=7.0)
        options = {"name": "first", "optimizer": SGD, "consistency": BSP(trainers=2)}
        a, b = await asyncio.gather(
            open_parameter_server(one, first, **options), open_parameter_server(two, second, **options)
        )
        assert np.array_equal(first.w.data, second.w.data)
        assert np.array_equal(first.b.data, second.b.data)
        assert first.w.data[0, 0] in (np.float32(0.1), np.float32(7.0))
        assert {a.slot, b.slot} == {0, 1}
        await a.close()
        await b.close()


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (Net(9), {}, r"'w' has shape \(9, 4\), registered is \(8, 4\)"),
        (Net(dtype=np.float64), {}, "'w' has dtype float64, registered is float32"),
        (Net(), {"optimizer": optim.Adam()}, "optimizer .*adam.* registered is .*sgd"),
        (Net(), {"optimizer": optim.SGD(lr=0.25)}, "optimizer .*0.25.* registered is .*0.5"),
        (Net(), {"consistency": SSP(3)}, "policy .*ssp.* registered is .*asp"),
    ],
)
async def test_a_difference_is_named_and_the_model_lives_on(two_shards: Servers, model, options, words):
    async with two_shards.trainer() as one, two_shards.trainer() as two:
        base = {"name": "same", "optimizer": SGD, "consistency": ASP()}
        async with await open_parameter_server(one, Net(), **base) as ps:
            with pytest.raises(ModelMismatch, match=words):
                await open_parameter_server(two, model, **(base | options))
            assert len(entries(two_shards, "default/same")) == 1
            async with await open_parameter_server(two, Net(fill=5.0), **base) as other:
                await other.pull()
            await ps.pull()


@pytest.mark.parametrize(
    ("model", "options", "error", "words"),
    [
        (Net(), {"consistency": ASP()}, ArgumentError, r"ASP\(\) needs an optimizer"),
        (Net(), {}, ArgumentError, r"BSP\(\) needs an optimizer"),
        (nn.Sequential(), {"optimizer": SGD}, ArgumentError, "no parameters"),
        (Net(), {"reader": True, "name": "nobodys"}, UnknownTable, "'default/nobodys'"),
    ],
)
async def test_what_can_not_be_opened_is_refused_with_a_reason(two_shards, model, options, error, words):
    async with two_shards.trainer() as one:
        with pytest.raises(error, match=words):
            await open_parameter_server(one, model, **options)


async def test_an_optimizer_over_parameters_describes_itself_too(two_shards: Servers):
    async with two_shards.trainer() as one:
        model = Net()
        async with await open_parameter_server(
            one, model, name="local", optimizer=optim.SGD(model.parameters(), lr=0.5), consistency=ASP()
        ) as ps:
            model.w.grad = np.ones((8, 4), np.float32)
            await ps.push_pull()
            assert np.all(model.w.data == -0.5)


async def test_who_trains_a_model(two_shards: Servers):
    def trainers(name: str = "shared", job: str = "default"):
        return trainers_of(one, job, name, Deadline.after(10.0))

    async with two_shards.trainer("ann") as one, two_shards.trainer("bob") as two:
        assert await trainers() == {}
        options = {"name": "shared", "optimizer": SGD, "consistency": BSP(trainers=1)}
        first = await open_parameter_server(one, Net(), **options)
        async with (
            await open_parameter_server(two, Net(), **options),
            await open_parameter_server(two, Net(), name="shared", reader=True),
        ):
            assert await trainers() == {0: "ann", 1: "bob"}
            await first.close()
            assert await trainers() == {1: "bob"}
            assert await trainers(job="other") == await trainers("other") == {}
        assert await trainers() == {}


@pytest.mark.parametrize("partitioner", [Hash(), FixedShards(2)])
async def test_partitioners_are_the_first_registrants_choice(two_shards: Servers, partitioner):
    async with two_shards.trainer() as one:
        async with await open_parameter_server(
            one, Net(), name=partitioner.name, optimizer=SGD, partitioner=partitioner
        ) as ps:
            cell = two_shards.keeper.models.find(f"default/{partitioner.name}")
            count = len(cell.current().shards)
            assert cell.partitions == partitioner.cut(ps._memory.layout, count)
            assert len({p.shard for p in cell.partitions}) == count


async def test_no_shard_ends_at_the_deadline_and_names_what_is_missing():
    async with servers(0) as made, made.trainer() as one:
        with pytest.raises(RendezvousTimeout, match="no parameter server") as caught:
            await open_parameter_server(one, Net(), optimizer=SGD, timeout=1.0)
        assert caught.value.missing == ("parameter-server",)


async def test_a_model_too_large_for_the_shards_is_refused_and_smaller_ones_are_not():
    async with servers(1, memory_limit=4096) as made, made.trainer() as one:
        with pytest.raises(ResourceExhausted, match="--memory-limit"):
            await open_parameter_server(one, Net(1000), optimizer=optim.Adam())
        async with await open_parameter_server(one, Net(), optimizer=optim.Adam()) as ps:
            await ps.pull()


async def test_if_the_first_registrant_dies_before_it_finished_the_next_one_takes_its_place():
    async with servers(1) as made, made.trainer() as two:
        options = {"name": "net", "optimizer": SGD, "consistency": ASP()}
        async with made.trainer() as one:
            opening = asyncio.ensure_future(_open_but_never_finish(one, made, options))
            await _until(lambda: made.keeper.models.find("default/net").current().roster.initializer)
            second = asyncio.ensure_future(open_parameter_server(two, Net(fill=3.0), **options))
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        ps = await second
        model = Net()
        async with made.trainer() as three, await open_parameter_server(three, model, **options):
            assert np.all(model.w.data == 3.0)
        await ps.close()


async def _open_but_never_finish(runtime, made: Servers, options) -> None:
    async def stuck(*_: object) -> None:
        await asyncio.Event().wait()

    finish = made.keeper.finish_initialization
    made.keeper.finish_initialization = stuck  # type: ignore[method-assign]
    try:
        await open_parameter_server(runtime, Net(fill=1.0), **options)
    finally:
        made.keeper.finish_initialization = finish  # type: ignore[method-assign]


async def _until(condition, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            try:
                if condition():
                    return
            except UnknownTable:
                pass
            await asyncio.sleep(0.005)


async def test_whatever_ends_the_opening_nobody_waits_for_who_did_not_open(monkeypatch):
    async with servers(1) as made, made.trainer() as one:

        def no_memory(*_: object, **__: object) -> None:
            raise MemoryError

        monkeypatch.setattr(client, "_memory", no_memory)
        with pytest.raises(MemoryError):
            await open_parameter_server(one, Net(), optimizer=optim.SGD(lr=1.0))
        assert not made.keeper.models.find("default/model").current().registrations


async def test_with_spares_a_reader_pulls_again_and_again():
    async with servers(2) as made, made.trainer() as one, made.trainer() as two:
        options = {"optimizer": optim.SGD(lr=1.0), "consistency": BSP(spares=1), "name": "net"}
        model = Net()
        async with await open_parameter_server(one, model, **options) as ps:
            for parameter in model.parameters():
                parameter.grad = np.ones_like(parameter.data)
            await ps.push_pull()
            async with await open_parameter_server(two, Net(), name="net", reader=True) as reader:
                await reader.pull()
                await reader.pull()


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ([1, 2], {"optimizer": SGD}, "nn.Module"),
        (Net(), {"optimizer": "adam"}, "optim.SGD"),
        (Net(), {"optimizer": optim.LAMB()}, "lamb needs a whole parameter at once.* use an elementwise"),
        (Net(), {"optimizer": SGD, "consistency": "bsp"}, r"psf\.BSP\(\)"),
        (Net(), {"optimizer": SGD, "consistency": BSP}, r"psf\.BSP\(\).*class"),
    ],
)
async def test_a_thing_of_another_kind_is_named(two_shards: Servers, model, options, words):
    async with two_shards.trainer() as one:
        with pytest.raises(ArgumentError, match=words):
            await open_parameter_server(one, model, **options)
