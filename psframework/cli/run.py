"""`psf run`: several ranks of one script on this machine, with everything that they need."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated

import typer

from psframework.cluster.launch.launcher import Launcher, LaunchOptions
from psframework.cluster.launch.lines import Lines, wants_colour
from psframework.cluster.launch.program import Program
from psframework.cluster.settings import Settings

CONTEXT = {"allow_interspersed_args": False}  # what follows the script is the script's
app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(context_settings=CONTEXT)
def run(
    script: Annotated[str, typer.Argument(help="the script, or with -m the module")],
    arguments: Annotated[list[str] | None, typer.Argument(help="its own arguments")] = None,
    nproc_per_node: Annotated[int, typer.Option(min=1, help="how many ranks run on this machine")] = 1,
    coordinator: Annotated[
        str | None,
        typer.Option(help="HOST:PORT of a cluster to join; default: PSF_COORDINATOR, else one is started"),
    ] = None,
    parameter_servers: Annotated[int, typer.Option(min=0, help="shards of the parameter server")] = 0,
    workers: Annotated[
        int, typer.Option(min=0, help="processes that run functions for others; they import the script")
    ] = 0,
    name: Annotated[str, typer.Option(help="ranks are called NAME-0, NAME-1, ...")] = "rank",
    module: Annotated[bool, typer.Option("-m", "--module", help="run a module, as python -m does")] = False,
) -> None:
    """Run a script as N ranks: processes that find each other by `psf.connect()` without arguments.

    Each has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT, as torchrun sets them, and PSF_COORDINATOR and PSF_NAME; BLAS
    gets its share of the cores. What a rank prints is shown behind its number.
    If one fails the others are ended, and its status is that of the command.

    Example: [bold]psf run --nproc-per-node 2 train.py --epochs 5[/bold]
    ([bold]psf run --nproc-per-node 2 -m my_package.train[/bold])
    """
    program = Program(script, tuple(arguments or ()), module)
    if program.folder not in sys.path:
        sys.path.insert(0, program.folder)
    program.check()
    cluster = Settings.load(coordinator=coordinator).coordinator
    options = LaunchOptions(program, nproc_per_node, name, cluster, parameter_servers, workers)
    raise typer.Exit(asyncio.run(_launch(options)))


async def _launch(options: LaunchOptions) -> int:
    lines = Lines(sys.stdout, colour=wants_colour(sys.stdout, os.environ))
    launcher = Launcher(options, lines.show)
    lines.on_closed = launcher.reader_left
    try:
        return await launcher.run()
    finally:
        lines.end()
