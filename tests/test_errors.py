"""The exception tree: one root, the builtin bases that users catch, the tree drawn at the top."""

import inspect
import re

import pytest

from psframework import errors
from psframework.errors import PsfError

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == errors.__name__
}


def test_every_class_is_in_the_drawing_with_its_builtin_base() -> None:
    drawn = {}
    for line in (errors.__doc__ or "").splitlines()[2:]:
        names = re.findall(r"\b[A-Z]\w+", line.split("(")[0])
        base = re.search(r"\((\w+)\)", line)
        drawn.update({name: base.group(1) if base else None for name in names[:2] if name in CLASSES})
    assert set(drawn) == set(CLASSES)
    for name, base in drawn.items():
        if base is not None:
            assert base in {cls.__name__ for cls in CLASSES[name].__mro__}, f"{name} is no {base}"


@pytest.mark.parametrize("cls", CLASSES.values(), ids=lambda cls: cls.__name__)
def test_one_root_and_a_message_is_enough(cls: type[PsfError]) -> None:
    error = cls("what was wrong")
    assert isinstance(error, PsfError) and str(error) == "what was wrong"
    assert cls.__doc__


def test_fields_that_callers_act_on() -> None:
    lost = errors.PeerLost("gone", peer="worker-1", reason="lease", may_have_run=False)
    assert (lost.peer, lost.reason, lost.may_have_run) == ("worker-1", "lease", False)
    remote = errors.RemoteError("bad", type_name="ValueError", remote_traceback="Traceback ...")
    assert str(remote) == "ValueError: bad" and remote.message == "bad"
    assert errors.RendezvousTimeout("late", missing=["a", "b"]).missing == ("a", "b")
    assert errors.ResourceExhausted("full", retry_after=0.5).retry_after == 0.5
    assert errors.RolledBack("back", step=7).step == 7
