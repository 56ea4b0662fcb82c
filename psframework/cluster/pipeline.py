"""What a pipeline driver's process is made of: a worker by another role, which chains stages."""

from __future__ import annotations

from psframework.cluster.service import Parts
from psframework.cluster.settings import PipelineSettings
from psframework.cluster.worker import build as build_worker


async def build(parts: Parts[PipelineSettings]) -> None:
    """Opens it; modules of the user are found by what it imported (`--import`)."""
    await build_worker(parts)
