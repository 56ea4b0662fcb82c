"""One trainer of the demo, a process of its own: `python -m psframework.cli.demo.trainer --coordinator ...`.

All trainers run the same loop. Each epoch they split the images among those who are still there, so when one
dies the others take over its share. The first of them by name tests the model and saves it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

import psframework.nn.functional as F
from psframework.autograd import tensor
from psframework.backend import Array
from psframework.cli.demo.events import Reporter
from psframework.cli.demo.load import shard_loads, traffic
from psframework.cli.demo.model import accuracy, digits_network, model_arrays
from psframework.cli.demo.model_file import ModelFile, load_model, save_model
from psframework.cluster.connect import connect
from psframework.cluster.handle import Cluster
from psframework.cluster.settings import Settings
from psframework.data import Digits, ShardedSampler, batches, digits
from psframework.errors import ArgumentError, PsfError
from psframework.nn.module import Module
from psframework.optim import Adam
from psframework.optim.schedule import Cosine
from psframework.parameter_server.client import ParameterServer
from psframework.parameter_server.policy import BSP
from psframework.rpc.compute import compute
from psframework.rpc.process import exit_with_parent

JOB, MODEL = "demo", "digits"


class TrainerSettings(Settings):
    """Flags of a trainer of the demo."""

    trainers: int = Field(1, ge=1, description="how many trainers begin together")
    epochs: int = Field(20, ge=1, description="passes over the training images")
    batch_size: int = Field(16, ge=1, description="images of one step of one trainer")
    learning_rate: float = Field(3e-3, gt=0, description="Adam's at the start; it falls along a cosine")
    seed: int = Field(0, description="of the first values and of the order of the images")
    resume: Path | None = Field(None, description="model file to go on from")
    save: Path | None = Field(None, description="where the trained model goes")
    events: bool = Field(False, description="report as JSON lines, for psf demo")


def steps_per_epoch(trainers: int, batch_size: int) -> int:
    """Steps that each of `trainers` makes in one pass over the training images, whole batches only."""
    share = -(-len(digits().x_train) // trainers)
    if share < batch_size:
        raise ArgumentError(
            f"{trainers} trainers have {share} images each, fewer than a batch of {batch_size}"
        )
    return share // batch_size


@dataclass
class Training:
    """One trainer's part in the run.

    Attributes:
        step, epoch: how far it is, counting what was trained before a resume.
        rank: its place among the live trainers; the first one tests and saves.
    """

    settings: TrainerSettings
    cluster: Cluster
    ps: ParameterServer
    model: Module
    reporter: Reporter
    step: int = 0
    epoch: int = 0
    rank: int = 0
    data: Digits = field(default_factory=digits)

    async def run(self) -> None:
        """Trains to the last step, tests, saves."""
        settings = self.settings
        last = self.step + settings.epochs * steps_per_epoch(settings.trainers, settings.batch_size)
        self.reporter.start(self.step)
        while self.step < last:
            loss = await self._epoch(last)
            if self.rank == 0:
                await self._test(loss)
        await self.ps.leave()
        self.reporter.done(await self._result() if self.rank == 0 else None, traffic(self.ps).lanes)

    async def _epoch(self, last: int) -> float:
        """One pass over this trainer's share; returns the mean loss."""
        sampler = self._sampler()
        losses = []
        for x, y in self._batches(sampler):
            with self.reporter.phase("compute"):
                losses.append(await compute(forward_backward, self.model, x, y))
            with self.reporter.phase("server"):
                await self.ps.push_pull()
            self.step += 1
            self.reporter.step(self.step, losses[-1], traffic(self.ps))
            if self.step == last:
                break
        if not losses:
            raise ArgumentError(
                f"a batch of {self.settings.batch_size} images is larger than a trainer's share"
            )
        self.epoch += 1
        return sum(losses) / len(losses)

    def _sampler(self) -> ShardedSampler:
        """Shares the images with the trainers that are alive now, in the order of their names."""
        names = sorted(member.name for member in self.cluster.members(role=self.cluster.role, job=JOB))
        self.rank = names.index(self.cluster.name) if self.cluster.name in names else 0
        sampler = ShardedSampler(len(self.data.x_train), self.rank, max(1, len(names)), self.settings.seed)
        sampler.set_epoch(self.epoch)
        return sampler

    def _batches(self, sampler: ShardedSampler) -> Iterator[tuple[Array, Array]]:
        iterator = batches(
            self.data.x_train, self.data.y_train, self.settings.batch_size, drop_last=True, sampler=sampler
        )
        while True:
            with self.reporter.phase("data"):
                batch = next(iterator, None)
            if batch is None:
                return
            yield batch

    async def _test(self, loss: float) -> None:
        with self.reporter.phase("evaluate"):
            score = await compute(accuracy, self.model, self.data.x_test, self.data.y_test)
        self.reporter.epoch(self.step, self.epoch, loss, score)
        self.reporter.shards(await shard_loads(self.cluster))

    async def _result(self) -> dict[str, float]:
        score = await compute(accuracy, self.model, self.data.x_test, self.data.y_test)
        if self.settings.save is not None:
            file = ModelFile(model_arrays(self.model), step=self.step, epoch=self.epoch)
            await compute(save_model, self.settings.save, file)
        return {"accuracy": score, "step": self.step, "epoch": self.epoch}


def forward_backward(model: Module, x: Array, y: Array) -> float:
    """Adds the gradients of one batch to the model's parameters; returns the mean loss of the batch."""
    loss = F.cross_entropy(model(tensor(x)), y)
    loss.backward()
    return float(loss.item())


async def train(settings: TrainerSettings) -> None:
    """Joins the cluster, registers the model, trains, leaves."""
    model = digits_network(settings.seed)
    step = epoch = 0
    if settings.resume is not None:
        loaded = load_model(settings.resume, model_arrays(model))
        model.load_state_dict(loaded.state)
        step, epoch = loaded.step, loaded.epoch
    steps = settings.epochs * steps_per_epoch(settings.trainers, settings.batch_size)
    rate = Cosine(settings.learning_rate, steps, settings.learning_rate / 100)
    async with connect(settings.coordinator, settings.name, JOB, settings.tls_dir) as cluster:
        ps = await cluster.parameter_server(
            model, MODEL, optimizer=Adam(lr=rate), consistency=BSP(trainers=settings.trainers)
        )
        await cluster.barrier("start", settings.trainers)
        reporter = Reporter(cluster.name, machine=settings.events)
        await Training(settings, cluster, ps, model, reporter, step, epoch).run()


def main() -> None:
    """Runs one trainer to the end of training."""
    try:
        settings = TrainerSettings.from_command_line(sys.argv[1:], "python -m psframework.cli.demo.trainer")
        exit_with_parent()
        asyncio.run(train(settings))
    except PsfError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
