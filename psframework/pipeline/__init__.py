"""Pipelines: a model cut into stages on several services, fed by micro-batches."""

from psframework.pipeline.balance import Balance, balance
from psframework.pipeline.skips import pop, skippable, stash

__all__ = ["Balance", "balance", "pop", "skippable", "stash"]
