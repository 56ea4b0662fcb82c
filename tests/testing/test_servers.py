"""The parameter server in one process: it starts, has the shards asked for, and ends."""

from psframework.testing.servers import servers


async def test_members_are_there_and_trainers_come_and_go():
    async with servers(2) as made:
        assert sorted(made.shards) == ["parameter-server-0", "parameter-server-1"]
        async with made.trainer("alpha") as trainer:
            assert trainer.membership.find("alpha") is not None
            assert len(trainer.membership.members("parameter-server")) == 2
        assert made.coordinator.view.find("alpha") is None
