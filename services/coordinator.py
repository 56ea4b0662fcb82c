"""The coordinator: who is in the cluster, which models it holds. `python -m services.coordinator --help`."""

from psframework.cluster.coordinator import build
from psframework.cluster.service import run_service
from psframework.cluster.settings import CoordinatorSettings


def main() -> None:
    """Runs it until SIGTERM."""
    run_service("coordinator", CoordinatorSettings, build)


if __name__ == "__main__":
    main()
