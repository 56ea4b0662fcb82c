"""Pipelines: a model cut into stages on several services, fed by micro-batches."""

from psframework.pipeline.balance import Balance, balance
from psframework.pipeline.skips import pop, skippable, stash
from psframework.pipeline.spec import Stage

__all__ = ["Balance", "Stage", "balance", "pop", "skippable", "stash"]
