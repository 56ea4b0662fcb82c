"""The saved model: one safetensors file with the state by name, and step and epoch as metadata.

It is no checkpoint: the optimizer's slots live on the parameter-server shards and are not in it.
Format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from psframework.errors import CheckpointError, ConfigurationError

_FORMAT = "psframework-model-1"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """What a model file holds: arrays by name, and how far training had come."""

    state: dict[str, npt.NDArray[Any]]
    step: int
    epoch: int


def check_folder(folder: Path) -> None:
    """Makes the folder of a model file, before hours of training go into what can't be saved.

    Raises:
        ConfigurationError: it can't be made, or not be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"folder {folder} can't be written to ({error.strerror}): choose another with --out"
        ) from error


def save_model(path: Path, model: ModelFile) -> None:
    """Writes the file beside its place and renames it, so a crash leaves the older one.

    Arrays are copied to C order: safetensors silently misplaces the elements of others
    (`ascontiguousarray` would make a 0-d array 1-d).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.asarray(array, order="C") for name, array in model.state.items()}
    metadata = {"format": _FORMAT, "step": str(model.step), "epoch": str(model.epoch)}
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with scratch.open("xb") as file:
            file.write(save(arrays, metadata))
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def load_model(path: Path, expected: Mapping[str, npt.NDArray[Any]] | None = None) -> ModelFile:
    """Reads a file that `save_model` wrote.

    Args:
        path: the file.
        expected: arrays whose names, shapes and dtypes the file must have, no more and no fewer.

    Raises:
        CheckpointError: there is no such file, it is damaged, not a model file, or of another model.
    """
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is no model file that can be read: {error}") from error
    if metadata.get("format") != _FORMAT:
        raise CheckpointError(f"{path} is a safetensors file, but not a model that psf demo saved")
    if expected is not None:
        _compare(path, state, expected)
    return ModelFile(state, step=_count(path, metadata, "step"), epoch=_count(path, metadata, "epoch"))


def _count(path: Path, metadata: Mapping[str, str], key: str) -> int:
    text = metadata.get(key, "")
    if not text.isascii() or not text.isdigit():
        raise CheckpointError(f"{path}: its metadata says {key}={text!r}, which is no count")
    return int(text)


def _compare(
    path: Path, found: Mapping[str, npt.NDArray[Any]], expected: Mapping[str, npt.NDArray[Any]]
) -> None:
    if missing := sorted(expected.keys() - found.keys()):
        raise CheckpointError(f"{path} lacks {', '.join(missing)}: it is of another model")
    if extra := sorted(found.keys() - expected.keys()):
        raise CheckpointError(f"{path} has {', '.join(extra)}, which this model lacks")
    for name, array in expected.items():
        have, want = found[name], array
        if have.shape != want.shape or have.dtype != want.dtype:
            there, here = f"{have.dtype}{list(have.shape)}", f"{want.dtype}{list(want.shape)}"
            raise CheckpointError(f"{path}: {name} is {there}, this model has {here}")
