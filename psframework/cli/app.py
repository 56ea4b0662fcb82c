"""The command line `psf`: one Typer application, a module for each command, imported when it is asked for."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from psframework.errors import PsfError

# Imported late: a health check must not pay for what the demo needs.
COMMANDS = {
    "demo": "psframework.cli.demo.command",
    "up": "psframework.cli.up",
    "serve": "psframework.cli.serve",
    "run": "psframework.cli.run",
    "status": "psframework.cli.status",
    "call": "psframework.cli.call",
    "rref": "psframework.cli.rref",
    "health": "psframework.cli.health",
    "certs": "psframework.cli.certs",
    "bench": "psframework.cli.bench",
}


class LateGroup(TyperGroup):
    """The commands of `COMMANDS`; each module offers its `app`. (Types of Typer's click are private.)"""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Imports one; None if there is no such command."""
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        found = typer.main.get_command(importlib.import_module(module).app)
        found.name = cmd_name
        return found


app = typer.Typer(
    name="psf",
    cls=LateGroup,
    help="Distributed training for NumPy and CuPy.\n\n"
    "Example: [bold]psf up --workers 2[/bold] (each command has more: [bold]psf up --help[/bold])",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback()
def psf() -> None:
    """Distributed training for NumPy and CuPy."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; an error of ours is one line and exit status 2, never a traceback."""
    try:
        app(args=None if arguments is None else list(arguments), standalone_mode=True)
    except PsfError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except SystemExit as end:
        return _status(end)
    except KeyboardInterrupt:
        return 130
    except asyncio.CancelledError:  # a command that SIGTERM ended
        return 143
    return 0


def _status(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
