"""DataParallel: what one module makes of the whole batch, in parts, on devices and in threads."""

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import psframework as psf
from psframework import nn
from psframework.autograd.sparse import SparseRows
from psframework.ddp.data_parallel import DataParallel
from psframework.testing.strict_device import strict_devices

F = nn.functional
X = np.random.default_rng(0).standard_normal((11, 6))
Y = np.random.default_rng(1).integers(0, 4, 11)


def network(seed: int = 0) -> nn.Module:
    psf.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).double()


class WithLoss(nn.Module):
    """A loss inside, a dict of results, arguments by keyword."""

    def __init__(self) -> None:
        self.net = network()

    def forward(self, x: Any, *, target: Any, factor: float = 1.0) -> Any:
        logits = self.net(x) * factor
        return {"loss": F.cross_entropy(logits, target), "more": [logits, logits.data.argmax(1)]}


def gradients(module: nn.Module) -> list[Any]:
    return [parameter.grad for parameter in module.parameters()]


def close(mine: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-14)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_equals_serial(count: int) -> None:
    serial, model = network(), DataParallel(network(), ["cpu"] * count)
    x, given = psf.tensor(X, requires_grad=True), psf.tensor(X, requires_grad=True)
    for _ in range(2):  # a second backward adds to the first
        expected, found = F.cross_entropy(serial(x), Y), F.cross_entropy(model(given), Y)
        np.testing.assert_allclose(found.data, expected.data, atol=1e-15)
        expected.backward()
        found.backward()
    close(gradients(model), gradients(serial))
    close([given.grad], [x.grad])


def test_training_equals_serial() -> None:
    serial, model = network(), DataParallel(network(), ["cpu", "cpu", "cpu"])
    for each in (serial, model):
        optimizer = psf.optim.Adam(each.parameters(), lr=0.05)
        for _ in range(20):
            optimizer.zero_grad()
            F.cross_entropy(each(X), Y).backward()
            optimizer.step()
    close([p.data for p in model.parameters()], [p.data for p in serial.parameters()])


def test_nested_results_and_a_mean_weighted_by_rows() -> None:
    serial, model = WithLoss(), DataParallel(WithLoss(), ["cpu"] * 3)
    expected, found = serial(X, target=Y, factor=2.0), model(X, target=Y, factor=2.0)
    assert list(found) == ["loss", "more"]
    np.testing.assert_allclose(found["loss"].data, expected["loss"].data)
    np.testing.assert_allclose(found["more"][0].data, expected["more"][0].data)
    (expected["loss"] + expected["more"][0].sum()).backward()
    (found["loss"] + found["more"][0].sum()).backward()
    close(gradients(model), gradients(serial))


def test_on_other_devices_everything_is_moved_and_moved_back() -> None:
    serial = network()
    with strict_devices("dp-0", "dp-1") as (first, second):
        model = DataParallel(network().to("dp-0"), ["dp-0", "dp-1", "dp-0"])
        x = psf.tensor(first.to_device(X), requires_grad=True)
        loss = F.cross_entropy(model(x), first.to_device(Y))
        loss.backward()
        here = psf.tensor(X, requires_grad=True)
        F.cross_entropy(serial(here), Y).backward()
        assert isinstance(x.grad, first.ndarray)
        close([first.asnumpy(g) for g in gradients(model)], gradients(serial))
        close([first.asnumpy(x.grad)], [here.grad])
        there: Any = model._replicas.modules[1].get_parameter("0.weight").data
        assert isinstance(there, second.ndarray)


def test_each_replica_has_a_thread_and_rows_go_in_order() -> None:
    meeting = threading.Barrier(3, timeout=20)
    seen: dict[int, Any] = {}

    class Meet(nn.Module):
        def forward(self, x: Any) -> Any:
            meeting.wait()  # all must be there at once
            seen[threading.get_ident()] = x
            return x * 2

    found = DataParallel(Meet(), ["cpu"] * 3)(np.arange(8.0)[:, None])
    assert sorted(len(part) for part in seen.values()) == [2, 3, 3]
    assert seen[threading.get_ident()].tolist() == [[0], [1], [2]]
    assert isinstance(found, np.ndarray), "arrays stay arrays"
    np.testing.assert_array_equal(found[:, 0], 2 * np.arange(8))


def test_fewer_rows_than_devices() -> None:
    serial, model = network(), DataParallel(network(), ["cpu"] * 4)
    for n in (0, 1, 2):
        np.testing.assert_allclose(model(X[:n]).data, serial(X[:n]).data, atol=1e-15)


def test_modes_and_frozen_parameters_are_followed() -> None:
    model = DataParallel(nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.BatchNorm1d(5)), ["cpu"] * 2)
    x = X.astype(np.float32)
    assert not np.allclose(model(x).data, model(x).data)
    model.eval()
    with psf.no_grad():
        found = model(x)
    assert not found.requires_grad
    np.testing.assert_allclose(found.data, model.module(x).data, rtol=1e-5, atol=1e-6)
    linear: Any = model.module.get_submodule("0")
    linear.bias.requires_grad = False
    model(x).sum().backward()
    assert linear.bias.grad is None
    assert linear.weight.grad is not None


def test_masks_depend_on_the_seed_alone_and_differ_between_replicas() -> None:
    model = DataParallel(nn.Dropout(0.5), ["cpu"] * 2)
    draws = []
    for seed in (3, 3, 4):
        psf.manual_seed(seed)
        draws.append([model(np.ones((2, 64))).data for _ in range(2)])
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])
    assert not np.array_equal(draws[0][0], draws[0][1])
    assert not np.array_equal(draws[0][0][0], draws[0][0][1])


def test_running_statistics_are_those_of_the_first_part() -> None:
    model, alone = (nn.BatchNorm1d(6).double() for _ in range(2))
    DataParallel(model, ["cpu"] * 2)(X)
    alone(X[:6])
    np.testing.assert_array_equal(model.running_mean, alone.running_mean)


def test_sparse_gradients_stay_sparse() -> None:
    ids = np.array([1, 5, 1, 7, 5])
    tables = [nn.Embedding(9, 3, sparse=True) for _ in range(2)]
    tables[1].load_state_dict(tables[0].state_dict())
    for each in (tables[0], DataParallel(tables[1], ["cpu"] * 2)):
        (each(ids) * np.arange(15).reshape(5, 3)).sum().backward()
    mine, theirs = tables[1].weight.grad, tables[0].weight.grad
    assert isinstance(mine, SparseRows)
    assert mine.rows.tolist() == theirs.rows.tolist() == [1, 5, 7]
    np.testing.assert_array_equal(mine.values, theirs.values)


def test_graphs_may_be_kept_and_are_freed_with_the_result() -> None:
    model = DataParallel(network(), ["cpu"] * 2)
    loss = model(X).sum()
    loss.backward(retain_graph=True)
    once = [g.copy() for g in gradients(model)]
    loss.backward()
    close(gradients(model), [2 * g for g in once])
    with pytest.raises(psf.AutogradError, match="freed"):
        loss.backward()


def test_a_changed_argument_or_parameter_is_noticed() -> None:
    model = DataParallel(network(), ["cpu"] * 2)
    x = psf.tensor(X.copy(), requires_grad=True)
    for change in (x.bump_version, model.module.get_parameter("2.weight").bump_version):
        loss = model(x).sum()
        change()
        with pytest.raises(psf.AutogradError, match="changed in place"):
            loss.backward()


def test_an_error_says_where_it_was() -> None:
    class Picky(nn.Module):
        def forward(self, x: Any) -> Any:
            if x[0, 0] == 1:
                raise ZeroDivisionError("mine")
            return x

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        DataParallel(Picky(), ["cpu"] * 2)(np.array([[0.0], [1.0]]))
    assert caught.value.__notes__ == ["in replica 1 on cpu"]


def refused(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(psf.ArgumentError, match=text):
        make()


def test_what_is_wrong_is_said() -> None:
    refused(lambda: DataParallel(network(), []), "at least one device")
    refused(lambda: DataParallel("network", ["cpu"]), r"wraps an nn\.Module, not str")  # type: ignore[arg-type]
    with strict_devices("dp-2"):
        refused(lambda: DataParallel(network(), ["dp-2"]), "0.weight is on cpu: move the module to dp-2")
    refused(lambda: DataParallel(WithLoss(), ["cpu"] * 2)(X, target=Y[:5]), r"\[5, 11\] rows")


def test_threads_go_with_the_module() -> None:
    model = DataParallel(network(), ["cpu"] * 3)
    model(X)
    mine = [each for each in threading.enumerate() if each.name.startswith("psf-replica")]
    assert mine
    del model
    gc.collect()
    for each in mine:
        each.join(10)
        assert not each.is_alive()
