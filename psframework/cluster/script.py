"""The calling script in other processes: workers import it, as `multiprocessing` does when it spawns.

What a script registers with `@psf.remote` goes by its file's name, `train.add` for train.py, here and there.
A worker imports the module `train` from the same folder; it never runs what stands under the main guard.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psframework.errors import ConfigurationError
from psframework.rpc.naming import module_name

GUARD = """
    if __name__ == "__main__":
        asyncio.run(main())"""

_importing: list[str] = []  # modules that a service is importing at this moment, the innermost last


class Unguarded(ConfigurationError):
    """A module that a worker imports runs a program of its own, without a main guard."""


def calling_script() -> str | None:
    """The module by which other processes can import what runs here; None at a prompt or in a notebook.

    The main files of packages (`__main__.py`) are not imported, since most run without a guard.

    Raises:
        ConfigurationError: it can't be imported.
    """
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is None and (file is None or Path(file).suffix != ".py"):
        return None
    name = module_name("__main__")
    if spec is None and "." in name:
        raise ConfigurationError(f"workers import {file}, and no module has a dot in its name: rename it")
    return None if name.rpartition(".")[2] == "__main__" else name


def import_path() -> str:
    """A PYTHONPATH by which another process finds the modules that this one finds."""
    folders = [os.path.abspath(folder) for folder in sys.path]
    return os.pathsep.join(folder for folder in dict.fromkeys(folders) if os.pathsep not in folder)


def find_modules_here() -> None:
    """The command `psf` finds modules in the folder where it is started, as `python -m` does."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def import_module(name: str) -> None:
    """Imports a module of the user into a service.

    Raises:
        ConfigurationError: it can't be imported; says why, and shows the main guard where one is missing.
    """
    try:
        with importing(name):
            importlib.import_module(name)
    except Unguarded:
        raise
    except Exception as error:
        text = f"--import {name}: {type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
            text += f"; it is in no folder of PYTHONPATH, nor in {os.getcwd()}"
        raise ConfigurationError(text) from error


def check_guarded(what: str) -> None:
    """Raises Unguarded if `what` is asked for by a module while a service imports it."""
    if _importing:
        name = _importing[-1]
        raise Unguarded(
            f"{name} calls {what} as soon as it is imported, and a worker has just imported it to know its "
            f"functions. Put what {name}.py runs under a main guard:\n{GUARD}\n"
        )


@contextmanager
def importing(name: str) -> Iterator[None]:
    """While a service imports the module `name`."""
    _importing.append(name)
    try:
        yield
    finally:
        _importing.pop()
