"""`psf serve SERVICE`: runs one service in this process, as `python -m services.SERVICE` does."""

from __future__ import annotations

import difflib
import importlib.util
import pkgutil
import runpy
import sys
from typing import Annotated

import typer

from psframework.cluster.script import find_modules_here
from psframework.errors import NotRegistered

CONTEXT = {"allow_extra_args": True, "allow_interspersed_args": False, "ignore_unknown_options": True}
app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(context_settings=CONTEXT)
def serve(
    context: typer.Context,
    service: Annotated[
        str,
        typer.Argument(
            help="coordinator, parameter-server, worker, pipeline-stage, pipeline, allreduce; "
            "its own flags follow"
        ),
    ],
) -> None:
    """Run one service; everything after its name is for the service.

    Example: [bold]psf serve parameter-server --coordinator 127.0.0.1:7070[/bold]
    ([bold]psf serve parameter-server --help[/bold] lists its flags)
    """
    module = find_service(service)
    find_modules_here()
    sys.argv = [f"psf serve {service}", *context.args]
    runpy.run_module(module, run_name="__main__", alter_sys=False)


def find_service(name: str) -> str:
    """The module of the service `name`.

    Raises:
        NotRegistered: there is none; the message lists those that exist and a near one.
    """
    known = services()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise NotRegistered(f"no service {name!r}; there are {', '.join(sorted(known))}{hint}")
    return known[name]


def services() -> dict[str, str]:
    """Service name -> module, of those that are installed."""
    spec = importlib.util.find_spec("services")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    return {info.name.replace("_", "-"): f"services.{info.name}" for info in pkgutil.iter_modules(folders)}
