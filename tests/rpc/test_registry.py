"""What peers may call, and what they are told when they may not."""

import asyncio
import functools
import importlib
import subprocess
import sys
import time

import numpy as np
import pytest

import psframework as psf
import psframework.nn.functional as F
from psframework import nn
from psframework.errors import ArgumentError, NotRegistered
from psframework.rpc import registry
from psframework.rpc.registry import Kind, remote

HERE = __name__


@remote
def add(x, y):
    return x + y


@remote(idempotent=True, roles=("trainer", "worker"))
async def look_up(key):
    return key


@remote
def count(n):
    yield from range(n)


@remote
async def tick(n):
    for i in range(n):
        yield i


@remote(name="speak")
def named():
    return "hello"


class Base:
    def inherited(self):
        return "from the base"

    @staticmethod
    def common():
        return "static in the base"


@remote(roles=("trainer",))
class Net(Base):
    """A class with all kinds of methods."""

    limit = 3

    def __init__(self, width=1):
        self.width = width

    def forward(self, x):
        return x * self.width

    def _private(self):
        return "never"

    @property
    def size(self):
        return self.width

    @staticmethod
    def double(x):
        return 2 * x

    @classmethod
    def make(cls, width):
        return cls(width)

    @remote(idempotent=True)
    def read(self):
        return self.width

    @remote(roles=("reader",))
    @staticmethod
    def peek():
        return "peeked"

    async def slow(self):
        await asyncio.sleep(0)


class Wider(Net):
    def forward(self, x):
        return 10 * x

    def of_its_own(self):
        return 1


class Plain:
    def method(self):
        return 1

    @staticmethod
    def static():
        return 2

    @staticmethod
    @remote
    def declared():
        return 3


def not_registered(x):
    return x


@functools.wraps(add)
def wrapper(*args):
    return add(*args)


def test_the_decorator_leaves_what_it_registers():
    assert add(1, 2) == 3
    assert Net(2).forward(3) == 6
    assert Net.double(2) == 4 and Net.peek() == "peeked" and Net.make(7).width == 7
    assert psf.remote is remote


@pytest.mark.parametrize(
    ("name", "target", "kind"),
    [
        ("add", add, Kind.FUNCTION),
        ("look_up", look_up, Kind.COROUTINE),
        ("count", count, Kind.GENERATOR),
        ("tick", tick, Kind.ASYNC_GENERATOR),
        ("Net", Net, Kind.CLASS),
    ],
)
def test_names_are_the_modules_path_and_their_own(name, target, kind):
    entry = registry.find(f"{HERE}.{name}")
    assert (entry.target, entry.kind) == (target, kind)
    assert registry.name_of(target) == entry.name == f"{HERE}.{name}"
    assert registry.name_of(entry.name) == entry.name


def test_options_travel_with_the_entry():
    entry = registry.find(f"{HERE}.look_up")
    assert entry.idempotent and entry.roles == {"trainer", "worker"}
    assert not registry.find(f"{HERE}.add").idempotent
    assert registry.find("speak").target is named and registry.name_of(named) == "speak"
    assert registry.find("speak") in registry.entries()


def test_near_names_are_listed():
    with pytest.raises(NotRegistered, match=rf"'{HERE}\.ad'.*near it: .*{HERE}\.add"):
        registry.find(f"{HERE}.ad")
    with pytest.raises(NotRegistered, match=rf"near it: {HERE}\.look_up"):
        registry.find("other.look_up")  # same function, other module
    with pytest.raises(NotRegistered, match=r"in a notebook.*Move it to a module.*local_cluster\(imports="):
        registry.find("__main__.at_a_prompt")
    with pytest.raises(NotRegistered, match=r"psf serve worker --import nowhere\.near"):
        registry.find("nowhere.near.qwzx")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "os.system", "builtins.eval", "psframework.nn", "é\ud800", "a" * 9999]
)
def test_strange_names_are_not_registered(name):
    with pytest.raises(NotRegistered):
        registry.find(name)


def test_an_endless_name_costs_nothing():
    started = time.monotonic()
    for _ in range(20):
        with pytest.raises(NotRegistered) as caught:
            registry.find("a." * 1_000_000)
        assert len(str(caught.value)) < 300
    assert time.monotonic() - started < 5


def test_unregistered_callables_show_the_fix():
    with pytest.raises(NotRegistered, match=rf"{HERE}\.not_registered .*@psf\.remote above its `def not_reg"):
        registry.name_of(not_registered)
    with pytest.raises(NotRegistered, match=r"@psf\.remote above its `class Plain`"):
        registry.name_of(Plain)
    with pytest.raises(NotRegistered, match="above the other decorators"):
        registry.name_of(wrapper)
    with pytest.raises(NotRegistered, match=r"builtins\.len"):
        registry.name_of(len)


def test_callables_without_a_name_are_refused_with_the_reason():
    def inner():
        return 1

    refused = [
        (lambda: 1, "lambda"),
        (inner, "made inside a function"),
        (functools.partial(add, 1), "partial"),
        (Net(1), "no name to call it by|can't be called"),
        (Net(1).forward, r"rref\.rpc_async\(\)\.forward"),
        (3, "can't be called"),
    ]
    for target, reason in refused:
        with pytest.raises(ArgumentError, match=reason):
            registry.name_of(target)
    for target, reason in refused[:2]:
        with pytest.raises(ArgumentError, match=reason):
            remote(target)
    with pytest.raises(ArgumentError, match="functions and classes"):
        remote(3)
    with pytest.raises(ArgumentError, match=r"roles=\('trainer',\)"):
        remote(roles="trainer")


def test_a_function_inside_another_can_have_a_given_name():
    @remote(name="tests.registry.inner")
    def inner():
        return 1

    try:
        assert registry.find("tests.registry.inner").target is inner
        assert registry.name_of(inner) == "tests.registry.inner"
        with pytest.raises(ArgumentError, match=rf"already registered by {HERE}\.test_a.*name="):
            remote(name="tests.registry.inner")(not_registered)
    finally:
        registry.forget("tests.registry.inner")
    with pytest.raises(NotRegistered):
        registry.find("tests.registry.inner")


def test_a_name_belongs_to_one_thing():
    with pytest.raises(ArgumentError, match="already registered"):
        remote(name=f"{HERE}.add")(not_registered)
    assert remote(add) is add
    assert registry.find(f"{HERE}.add").target is add


def test_static_and_class_methods_are_called_by_name():
    double, make = registry.find(f"{HERE}.Net.double"), registry.find(f"{HERE}.Net.make")
    assert double.target(4) == 8 and make.target(5).width == 5
    assert registry.name_of(Net.double) == double.name and registry.name_of(Net.make) == make.name
    assert registry.find(f"{HERE}.Net.common").target() == "static in the base"
    assert double.roles == {"trainer"}, "a class's roles hold for its methods"
    assert registry.find(f"{HERE}.Net.peek").roles == {"reader"}
    assert registry.find(f"{HERE}.Plain.declared").target() == 3
    assert registry.name_of(Plain.declared) == f"{HERE}.Plain.declared"


def test_methods_of_objects_need_an_rref():
    with pytest.raises(NotRegistered, match=r"rref\.rpc_async\(\)\.forward"):
        registry.find(f"{HERE}.Net.forward")
    with pytest.raises(NotRegistered, match=r"rref\.rpc_async\(\)\.forward"):
        registry.name_of(Net.forward)
    for name in ("_private", "__init__", "limit", "size", "nothing"):
        with pytest.raises(NotRegistered):
            registry.find(f"{HERE}.Net.{name}")
    with pytest.raises(NotRegistered):
        registry.find(f"{HERE}.Plain.static")


def test_proxies_reach_public_methods_of_the_class_and_its_bases():
    net = Net(3)
    assert registry.method_of(net, "forward").target(2) == 6
    assert registry.method_of(net, "inherited").target() == "from the base"
    assert registry.method_of(net, "double").target(2) == 4
    assert registry.method_of(net, "slow").kind is Kind.COROUTINE
    read = registry.method_of(net, "read")
    assert read.idempotent and read.roles == {"trainer"} and read.name == f"{HERE}.Net.read"
    for name in ("_private", "__init__", "__class__", "limit", "size", "nothing"):
        with pytest.raises(NotRegistered, match="no public method"):
            registry.method_of(net, name)
    with pytest.raises(NotRegistered, match="near it: forward"):
        registry.method_of(net, "forwrd")
    assert "forward" in registry.public_methods(Net) and "_private" not in registry.public_methods(Net)


def test_objects_of_a_subclass_offer_what_the_registered_class_has():
    wider = Wider(1)
    assert registry.method_of(wider, "forward").target(2) == 20
    with pytest.raises(NotRegistered, match="of_its_own"):
        registry.method_of(wider, "of_its_own")
    with pytest.raises(NotRegistered, match=r"Plain is not registered.*@psf\.remote"):
        registry.method_of(Plain(), "method")
    with pytest.raises(NotRegistered):
        registry.method_of({}, "clear")


def test_nn_and_its_functions_need_no_decoration():
    assert registry.name_of(nn.Linear) == "psframework.nn.Linear"
    assert registry.find("psframework.nn.Linear").target is nn.Linear
    assert registry.find("psframework.nn.Linear").kind is Kind.CLASS
    assert registry.name_of(F.relu) == "psframework.nn.functional.relu"
    assert registry.find("psframework.nn.functional.relu").target is F.relu
    for name in F.__all__:
        assert registry.find(registry.name_of(getattr(F, name))).target is getattr(F, name)
    assert registry.method_of(nn.Linear(2, 2), "forward").target(np.ones((1, 2), "f4")).shape == (1, 2)
    for name in (
        "Module",
        "init",
        "np",
        "generator",
        "_attention",
        "functional.np",
        "functional._attention",
        "Linear.forward",
    ):
        with pytest.raises(NotRegistered):
            registry.find(f"psframework.nn.{name}")
    with pytest.raises(NotRegistered, match=r"near it: psframework\.nn\.functional\.relu"):
        registry.find("psframework.nn.functional.rellu")


def test_nn_is_loaded_only_when_it_is_asked_for():
    code = (
        "import sys, psframework as psf\n"
        "@psf.remote\n"
        "def f(): pass\n"
        "from psframework.rpc import registry\n"
        "registry.find('__main__.f'); assert 'numpy' not in sys.modules\n"
        "registry.find('psframework.nn.Linear'); assert 'psframework.nn' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


SCRIPT = """
import psframework as psf
from psframework.rpc import registry

@psf.remote
def add(x, y): return x + y

if __name__ == "__main__":
    print(registry.name_of(add))
"""


def test_a_script_is_named_by_its_file(tmp_path):
    (tmp_path / "train_it.py").write_text(SCRIPT)
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "train_it.py").write_text(SCRIPT)

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout.strip()

    assert run("train_it.py") == "train_it.add"
    assert run("-m", "pack.train_it") == "pack.train_it.add"
    assert run("-c", SCRIPT) == "__main__.add"


def test_a_reload_replaces(tmp_path, monkeypatch):
    (tmp_path / "psf_reloaded.py").write_text("import psframework as psf\n@psf.remote\ndef f(): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("psf_reloaded")
    old = module.f
    try:
        importlib.reload(module)
        assert module.f is not old
        assert registry.find("psf_reloaded.f").target is module.f
        assert registry.name_of(old) == "psf_reloaded.f"
    finally:
        registry.forget("psf_reloaded.f")
        del sys.modules["psf_reloaded"]


class Answer:
    """An object that is called."""

    def __call__(self, x):
        return x


@pytest.mark.parametrize("make", [Answer, lambda: functools.partial(add, 1)])
def test_a_cell_that_registers_an_object_may_run_again(make):
    try:
        for _ in range(2):
            made = remote(name="tests.registry.object")(make())
            assert registry.find("tests.registry.object").target is made
    finally:
        registry.forget("tests.registry.object")


def test_what_cannot_be_hashed_is_refused_and_leaves_no_name_behind():
    class Equal(Answer):
        __hash__ = None

    with pytest.raises(ArgumentError, match="has no hash"):
        remote(name="tests.registry.equal")(Equal())
    with pytest.raises(NotRegistered):
        registry.find("tests.registry.equal")


class Meta(type):
    """Its methods are the class's own business."""

    def register(cls):
        return "of the metaclass"

    @staticmethod
    def hidden():
        return "of the metaclass"


@remote
class Made(metaclass=Meta):
    def __init__(self):
        self.register = lambda: "an attribute"
        self.hidden = lambda: "an attribute"


@pytest.mark.parametrize("method", ["register", "hidden", "mro"])
def test_what_a_metaclass_defines_opens_no_way_to_attributes(method):
    with pytest.raises(NotRegistered, match="no public method"):
        registry.method_of(Made(), method)
    with pytest.raises(NotRegistered, match="nothing is registered"):
        registry.find(f"{HERE}.Made.{method}")
    assert registry.public_methods(Made) == []
