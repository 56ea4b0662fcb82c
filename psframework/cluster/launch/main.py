"""The process of one rank: `python -m psframework.cluster.launch.main script train.py ARGUMENTS`.

It runs the program as `python train.py` would, and beside that only ends when `psf run` has died, however
that died, and gives BLAS its share of the cores before the program has begun.
"""

from __future__ import annotations

import os
import runpy
import sys
from io import open_code
from types import ModuleType, TracebackType

from psframework.cluster.launch.program import MODULE, Program
from psframework.rpc.process import PARENT_FD, configure_process, exit_with_parent

_NOT_THE_PROGRAM = (__file__, "<frozen runpy>")


def main() -> None:
    """Becomes the program."""
    kind, target, *arguments = sys.argv[1:]
    exit_with_parent()
    os.environ.pop(PARENT_FD, None)  # its number means nothing to what the program starts
    configure_process()
    program = Program(target, tuple(arguments), kind == MODULE)
    sys.argv = [target, *arguments]
    sys.excepthook = _show
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, program.folder)
    if program.is_module:
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        _run_script(os.path.abspath(target))


def _run_script(path: str) -> None:
    """As the interpreter does it; `runpy.run_path` would put the path into argv."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = path
    with open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A traceback that begins in the program, as `python train.py` shows it."""
    while trace is not None and trace.tb_frame.f_code.co_filename in _NOT_THE_PROGRAM:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


if __name__ == "__main__":
    main()
