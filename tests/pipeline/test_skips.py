"""Skip connections: by name in one process, between stages, and every way to declare them wrongly."""

import contextvars
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest

import psframework as psf
from psframework import nn
from psframework.autograd import Tensor
from psframework.errors import ArgumentError
from psframework.pipeline.skips import carrying, pop, routes, skippable, skips_of, stash


def alone(function: Callable[..., Any], *args: Any) -> Any:
    """Called in a context of its own, so that no test sees what another left behind."""
    return contextvars.Context().run(function, *args)


@skippable(stash=("low",))
class Down(nn.Module):
    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        stash("low", x * self.factor)
        return x + 1


@skippable(pop=("low",))
class Up(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * pop("low")


@skippable(stash=("high",))
class High(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        stash("high", x)
        return x


@skippable(pop=("high",))
class Taken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + pop("high")


class Failing(nn.Module):
    fails = True

    def forward(self, x: Tensor) -> Tensor:
        if self.fails:
            raise RuntimeError("no")
        return x


def leaf(*values: float) -> Tensor:
    return psf.tensor(np.array(values), requires_grad=True)


def test_a_sequence_in_one_process() -> None:
    x = leaf(1.0, 3.0)
    y = alone(nn.Sequential(Down(), nn.Tanh(), Up()), x)
    expected = np.tanh(x.data + 1) * 2 * x.data
    assert np.allclose(y.data, expected, rtol=1e-15)
    y.sum().backward()
    t = np.tanh(x.data + 1)
    assert x.grad is not None
    assert np.allclose(x.grad, 2 * t + 2 * x.data * (1 - t**2), rtol=1e-14)


def test_two_names_cross() -> None:
    y = alone(nn.Sequential(Down(), High(), Up(), Taken()), leaf(3.0))
    assert y.data == (3 + 1) * 6 + (3 + 1)


def test_a_name_is_free_again_when_it_was_popped() -> None:
    model = nn.Sequential(Down(2.0), Up(), Down(5.0), Up())

    def twice() -> list[Any]:
        return [model(leaf(1.0)).data for _ in range(2)]

    assert alone(twice) == [(4 + 1) * 5 * 4] * 2


def test_a_host_carries_from_stage_to_stage() -> None:
    first, second, third = nn.Sequential(Down(), High()), nn.Sequential(Taken()), nn.Sequential(Up())
    x = leaf(3.0)
    with carrying({}) as out:
        y = first(x)
    assert {name: tensor.data.item() for name, tensor in out.items()} == {"low": 6.0, "high": 4.0}
    with carrying({"high": out["high"]}) as nothing:
        y = second(y)
    with carrying({"low": out["low"]}):
        y = third(y)
    assert not nothing
    assert y.data == (4 + 4) * 6
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [(4 + 4) * 2 + 2 * 6]


def test_a_skip_inside_a_stage_is_not_seen_outside() -> None:
    with carrying({}) as out:
        nn.Sequential(Down(), Up())(leaf(1.0))
    assert out == {}


def test_carrying_hides_what_waits_outside() -> None:
    def nested() -> float:
        inner = nn.Sequential(Down(7.0), Up())
        with carrying({"low": leaf(5.0)}):
            with carrying({}):
                inner(leaf(1.0))
            answer: float = Up()(leaf(2.0)).data.item()
            return answer

    assert alone(nested) == 10.0


def test_threads_do_not_see_each_other() -> None:
    meet = Barrier(2, timeout=30)

    class Meeting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            meet.wait()
            return x

    model = nn.Sequential(Down(), Meeting(), Up())

    def job(value: float) -> float:
        answer: float = model(leaf(value)).data.item()
        return answer

    # Both begin in copies of one context, as jobs of `asyncio.to_thread` do.
    contexts = [contextvars.copy_context() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(context.run, job, value) for context, value in zip(contexts, (1.0, 2.0))]
        assert [each.result(30) for each in jobs] == [4.0, 12.0]


def test_modules_that_run_again_in_backward_pop_again() -> None:
    def gradient(wrap: Callable[[nn.Module, Tensor], Tensor]) -> Any:
        x, up = leaf(1.0, 2.0), Up()
        with carrying({}) as out:
            wrap(up, Down()(x)).sum().backward()
        assert not out
        return x.grad

    again = gradient(psf.recompute)
    assert again.tolist() == gradient(lambda module, y: module(y)).tolist() == [6.0, 10.0]


def test_a_whole_stage_that_runs_again_gives_its_skips_too() -> None:
    def stage(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        with carrying({}) as out:
            y = Down()(x)
        return y, out

    x = leaf(3.0)
    y, out = psf.recompute(stage, x)
    (y * out["low"]).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2 * 3 + 2 * 4]


def test_what_a_failed_forward_left_is_replaced() -> None:
    model = nn.Sequential(Down(), broken := Failing(), Up())

    def again() -> Any:
        with pytest.raises(RuntimeError, match="no"):
            model(leaf(1.0))
        broken.fails = False
        return model(leaf(2.0)).data

    assert alone(again) == 12.0


def test_what_a_model_that_is_gone_left_is_replaced() -> None:
    def again() -> Any:
        Down()(leaf(1.0))
        gc.collect()
        return nn.Sequential(Down(), Up())(leaf(2.0)).data

    assert alone(again) == 12.0


class Bare(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        stash("low", x)
        return x


@skippable(stash=("low",))
class Undeclared(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        stash("law", x)
        return x


@skippable(stash=("low",))
class Popping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return pop("low")


@skippable(stash=("low",))
class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        stash("low", x)
        stash("low", x)
        return x


@skippable(stash=("low", "high"))
class Forgetful(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        stash("low", x)
        return x


@skippable(pop=("low",))
class Idle(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


@skippable(stash=("low",))
class NoTensor(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        stash("low", x.data)
        return x


CASES: dict[str, tuple[nn.Module, str]] = {
    "no decorator": (Bare(), r"stash\('low'\) outside of the forward.*@skippable\(stash=\('low',\)\)"),
    "another name": (Undeclared(), r"Undeclared calls stash\('law'\), which is not declared"),
    "another verb": (Popping(), r"Popping calls pop\('low'\), which is not declared"),
    "popped first": (nn.Sequential(Up(), Down()), "Up pops 'low', which nobody has stashed"),
    "popped twice": (nn.Sequential(Down(), Up(), Up()), "Up pops 'low', .*or which was popped before"),
    "twice in a forward": (Twice(), "Twice stashes 'low', which was stashed before"),
    "by two modules": (nn.Sequential(Down(), Down(), Up()), "Down stashes 'low', .*its own name"),
    "not stashed": (Forgetful(), r"stash=\('low', 'high'\), but its forward did not stash 'high'"),
    "not popped": (Idle(), "Idle is declared .* did not pop 'low'"),
    "no tensor": (NoTensor(), r"stash\('low'\) takes a Tensor, not ndarray"),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_uses(case: str) -> None:
    module, message = CASES[case]
    with pytest.raises(ArgumentError, match=message):
        alone(module, leaf(1.0))


def test_one_module_that_runs_twice_in_a_stage() -> None:
    down = Down()
    with pytest.raises(ArgumentError, match="not popped yet"), carrying({}):
        nn.Sequential(down, down)(leaf(1.0))


def test_what_came_and_was_not_popped() -> None:
    with pytest.raises(ArgumentError, match="'low' came to this stage, and no forward in it popped it"):
        with carrying({"low": leaf(1.0)}):
            nn.Tanh()(leaf(1.0))


def test_an_error_in_the_stage_passes_and_closes() -> None:
    def outside() -> None:
        with pytest.raises(RuntimeError, match="no"), carrying({"low": leaf(1.0)}):
            Failing()(leaf(1.0))
        Up()(leaf(1.0))

    with pytest.raises(ArgumentError, match="nobody has stashed"):
        alone(outside)


@skippable(stash=("second",))
class Both(Down):
    def forward(self, x: Tensor) -> Tensor:
        stash("second", x)
        return super().forward(x)


def test_a_subclass_has_the_names_of_its_bases() -> None:
    assert skips_of(Both).stash == ("low", "second")
    assert skips_of(Down) == (("low",), ())
    with carrying({}) as out:
        Both()(leaf(1.0))
    assert set(out) == {"low", "second"}


def test_what_cannot_be_declared() -> None:
    with pytest.raises(ArgumentError, match="stash takes a sequence of names, not 'low'"):
        skippable(stash="low")
    with pytest.raises(ArgumentError, match=r"pop takes a sequence of names, not \(1,\)"):
        skippable(pop=(1,))
    with pytest.raises(ArgumentError, match="skippable decorates a class"):
        skippable(stash=("low",))(dict)


def test_routes() -> None:
    stages = [nn.Sequential(nn.Sequential(Down()), High()), nn.Tanh(), nn.Sequential(Taken(), Up())]
    assert list(routes(stages).items()) == [("low", (0, 2)), ("high", (0, 2))]
    assert routes([nn.Tanh(), nn.Sequential(Down(), Up())]) == {"low": (1, 1)}
    assert routes([nn.Tanh()]) == {}


ROUTES: dict[str, tuple[list[nn.Module], str]] = {
    "backwards": ([Up(), Down()], "stashed in stage 1 and popped in stage 0, which runs before"),
    "never popped": ([Down(), nn.Tanh()], r"'low' is never popped: .*@skippable\(pop=...\)"),
    "never stashed": ([nn.Tanh(), Up()], r"'low' is never stashed: .*@skippable\(stash=...\)"),
    "popped twice": (
        [Down(), Up(), nn.Sequential(Up())],
        r"popped by Up \(all of stage 1\) and by Up \(0 of stage 2\): stash it under a name for each",
    ),
    "stashed twice": (
        [nn.Sequential(Down(), Down()), Up()],
        r"stashed by Down \(0 of stage 0\) and by Down \(1 of stage 0\): give each its own name",
    ),
}


@pytest.mark.parametrize("case", ROUTES)
def test_wrong_routes(case: str) -> None:
    stages, message = ROUTES[case]
    with pytest.raises(ArgumentError, match=message):
        routes(stages)
