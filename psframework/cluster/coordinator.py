"""What the coordinator's process is made of: leases and views, keys, barriers, and the keeper of models."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from psframework.cluster.service import Parts
from psframework.cluster.settings import CoordinatorSettings
from psframework.errors import ConfigurationError
from psframework.membership.coordinator import Coordinator
from psframework.membership.servicer import CoordinatorServicer
from psframework.membership.store import SqliteStore
from psframework.parameter_server.keeper import Keeper
from psframework.parameter_server.keeper_servicer import KeeperServicer
from psframework.proto.v1.coordinator_pb2_grpc import add_CoordinatorServiceServicer_to_server
from psframework.proto.v1.parameter_server_pb2_grpc import add_ModelServiceServicer_to_server


async def build(parts: Parts[CoordinatorSettings]) -> None:
    """Opens the store and what is kept in it."""
    store = SqliteStore(_state(parts))
    coordinator = await parts.stack.enter_async_context(Coordinator(store))
    parts.on_drain.append(coordinator.suspend)
    keeper = await parts.stack.enter_async_context(Keeper(coordinator, parts.security))
    parts.servicers.append((add_ModelServiceServicer_to_server, KeeperServicer(keeper)))
    parts.servicers.append((add_CoordinatorServiceServicer_to_server, CoordinatorServicer(coordinator)))


def _state(parts: Parts[CoordinatorSettings]) -> Path:
    """Where the state is kept; its folder is made."""
    path = parts.settings.state or default_state(parts.settings.bind)
    if path is None:
        folder = parts.stack.enter_context(tempfile.TemporaryDirectory(prefix="psf-coordinator-"))
        return Path(folder) / "coordinator.sqlite"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--state {path}: {error}") from error
    return path


def default_state(bind: str) -> Path | None:
    """A file that belongs to the port, so that a restart goes on; None with a port that changes anyway."""
    port = bind.rpartition(":")[2]
    if port in ("", "0"):
        return None
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "psframework" / f"coordinator-{port}.sqlite"
