"""`psf rref list`: which values members keep for others, and who holds them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.table import Table

from psframework.cli.member import AsJson, Coordinator, Timeout, TlsDir, Where, console
from psframework.cluster.handle import Cluster
from psframework.errors import NotRegistered, PsfError
from psframework.rref.listing import RRefInfo

app = typer.Typer(
    help="See the values that members keep for others.\n\nExample: [bold]psf rref list worker-0[/bold]",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
Found = Mapping[str, "Sequence[RRefInfo] | PsfError"]

# What to look at instead, where a role runs no functions for others.
_INSTEAD = {"parameter-server": "it holds parts of models, which `psf status` shows"}


@app.callback()
def rref() -> None:
    """See the values that members keep for others."""


@app.command("list")
def list_command(
    members: Annotated[list[str] | None, typer.Argument(help="their owners; default: all members")] = None,
    as_json: AsJson = False,
    coordinator: Coordinator = None,
    tls_dir: TlsDir = None,
    timeout: Timeout = 10.0,
) -> None:
    """List values by owner, with who holds a reference to each.

    Example: [bold]psf rref list --json[/bold]
    """
    found = asyncio.run(_look(Where(coordinator, tls_dir, timeout), members or ()))
    if as_json:
        print(json.dumps(as_plain(found), indent=2))
        return
    if any(kept_by(answer) for answer in found.values()):
        console().print(_table(found))
    elif not members:
        print("no RRefs: no member that answered keeps a value for others")
    for owner, answer in found.items():
        if isinstance(answer, PsfError):
            print(answer if str(answer).startswith(owner) else f"{owner}: {answer}")
        elif members and not answer:
            print(f"{owner} owns no RRefs")


async def _look(where: Where, wanted: Sequence[str]) -> Found:
    async with where.connect() as cluster:
        roles = {member.name: member.role for member in cluster.members()}
        names = wanted or [name for name in roles if name != cluster.name]
        answers = await asyncio.gather(
            *(_ask(cluster, name, roles.get(name), where.timeout) for name in names)
        )
        keeps_none = () if wanted else (NotRegistered,)  # a parameter server, say
        return {name: answer for name, answer in zip(names, answers) if not isinstance(answer, keeps_none)}


async def _ask(
    cluster: Cluster, name: str, role: str | None, timeout: float
) -> Sequence[RRefInfo] | PsfError:
    try:
        return await cluster.rrefs.list_of(name, timeout)
    except NotRegistered as error:
        if role is None:
            return error
        return NotRegistered(f"{name} owns no RRefs: {_INSTEAD.get(role, 'it runs no functions for others')}")
    except PsfError as error:
        return error


def kept_by(answer: Sequence[RRefInfo] | PsfError) -> Sequence[RRefInfo]:
    """The values that a member listed; none if it could not be asked."""
    return () if isinstance(answer, PsfError) else answer


def as_plain(found: Found) -> list[dict[str, object]]:
    """The same as dictionaries for JSON."""
    return [
        {"owner": owner, "error": str(answer), "rrefs": []}
        if isinstance(answer, PsfError)
        else {"owner": owner, "error": None, "rrefs": [_plain(info) for info in answer]}
        for owner, answer in found.items()
    ]


def _plain(info: RRefInfo) -> dict[str, object]:
    return {
        "id": str(info.id),
        "type": info.type,
        "state": state(info),
        "age_seconds": info.age,
        "handles": info.handles,
        "holders": [
            {"name": h.name, "incarnation": h.incarnation, "forks": h.forks, "in_flight": h.in_flight}
            for h in info.holders
        ],
    }


def state(info: RRefInfo) -> str:
    """What there is under its name."""
    if not info.ready:
        return "being made"
    return "failed" if info.failed else "ready"


def _table(found: Found) -> Table:
    table = Table()
    for column in ("owner", "id", "type", "state", "age s", "held by"):
        table.add_column(column, overflow="fold")
    for owner, answer in found.items():
        for info in kept_by(answer):
            table.add_row(
                owner, str(info.id), info.type, state(info), f"{info.age:.1f}", "\n".join(_holders(info))
            )
    return table


def _holders(info: RRefInfo) -> list[str]:
    own = [f"itself ({info.handles})"] if info.handles else []
    return own + [
        f"{holder.name} ({holder.forks}" + (f", {holder.in_flight} on the way)" if holder.in_flight else ")")
        for holder in info.holders
    ]
