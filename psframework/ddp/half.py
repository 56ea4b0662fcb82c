"""FP16 and BF16: gradients travel in 16 bits."""

from __future__ import annotations

import numpy as np

from psframework import backend
from psframework.backend import Array, DType
from psframework.collective.ops import ReduceOp
from psframework.ddp.bucket import Bucket
from psframework.ddp.compression import Compression, aside
from psframework.ddp.residuals import finite
from psframework.optim.scaler import GradScaler


class _Half(Compression):
    _dtype: DType

    def __init__(self, error_feedback: bool = True, scaler: GradScaler | None = None) -> None:
        super().__init__(scaler)
        self._error_feedback = error_feedback

    def __repr__(self) -> str:
        return f"{type(self).__name__}(error_feedback={self._error_feedback})"

    async def _reduce(self, bucket: Bucket) -> int:
        if bucket.buffer.dtype.itemsize <= self._dtype.itemsize:
            await bucket.group.all_reduce(bucket.buffer, ReduceOp.AVG)
            return bucket.buffer.nbytes
        small = await aside(bucket, self._rounded, bucket)
        await bucket.group.all_reduce(small, ReduceOp.AVG)
        await aside(bucket, self._finish, bucket, small)
        return int(small.nbytes)

    def _rounded(self, bucket: Bucket) -> Array:
        """What is sent; with error feedback, the buffer becomes what that lost."""
        buffer = self._residuals.added(bucket) if self._error_feedback else bucket.buffer
        with np.errstate(over="ignore", invalid="ignore"):
            small = buffer.astype(self._dtype)
            if self._error_feedback:
                buffer -= small.astype(buffer.dtype)
        return small

    def _finish(self, bucket: Bucket, small: Array) -> None:
        if self._error_feedback and finite(small):
            self._residuals.keep(bucket, bucket.buffer)
        bucket.buffer[...] = small


class FP16(_Half):
    """Gradients travel as float16: half the bytes of float32. They are added in float32.

    What float16 can't hold (magnitudes above 65,504) arrives as infinity: use a GradScaler, or BF16.

    Args:
        error_feedback: keep what rounding lost, and add it to the next step's gradients. It takes as much
            memory as the gradients.
        scaler: of the losses, if they are scaled.
    """

    _dtype = np.dtype(np.float16)


class BF16(_Half):
    """Gradients travel as bfloat16: half the bytes of float32, with its range but 8 bits of precision.

    Args:
        error_feedback: keep what rounding lost, and add it to the next step's gradients. It takes as much
            memory as the gradients.
        scaler: of the losses, if they are scaled.
    """

    _dtype = backend.bfloat16
