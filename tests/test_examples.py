"""What README and docs show is true: their programs run against `psf up`, their links lead somewhere."""

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

import psframework as psf
from psframework.cluster.process import child_environment
from psframework.pipeline.schedule import Action, Kind, actions, peak_activations
from psframework.pipeline.timetable import Timetable, simulate
from psframework.testing.cluster import program

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
UP = """
    import sys
    from psframework.cli.app import main
    sys.exit(main(["up", "--parameter-servers", "2"]))
"""
END = "--- ended with 0\n"
HELP = """
import runpy, sys
for path in sys.argv[1:]:
    sys.argv = [path, "--help"]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        print("--- ended with", end.code)
"""
LOCAL = "async with psf.local_cluster(parameter_servers=2) as local, psf.connect(local.address) as cluster:"


def readme_program() -> str:
    """The training loop of README."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return str(block)


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    """A coordinator that `psf up` has started; it ends in order on Ctrl-C."""
    async with program(tmp_path, "up", UP) as up:
        line = await up.line("export PSF_COORDINATOR=")
        yield line.partition("=")[2]
        up.process.send_signal(signal.SIGINT)
        assert await up.end(15) == 0
        assert "stopping" in up.process.output


async def accuracy(script: Path, address: str) -> float:
    """Runs a trainer, which is told of the cluster by the environment alone; returns what it printed last."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        env=child_environment({"PSF_COORDINATOR": address}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(45):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, errors.decode()) == (0, ""), output
    return float(re.findall(r"accuracy (\d\.\d+)", output.decode())[-1])


async def test_the_example_and_readmes_loop_train_one_model_together(address: str, tmp_path: Path) -> None:
    shown = readme_program()
    assert shown.count(LOCAL) == 1, "README says: psf.connect() in place of the local cluster"
    (tmp_path / "readme.py").write_text(shown.replace(LOCAL, "async with psf.connect() as cluster:"))
    both = await asyncio.gather(
        accuracy(ROOT / "examples" / "train.py", address), accuracy(tmp_path / "readme.py", address)
    )
    assert min(both) > 0.93, both


@pytest.mark.parametrize("model", ["lstm", "transformer"])
def test_the_language_model_trains_and_writes(model: str) -> None:
    small = ["--steps=4", "--width=16", "--context=16", "--batch=4", "--length=20", "--prompt=psf"]
    command = [sys.executable, ROOT / "examples" / "text.py", f"--model={model}", *small]
    done = subprocess.run(command, capture_output=True, text=True, timeout=45)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    losses = [float(loss) for loss in re.findall(r"^step \d: loss (\d\.\d+)", done.stdout, re.MULTILINE)]
    assert len(losses) == 4 and all(3 < loss < 6 for loss in losses)
    written = done.stdout[done.stdout.index("\npsf") + 1 :].removesuffix("\n")
    assert len(written) == 23


def test_the_recommender_finds_the_topics() -> None:
    command = [sys.executable, ROOT / "examples" / "recommender.py", "--steps=300", "--articles=1000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=45)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    areas = [float(area) for area in re.findall(r"AUC (\d\.\d+)", done.stdout)]
    assert len(areas) == 5 and areas[-1] > 0.86, done.stdout


def test_batched_calls_run_together_and_each_gets_its_own_answer() -> None:
    output = example("batch_rpc", "--epochs=3")
    rows = re.findall(r"^(\w+) +(\d+) calls in +(\d+) batches", output, re.M)
    run = {name: (int(calls), int(batches)) for name, calls, batches in rows}
    digits = psf.data.digits()
    train, test = len(digits.x_train), len(digits.x_test)
    assert run["predict_alone"] == (train, train)
    assert [run[name][0] for name in ("update", "predict")] == [3 * train, 15 * test], "each runs once"
    assert all(run[name][1] < run[name][0] for name in ("update", "predict")), output
    right = float(re.findall(r"^accuracy ([\d.]+)", output, re.M)[0])
    assert right > 0.85, output  # two trainers race, so no two runs are alike


def test_observers_elsewhere_teach_an_agent_to_balance_a_pole(tmp_path: Path) -> None:
    output = example("cartpole", "--target=195", f"--plot={tmp_path / 'returns.png'}")
    means = [float(mean) for mean in re.findall(r"mean of 20: ([\d.]+)", output)]
    assert means[0] < 50 and means[-1] >= 195, output
    assert (tmp_path / "returns.png").read_bytes().startswith(b"\x89PNG")


def test_a_language_model_over_three_processes_knows_more_than_how_frequent_words_are(tmp_path: Path) -> None:
    output = example("lstm_two_workers", "--steps=60", "--batch=16", f"--picture={tmp_path / 'lstm.svg'}")
    unigram, model, language = (
        float(re.findall(rf"^{line} +([\d.]+)", output, re.M)[0])
        for line in ("unigram entropy", "model", "the language")
    )
    assert language < model < 0.7 * unigram, output
    picture = (tmp_path / "lstm.svg").read_text()
    assert all(f">{name}</text>" in picture for name in ("worker-0", "trainer", "worker-1", "weight_hh_l0"))
    assert picture.count("url(#message)") == 3, "features, hidden states, scores"
    lives = r"\d+\.1 (?=of|from|to)"  # of processes, which start in any order
    shown = (ROOT / "docs" / "images" / "dist-autograd.svg").read_text()
    assert re.sub(lives, "", picture) == re.sub(lives, "", shown), "draw it again into docs/images"


def test_the_program_in_the_docs_on_distributed_autograd_learns(tmp_path: Path) -> None:
    shown = (ROOT / "docs" / "dist-autograd.md").read_text()
    program = tmp_path / "encode.py"
    program.write_text(re.findall(r"```python\n(.*?)```", shown, re.DOTALL)[0])
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=55)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert float(done.stdout) < 1.0, "nats; three classes that are not told apart give 1.1"


@pytest.mark.parametrize(
    ("name", "lanes", "messages"),
    [("diamond", ["A", "worker-0", "worker-1", "worker-2"], 8), ("recursion", ["A", "worker-0"], 8)],
)
def test_gradients_over_several_processes_are_those_of_one(
    name: str, lanes: list[str], messages: int, tmp_path: Path
) -> None:
    output = example(name, f"--picture={tmp_path / 'graph.svg'}")
    differences = re.findall(r"^in one process it differs by (\S+)", output, re.M)
    assert len(differences) == 2 and all(float(each) < 1e-12 for each in differences), output
    picture = (tmp_path / "graph.svg").read_text()
    assert picture.count('<g class="lane">') == len(lanes)
    assert all(f">{lane}</text>" in picture for lane in lanes)
    assert f"{messages} messages" in picture and picture.count("url(#message)") == messages


def test_data_parallel_ranks_have_one_model_and_know_the_digits(tmp_path: Path) -> None:
    output = ranks("ddp", "--epochs=5", f"--timeline={tmp_path / 'run.svg'}")
    size, models, right = re.findall(r"(\d) ranks over \w+, (\d) model, accuracy ([\d.]+)", output)[0]
    assert (size, models) == ("2", "1") and float(right) > 0.9, output
    picture = (tmp_path / "run.svg").read_text()
    assert all(f">{lane}</text>" in picture for lane in ("computation", "communication"))


def test_dense_layers_on_every_rank_and_an_embedding_elsewhere() -> None:
    output = ranks("hybrid", "--steps=100", services=["--workers=1"])
    losses = [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", output)]
    assert len(losses) == 5 and losses[-1] < 0.7 * losses[0], output
    assert float(re.findall(r"accuracy ([\d.]+)", output)[0]) > 0.85


def test_a_language_model_over_three_stages_learns_and_writes(tmp_path: Path) -> None:
    small = ["--steps=30", "--width=16", "--context=16", "--batch=16", "--length=6", "--prompt=The"]
    output = example("pipeline", *small, f"--picture={tmp_path / 'run.svg'}")
    losses = [float(loss) for loss in re.findall(r"^step \d+: loss ([\d.]+)", output, re.M)]
    assert len(losses) == 10 and losses[-1] < 0.8 * losses[0], output
    assert len(re.findall(r"^The.{6}$", output, re.M | re.S)) == 2, output
    picture = (tmp_path / "run.svg").read_text()
    assert all(f">{name}</text>" in picture for name in ("stage-0", "stage-1", "stage-2"))


def test_the_program_in_the_docs_on_collectives(tmp_path: Path) -> None:
    shown = (ROOT / "docs" / "collectives.md").read_text()
    program = tmp_path / "train.py"
    program.write_text(re.findall(r"```python\n(.*?)```", shown, re.DOTALL)[0])
    printed = re.findall(r"It prints, .*\s`(.*?)`", shown)[0]
    assert printed in psf_run("--nproc-per-node=4", str(program)).splitlines()


def test_the_program_in_the_docs_on_pipelines(tmp_path: Path) -> None:
    shown = (ROOT / "docs" / "pipeline.md").read_text()
    program = tmp_path / "train.py"
    program.write_text(re.findall(r"```python\n(.*?)```", shown, re.DOTALL)[0])
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=55)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert float(re.findall(r"accuracy (\d\.\d+)", done.stdout)[0]) > 0.9


@pytest.mark.parametrize(
    ("name", "ranks", "virtual"),
    [("gpipe", 4, 1), ("1f1b", 4, 1), ("eager-1f1b", 4, 1), ("zb-h1", 4, 1), ("interleaved", 2, 2)],
)
def test_the_schedules_in_the_docs_are_those_that_run(name: str, ranks: int, virtual: int) -> None:
    lines = [name]
    for rank, spans in enumerate(played(name, ranks, 4, virtual).spans):
        cells = [""] * 40
        for span in spans:
            word = f"{span.action.kind}{span.action.microbatch}"
            began, ended = round(span.began * virtual), round(span.ended * virtual)
            cells[began:ended] = [
                word if span.action.stage < ranks else word.lower(),
                *["--"] * (ended - began - 1),
            ]
        lines.append(f"rank {rank}  {' '.join(f'{cell:2}' for cell in cells)}".rstrip())
    assert "\n".join(lines) + "\n" in (ROOT / "docs" / "pipeline.md").read_text()


@pytest.mark.parametrize(
    ("name", "virtual"), [("gpipe", 1), ("1f1b", 1), ("eager-1f1b", 1), ("interleaved", 2), ("zb-h1", 1)]
)
def test_the_numbers_of_the_schedules_in_the_docs(name: str, virtual: int) -> None:
    shown = (ROOT / "docs" / "pipeline.md").read_text()
    (row,) = re.findall(rf"^\| `{name}`.*$", shown, re.M)
    bubbles = [f"{100 * played(name, 4, m, virtual).bubble:.1f} %" for m in (8, 32)]
    kept = [", ".join(str(peak_activations(plan)) for plan in plans(name, 4, m, virtual)) for m in (8, 32)]
    cells = [re.sub(" of half the size", "", cell.strip()) for cell in row.split("|")[2:-1]]
    assert cells == [*bubbles, *kept]


def plans(name: str, ranks: int, microbatches: int, virtual: int) -> list[tuple[Action, ...]]:
    """Of all ranks."""
    return [actions(name, rank, ranks, microbatches, virtual) for rank in range(ranks)]


def played(name: str, ranks: int, microbatches: int, virtual: int) -> Timetable:
    """A schedule whose whole backwards take twice as long as forwards."""
    backward = 1 if name == "zb-h1" else 2
    seconds = {Kind.FORWARD: 1 / virtual, Kind.BACKWARD: backward / virtual, Kind.WEIGHT: 1.0}
    return simulate(plans(name, ranks, microbatches, virtual), seconds)


def test_the_program_in_the_docs_on_hooks(tmp_path: Path) -> None:
    shown = (ROOT / "docs" / "ddp-hooks.md").read_text()
    program = tmp_path / "train.py"
    program.write_text(re.findall(r"```python\n(.*?)```", shown, re.DOTALL)[0])
    printed = re.findall(r"train.py` prints `(.*?)`", shown)[0]
    assert printed in psf_run("--nproc-per-node=2", str(program)).splitlines()


@pytest.mark.soak
def test_until_it_can_do_it(tmp_path: Path) -> None:
    first, second = (re.sub(r"[\d.]+ s$", "", example("cartpole"), flags=re.M) for _ in range(2))
    assert float(re.findall(r"mean of 20: ([\d.]+)", first)[-1]) >= 475
    assert first == second, "the seed decides"


def test_help_shows_how_to_run_it() -> None:
    """In one process: the other tests run each by itself."""
    paths = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem != "train")
    command = [sys.executable, "-c", HELP, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=45)
    assert (done.returncode, done.stderr) == (0, "")
    for path, shown in zip(paths, done.stdout.split(END)[:-1], strict=True):
        assert re.search(rf"(python|psf run --nproc-per-node \d.*) examples/{path.name}", shown), shown


def example(name: str, *flags: str) -> str:
    """Runs an example as users do; returns what it printed, and nothing is on stderr."""
    command = [sys.executable, ROOT / "examples" / f"{name}.py", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=55)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def ranks(name: str, *flags: str, services: Sequence[str] = ()) -> str:
    """Runs an example as two ranks."""
    return psf_run("--nproc-per-node=2", *services, str(ROOT / "examples" / f"{name}.py"), *flags)


def psf_run(*arguments: str) -> str:
    """What `psf run` printed; nothing is on stderr."""
    command = [sys.executable, "-m", "psframework.cli.app", "run", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=55, env=child_environment())
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def test_readmes_loop_is_short() -> None:
    lines = [line for line in readme_program().splitlines() if line.strip()]
    assert len(lines) <= 25


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(target)
    assert not broken


def _anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_files_that_are_named_exist() -> None:
    """Paths in backticks, such as `rpc/process.py`, are of the checkout, the package or its tests."""
    roots = [ROOT, ROOT / "psframework", ROOT / "tests"]
    for page in PAGES:
        for name in re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|md|toml|txt|yml|proto))`", page.read_text()):
            assert any((root / name).exists() for root in roots), f"{page.name}: {name}"


def programs() -> list[tuple[str, str]]:
    """The Python blocks of the pages on computing, which run alone; those on clusters need one."""
    found = []
    for name in ("autograd", "nn", "optim", "devices"):
        path = ROOT / "docs" / f"{name}.md"
        blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL) if path.exists() else []
        found += [(f"{name}-{i}", block) for i, block in enumerate(blocks)]
    return found


@pytest.mark.parametrize("program", programs(), ids=lambda program: program[0])
def test_programs_in_the_docs_run(
    program: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(program[1], program[0], "exec"), {})
    shown = ROOT / "docs" / "images" / "graph.svg"
    if (tmp_path / "graph.svg").exists():
        assert (tmp_path / "graph.svg").read_text() == shown.read_text(), "draw it again into docs/images"
