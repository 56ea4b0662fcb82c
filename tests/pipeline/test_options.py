"""Options of `cluster.pipeline`: typed, and refused if they can't be right."""

from dataclasses import fields
from inspect import signature
from typing import Any

import pytest

import psframework as psf
from psframework.errors import ArgumentError
from psframework.pipeline.options import FurtherOptions, options_of
from psframework.pipeline.spec import PipelineOptions
from tests.support.pipeline_models import chain
from tests.support.pipeline_world import pipeline


def test_parameters_and_further_options_are_all_that_there_are() -> None:
    parameters = set(signature(psf.Cluster.pipeline).parameters) - {"self", "model", "stages", "further"}
    further = set(FurtherOptions.__annotations__)
    assert not parameters & further
    assert parameters | further == {field.name for field in fields(PipelineOptions)}


def test_defaults() -> None:
    assert options_of({}) == PipelineOptions()
    assert options_of({"microbatches": 3, "on": ["a"]}) == PipelineOptions(microbatches=3, on=["a"])


def test_an_unknown_option_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        TypeError, match=r"'microbatch'; its options are stages, loss, .*microbatches.*, driver"
    ):
        options_of({"microbatch": 3})


@pytest.mark.parametrize("name", ["microbatches", "virtual_stages", "commit_every", "infer_rows"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "2", True, None])
def test_numbers_are_whole_and_at_least_1(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{name}="):
        options_of({name: value})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"timeout": -1.0}, "timeout=-1"),
        ({"on": "stage-0"}, "on='stage-0': a list"),
        ({"name": "lm"}, "name='lm'.*psf serve pipeline"),
        ({"name": "lm", "driver": "here"}, "name='lm'"),
        ({"driver": "pipeline-7"}, "driver='pipeline-7' is no pipeline service"),
        (
            {"schedule": "2f2b"},
            "no schedule is named '2f2b'; there are gpipe, 1f1b, eager-1f1b, zb-h1, interleaved",
        ),
        ({"virtual_stages": 2}, "only 'interleaved' has several"),
        ({"virtual_stages": 3, "schedule": "interleaved"}, "must be a multiple"),
    ],
)
async def test_what_can_not_be_right_is_refused_before_anything_is_placed(
    given: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(*_: Any) -> None:
        raise AssertionError("placed")

    monkeypatch.setattr("psframework.pipeline.ranks.Ranks.place_all", place)
    with pytest.raises(ArgumentError, match=message):
        async with pipeline(chain(4), **given):
            pass
