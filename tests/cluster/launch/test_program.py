"""What is run is looked for before any process starts; workers import it by the name of its file."""

from pathlib import Path

import pytest

from psframework.cluster.launch.program import Program
from psframework.errors import ConfigurationError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "train.py").touch()
    (tmp_path / "training" / "train.v2.py").touch()
    return tmp_path


def test_a_script(here: Path) -> None:
    program = Program("training/train.py", ("--epochs", "3"))
    program.check()
    assert program.command == ("script", "training/train.py", "--epochs", "3")
    assert program.folder == str(here / "training")
    assert program.imported_as == "train"


def test_a_module(here: Path) -> None:
    program = Program("training.train", ("-m",), is_module=True)
    program.check()
    assert program.command == ("module", "training.train", "-m")
    assert program.folder == str(here)
    assert program.imported_as == "training.train"
    assert Program("training.__main__", is_module=True).imported_as is None, "most run without a guard"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (Program("tr.py"), r"no script tr\.py in /"),
        (
            Program("training.train"),
            r"no script training\.train in /.*; psf run -m training\.train runs a mod",
        ),
        (Program("train"), r"did you mean train\.py\?"),
        (Program("training"), "training is a folder: name a script, or -m and a module"),
        (Program("nowhere.train", is_module=True), "no module 'nowhere.train': 'nowhere' is in no folder"),
        (Program("../train", is_module=True), "no module"),
    ],
    ids=lambda value: value.target if isinstance(value, Program) else "",
)
def test_what_does_not_exist(program: Program, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        program.check()


def test_a_name_that_workers_can_not_import() -> None:
    program = Program("training/train.v2.py")
    program.check()
    with pytest.raises(ConfigurationError, match="no module has a dot in its name: rename it"):
        print(program.imported_as)
