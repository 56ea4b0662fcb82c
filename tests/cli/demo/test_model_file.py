"""A saved model comes back bit for bit; anything else is a CheckpointError that says what is wrong."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from psframework.cli.demo.model_file import ModelFile, check_folder, load_model, save_model
from psframework.errors import CheckpointError, ConfigurationError

STATE = {
    "0.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "0.bias": np.array([np.nan, -0.0, 1e-42], dtype=np.float32),
    "steps": np.array(7, dtype=np.int64),
}


def test_round_trip_is_bitwise(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "model.safetensors"
    save_model(path, ModelFile(STATE, step=120, epoch=3))
    loaded = load_model(path, STATE)
    assert (loaded.step, loaded.epoch) == (120, 3)
    assert loaded.state.keys() == STATE.keys()
    for name, array in STATE.items():
        assert loaded.state[name].tobytes() == array.tobytes()
        assert loaded.state[name].shape == array.shape
    assert [file.name for file in path.parent.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("view", ["transposed", "strided", "fortran"])
def test_arrays_that_are_not_contiguous(tmp_path: Path, view: str) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    array = {"transposed": base.T, "strided": base[::2, ::3], "fortran": np.asfortranarray(base)}[view]
    save_model(tmp_path / "m", ModelFile({"a": array}, step=0, epoch=0))
    np.testing.assert_array_equal(load_model(tmp_path / "m").state["a"], array)


def test_a_failed_write_keeps_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "m"
    save_model(path, ModelFile(STATE, step=1, epoch=1))
    with pytest.raises(Exception, match="object"):
        save_model(path, ModelFile({"a": np.array([object()])}, step=2, epoch=2))
    assert load_model(path).step == 1
    assert [file.name for file in tmp_path.iterdir()] == ["m"]


def _bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _truncated(path: Path) -> None:
    save_model(path, ModelFile(STATE, step=1, epoch=1))
    path.write_bytes(path.read_bytes()[:-3])


def _with_metadata(path: Path, **metadata: str) -> None:
    save_file(STATE, path, metadata)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "no model file that can be read"),
        (lambda path: path.mkdir(), "no model file that can be read"),
        (lambda path: _bytes(path, b""), "no model file that can be read"),
        (lambda path: _bytes(path, b"not a model" * 100), "no model file that can be read"),
        (lambda path: _bytes(path, (10**12).to_bytes(8, "little") + b"{}"), "no model file that can be read"),
        (_truncated, "no model file that can be read"),
        (_with_metadata, "not a model that psf demo saved"),
        (lambda path: _with_metadata(path, format="psframework-model-1", step="x", epoch="1"), "step='x'"),
        (lambda path: _with_metadata(path, format="psframework-model-1", step="1"), "epoch=''"),
    ],
)
def test_files_that_are_not_one(tmp_path: Path, make, words: str) -> None:
    make(tmp_path / "file")
    with pytest.raises(CheckpointError, match=words):
        load_model(tmp_path / "file")


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        (STATE | {"1.weight": np.zeros(2)}, "lacks 1.weight"),
        ({"steps": STATE["steps"]}, "has 0.bias, 0.weight, which this model lacks"),
        (STATE | {"0.bias": np.zeros(4, np.float32)}, r"0.bias is float32\[3\], this model has float32\[4\]"),
        (STATE | {"0.bias": np.zeros(3, np.float64)}, r"0.bias is float32\[3\], this model has float64\[3\]"),
    ],
)
def test_a_file_of_another_model(tmp_path: Path, expected: dict[str, np.ndarray], words: str) -> None:
    save_model(tmp_path / "m", ModelFile(STATE, step=1, epoch=1))
    with pytest.raises(CheckpointError, match=words):
        load_model(tmp_path / "m", expected)


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    check_folder(tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="--out"):
        check_folder(tmp_path / "file")
