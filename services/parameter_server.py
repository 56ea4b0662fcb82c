"""One shard of the parameter server. `python -m services.parameter_server --help`."""

from psframework.cluster.service import Parts, run_service
from psframework.cluster.settings import ParameterServerSettings
from psframework.parameter_server.servicer import ShardServicer


async def build(parts: Parts[ParameterServerSettings]) -> None:
    """A shard is one typed service."""
    parts.services.append(ShardServicer(parts.settings.memory_limit, parts.may_serve))


def main() -> None:
    """Runs it until SIGTERM."""
    run_service("parameter-server", ParameterServerSettings, build)


if __name__ == "__main__":
    main()
