"""Plans that are made of what users describe."""

from typing import Any

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework import nn, optim
from psframework.autograd import Tensor, tensor
from psframework.errors import ArgumentError
from psframework.pipeline.balance import Balance
from psframework.pipeline.blueprint import blueprint
from psframework.pipeline.skips import pop, skippable, stash
from psframework.pipeline.spec import PipelineOptions, Stage
from tests.support.pipeline_models import Across, Down, Head, Hidden, Up


def made(model: Any, stages: int | None = None, **options: Any) -> Any:
    return blueprint(model, stages, PipelineOptions(**options))


def sizes(plan: Any) -> list[int]:
    return [len(stage.module) for stage in plan.stages]


def test_listed_stages() -> None:
    head = Head()
    plan = made(
        [Hidden, (Hidden, (3,)), (Hidden, (), {"width": 4}), Stage(Hidden, recompute=True), head],
        loss=F.cross_entropy,
        optimizer=optim.SGD(lr=0.5),
    )
    assert [stage.index for stage in plan.stages] == [0, 1, 2, 3, 4]
    assert [stage.args for stage in plan.stages] == [(), (3,), (), (), ()]
    assert plan.stages[2].kwargs == {"width": 4}
    assert [stage.recompute for stage in plan.stages] == [False, False, False, True, False]
    assert [stage.loss for stage in plan.stages] == [None] * 4 + [F.cross_entropy]
    assert plan.stages[4].module is head
    assert plan.stages[0].rule == optim.SGD(lr=0.5).rule.spec()
    assert plan.replicas == [1] * 5


def test_a_sequential_is_cut_by_the_bytes_of_its_parameters() -> None:
    wide = nn.Linear(100, 100)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), wide, nn.ReLU(), nn.Linear(2, 2), nn.ReLU())
    assert sizes(made(model, 3)) == [2, 1, 3]
    assert sizes(made(nn.Sequential(*(nn.ReLU() for _ in range(6))), 3)) == [2, 2, 2]


def test_a_sequential_is_cut_as_it_is_told() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(5)))
    assert sizes(made(model, balance=[1, 3, 1])) == [1, 3, 1]
    assert sizes(made(model, 2, balance=Balance([4, 1], [0.0] * 5, [0] * 5))) == [4, 1]
    plan = made(model, balance=[2, 3])
    assert plan.naming.join({0: {"0.weight": 1}, 1: {"2.weight": 2}}) == {"0.weight": 1, "2.weight": 2}


def test_ties_of_a_sequential_and_those_that_are_named() -> None:
    table, head = nn.Embedding(4, 2), nn.Linear(2, 4, bias=False)
    head.weight = table.weight
    model = nn.Sequential(table, nn.Linear(2, 2), nn.Linear(2, 2), head)
    plan = made(model, balance=[2, 2], ties=[("2.bias", "1.bias")])
    assert plan.ties == (((0, "0.weight"), (1, "3.weight")), ((0, "1.bias"), (1, "2.bias")))
    assert made([table, nn.Linear(2, 2), head]).ties == (((0, "weight"), (2, "weight")),)
    assert made([(Hidden,), (Hidden,)], ties=[("0.a", "1.b")]).ties == (((0, "a"), (1, "b")),)


def test_a_parameter_is_in_one_tie() -> None:
    with pytest.raises(ArgumentError, match="a of stage 1 is in two ties"):
        made([Hidden, Hidden, Hidden], ties=[("0.a", "1.a"), ("1.a", "2.a")])


def test_frozen_parameters_need_no_ties() -> None:
    layer = nn.Linear(2, 2)
    layer.weight.requires_grad = False
    assert made(nn.Sequential(layer, nn.ReLU(), layer), 2).ties == (((0, "0.bias"), (1, "2.bias")),)


def test_skips_go_where_classes_say() -> None:
    plan = made([(Down, ()), (Hidden, ()), (Across, ()), Up()])
    assert [stage.stashes for stage in plan.stages] == [{"low": 3, "lower": 2}, {}, {}, {}]
    assert [stage.pops for stage in plan.stages] == [{}, {}, {"lower": 0}, {"low": 0}]


def test_a_skip_inside_of_one_stage_goes_nowhere() -> None:
    plan = made(nn.Sequential(Down(), Across(), Up()), balance=[2, 1])
    assert plan.stages[0].stashes == {"low": 1}
    assert plan.stages[1].pops == {"low": 0}


class Pool(nn.Module):
    name = ""

    def forward(self, x: Tensor) -> Tensor:
        stash(self.name, x)
        return x


class Join(nn.Module):
    name = ""

    def forward(self, x: Tensor) -> Tensor:
        return x + pop(self.name)


@skippable(stash=("first",))
class FirstPool(Pool):
    name = "first"


@skippable(stash=("second",))
class SecondPool(Pool):
    name = "second"


@skippable(pop=("first",))
class FirstJoin(Join):
    name = "first"


@skippable(pop=("second",))
class SecondJoin(Join):
    name = "second"


def test_stages_of_one_class_cannot_share_a_name() -> None:
    """In one process a name is free again once it was popped; stages run side by side."""
    words = r"stashed by FirstPool \({} of stage 0\) and by FirstPool \({} of stage 1\): .* a class each"
    whole = nn.Sequential(FirstPool(), FirstJoin(), FirstPool(), FirstJoin())
    np.testing.assert_array_equal(whole(tensor([2.0])).data, [8.0])
    with pytest.raises(ArgumentError, match=words.format(0, 2)):
        made(whole, balance=[2, 2])
    with pytest.raises(ArgumentError, match=words.format("all", "all")):
        made([FirstPool, FirstPool, FirstJoin, FirstJoin])


def test_a_class_each_is_what_the_error_asks_for() -> None:
    stages = made([FirstPool, SecondPool, SecondJoin, FirstJoin]).stages
    assert [stage.stashes for stage in stages[:2]] == [{"first": 3}, {"second": 2}]
    one = nn.Sequential(FirstPool(), SecondPool(), SecondJoin(), FirstJoin())
    np.testing.assert_array_equal(one(tensor([2.0])).data, [6.0])


def test_options_go_to_the_stages() -> None:
    plan = made([Hidden, Stage(Head, parameter_server="head")], recompute=True, optimizer=optim.SGD(lr=0.5))
    assert [stage.recompute for stage in plan.stages] == [True, True]
    assert [stage.parameter_server for stage in plan.stages] == ["", "head"]
    assert [stage.precision for stage in made([Hidden, Head], precision="float16").stages] == ["float16"] * 2


def test_replicas_of_each_rank() -> None:
    stages = [Stage(Hidden, replicas=count) for count in (2, 1, 2, 1)]
    assert made(stages, schedule="interleaved", virtual_stages=2).replicas == [2, 1]
    with pytest.raises(ArgumentError, match=r"stages 0, 1, 2, 3 have \[2, 1, 2, 1\] replicas"):
        made(stages, schedule="interleaved", virtual_stages=4)
    with pytest.raises(ArgumentError, match=r"stages 0 have \[0\] replicas"):
        made([Stage(Hidden, replicas=0)])


GROUPS = [{"params": [nn.Parameter(np.zeros(1))], "lr": lr} for lr in (0.1, 0.2)]


@pytest.mark.parametrize(
    ("model", "stages", "options", "words"),
    [
        (nn.Linear(2, 2), None, {}, "takes a list of stages"),
        ([], None, {}, "takes a list of stages"),
        ("model", None, {}, "takes a list of stages"),
        ([Hidden, 3], None, {}, "stage 1 is 3"),
        ([(3, ())], None, {}, r"stage 0 is \(3, \(\)\)|stage 0 is 3"),
        ([Hidden, Head], 3, {}, "stages=3, but 2 are listed"),
        (nn.Sequential(nn.ReLU()), None, {}, "needs stages="),
        (nn.Sequential(nn.ReLU()), 2, {}, "1 layers can't be cut into 2 stages"),
        (nn.Sequential(nn.ReLU()), 2, {"balance": [1]}, "stages=2, but balance= has 1"),
        ([Hidden, Head], None, {"virtual_stages": 0}, "virtual stages each"),
        ([Hidden] * 3, None, {"virtual_stages": 2, "schedule": "interleaved"}, "3 stages can't be spread"),
        ([Hidden, Head], None, {"virtual_stages": 2}, "only 'interleaved' has several"),
        ([Hidden, Head], None, {"schedule": "2f2b"}, "no schedule is named '2f2b'"),
        ([Hidden, Head], None, {"microbatches": 0}, "microbatches is 0"),
        ([Hidden, Head], None, {"optimizer": optim.SGD}, r"such as optim.SGD\(lr=0.1\)"),
        ([Hidden, Head], None, {"optimizer": optim.SGD(GROUPS, lr=0.1)}, "a pipeline has one rule for all"),
        (
            [Stage(Hidden, parameter_server="a"), Stage(Hidden, parameter_server="a")],
            None,
            {"optimizer": optim.SGD(lr=0.1)},
            "stages 0 and 1 both have their parameters on a parameter server as 'a'",
        ),
        ([Hidden, Head], None, {"precision": "float8"}, "is none of bfloat16, float16"),
        ([Hidden, Head], None, {"max_norm": -1.0}, "max_norm must be at least 0"),
        ([Hidden, Head], None, {"max_norm": np.nan}, "max_norm must be at least 0"),
        ([Up, Down, Across], None, {}, "popped in stage 0, which runs before"),
        ([Down, Up], None, {}, "'lower' is never popped"),
    ],
)
def test_what_can_not_be_right(model: Any, stages: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        made(model, stages, **options)
