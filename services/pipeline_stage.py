"""A pipeline stage: computes parts of models that others feed. `python -m services.pipeline_stage --help`."""

from psframework.cluster.pipeline_stage import build
from psframework.cluster.service import run_service
from psframework.cluster.settings import PipelineStageSettings


def main() -> None:
    """Runs it until SIGTERM."""
    run_service("pipeline-stage", PipelineStageSettings, build)


if __name__ == "__main__":
    main()
