"""How a pipeline is described."""

from psframework import nn
from psframework.pipeline.spec import PipelineOptions, Stage


def test_a_stage_says_only_what_is_special() -> None:
    assert Stage(nn.Linear, (2, 3)) == Stage(nn.Linear, (2, 3), {}, False, 1, "")


def test_options_have_defaults() -> None:
    options = PipelineOptions()
    assert (options.schedule, options.microbatches, options.virtual_stages) == ("1f1b", 8, 1)
    assert options.precision is options.max_norm is options.balance is None
