"""Ranks of a pipe: who is gone is noticed and replaced, in the middle of a recovery too, and nothing is lost.

The services are in this process (`pipeline_deaths`), so that a death comes just before a chosen call.
"""

import asyncio
import gc
from typing import Any

import numpy as np
import pytest

from psframework.errors import ContextClosed, DeadlineExceeded, PeerLost, RendezvousTimeout
from psframework.membership.view import MemberState
from psframework.pipeline import host as hosts
from psframework.pipeline.ranks import Seat
from psframework.pipeline.spec import Stage
from psframework.rpc.deadline import Deadline
from tests.support.pipeline_deaths import Training, training
from tests.support.pipeline_models import Faulty, Head, Hidden, data

STEPS = 4


async def steps(train: Training, first: int = 0, count: int = STEPS) -> None:
    for seed in range(first, first + count):
        await train.step(*data(13, seed))
    await train.check()


# What a service does in a step, and what only recoveries ask of it
IN_A_STEP = ["run", "deliver", "keep"]


@pytest.mark.parametrize("noticed", [True, False])
@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("what", IN_A_STEP)
async def test_a_death_in_a_step(what: str, rank: int, noticed: bool) -> None:
    """Whether or not the list of members shows it already."""
    async with training(4) as train:
        await steps(train, 0, 2)
        name = f"stage-{rank}"
        train.town.at(what, name, lambda: train.town.kill(name, noticed))
        await steps(train, 2)
        assert train.driver._ranks.name_of(Seat(rank, 0)) == "stage-3"


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("what", IN_A_STEP)
async def test_a_service_that_is_back_before_anybody_noticed(what: str, rank: int) -> None:
    """Its name leads to a life that holds no stage: neighbours find that first, and it is used again."""
    async with training(3) as train:
        await steps(train, 0, 2)
        name = f"stage-{rank}"
        train.town.at(what, name, lambda: train.town.restart(name))
        await steps(train, 2)


async def test_a_service_that_began_anew_between_steps() -> None:
    async with training(3) as train:
        await steps(train, 0, 2)
        train.town.restart("stage-1")
        await train.check()  # a state, not a step, is what finds it
        train.town.restart("stage-0")
        x = data(5)[0]
        answer = await train.pipe.infer(x)
        np.testing.assert_allclose(answer, train.oracle.forward(x, 0).data, rtol=0, atol=1e-12)
        await steps(train, 2)


@pytest.mark.parametrize("commit_every", [1, 3])
async def test_a_spare_that_dies_while_it_is_placed(commit_every: int) -> None:
    """The next one is taken, as often as it happens."""
    async with training(7, commit_every=commit_every) as train:
        await steps(train, 0, 2)
        for number in (3, 4, 5):
            name = f"stage-{number}"
            train.town.at("place", name, lambda name=name: train.town.kill(name, noticed=False))  # type: ignore[misc]
        train.town.kill("stage-1")
        await steps(train, 2)
        assert train.driver._ranks.name_of(Seat(1, 0)) == "stage-6"


RECOVERY = [("standing", 0), ("abort", 0), ("go_back", 2), ("give", 2), ("keep_elsewhere", 0), ("place", 3)]


@pytest.mark.parametrize(("what", "whose"), RECOVERY, ids=[what for what, _ in RECOVERY])
@pytest.mark.parametrize("commit_every", [1, 3])
async def test_a_driver_that_gives_up_during_a_recovery(what: str, whose: int, commit_every: int) -> None:
    """The next step recovers from there; the spare that was being placed is as good as before."""
    async with training(4, commit_every=commit_every) as train:
        await steps(train, 0, 2)
        train.town.kill("stage-1")
        task = asyncio.create_task(train.pipe.step(*data(9, 99)))
        train.town.at(what, f"stage-{whose}", task.cancel)
        await asyncio.wait([task])
        assert task.cancelled()
        await steps(train, 2)


@pytest.mark.parametrize(
    ("what", "second", "lost"),
    [
        ("place", 2, 1),  # it kept the state of stage 1, and had not given it
        ("give", 2, 1),
        ("place", 0, 0),  # stage 1 kept its state
        ("keep_elsewhere", 0, 0),
        ("keep_elsewhere", 2, None),
        ("deliver", 0, None),  # stage 1 has it again
        ("deliver", 2, None),
    ],
)
async def test_a_second_death_during_a_recovery(what: str, second: int, lost: int | None) -> None:
    """If nobody has the state of a stage any more, that is said, as often as somebody asks."""
    async with training(6) as train:
        await steps(train, 0, 2)
        train.town.kill("stage-1")
        whose = "stage-3" if what == "place" else f"stage-{second}"

        def die() -> None:
            train.town.kill(f"stage-{second}")

        if what == "deliver":  # not in the run in which the first is missed
            train.town.at("place", "stage-3", lambda: train.town.at(what, whose, die))
        else:
            train.town.at(what, whose, die)
        if lost is None:
            await steps(train, 2)
            return
        for _ in range(2):
            with pytest.raises(PeerLost, match=f"stage {lost} on stage-{lost} is lost, and nobody has its"):
                await train.pipe.step(*data(9))


async def test_a_stage_and_who_keeps_its_state_die_at_once() -> None:
    async with training(6) as train:
        train.town.kill("stage-1")
        train.town.kill("stage-2")
        with pytest.raises(PeerLost, match="stage 1 on stage-1 is lost, and nobody has its state"):
            await train.pipe.step(*data(9))


async def test_two_stages_die_at_once_that_others_keep() -> None:
    async with training(6, stages=4) as train:
        await steps(train, 0, 2)
        train.town.kill("stage-1", noticed=False)
        train.town.kill("stage-3", noticed=False)
        await steps(train, 2)
        names = [names[0] for names in train.driver._ranks.plan.services]
        assert names == ["stage-0", "stage-4", "stage-2", "stage-5"]
        placed = [name for what, name in train.town.calls if what == "place"]
        assert placed[4:] == ["stage-4", "stage-5"]  # who is listed still was not asked


async def test_replicas_keep_each_other() -> None:
    model = [Stage(Hidden), Stage(Hidden, replicas=2), Stage(Head)]
    async with training(7, model=model) as train:
        await steps(train, 0, 2)
        train.town.kill("stage-1")
        await steps(train, 2)
        train.town.kill("stage-2")
        train.town.kill("stage-0")  # kept by the first of stage 1
        await steps(train, 2 + STEPS)


async def test_a_pipe_of_one_service_has_nobody_who_keeps_its_state() -> None:
    async with training(2, stages=1) as train:
        await steps(train, 0, 2)
        train.town.kill("stage-0")
        with pytest.raises(PeerLost, match="stage 0 on stage-0 is lost, and nobody has its state"):
            await train.pipe.step(*data(9))


async def test_it_waits_for_a_service_and_names_the_stage_if_none_comes() -> None:
    async with training(3) as train:
        await steps(train, 0, 2)
        train.town.kill("stage-1")
        with pytest.raises(PeerLost, match="stage 1 on stage-1 is lost, and no other") as raised:
            await train.pipe.step(*data(9), timeout=0.2)
        assert raised.value.peer == "stage-1"
        asyncio.get_running_loop().call_later(0.2, train.town.begin, "stage-7")
        await steps(train, 2)
        assert train.driver._ranks.name_of(Seat(1, 0)) == "stage-7"


async def test_a_stage_that_dies_at_the_end_of_the_deadline_is_named_too() -> None:
    async with training(4) as train:
        await steps(train, 0, 2)
        task = asyncio.create_task(train.pipe.step(*data(9), timeout=0.2))
        life = train.town.lives["stage-1"]
        life.stuck = True
        look = train.driver._ranks.look

        async def late(deadline: Deadline) -> Any:  # it dies while the driver asks who is late
            train.town.kill("stage-1")
            return await look(deadline)

        train.driver._ranks.look = late
        with pytest.raises(DeadlineExceeded, match="stage 1 on stage-1 is gone"):
            await task
        train.driver._ranks.look = look
        await steps(train, 2)


async def test_an_error_of_a_service_that_holds_no_stage_is_left_as_it_is() -> None:
    async with training(4) as train:
        ranks = train.driver._ranks
        for peer in ("stage-3", "stage-1", ""):
            error = PeerLost("gone", peer=peer)
            assert ranks.named(error) is error  # stage-1 is not lost
        ranks.lost.add(Seat(1, 0))
        named = ranks.named(PeerLost("gone", peer="stage-1", reason="lease"))
        assert str(named).startswith("stage 1 on stage-1 is lost, too late") and str(named).endswith("(gone)")
        assert (named.peer, named.reason) == ("stage-1", "lease")
        assert ranks.named(named) is named
        ranks.lost.clear()


async def test_replacements_that_die_in_their_first_run() -> None:
    """As long as there are others, and what fails is never the same life."""
    async with training(9) as train:
        await steps(train, 0, 2)
        for number in (3, 4, 5, 6):
            name = f"stage-{number}"
            train.town.at("run", name, lambda name=name: train.town.kill(name))  # type: ignore[misc]
        train.town.kill("stage-1")
        await steps(train, 2)
        assert train.driver._ranks.name_of(Seat(1, 0)) == "stage-7"


@pytest.mark.parametrize("commit_every", [1, 4])
async def test_replacements_that_die_while_work_is_done_again(commit_every: int) -> None:
    async with training(9, commit_every=commit_every) as train:
        await steps(train, 0, 2)
        for number in (3, 4, 5, 6):
            name = f"stage-{number}"
            train.town.at("deliver", name, lambda name=name: train.town.kill(name))  # type: ignore[misc]
        train.town.kill("stage-1")
        await steps(train, 2)
        assert train.driver._ranks.name_of(Seat(1, 0)) == "stage-7"


async def test_a_service_that_was_stalled_and_answers_again() -> None:
    """Without another one it gets its place back, with the state that was kept elsewhere."""
    async with training(3) as train:
        await steps(train, 0, 2)
        life = train.town.lives["stage-1"]
        life.state = MemberState.STALLED
        with pytest.raises(PeerLost, match="stage 1 on stage-1 is lost, and no other stage service"):
            await train.pipe.step(*data(9), timeout=0.2)
        life.state = MemberState.LIVE
        await steps(train, 2)
        assert train.driver._ranks.name_of(Seat(1, 0)) == "stage-1"


async def test_a_spare_that_is_stalled_is_not_taken() -> None:
    async with training(5) as train:
        train.town.lives["stage-3"].state = MemberState.STALLED
        train.town.kill("stage-0")
        await steps(train)
        assert train.driver._ranks.name_of(Seat(0, 0)) == "stage-4"


async def test_ranks_that_cannot_reach_each_other_though_both_are_there() -> None:
    """The error names who could not be reached; it does not take the whole deadline."""
    async with training(3) as train:
        await steps(train, 0, 2)
        life = train.town.lives["stage-1"]
        reach = life.rpc_async

        def cut(to: str, fn: str, *rest: Any, **options: Any) -> Any:
            if to != "stage-2":
                return reach(to, fn, *rest, **options)
            future = asyncio.get_running_loop().create_future()
            future.set_exception(PeerLost("can't reach stage-2", peer="stage-2"))
            return future

        life.rpc_async = cut  # type: ignore[method-assign]
        async with asyncio.timeout(10):
            with pytest.raises(PeerLost, match="can't reach stage-2"):
                await train.pipe.step(*data(9), timeout=30)
        life.rpc_async = reach  # type: ignore[method-assign]
        await steps(train, 2)


async def test_user_errors_between_commits_and_a_death_after_them() -> None:
    """Steps that failed leave nothing behind, however many there were, with the buddies neither."""
    model = [(Faulty, ()), (Hidden, ()), (Hidden, ()), (Head, ())]
    async with training(6, model=model, commit_every=2) as train:
        bad = data(8)[0] - 100.0
        for seed in range(5):
            for _ in range(3):
                with pytest.raises(ValueError, match="a negative number"):
                    await train.pipe.step(bad, data(8)[1])
            x, y = data(13, seed)
            if seed == 3:
                train.town.kill("stage-2")
            await train.step(np.abs(x), y)
        await train.check()


async def test_gradients_that_are_added_up_across_a_death() -> None:
    async with training(5) as train:
        twin = train.oracle
        for round in range(3):
            total: dict[Any, Any] = {}
            for part in range(3):
                x, y = data(12, 10 * round + part)
                if (round, part) in ((1, 1), (2, 2)):
                    train.town.kill(f"stage-{round}")
                await train.pipe.step(x, y, 30.0, update=part == 2)
                twin.gradients(x, y)
                for each in twin.whole.parameters():
                    total[each] = total.get(each, 0) + each.grad
            for each, gradient in total.items():
                each.grad = gradient
            twin.optimizer.step()
        await train.check()


@pytest.mark.parametrize("noticed", [True, False])
@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("what", ["load_state_dict", "commit", "keep"])
async def test_a_death_while_a_state_is_loaded(what: str, rank: int, noticed: bool) -> None:
    """All stages have the state afterwards, or none has: never a part of it."""
    async with training(4) as train:
        await steps(train, 0, 2)
        before = await train.pipe.state_dict()
        loaded = {name: array + 1.0 for name, array in before.items()}
        name = f"stage-{rank}"
        train.town.at(what, name, lambda: train.town.kill(name, noticed))
        try:
            await train.pipe.load_state_dict(loaded)
        except PeerLost:
            loaded = before
        state = await train.pipe.state_dict()
        assert all((state[each] == loaded[each]).all() for each in loaded)


async def test_an_inference_that_waited_for_a_step_that_was_given_up_sees_none_of_it() -> None:
    """The last stage had updated already."""
    async with training(4) as train:
        await steps(train, 0, 2)
        x = data(5)[0]
        expected = train.oracle.forward(x, 0).data
        looks: list[asyncio.Future[Any]] = []
        task = asyncio.create_task(train.pipe.step(*data(9)))

        def give_up() -> None:
            looks.append(asyncio.ensure_future(train.pipe.infer(x)))
            asyncio.get_running_loop().call_later(0.01, task.cancel)  # when that waits for its turn
            train.town.lives["stage-0"].stuck = True

        train.town.at("keep", "stage-0", give_up)
        await asyncio.wait([task])
        assert task.cancelled()
        train.town.lives["stage-0"].stuck = False
        np.testing.assert_allclose(await looks[0], expected, rtol=0, atol=1e-12)
        await steps(train, 2)


async def test_closing_during_a_step_and_during_a_recovery() -> None:
    for what, name in (
        ("deliver", "stage-1"),
        ("keep", "stage-0"),
        ("place", "stage-3"),
        ("go_back", "stage-0"),
    ):
        async with training(4) as train:
            closing = []

            def close(train: Training = train, closing: list[Any] = closing) -> None:
                closing.append(asyncio.ensure_future(train.pipe.close()))

            train.town.at(what, name, close)
            if what in ("place", "go_back"):
                train.town.kill("stage-1")
            with pytest.raises(ContextClosed, match="closed"):
                await train.pipe.step(*data(9))
            await asyncio.gather(*closing)
            assert train.driver._ranks._hosts == {}


def living() -> int:
    gc.collect()
    return sum(isinstance(each, Hidden) for each in gc.get_objects())


async def test_nothing_is_left_after_deaths_and_the_end() -> None:
    """No task, no host, no stage; nor after a driver that gave up in the middle."""
    tasks, stages = asyncio.all_tasks(), living()
    async with training(5) as train:
        await steps(train, 0, 2)
        train.town.kill("stage-1")
        await steps(train, 2, 1)
        train.town.kill("stage-0")
        task = asyncio.create_task(train.pipe.step(*data(9)))
        train.town.at("give", "stage-3", task.cancel)
        await asyncio.wait([task])
        pipe = train.driver._ranks.plan.pipe
    del train, task
    async with asyncio.timeout(10):
        while asyncio.all_tasks() - tasks or living() > stages:  # noqa: ASYNC110 - the thread's last job too
            await asyncio.sleep(0.01)
    assert not [key for key in hosts._hosts if key[0] == pipe]


async def test_closing_does_not_wait_for_a_service_that_does_not_answer() -> None:
    async with training(4) as train:
        train.town.lives["stage-1"].stuck = True
        async with asyncio.timeout(10):
            await train.pipe.close()
        with pytest.raises(ContextClosed, match="closed"):
            await train.pipe.step(*data(9))


async def test_not_enough_services() -> None:
    with pytest.raises(RendezvousTimeout, match="needs 3 stage services, 2 are here"):
        async with training(2):
            pass


async def test_who_is_silent_is_not_taken_for_dead() -> None:
    async with training(4) as train:
        ranks = train.driver._ranks
        train.town.lives["stage-1"].stuck = True
        standings = await ranks.look(Deadline.after(0.2))
        assert standings[Seat(1, 0)] is None and standings[Seat(0, 0)].commits == (0,)
        assert not ranks.lost
        with pytest.raises(DeadlineExceeded, match="stage 1 on stage-1 does not answer"):
            await train.pipe.step(*data(9), timeout=0.3)
        train.town.lives["stage-1"].stuck = False
        await steps(train)
