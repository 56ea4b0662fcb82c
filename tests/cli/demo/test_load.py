"""Figures of the dashboard come from a live parameter server."""

from psframework.cli.demo.load import shard_loads, traffic
from psframework.cluster.connect import connect
from psframework.cluster.local import local_cluster
from psframework.nn import Linear
from psframework.optim import SGD


async def test_bytes_by_lane_and_load_by_shard() -> None:
    async with local_cluster(parameter_servers=2) as local, connect(local.address) as cluster:
        model = Linear(64, 64)
        ps = await cluster.parameter_server(model, optimizer=SGD(lr=1.0))
        before = traffic(ps)
        model.weight.grad = model.weight.data * 0 + 1
        model.bias.grad = model.bias.data * 0 + 1
        await ps.push_pull()
        after = traffic(ps)
        moved = sum(after.lanes.values()) - sum(before.lanes.values())
        assert moved >= 2 * 4 * (64 * 64 + 64)
        assert sorted(after.shards) == ["parameter-server-0", "parameter-server-1"]
        assert sum(after.shards.values()) == sum(after.lanes.values())
        loads = await shard_loads(cluster)
        assert sorted(loads) == ["parameter-server-0", "parameter-server-1"]
        assert sum(load["updates"] for load in loads.values()) > 0
        local.processes["parameter-server-1"].kill()
        await local.processes["parameter-server-1"].wait(5)
        assert "parameter-server-1" not in await shard_loads(cluster)
