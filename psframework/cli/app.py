"""The command line `psf`: one Typer application, a module for each command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from psframework.cli import bench, certs, serve, status, up
from psframework.cli.demo import command as demo
from psframework.errors import PsfError

app = typer.Typer(
    name="psf",
    help="Distributed training for NumPy and CuPy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("demo")(demo.demo)
app.command("up")(up.up)
app.command("serve", context_settings=serve.CONTEXT)(serve.serve)
app.command("status")(status.status)
app.add_typer(certs.app, name="certs")
app.command("bench", context_settings=bench.CONTEXT)(bench.bench)


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
    return 0


def _status(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
