"""Pipelines: a model cut into stages on several services, fed by micro-batches."""

from psframework.pipeline.balance import Balance, balance
from psframework.pipeline.client import Pipeline
from psframework.pipeline.skips import pop, skippable, stash
from psframework.pipeline.spec import Stage

__all__ = ["Balance", "Pipeline", "Stage", "balance", "pop", "skippable", "stash"]
