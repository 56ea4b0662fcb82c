"""`psf call NAME FUNCTION ARGS...`: calls a registered function of a member, or lists what it offers."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from psframework.autograd import Tensor
from psframework.cli.member import AsJson, Coordinator, Timeout, TlsDir, Where, console
from psframework.errors import ArgumentError, RemoteError
from psframework.proto.v1.remote_pb2 import DescribeReply, FunctionInfo
from psframework.rpc.registry import Kind

_WIDEST = 36
_FIGURES = ("calls", "errors", "cancelled", "refused", "running")
_SECONDS = ("seconds", "seconds_p50", "seconds_p90", "seconds_p99")
CONTEXT = {"ignore_unknown_options": True}  # negative numbers are arguments
app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(context_settings=CONTEXT)
def call(
    member: Annotated[str, typer.Argument(help="whose function: worker-0, trainer-1, ...")],
    function: Annotated[str, typer.Argument(help="the name it is registered under")] = "",
    arguments: Annotated[
        list[str] | None, typer.Argument(help="positional arguments, as JSON; what is none is text")
    ] = None,
    named: Annotated[str, typer.Option("--kwargs", help="JSON object of named arguments")] = "{}",
    listing: Annotated[bool, typer.Option("--list", help="list its functions, with their figures")] = False,
    as_json: AsJson = False,
    coordinator: Coordinator = None,
    tls_dir: TlsDir = None,
    timeout: Timeout = 60.0,
) -> None:
    """Call a function of a member and print its result; each item of a generator is a line.

    Example: [bold]psf call worker-0 my_module.add 1 2[/bold]
    ([bold]psf call worker-0 --list[/bold])
    """
    where = Where(coordinator, tls_dir, timeout)
    if listing:
        reply = asyncio.run(_describe(where, member))
        if as_json:
            print(json.dumps(described(reply), indent=2))
        else:
            console().print(_table(member, reply))
        return
    if not function:
        raise ArgumentError(f"which function of {member}? `psf call {member} --list` lists them")
    args = [parsed(text) for text in arguments or ()]
    kwargs = parsed(named)
    if not isinstance(kwargs, dict):
        raise ArgumentError(f"--kwargs {named}: a JSON object, such as '{{\"x\": 1}}'")
    show = _as_json if as_json else repr
    try:
        asyncio.run(_call(where, member, function, args, kwargs, show))
    except RemoteError as error:
        print(error.remote_traceback, file=sys.stderr, end="")
        raise


async def _call(
    where: Where, member: str, function: str, args: Sequence[Any], kwargs: Mapping[str, Any], show: Any
) -> None:
    async with where.connect() as cluster:
        reply = await cluster.describe(member, where.timeout)
        kinds = {info.name: info.kind for info in reply.functions}
        if kinds.get(function) in (Kind.GENERATOR.value, Kind.ASYNC_GENERATOR.value):
            async for item in cluster.rpc_stream(member, function, args, kwargs, where.timeout):
                print(show(item), flush=True)
        else:
            print(show(await cluster.rpc_async(member, function, args, kwargs, where.timeout)))


async def _describe(where: Where, member: str) -> DescribeReply:
    async with where.connect() as cluster:
        return await cluster.describe(member, where.timeout)


def parsed(text: str) -> Any:
    """A JSON value; text that is none stands for itself, so that names need no quotes within quotes."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def plain(value: Any) -> Any:
    """What of a result JSON can say; the rest as its `repr`."""
    if isinstance(value, Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return repr(value)


def _as_json(value: Any) -> str:
    return json.dumps(plain(value))


def described(reply: DescribeReply) -> dict[str, object]:
    """What `--list --json` prints."""
    return {
        "running": reply.running,
        "queued": reply.queued,
        "threads": reply.threads,
        "functions": [_function(info) for info in reply.functions],
    }


def _function(info: FunctionInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "kind": info.kind,
        "idempotent": info.idempotent,
        "roles": list(info.roles),
        **{name: getattr(info, name) for name in (*_FIGURES, *_SECONDS)},
    }


def _table(member: str, reply: DescribeReply) -> Table:
    title = f"{member}: {reply.running} running, {reply.queued} waiting, {reply.threads} threads"
    table = Table(title=title)
    longest = max((len(info.name) for info in reply.functions), default=0)
    table.add_column("function", overflow="fold", min_width=min(longest, _WIDEST))
    table.add_column("kind")
    for column in ("calls", "errors", "refused", "p50 ms", "p99 ms"):
        table.add_column(column, justify="right")
    for info in reply.functions:
        kind = "\n".join(filter(None, (info.kind, ", ".join(info.roles) and f"for {', '.join(info.roles)}")))
        counts = (str(info.calls), str(info.errors), str(info.refused))
        times = (f"{info.seconds_p50 * 1e3:.2f}", f"{info.seconds_p99 * 1e3:.2f}")
        table.add_row(info.name, kind, *counts, *times)
    return table
