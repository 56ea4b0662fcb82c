"""Groups and collectives for clients that can't reach each other. `python -m services.allreduce --help`."""

from psframework.cluster.allreduce import build
from psframework.cluster.service import run_service
from psframework.cluster.settings import AllreduceSettings


def main() -> None:
    """Runs it until SIGTERM."""
    run_service("allreduce", AllreduceSettings, build)


if __name__ == "__main__":
    main()
