"""Tests on a real CUDA device, by CuPy: `pytest -m gpu`. Where there is none they are deselected."""

import pytest

from psframework import backend


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    there = [item for item in items if item.get_closest_marker("gpu")]
    if there and backend.cupy() is None:
        config.hook.pytest_deselected(items=there)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


@pytest.fixture
def device() -> backend.Device:
    return backend.device("cuda:0")


@pytest.fixture(params=["fused", "plain"])
def kernels(request, monkeypatch):
    """Once with the fused kernels, once with the operations' own code on CuPy."""
    if request.param == "plain":
        monkeypatch.setattr(backend, "fused", lambda array: None)
    return request.param
