"""A trainer by itself: what compose's `train` profile runs."""

from pathlib import Path

import numpy as np
import pytest

from psframework.cli.demo.model import digits_network, model_arrays
from psframework.cli.demo.model_file import ModelFile, load_model, save_model
from psframework.cli.demo.trainer import TrainerSettings, steps_per_epoch, train
from psframework.cluster.local import local_cluster
from psframework.cluster.process import ServiceProcess
from psframework.errors import ArgumentError, CheckpointError


def test_steps_of_an_epoch() -> None:
    assert steps_per_epoch(1, 16) == 1437 // 16
    assert steps_per_epoch(2, 16) == 719 // 16
    with pytest.raises(ArgumentError, match="2 trainers have 719 images each, fewer than a batch of 1000"):
        steps_per_epoch(2, 1000)


async def test_people_read_lines_and_the_accuracy_last(tmp_path: Path) -> None:
    async with local_cluster(parameter_servers=1) as local:
        arguments = ["--coordinator", local.address, "--epochs", "2", "--save", str(tmp_path / "m")]
        trainer = ServiceProcess("trainer", "psframework.cli.demo.trainer", arguments)
        trainer.start()
        assert await trainer.wait(60) == 0, trainer.last_words
        trainer.close()
        assert [line.split()[:2] for line in trainer.output][:2] == [["epoch", "1"], ["epoch", "2"]]
        assert float(trainer.output[-1].removeprefix("test accuracy: ")) > 0.8
        assert load_model(tmp_path / "m").step == 2 * steps_per_epoch(1, 16)


async def test_resuming_registers_the_parameters_bitwise(tmp_path: Path) -> None:
    """With a learning rate too small to change a float32, the saved model is the resumed one, bitwise."""
    state = {name: array + 1 for name, array in model_arrays(digits_network(3)).items()}
    save_model(tmp_path / "old", ModelFile(state, step=7, epoch=2))
    async with local_cluster(parameter_servers=2) as local:
        files = {"resume": tmp_path / "old", "save": tmp_path / "new"}
        settings = TrainerSettings.load(
            coordinator=local.address, epochs=1, batch_size=700, learning_rate=1e-30, **files
        )
        await train(settings)
    new = load_model(tmp_path / "new", state)
    assert (new.step, new.epoch) == (9, 3)
    for name, _ in digits_network(3).named_parameters():
        assert np.array_equal(new.state[name], state[name]), name


async def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="no model file"):
        await train(TrainerSettings.load(resume=tmp_path / "old"))
