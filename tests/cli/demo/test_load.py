"""Figures of the dashboard come from a live parameter server."""

from psframework.cli.demo.load import lane_bytes, shard_loads
from psframework.cluster.connect import connect
from psframework.cluster.local import local_cluster
from psframework.nn import Linear
from psframework.optim import SGD


async def test_bytes_by_lane_and_load_by_shard() -> None:
    async with local_cluster(parameter_servers=2) as local, connect(local.address) as cluster:
        model = Linear(64, 64)
        ps = await cluster.parameter_server(model, optimizer=SGD(lr=1.0))
        before = lane_bytes(ps)
        model.weight.grad = model.weight.data * 0 + 1
        model.bias.grad = model.bias.data * 0 + 1
        await ps.push_pull()
        moved = sum(lane_bytes(ps).values()) - sum(before.values())
        assert moved >= 2 * 4 * (64 * 64 + 64)
        loads = await shard_loads(cluster)
        assert sorted(loads) == ["parameter-server-0", "parameter-server-1"]
        assert sum(load["updates"] for load in loads.values()) > 0
        local.processes["parameter-server-1"].kill()
        await local.processes["parameter-server-1"].wait(5)
        assert "parameter-server-1" not in await shard_loads(cluster)
