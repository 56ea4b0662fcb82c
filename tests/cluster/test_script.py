"""Workers import the calling script by the name of its file, and never run its program."""

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from psframework.cluster.connect import connect
from psframework.cluster.local import local_cluster
from psframework.cluster.script import (
    Unguarded,
    calling_script,
    check_guarded,
    import_module,
    import_path,
    importing,
)
from psframework.errors import ConfigurationError


class Spec:
    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize(
    ("file", "spec", "name"),
    [
        ("/a/train.py", None, "train"),
        ("/a/b.c/my-train.py", None, "my-train"),
        ("/a/train.py", "package.train", "package.train"),
        ("/a/package/__main__.py", "package.__main__", None),
        ("/a/__main__.py", None, None),
        ("/usr/bin/psf", None, None),
        (None, None, None),  # a prompt, -c, a notebook
    ],
)
def test_the_name_of_the_script(
    monkeypatch: pytest.MonkeyPatch, file: str | None, spec: str | None, name: str | None
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = Spec(spec) if spec else None  # type: ignore[assignment]
    if file is not None:
        main.__file__ = file
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert calling_script() == name


def test_a_script_that_no_module_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__spec__, main.__file__ = None, "/a/train.v2.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(ConfigurationError, match=r"train\.v2\.py.*rename it"):
        calling_script()


def test_the_path_is_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "/x", "/x", "/a:b"])
    assert import_path() == os.pathsep.join([str(tmp_path), "/x"])


def test_what_can_not_be_imported_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"--import no_such_thing: ModuleNotFoundError.*PYTHONPATH"):
        import_module("no_such_thing")


async def test_a_program_without_a_guard_is_told_so_when_a_worker_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "bare_script.py").write_text(
        "from psframework.cluster.script import check_guarded\ncheck_guarded('psf.local_cluster()')\n"
    )
    with pytest.raises(
        Unguarded, match=r'(?s)bare_script calls psf\.local_cluster.*if __name__ == "__main__":'
    ):
        import_module("bare_script")
    check_guarded("anything")
    with importing("train"):
        with pytest.raises(Unguarded, match=r"train calls psf\.local_cluster"):
            async with local_cluster():
                pass
        with pytest.raises(Unguarded, match=r"train calls psf\.connect"):
            async with connect("127.0.0.1:1"):
                pass
