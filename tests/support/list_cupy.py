"""Writes `psframework/testing/cupy_api.txt`: what CuPy has, read out of its wheel, without importing it.

pip download cupy-cuda12x --no-deps && python tests/support/list_cupy.py cupy_cuda12x-*.whl
"""

from __future__ import annotations

import ast
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

TARGET = Path(__file__).parents[2] / "psframework" / "testing" / "cupy_api.txt"
MODULES = ("cupy", "cupy.linalg", "cupy.random", "cupy.fft", "cupy.lib.stride_tricks")
COMPILED = {
    "ndarray": ("cupy/_core/core.", r"_ndarray_base\.(\w+)\(self(?:, )?((?:[^()]|\([^()]*\))*)\)"),
    "random.Generator": (
        "cupy/random/_generator_api.",
        r"Generator\.(\w+)\(self(?:, )?((?:[^()]|\([^()]*\))*)\)",
    ),
}
# Properties of arrays, whose names the compiled module holds but not as signatures.
ATTRIBUTES = "T base data device dtype flags flat imag itemsize mT nbytes ndim real shape size strides"


class Wheel:
    """The Python sources of a CuPy wheel."""

    def __init__(self, path: str) -> None:
        self.archive = zipfile.ZipFile(path)
        self.names = set(self.archive.namelist())
        self._trees: dict[str, ast.Module | None] = {}
        self.version = re.search(r"-(\d[\w.]*)-", Path(path).name)[1]  # type: ignore[index]

    def tree(self, module: str) -> ast.Module | None:
        """The syntax tree of a module; None if it is compiled."""
        if module not in self._trees:
            stem = module.replace(".", "/")
            found = [name for name in (f"{stem}.py", f"{stem}/__init__.py") if name in self.names]
            self._trees[module] = ast.parse(self.archive.read(found[0])) if found else None
        return self._trees[module]

    def parameters(self, module: str, name: str) -> str:
        """Parameter names of a function, "?" where its source is compiled."""
        tree = self.tree(module)
        for node in tree.body if tree else ():
            if isinstance(node, ast.FunctionDef) and node.name == name:
                every = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                more = ["*"] if node.args.vararg else []
                return " ".join(
                    [*(argument.arg for argument in every), *more, *(["**"] if node.args.kwarg else [])]
                )
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name and node.module not in (None, module):
                        return self.parameters(node.module, alias.name)
        return "?"

    def functions(self, module: str) -> Iterator[tuple[str, str]]:
        """Public names of a module, and their parameters."""
        tree = self.tree(module)
        for node in tree.body if tree else ():
            names = []
            if isinstance(node, ast.ImportFrom | ast.Import):
                names = [alias.asname or alias.name for alias in node.names]
            elif isinstance(node, ast.FunctionDef):
                names = [node.name]
            elif isinstance(node, ast.Assign):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            for name in names:
                if not name.startswith("_") and name not in ("annotations", "np"):
                    yield name, self.parameters(module, name)

    def methods(self, prefix: str, pattern: str) -> Iterator[tuple[str, str]]:
        """Methods of a compiled class, out of the signatures in its documentation strings."""
        (binary,) = [name for name in self.names if name.startswith(prefix) and name.endswith(".so")]
        text = self.archive.read(binary).decode("latin1")
        for name, arguments in re.findall(pattern, text):
            if not name.startswith("_"):
                parts = [part.split("=")[0].split() for part in arguments.split(",") if part.strip()]
                yield name, " ".join(part[-1] for part in parts if part[-1] != "*") or "-"


def main() -> None:
    wheel = Wheel(sys.argv[1])
    lines = {}
    for module in MODULES:
        for name, parameters in wheel.functions(module):
            lines.setdefault(f"{module}.{name}".removeprefix("cupy."), parameters or "-")
    for owner, (prefix, pattern) in COMPILED.items():
        for name, parameters in wheel.methods(prefix, pattern):
            lines.setdefault(f"{owner}.{name}", parameters.replace("*shape", "*").replace("*axes", "*"))
    for name in ATTRIBUTES.split():
        lines[f"ndarray.{name}"] = "attribute"
    head = f"# CuPy {wheel.version}: public names and parameters, by tests/support/list_cupy.py\n"
    TARGET.write_text(head + "".join(f"{name} {lines[name]}\n" for name in sorted(lines)))


if __name__ == "__main__":
    main()
