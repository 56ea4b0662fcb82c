"""Data: the bundled digits, batches, and a sampler that shards and resumes."""

from psframework.data.batches import batches
from psframework.data.digits import Digits, digits
from psframework.data.sampler import ShardedSampler

__all__ = ["Digits", "ShardedSampler", "batches", "digits"]
