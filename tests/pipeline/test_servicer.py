"""What members ask of a member that holds stages, by name."""

import gc
from typing import Any

import numpy as np
import pytest

from psframework import optim
from psframework.errors import NotRegistered, PeerLost
from psframework.pipeline import servicer
from psframework.pipeline.plan import Key, PipePlan, StagePlan
from psframework.pipeline.post import DELIVER, KEEP
from psframework.pipeline.servicer import GIVE, PLACE, Source
from psframework.rpc.registry import find
from tests.support.pipeline_deaths import Town
from tests.support.pipeline_models import Head, Hidden
from tests.support.pipeline_world import travelled

PIPE = PipePlan("pipe", 1, (("stage-0",), ("stage-1",)), 2, "1f1b", 0)
STAGES = [StagePlan(0, Hidden, rule=optim.Adam(lr=0.1).rule.spec()), StagePlan(1, Head)]


async def placed(town: Town, name: str, rank: int, source: Source | None = None) -> Any:
    """A host, as its service has it."""
    life = town.lives[name]
    return await town.call(
        life, "place", servicer.place, (PIPE, (rank, 0), [STAGES[rank]], source), None, answers=False
    )


def test_names_that_peers_call() -> None:
    functions = {PLACE: servicer.place, DELIVER: servicer.deliver, KEEP: servicer.keep, GIVE: servicer.give}
    assert all(find(name).target is function for name, function in functions.items())
    assert travelled(Source("stage-1", 3, 4)) == Source("stage-1", 3, 4)


async def test_what_is_placed_lives_while_somebody_refers_to_it() -> None:
    town = Town(2)
    host = await placed(town, "stage-0", 0)
    await town.driver.rpc_async("stage-0", DELIVER, ("pipe", [(Key(1, "F", 0, 0), np.arange(3))]))
    assert len(host._mailbox) == 1
    del host
    gc.collect()
    for call in (
        (DELIVER, ("pipe", [(Key(1, "F", 0, 0), None)])),
        (KEEP, ("pipe", 1, 0, 0, {})),
        (GIVE, ("pipe", 1, 0)),
    ):
        with pytest.raises(PeerLost, match="stage-0 holds no stage of this pipeline") as raised:
            await town.driver.rpc_async("stage-0", *call)
        assert raised.value.peer == "stage-0"


async def test_a_state_goes_to_who_keeps_it_and_to_who_takes_the_place() -> None:
    town = Town(3)
    first, keeper = await placed(town, "stage-0", 0), await placed(town, "stage-1", 1)
    await first.commit(0, 0)
    await first.commit(4, 0)
    town.kill("stage-0")
    other = await placed(town, "stage-2", 0, Source("stage-1", 4, 6))
    for mine, theirs in zip(_arrays(other.kept(0, 4)), _arrays(first.kept(0, 4))):
        np.testing.assert_array_equal(mine, theirs)
    assert keeper.kept(0, 0) and tuple((await other.standing()).commits) == (4,)
    with pytest.raises(NotRegistered, match="no commit 5"):
        await placed(town, "stage-2", 0, Source("stage-1", 5, 6))
    with pytest.raises(PeerLost, match="stage-0 is dead"):
        await placed(town, "stage-2", 0, Source("stage-0", 4, 6))


def _arrays(state: Any) -> list[np.ndarray]:
    return [state[0]["module"]["layer.weight"], state[0]["module"]["layer.bias"]]
