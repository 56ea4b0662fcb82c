"""A worker: runs functions for others, and keeps values for them. `python -m services.worker --help`."""

from psframework.cluster.service import run_service
from psframework.cluster.settings import WorkerSettings
from psframework.cluster.worker import build


def main() -> None:
    """Runs it until SIGTERM."""
    run_service("worker", WorkerSettings, build)


if __name__ == "__main__":
    main()
