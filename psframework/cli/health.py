"""`psf health ADDRESS`: one standard gRPC health check, for containers and scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import grpc
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from psframework.errors import PsfError
from psframework.rpc.security.credentials import Security
from psframework.rpc.status import RpcFailure, from_rpc_error

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command()
def health(
    address: Annotated[str, typer.Argument(help="HOST:PORT of the service")],
    role: Annotated[str, typer.Option(help="role that its certificate must have")] = "",
    service: Annotated[
        str, typer.Option(help="full name of one gRPC service; default: the whole server")
    ] = "",
    tls_dir: Annotated[
        Path | None, typer.Option(envvar="PSF_TLS_DIR", help="folder with our certificate")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds to wait")] = 5.0,
) -> None:
    """Ask a service whether it serves; exit status 0 if it does, 1 if not.

    Example: [bold]psf health 127.0.0.1:7070 --role coordinator --tls-dir certs/trainer[/bold]
    """
    security = Security.from_settings(tls_dir=tls_dir)
    try:
        answer = check(security, address, role=role, service=service, timeout=timeout)
    except PsfError as error:
        answer = f"no answer: {error}"
    print(answer)
    raise typer.Exit(0 if answer == "SERVING" else 1)


def check(
    security: Security, address: str, *, role: str = "", service: str = "", timeout: float = 5.0
) -> str:
    """The health status as a word: SERVING, NOT_SERVING, ...

    Raises:
        PsfError: the service can't be reached, or it refused us.
    """
    with security.sync_channel(address, role=role) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            reply = stub.Check(request, timeout=timeout)
        except grpc.RpcError as error:
            raise from_rpc_error(cast(RpcFailure, error), peer=address, hint=security.hint) from error
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))
