import enum
import sys
import time
import types

import pytest

from psframework.rpc import naming


class Outer:
    class Inner:
        pass


class Colour(enum.Enum):
    RED = 1


def test_names_hold_module_and_path():
    assert naming.qualified_name(Outer.Inner) == f"{__name__}.Outer.Inner"
    assert naming.type_name(int) == "int" and naming.type_name(Outer) == f"{__name__}.Outer"
    assert naming.kind_of(3) == "an object of int"


def test_classes_are_found_by_name_where_their_module_is_loaded():
    assert naming.class_named(f"{__name__}.Outer.Inner") is Outer.Inner
    assert naming.class_at(__name__, "Colour") is Colour
    for name in ("", ".", "nothing", "no.such.Class", f"{__name__}.Outer.Nothing", f"{__name__}.pytest"):
        assert naming.class_named(name) is None


def test_looking_up_a_class_imports_and_calls_nothing(monkeypatch):
    module = types.ModuleType("psf_lazy")
    module.__getattr__ = lambda name: pytest.fail(f"{name} was asked for")
    monkeypatch.setitem(sys.modules, "psf_lazy", module)
    assert naming.class_named("psf_lazy.Thing") is None
    loaded = set(sys.modules)
    assert naming.class_named("xml.dom.minidom.Node") is None or "xml.dom.minidom" in loaded
    assert set(sys.modules) == loaded


def test_an_endless_name_is_looked_up_at_once():
    started = time.monotonic()
    assert naming.class_named("a." * 1_000_000) is None
    assert time.monotonic() - started < 5


def test_a_script_goes_by_its_file(monkeypatch):
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert naming.module_name("__main__") == "__main__"  # a prompt
    main.__file__ = "<stdin>"
    assert naming.module_name("__main__") == "__main__"  # python -
    main.__file__ = "/somewhere/train.py"
    assert naming.module_name("__main__") == "train"
    main.Colour = Colour
    assert naming.class_named("train.Colour") is Colour
    main.__spec__ = types.SimpleNamespace(name="pack.train")
    assert naming.module_name("__main__") == "pack.train"
    assert naming.module_name("os.path") == "os.path"


def test_why_something_is_unreachable():
    def inner():
        return 1

    assert naming.unreachable(Outer) == ""
    assert "lambda" in naming.unreachable(lambda: 1)
    assert "name=" in naming.unreachable(inner)


def test_looking_up_a_class_loads_no_lazy_module_and_asks_no_proxy(monkeypatch):
    class Lazy(types.ModuleType):
        def __getattribute__(self, name):
            pytest.fail(f"{name} was asked for")

    class Proxy:
        __class__ = property(lambda self: pytest.fail("the proxy was asked for its class"))

    class Slotted:
        __slots__ = ()

    module = types.ModuleType("psf_proxies")
    module.Thing = Proxy()
    for name, holder in {"psf_lazy": Lazy("psf_lazy"), "psf_proxies": module, "psf_slot": Slotted()}.items():
        monkeypatch.setitem(sys.modules, name, holder)
        assert naming.class_named(f"{name}.Thing") is None
