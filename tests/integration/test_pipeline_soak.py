"""Training for a while, with kills at random: in the end all is as it is without them."""

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

import psframework as psf
from tests.support.pipeline_bench import STAGES, Bench, check, step
from tests.support.pipeline_faults import PHASES, arm
from tests.support.pipeline_models import data

SPARES = 2
SECONDS = 300 if os.environ.get("PSF_SOAK") else 60


class Reaper:
    """Kills stages, never a second one before the first has been replaced.

    Args:
        bench: where they are.
        pipe: that they are of.
        dice: decides.
    """

    def __init__(self, bench: Bench, pipe: Any, dice: random.Random) -> None:
        self._bench, self._pipe, self._dice = bench, pipe, dice
        self._late = False  # a service may have died after the last step
        self.kills = 0

    async def step(self, x: Any, y: Any, update: bool) -> float:
        """A step during which a stage dies, perhaps; or after it."""
        pipe, dice, trigger = self._pipe, self._dice, self._bench.trigger
        task = asyncio.create_task(pipe.step(x, y, timeout=60, update=update))
        if self._late or trigger.exists() or dice.random() < 0.5:
            self._late = False
            return float(await task)
        if dice.random() < 0.5:
            self.kills += 1
            arm(trigger, dice.randrange(STAGES), dice.choice(PHASES))
            return float(await task)
        await asyncio.wait([task], timeout=dice.random() * 0.05)
        self._late = True  # perhaps the step had ended
        await self.kill(dice.choice(pipe._driver.services), again=dice.random() < 0.3)
        return float(await task)

    async def kill(self, name: str, again: bool) -> None:
        """Kills a service, whatever it does; perhaps it is started again at once."""
        self.kills += 1
        process = self._bench.local.processes[name]
        process.kill()
        await process.wait_ended()
        if again:
            await self._bench.local.restart(name)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 240)
@pytest.mark.parametrize("commit_every", [1, 3])
async def test_training_with_kills_at_random_equals_training_without(
    tmp_path: Path, commit_every: int
) -> None:
    seed = int(os.environ.get("PSF_SEED", time.time_ns() % 1_000_000))
    print(f"PSF_SEED={seed} does this again")
    dice = random.Random(seed)
    local_cluster = psf.local_cluster(stages=STAGES + SPARES, imports=("tests.support.pipeline_faults",))
    async with local_cluster as local, psf.connect(local.address) as cluster:
        bench = Bench(local, cluster, tmp_path / "trigger")
        async with await bench.open(commit_every=commit_every) as pipe:
            reaper = Reaper(bench, pipe, dice)
            model, own = bench.twin(await pipe.state_dict())
            end, steps = time.monotonic() + SECONDS / 2, 0
            while time.monotonic() < end:
                x, y = data(dice.randrange(4, 30), dice.randrange(1 << 30))
                update = dice.random() < 0.8
                loss = await reaper.step(x, y, update)
                assert loss == pytest.approx(step(model, own, x, y, update), abs=1e-12), steps
                steps += 1
                if steps % 5 == 0:
                    check(await pipe.state_dict(), model)
                if dice.random() < 0.7:
                    await bench.whole(STAGES + SPARES)
            check(await pipe.state_dict(), model)
            assert reaper.kills >= 3 and steps > reaper.kills
            print(f"{steps} steps, {reaper.kills} kills")
