"""Names of functions and classes as they travel: module and qualified name, the same in every process."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MAIN = ("__main__", "__mp_main__")  # the second is what `multiprocessing` calls the script


def qualified_name(target: Any) -> str:
    """Module and name of a function or class; `__main__` goes by its file, which peers import."""
    return f"{module_name(target.__module__ or 'builtins')}.{target.__qualname__}"


def module_name(module: str) -> str:
    """The name that other processes import a module by: a script's is its file's, without the extension."""
    if module not in _MAIN:
        return module
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in _MAIN:  # python -m package.train
        return str(spec.name)
    file = getattr(main, "__file__", None)
    if not file or file.startswith("<"):  # a prompt, a notebook, `python -`
        return "__main__"
    return Path(file).stem


def loaded_module(name: str) -> Any:
    """The module that goes by this name, if it is loaded: nothing is ever imported. None if it is not."""
    found = sys.modules.get(name)
    if found is None and "__main__" in sys.modules and module_name("__main__") == name:
        found = sys.modules["__main__"]
    return found


def class_at(module: str, path: str) -> type | None:
    """The class at a dotted path in a module that is loaded; looks only, calls and imports nothing."""
    found: Any = loaded_module(module)
    for part in path.split("."):
        # Past its own __getattribute__, which may do anything: a lazy module would load itself.
        held = None if found is None else _own_names(found)
        found = None if held is None else held.get(part)
        if not issubclass(type(found), type):  # isinstance() would ask a proxy for its __class__
            return None
    return found  # type: ignore[no-any-return]


def _own_names(holder: Any) -> Mapping[str, Any] | None:
    """What a module or a class holds, by name; None for what has taken a module's place and holds nothing."""
    try:
        return object.__getattribute__(holder, "__dict__")  # type: ignore[no-any-return]
    except AttributeError:
        return None


def class_named(name: str) -> type | None:
    """The class of a qualified name, if its module is loaded."""
    parts = name.split(".", 64)  # a peer may send thousands
    for end in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:end])
        if loaded_module(module) is not None:
            return class_at(module, ".".join(parts[end:]))
    return None


def unreachable(target: Any) -> str:
    """Why peers can't find a function or class by its name; "" if they can."""
    if target.__name__ == "<lambda>":
        return "a lambda has no name to call it by: use def, with @psf.remote above it"
    if "<locals>" in target.__qualname__:
        return (
            "it is made inside a function, so a peer that imports the module doesn't have it: move it to the "
            "top of the module and pass what it needs as arguments, or give it a name= where peers find it"
        )
    return ""


def kind_of(value: object) -> str:
    """What a value is, for messages."""
    return f"an object of {type_name(type(value))}"


def type_name(kind: type) -> str:
    """A type for messages: `int`, but `decimal.Decimal`."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
