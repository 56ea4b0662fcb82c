"""The command `psf demo`: its flags, the run, and what the run leaves behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from psframework.cli.demo import picture
from psframework.cli.demo.dashboard import megabytes
from psframework.cli.demo.model import digits_network, model_arrays
from psframework.cli.demo.model_file import load_model
from psframework.cli.demo.progress import PHASES, Progress
from psframework.cli.demo.run import DemoOptions, run_demo
from psframework.cli.demo.trainer import steps_per_epoch
from psframework.errors import ArgumentError, PeerLost

COMPOSE = "docker compose up -d --wait && docker compose --profile train run --rm train"

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command()
def demo(
    epochs: Annotated[int, typer.Option(min=1, help="passes over the training images")] = 20,
    trainers: Annotated[int, typer.Option(min=1, help="trainer processes")] = 2,
    parameter_servers: Annotated[int, typer.Option(min=1, help="shards of the parameter server")] = 2,
    batch_size: Annotated[int, typer.Option(min=1, help="images in one step of one trainer")] = 16,
    lanes: Annotated[
        str | None, typer.Option(help="lanes to offer: inline,striped,shm; default: all")
    ] = None,
    kill: Annotated[bool, typer.Option("--kill", help="kill one trainer midway: training goes on")] = False,
    resume: Annotated[Path | None, typer.Option(help="model file to go on from")] = None,
    out: Annotated[Path, typer.Option(help="folder for the picture and the model")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="of the first values and the order of images")] = 0,
) -> None:
    """Train a convolutional network on handwritten digits: shards and trainers as processes of this machine.

    Example: [bold]psf demo --kill --out runs/demo[/bold]
    """
    if kill and trainers < 2:
        raise ArgumentError("--kill needs a trainer that is left: use --trainers 2 or more")
    console = Console()
    first = _resumed(resume, seed, console) if resume is not None else 0
    options = DemoOptions(
        epochs=epochs,
        trainers=trainers,
        parameter_servers=parameter_servers,
        batch_size=batch_size,
        seed=seed,
        lanes=lanes,
        kill=kill,
        resume=resume,
        model=out / "model.safetensors",
        first_step=first,
        total_steps=first + epochs * steps_per_epoch(trainers, batch_size),
    )
    progress = asyncio.run(run_demo(options, console))
    _report(progress, options, out / "run.png", console)


def _resumed(path: Path, seed: int, console: Console) -> int:
    """Reads the model file before anything is started, and says what resuming means; returns its step."""
    model = load_model(path, model_arrays(digits_network(seed)))
    _say(
        console,
        f"resuming {path} at step {model.step}, epoch {model.epoch}: its parameters are registered bitwise; "
        "the optimizer's slots begin anew (a model file is not a checkpoint)",
    )
    return model.step


def _report(progress: Progress, options: DemoOptions, image: Path, console: Console) -> None:
    """The end of the output; its last line is the accuracy."""
    if progress.result is None:
        raise PeerLost("no trainer reached the end of the training", peer="trainer-0")
    step, epoch = int(progress.result["step"]), int(progress.result["epoch"])
    moved = ", ".join(
        f"{lane} {megabytes(count)}" for lane, count in sorted(progress.lanes().items()) if count
    )
    _say(console, f"trained to step {step}, epoch {epoch}, in {progress.elapsed:.1f} s; moved {moved}")
    _say(console, f"where the time went: {_time(progress)}")
    by_shard = progress.shard_bytes()
    for name, load in sorted(progress.shards.items()):
        bytes_moved = megabytes(by_shard.get(name, 0))
        _say(console, f"{name}: {load.updates} partition updates, {bytes_moved}, busy {load.busy:.1f} s")
    if picture.can_draw():
        picture.draw(
            progress, image, f"psf demo: {options.trainers} trainers, {options.parameter_servers} shards"
        )
        _say(console, f"picture: {image}")
    else:
        _say(console, picture.HINT)
    _say(console, f"model: {options.model} (go on with: psf demo --resume {options.model})")
    _say(console, f"the same under compose: {COMPOSE}")
    _say(console, f"test accuracy: {progress.result['accuracy']:.3f}")


def _time(progress: Progress) -> str:
    total = {phase: sum(own.get(phase, 0.0) for own in progress.seconds().values()) for phase in PHASES}
    whole = sum(total.values()) or 1.0
    return ", ".join(f"{phase} {100 * seconds / whole:.0f} %" for phase, seconds in total.items())


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)
