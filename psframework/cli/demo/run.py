"""A run of the demo: a local cluster, trainers as processes of their own, and what they report."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from psframework.cli.demo.dashboard import Dashboard
from psframework.cli.demo.model_file import check_folder
from psframework.cli.demo.progress import Progress
from psframework.cluster.local import LocalCluster, LocalOptions
from psframework.cluster.process import ServiceProcess
from psframework.errors import DeadlineExceeded, PeerLost

_TRAINER = "psframework.cli.demo.trainer"
_SILENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the flags of `psf demo` say; `first_step` and `total_steps` count those before a resume too."""

    epochs: int
    trainers: int
    parameter_servers: int
    batch_size: int
    seed: int
    lanes: str | None
    kill: bool
    resume: Path | None
    model: Path
    first_step: int
    total_steps: int


async def run_demo(options: DemoOptions, console: Console) -> Progress:
    """Trains to the end; returns what was reported.

    Raises:
        PeerLost: a trainer ended in error, with its last words.
        ConfigurationError: the folder of the model can't be written to.
    """
    check_folder(options.model.parent)
    task = asyncio.current_task()
    if task is not None:  # so that SIGTERM ends the processes in order, as Ctrl-C does
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    progress = Progress(total=options.total_steps, first=options.first_step)
    async with LocalCluster(LocalOptions(options.parameter_servers, options.lanes)) as local:
        with Dashboard(progress, console) as dashboard:
            run = _Run(options, progress, dashboard, local.address)
            await run.trainers()
    return progress


class _Run:
    """The trainers of one run, and the thread-safe way from their output to the progress."""

    def __init__(self, options: DemoOptions, progress: Progress, dashboard: Dashboard, address: str):
        self._options = options
        self._progress = progress
        self._dashboard = dashboard
        self._loop = asyncio.get_running_loop()
        self._processes = {
            f"trainer-{index}": self._process(f"trainer-{index}", address)
            for index in range(options.trainers)
        }
        self._victim = f"trainer-{options.trainers - 1}" if options.kill else ""
        self._killed = False
        self._patience: asyncio.Timeout | None = None

    async def trainers(self) -> None:
        """Starts all trainers and waits for their ends.

        Raises:
            DeadlineExceeded: nobody reported anything for two minutes.
        """
        try:
            for process in self._processes.values():
                process.start()
            async with asyncio.timeout(_SILENCE_SECONDS) as self._patience:
                await asyncio.gather(*(self._watch(process) for process in self._processes.values()))
        except TimeoutError:
            states = ", ".join(f"{own.name}: step {own.step}" for own in self._progress.trainers.values())
            raise DeadlineExceeded(f"no progress for {_SILENCE_SECONDS:g} s ({states})") from None
        finally:
            self._patience = None
            await asyncio.gather(*(process.stop(3.0) for process in self._processes.values()))

    async def _watch(self, process: ServiceProcess) -> None:
        code = await process.wait_ended()
        killed = process.name == self._victim and code is not None and code < 0
        self._progress.trainer_ended(process.name, code)
        if code and not killed:
            raise PeerLost(
                f"{process.name} ended with status {code}: {process.last_words}", peer=process.name
            )
        self._dashboard.changed()

    def _process(self, name: str, address: str) -> ServiceProcess:
        return ServiceProcess(
            name,
            _TRAINER,
            ["--name", name, "--coordinator", address, *trainer_arguments(self._options)],
            on_line=lambda line: self._loop.call_soon_threadsafe(self._take, line),
            environment=trainer_environment(self._options),
        )

    def _take(self, line: str) -> None:
        """One line of a trainer's output, on the loop."""
        if not self._progress.accept_line(line, time.monotonic()):
            return
        if self._patience is not None:
            self._patience.reschedule(self._loop.time() + _SILENCE_SECONDS)
        half = (self._options.first_step + self._options.total_steps) // 2
        if self._victim and not self._killed and self._progress.step >= half:
            self._kill(self._processes[self._victim])
        self._dashboard.changed()

    def _kill(self, process: ServiceProcess) -> None:
        self._killed = True
        process.kill()
        note = f"killed {process.name} (SIGKILL) at step {self._progress.step}: the others go on without it"
        self._progress.notes.append(note)


def trainer_arguments(options: DemoOptions) -> Sequence[str]:
    """The flags that all trainers share."""
    flags = {
        "--trainers": options.trainers,
        "--epochs": options.epochs,
        "--batch-size": options.batch_size,
        "--seed": options.seed,
        "--save": options.model.resolve(),
        "--lanes": options.lanes,
        "--resume": options.resume.resolve() if options.resume else None,
    }
    told = [text for flag, value in flags.items() if value is not None for text in (flag, str(value))]
    return [*told, "--events"]


def trainer_environment(options: DemoOptions) -> dict[str, str]:
    """Cores are shared by trainers and shards alike."""
    return {"PSF_LOCAL_PROCESSES": str(options.trainers + options.parameter_servers)}
