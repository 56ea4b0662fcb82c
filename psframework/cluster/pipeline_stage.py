"""What a pipeline stage's process is made of: a worker by another role, which holds stages of models."""

from __future__ import annotations

from psframework.cluster.service import Parts
from psframework.cluster.settings import PipelineStageSettings
from psframework.cluster.worker import build as build_worker


async def build(parts: Parts[PipelineStageSettings]) -> None:
    """Opens it; modules of the user are found by what it imported (`--import`)."""
    await build_worker(parts)
