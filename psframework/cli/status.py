"""`psf status`: who is in the cluster, and which models it holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

import grpc
import typer
from rich.table import Table

from psframework.cli.member import AsJson, Coordinator, Timeout, TlsDir, console
from psframework.cluster.connect import client_security
from psframework.cluster.settings import Settings
from psframework.errors import ConfigurationError, PeerLost, PsfError
from psframework.proto.v1.coordinator_pb2 import ListMembersRequest, ListMembersResponse, Member, MemberState
from psframework.proto.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from psframework.proto.v1.parameter_server_pb2 import ListModelsReply, ListModelsRequest, ModelInfo
from psframework.proto.v1.parameter_server_pb2_grpc import ModelServiceStub
from psframework.rpc.security.credentials import Security
from psframework.rpc.status import RpcFailure, from_rpc_error

_LISTED = 20

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command()
def status(
    coordinator: Coordinator = None,
    tls_dir: TlsDir = None,
    as_json: AsJson = False,
    timeout: Timeout = 5.0,
) -> None:
    """Show the members of a cluster and its models.

    Example: [bold]psf status --coordinator 127.0.0.1:7070 --json[/bold]
    """
    settings = Settings.load(coordinator=coordinator, tls_dir=tls_dir)
    members, models = look(settings.coordinator, client_security(settings), timeout)
    if as_json:
        print(json.dumps(as_plain(members, models), indent=2))
        return
    if members.members:
        console().print(_member_table(members))
    else:
        print("no members yet: `psf serve` starts services, and programs join by `psf.connect()`")
    if models.models:
        console().print(_model_table(models))
    elif any(member.role == "parameter-server" for member in members.members):
        print("no models yet: programs put one on parameter servers by `cluster.parameter_server(model)`")


def look(
    addresses: Sequence[str], security: Security, timeout: float
) -> tuple[ListMembersResponse, ListModelsReply]:
    """Asks the first coordinator that answers.

    Raises:
        ConfigurationError: no address.
        PsfError: none answered; the error of the last one.
    """
    if not addresses:
        raise ConfigurationError("whose status? Pass --coordinator HOST:PORT, or set PSF_COORDINATOR")
    failure: PsfError = PeerLost("no coordinator answered")
    for address in addresses:
        with security.sync_channel(address, role="coordinator") as channel:
            try:
                members = CoordinatorServiceStub(channel).ListMembers(ListMembersRequest(), timeout=timeout)
                models = ModelServiceStub(channel).ListModels(ListModelsRequest(), timeout=timeout)
            except grpc.RpcError as error:
                failure = from_rpc_error(cast(RpcFailure, error), peer=address, hint=security.hint)
            else:
                return members, models
    raise failure


def as_plain(members: ListMembersResponse, models: ListModelsReply) -> dict[str, object]:
    """The same as dictionaries for JSON."""
    return {
        "term": members.term,
        "view": members.number,
        "members": [
            {
                "name": member.name,
                "role": member.role,
                "job": member.job,
                "incarnation": member.incarnation,
                "state": _state(member),
                "addresses": list(member.addresses),
                "lease_seconds": member.lease_seconds,
            }
            for member in members.members
        ],
        "models": [
            {
                "job": model.job,
                "model": model.model,
                "parameters": len(model.parameters),
                "partitions": model.partitions,
                "policy": json.loads(model.policy or "null"),
                "optimizer": json.loads(model.rule or "null"),
                "shards": [shard.name for shard in model.shards],
                "trainers": _trainers(model),
            }
            for model in models.models
        ],
    }


def _member_table(members: ListMembersResponse) -> Table:
    title = f"members (term {members.term})"
    table = _table("name", "role", "job", "state", "addresses", title=title)
    for member in members.members:
        table.add_row(member.name, member.role, member.job, _state(member), ", ".join(member.addresses))
    return table


def _model_table(models: ListModelsReply) -> Table:
    table = _table("model", "parameters", "policy", "optimizer", "shards", "trainers", title="models")
    for model in models.models:
        rule = json.loads(model.rule or "{}").get("name", "-")
        policy = json.loads(model.policy or "{}").get("name", "-")
        trainers = _trainers(model)
        more = f", and {len(trainers) - _LISTED} more" if len(trainers) > _LISTED else ""
        table.add_row(
            f"{model.job}/{model.model}",
            str(len(model.parameters)),
            str(policy),
            str(rule),
            ", ".join(shard.name for shard in model.shards),
            ", ".join(trainers[:_LISTED]) + more,
        )
    return table


def _table(*columns: str, title: str) -> Table:
    """Long names go on in the next line: a name that is cut short can't be copied or searched for."""
    table = Table(title=title)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _state(member: Member) -> str:
    return MemberState.Name(member.state).removeprefix("MEMBER_STATE_").lower()


def _trainers(model: ModelInfo) -> list[str]:
    return [entry.name for entry in model.roster.entries if entry.writer and not entry.until_step_plus_one]
