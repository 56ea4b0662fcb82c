"""A pipeline's driver: starts stages, feeds and watches them. `python -m services.pipeline --help`."""

from psframework.cluster.pipeline import build
from psframework.cluster.service import run_service
from psframework.cluster.settings import PipelineSettings


def main() -> None:
    """Runs it until SIGTERM."""
    run_service("pipeline", PipelineSettings, build)


if __name__ == "__main__":
    main()
