"""What the run tells its trainers."""

from pathlib import Path

import pytest
from rich.console import Console

from psframework.cli.demo.run import DemoOptions, run_demo, trainer_arguments, trainer_environment
from psframework.cli.demo.trainer import TrainerSettings
from psframework.errors import ConfigurationError


def options(**changes: object) -> DemoOptions:
    counts = {"epochs": 2, "trainers": 3, "parameter_servers": 2, "batch_size": 8, "seed": 5}
    steps = {"first_step": 0, "total_steps": 100}
    known = {**counts, **steps, "lanes": None, "kill": False, "resume": None, "model": Path("out/model")}
    return DemoOptions(**{**known, **changes})  # type: ignore[arg-type]


def test_trainers_understand_their_arguments() -> None:
    arguments = trainer_arguments(options(lanes="inline", resume=Path("old.safetensors")))
    settings = TrainerSettings.from_command_line(arguments, "trainer")
    assert (settings.trainers, settings.epochs, settings.batch_size, settings.seed) == (3, 2, 8, 5)
    assert settings.lanes == "inline"
    assert settings.resume == Path("old.safetensors").resolve()
    assert settings.save == Path("out/model").resolve()
    assert settings.events


def test_cores_are_shared_by_all_who_compute() -> None:
    assert trainer_environment(options()) == {"PSF_LOCAL_PROCESSES": "5"}


async def test_nothing_is_started_for_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="--out"):
        await run_demo(options(model=tmp_path / "file" / "model"), Console())
