"""`psf up`: a cluster of real processes on this machine, in the foreground, until Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from psframework.cluster.local import LocalCluster, LocalOptions
from psframework.cluster.script import find_modules_here

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command()
def up(
    parameter_servers: Annotated[int, typer.Option(min=0, help="shards of the parameter server")] = 2,
    workers: Annotated[int, typer.Option(min=0, help="processes that run functions for others")] = 0,
    stages: Annotated[int, typer.Option(min=0, help="pipeline stages")] = 0,
    pipelines: Annotated[int, typer.Option(min=0, help="drivers of pipelines")] = 0,
    allreduce: Annotated[int, typer.Option(min=0, help="services that reduce arrays centrally")] = 0,
    imports: Annotated[
        list[str] | None, typer.Option("--import", help="module that workers and stages import; repeatable")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="ROLE:FUNCTION that they serve; default: all; repeatable")
    ] = None,
    bind: Annotated[str, typer.Option(help="where the coordinator listens; loopback only")] = "127.0.0.1:0",
    lanes: Annotated[str | None, typer.Option(help="lanes to offer, for tests: inline,striped,shm")] = None,
) -> None:
    """Start a coordinator, parameter-server shards, workers and stages here, and keep them up until Ctrl-C.

    What they print and log appears here. Other processes of the same user find the token by themselves.

    Example: [bold]psf up --parameter-servers 2 --workers 2 --import my_module --bind 127.0.0.1:7070[/bold]
    """
    options = LocalOptions(
        parameter_servers=parameter_servers,
        lanes=lanes,
        bind=bind,
        workers=workers,
        imports=tuple(imports or ()),
        worker_flags=tuple(flag for rule in allow or () for flag in ("--allow", rule)),
        stages=stages,
        pipelines=pipelines,
        allreduce=allreduce,
        on_line=_show,
    )
    find_modules_here()
    asyncio.run(_serve(options, Console()))


async def _serve(options: LocalOptions, console: Console) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)  # while it starts, as Ctrl-C does
    async with LocalCluster(options) as local:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        console.print(_table(local))
        print(f"in another terminal: export PSF_COORDINATOR={local.address}", flush=True)
        watchers = [asyncio.ensure_future(_report_end(local, name)) for name in local.processes]
        try:
            await stop.wait()
        finally:
            for watcher in watchers:
                watcher.cancel()
        print("stopping", flush=True)


def _show(name: str, line: str) -> None:
    """What functions print and services log, but for what the table says."""
    if not line.startswith(("serving on ", "joined as ")):
        print(f"{name} | {line}", flush=True)


async def _report_end(local: LocalCluster, name: str) -> None:
    """Says so when a service ends by itself; the rest goes on, as a cluster would."""
    process = local.processes[name]
    code = await process.wait_ended()
    print(f"{name} ended with status {code}: {process.last_words}", flush=True)


def _table(local: LocalCluster) -> Table:
    table = Table("service", "pid", "address")
    for name, process in local.processes.items():
        table.add_row(name, str(process.pid), process.address)
    return table
