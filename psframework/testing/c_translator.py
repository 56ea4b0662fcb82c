"""CUDA C as Python: the few constructs that our kernels use, so that their sources run where no GPU is.

Each function becomes a generator. It yields where the threads of a block meet, at barriers and shuffles:
`kernel_emulator` runs all threads from one such place to the next.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from pycparser import c_ast, c_parser

MEETINGS = {"__syncthreads": "sync", "__shfl_xor_sync": "shuffle"}
_QUALIFIERS = re.compile(r'extern "C"|__global__|__device__|__forceinline__')


def _prepared(source: str, types: str) -> str:
    """The source as plain C: shared arrays are `static`, which means the same for one block."""
    source = re.sub(r"//[^\n]*", "", source)
    return types + _QUALIFIERS.sub("", source).replace("__shared__", "static")


@cache
def translate(source: str, types: str, built_in: frozenset[str]) -> str:
    """Python source of every function in `source`.

    Args:
        source: CUDA C.
        types: typedefs that it needs, as C.
        built_in: functions that the emulator supplies as ordinary ones.
    """
    tree = c_parser.CParser().parse(_prepared(source, types))
    functions = [node for node in tree.ext if isinstance(node, c_ast.FuncDef)]
    results = {node.decl.name: _type_of(node.decl.type) for node in functions}
    return "\n\n".join(_Function(node, results, built_in).text() for node in functions)


def _type_of(node: Any) -> str:
    while not isinstance(node, c_ast.IdentifierType):
        node = node.type
    return " ".join(node.names)


def _is_integer(kind: str) -> bool:
    return any(word in kind.split() for word in ("int", "long", "unsigned", "short"))


class _Function:
    """One function on its way to Python."""

    def __init__(self, node: Any, results: dict[str, str], built_in: frozenset[str]) -> None:
        self._node, self._results, self._built_in = node, results, built_in
        self._types: dict[str, str] = {}

    def text(self) -> str:
        """Its Python source."""
        parameters = self._node.decl.type.args.params
        for parameter in parameters:
            self._types[parameter.name] = _type_of(parameter.type)
        names = ", ".join(parameter.name for parameter in parameters)
        body = self._block(self._node.body.block_items or [], "    ")
        lines = [f"def {self._node.decl.name}(_, {names}):", *body]
        return "\n".join([*lines, "    yield from ()"])  # a generator, whatever it does

    def _block(self, items: Any, indent: str) -> list[str]:
        lines = [line for item in items for line in self._statement(item, indent)]
        return lines or [indent + "pass"]

    def _body(self, node: Any, indent: str) -> list[str]:
        items = (node.block_items or []) if isinstance(node, c_ast.Compound) else [node]
        return self._block(items, indent)

    def _statement(self, node: Any, indent: str) -> list[str]:
        match node:
            case c_ast.Typedef():
                return []
            case c_ast.Decl():
                return [indent + self._declaration(node)]
            case c_ast.Assignment():
                target, value = self._expression(node.lvalue), self._expression(node.rvalue)
                return [f"{indent}{target} {node.op} {value}"]
            case c_ast.UnaryOp(op="p++") | c_ast.UnaryOp(op="++"):
                return [f"{indent}{self._expression(node.expr)} += 1"]
            case c_ast.FuncCall():
                return [indent + self._expression(node)]
            case c_ast.Return():
                return [f"{indent}return {self._expression(node.expr)}"]
            case c_ast.Compound():
                return self._body(node, indent)
            case c_ast.If():
                lines = [
                    f"{indent}if {self._expression(node.cond)}:",
                    *self._body(node.iftrue, indent + "    "),
                ]
                if node.iffalse is not None:
                    lines += [f"{indent}else:", *self._body(node.iffalse, indent + "    ")]
                return lines
            case c_ast.For():
                start = [self._declaration(decl) for decl in node.init.decls]
                inside = self._body(node.stmt, indent + "    ") + self._statement(node.next, indent + "    ")
                return [
                    *(indent + line for line in start),
                    f"{indent}while {self._expression(node.cond)}:",
                    *inside,
                ]
        raise NotImplementedError(f"{type(node).__name__} in a kernel, at {node.coord}")

    def _declaration(self, node: Any) -> str:
        self._types[node.name] = _type_of(node.type)
        if isinstance(node.type, c_ast.ArrayDecl):
            return f"{node.name} = _.shared({node.name!r}, {self._expression(node.type.dim)})"
        return f"{node.name} = {self._expression(node.init) if node.init else 0}"

    def _expression(self, node: Any) -> str:
        match node:
            case c_ast.Constant():
                return str(node.value).rstrip("uLl" if node.type != "float" else "fF")
            case c_ast.ID():
                return str(node.name)
            case c_ast.ArrayRef():
                return f"{self._expression(node.name)}[{self._expression(node.subscript)}]"
            case c_ast.StructRef():
                return f"_.{node.name.name}.{node.field.name}"
            case c_ast.Cast():
                kind = _type_of(node.to_type.type)
                return (
                    f"int({self._expression(node.expr)})"
                    if _is_integer(kind)
                    else self._expression(node.expr)
                )
            case c_ast.TernaryOp():
                parts = (self._expression(part) for part in (node.iftrue, node.cond, node.iffalse))
                return "({} if {} else {})".format(*parts)
            case c_ast.UnaryOp(op="sizeof"):
                return "_.itemsize"
            case c_ast.UnaryOp():
                return f"({'not ' if node.op == '!' else node.op}{self._expression(node.expr)})"
            case c_ast.BinaryOp():
                return self._binary(node)
            case c_ast.FuncCall():
                return self._call(node)
        raise NotImplementedError(f"{type(node).__name__} in a kernel, at {node.coord}")

    def _binary(self, node: Any) -> str:
        whole = self._is_whole(node.left) and self._is_whole(node.right)
        operators = {"&&": "and", "||": "or", "/": "//" if whole else "/"}
        operator = operators.get(node.op, node.op)
        return f"({self._expression(node.left)} {operator} {self._expression(node.right)})"

    def _call(self, node: Any) -> str:
        name = node.name.name
        arguments = [self._expression(argument) for argument in (node.args.exprs if node.args else [])]
        if name in MEETINGS:
            return f"(yield ({MEETINGS[name]!r}, {', '.join(arguments[1:]) or None}))"
        if name in self._results:
            return f"(yield from {name}({', '.join(['_', *arguments])}))"
        if name not in self._built_in:
            raise NotImplementedError(f"{name}() in a kernel, at {node.coord}")
        return f"_.{name}({', '.join(arguments)})"

    def _is_whole(self, node: Any) -> bool:
        """Whether C would divide it as an integer."""
        match node:
            case c_ast.Constant():
                return bool(node.type != "float" and node.type != "double")
            case c_ast.ID():
                return _is_integer(self._types.get(node.name, ""))
            case c_ast.ArrayRef():
                return self._is_whole(node.name)
            case c_ast.StructRef():
                return True
            case c_ast.Cast():
                return _is_integer(_type_of(node.to_type.type))
            case c_ast.BinaryOp():
                return self._is_whole(node.left) and self._is_whole(node.right)
            case c_ast.FuncCall():
                return _is_integer(self._results.get(node.name.name, ""))
            case c_ast.TernaryOp():
                return self._is_whole(node.iftrue) and self._is_whole(node.iffalse)
        return False
