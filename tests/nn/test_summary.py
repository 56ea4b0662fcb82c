"""The table of a model: figures against counts by hand, and nothing left behind in the model."""

import numpy as np
import pytest

from psframework import nn
from psframework.autograd import Tensor
from psframework.errors import ArgumentError
from psframework.nn.summary import Summary, summary
from psframework.testing.strict_device import strict_devices


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def test_figures() -> None:
    model = cnn()
    model[2].bias.requires_grad = False
    found = summary(model, input_size=(2, 1, 8, 8), show=False)
    by_path = {layer.path: layer for layer in found.layers}
    assert list(by_path) == ["", "0", "0.0", "0.1", "0.2", "1", "2"]
    assert by_path["0.0"].outputs == ((2, 4, 8, 8),) and by_path["2"].outputs == ((2, 10),)
    assert (by_path["0.0"].parameters, by_path["0"].parameters) == (40, 48)
    assert found.parameters == 48 + 2570 and found.trainable == 48 + 2560 and found.buffers == 9
    assert by_path["0"].macs == 2 * 4 * 64 * 9 and found.macs == 2 * 4 * 64 * 9 + 2 * 2560
    assert found.parameter_bytes == 4 * (48 + 2570 + 8) + 8
    assert found.output_bytes == 4 * 2 * (4 * 256 + 10)


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = summary(cnn(), np.zeros((2, 1, 8, 8), np.float32), depth=1)
    assert capsys.readouterr().out == f"{found}\n"
    lines = str(found).splitlines()
    assert lines[0].split() == ["layer", "class", "output", "parameters", "multiply-adds"]
    assert [line.split()[0] for line in lines[2:6]] == ["model", "0", "1", "2"]
    assert lines[5].split("  ")[-1].strip() == "5,120" and "(2, 10)" in lines[5]
    assert "parameters: 2,618 (2,618 trainable, 0 frozen), buffers: 9" in lines
    assert len({len(line) for line in lines[:6]}) == 1
    assert repr(found) == "<Summary of 7 layers, 2,618 parameters>"


def test_the_model_is_as_before() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3).eval(), nn.Dropout())
    calls: list[int] = []
    model[0].register_forward_hook(lambda *args: calls.append(1))
    state = model.state_dict()
    summary(model, input_size=(4, 3), show=False)
    np.testing.assert_equal(model.state_dict(), state)
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert model._hooks is None and model[1]._hooks is None
    model(np.ones((4, 3), np.float32))
    assert calls == [1, 1]
    with pytest.raises(ArgumentError):
        summary(model, input_size=(4, 7), show=False)
    assert model._hooks is None and model.training


def test_shared_layers_several_inputs_and_layers_that_are_not_called() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            self.layer, self.spare = nn.Linear(3, 3), nn.Linear(3, 3)
            self.alias = self.layer

        def forward(self, a: nn.Module, b: nn.Module) -> dict[str, nn.Module]:
            return {"a": self.layer(a), "b": self.alias(b)}

    found = summary(Twice(), input_size=[(2, 3), (4, 3)], show=False)
    by_path = {layer.path: layer for layer in found.layers}
    assert list(by_path) == ["", "layer", "spare"] and found.parameters == 24
    assert by_path[""].outputs == ((2, 3), (4, 3)) and by_path["spare"].outputs is None
    assert found.macs == by_path["layer"].macs == 6 * 9 and "not called" in str(found)


def test_recurrent_transposed_and_embedding_layers() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.LSTM(4, 5))
    found = summary(model, np.zeros((7, 2), np.int64), show=False)
    assert found.macs == 14 * (4 * 5 * 4 + 4 * 5 * 5)
    assert found.layers[2].outputs == ((7, 2, 5), (1, 2, 5), (1, 2, 5))
    attention = nn.MultiheadAttention(4, 2)
    x = np.zeros((7, 2, 4), np.float32)
    assert summary(attention, x, x, x, show=False).macs == 14 * 4 * 16
    up = summary(nn.ConvTranspose2d(2, 3, 2, stride=2), input_size=(1, 2, 4, 4), show=False)
    assert up.macs == 2 * 16 * 3 * 4 and up.layers[0].outputs == ((1, 3, 8, 8),)


def test_on_a_device() -> None:
    with strict_devices("gpu-0") as [device]:
        found = summary(nn.Linear(3, 2).to(device.device), input_size=(5, 3), show=False)
    assert isinstance(found, Summary) and found.layers[0].outputs == ((5, 2),)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: summary(cnn()), "one of both"),
        (lambda: summary(cnn(), np.zeros(1), input_size=(1,)), "one of both"),
        (lambda: summary(nn.ReLU(), input_size=(1,)), "without parameters has no dtype"),
    ],
)
def test_misuse(call, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        call()


def test_inputs_that_are_passed_by_name_count() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.inner = nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x=x)

    assert summary(Net(), input_size=(4, 2), show=False).macs == 4 * 6
