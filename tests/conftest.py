"""What tests share: where the toy base is, where real data may be, and tables in the artifacts' columns."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from hashlib import sha1
from pathlib import Path

import polars as pl
import pytest
from filelock import FileLock
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MRT_PLANS", "1")  # dry runs do not count what caches give
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes of pytest share the cores
os.environ.setdefault("MRT_FORK_SERVER", str(os.getpid()))  # stages that a test starts share its imports

# No time limits, as first examples import and machines are busy. Examples not by chance, as this is a gate, though
# Hypothesis takes constants for them from whatever of ours has been imported.
settings.register_profile("mrt", deadline=None, max_examples=200, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=5000)  # pytest --hypothesis-profile thorough
settings.load_profile("mrt")

ROOT = Path(__file__).parents[1]
TOY_BASE = ROOT / "mrt" / "toy" / "weights"
TOY_ATTEMPTS = ROOT / "mrt" / "toy" / "weights_attempts"
HARNESSES = ROOT / "tests" / "data" / "harnesses"
SHARED = ROOT.parent / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the real data is not beside this checkout")


def thorough_case(*values):
    """A case of `parametrize` that only `pytest -m thorough` runs."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def slow_case(*values):
    """A case of `parametrize` in the second tier."""
    return pytest.param(*values, marks=pytest.mark.slow)


# Files, and single tests, that start an engine, a trainer, Snakemake or many processes, or take long: not `fast`.
ENGINES = (
    *(
        "analysis/test_votes",
        "config/test_bad_input",
        "config/test_hardware",
        "config/test_memory",
        "config/test_paper",
    ),
    *("config/test_reference", "core/test_accelerator", "core/test_hub", "episodes/test_cut", "figures/test_figures"),
    *("grading/test_equality.py::test_agreement", "grading/test_grade", "grading/test_workers", "planning/test_plan"),
    *("planning/test_calibrate", "sampling/test_pool", "core/test_lock", "training/test_stage", "core/test_cli"),
    *("problems/test_build", "sampling/test_allocation", "sampling/test_budget_forcing", "sampling/test_cache"),
    *("sampling/test_engine", "sampling/test_likelihood", "sampling/test_linearized", "sampling/test_prover"),
    *(
        "sampling/test_tokens",
        "sampling/test_tree",
        "tasks/test_code.py::test_a_program_that_means_harm",
        "toy/test_world",
        "traces/test_page",
        "traces/test_script",
    ),
    *("training/test_flops", "training/test_frozen", "training/test_launch", "training/test_rl", "training/test_sft"),
    "training/test_lora",
    *("training/test_method.py::test_edits", "training/test_method.py::test_one_new", "workflow/", "project/"),
    *("test_trl", "test_public_progress.py::test_an_engine"),
)


# Started first, so that no long file is left to the end, when the other process has nothing more to do. The first one
# makes the finished run; the second does without it.
LONGEST = (
    *("workflow/test_workflow", "training/test_rl", "project/test_real_model", "workflow/test_running"),
    *("workflow/test_slurm", "workflow/test_backtracking", "core/test_mutations", "training/test_method"),
    *("training/test_flops", "training/test_sft", "sampling/test_prover", "workflow/test_faults"),
    *("workflow/test_invalidation", "project/test_gpu", "workflow/test_slurm_faults", "core/test_fork_server"),
    *("config/test_your_own", "core/test_hub", "traces/test_browser", "sampling/test_worker"),
)


def name_of(item):
    return str(item.path.with_suffix("")).removeprefix(f"{ROOT}/tests/")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("thorough"):  # of a test, whatever its cases are
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "slow"]
        where = f"{name_of(item)}.py::{item.name}"
        if not where.startswith(ENGINES) and not any(map(item.get_closest_marker, ("slow", "thorough", "setup"))):
            item.add_marker("fast")
    items.sort(key=lambda item: LONGEST.index(name_of(item)) if name_of(item) in LONGEST else len(LONGEST))


def hub_cache(home, kind, path, revision, files):
    """A repository in the hub's cache as a download leaves it, `main` at this revision: names that point to blobs."""
    repository = home / "hub" / f"{kind}s--{path.replace('/', '--')}"
    snapshot, blobs = repository / "snapshots" / revision, repository / "blobs"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(revision)
    blobs.mkdir(exist_ok=True)
    for name, content in files.items():
        blob = blobs / sha1(f"{revision}/{name}".encode()).hexdigest()
        blob.symlink_to(content.resolve())
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(os.path.relpath(blob, (snapshot / name).parent))
    return snapshot


def without_pad_token(folder):
    """A copy of the toy base whose tokenizer and configuration name no pad token, like Llama 3.1's."""
    shutil.copytree(TOY_BASE, folder)
    for name in ("tokenizer_config.json", "config.json", "generation_config.json"):
        kept = {k: v for k, v in json.loads((folder / name).read_text()).items() if not k.startswith("pad_token")}
        (folder / name).write_text(json.dumps(kept))
    return folder


EXTRAS = """
    trackio==0.43.0 gradio_client==2.7.2 orjson==3.13.0 brotli==1.2.1 pillow==12.3.0
    wandb==0.31.0 cwevals==0.0.1b1 distro==1.9.0
    snakedeploy==0.17.1 pygithub==2.10.0 pynacl==1.6.2 toml==0.10.2
    snakemake-executor-plugin-cluster-generic==1.0.9
"""


@pytest.fixture(scope="session")
def extras(tmp_path_factory):
    """A folder for PYTHONPATH with packages that pages name and the locks lack; skips where they cannot be fetched."""
    folder = tmp_path_factory.mktemp("extras")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *EXTRAS.split()]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the package index does not serve them: {done.stderr.strip().splitlines()[-1]}")
    return folder


@pytest.fixture
def toy_problems(tmp_path: Path) -> Path:
    """A dataset of 12 toy problems on disk."""
    import random

    from mrt.core.artifacts import PROBLEMS
    from mrt.toy.world import draw_problem

    rng = random.Random(5)
    rows = []
    for i in range(12):
        problem = draw_problem(rng, 3 + i % 3)
        rows.append((f"t{i:02}", problem.text, str(problem.answer), None, float(3 + i % 3), "toy", "test"))
    path = tmp_path / "problems.parquet"
    pl.DataFrame(rows, schema=PROBLEMS.columns, orient="row").write_parquet(path)
    return path


@pytest.fixture(scope="session")
def prompts(tmp_path_factory):
    """Twelve prompts of RL, a third of them with a prefix of two episodes."""
    import random

    from transformers import AutoTokenizer

    from mrt.core.artifacts import RL_PROMPTS
    from mrt.episodes.parameterization import Template
    from mrt.episodes.thinking import THINK
    from mrt.sampling.prompt import Prompt
    from mrt.toy.world import draw_problem

    tokenizer, rng, rows = AutoTokenizer.from_pretrained(TOY_BASE), random.Random(1), []
    for i in range(12):
        problem = draw_problem(rng, 3)
        chat = Prompt(instruction="{problem}").render(tokenizer, problem.text)
        step = "Try 3 + 4 = 7.\n\n7 is less than 9.\n\nNo answer so far.\n\n"
        prefix = step + "Wait, t" + step[1:] if i % 3 == 0 else ""
        forced = chat + Template().force(prefix)
        begins = (2 * (i % 3 == 0), prefix, chat + prefix, forced)
        rows.append((f"p{i:02}", 0, *begins, str(problem.answer), True, THINK.cell()))
    path = tmp_path_factory.mktemp("prompts") / "prompts.parquet"
    pl.DataFrame(rows, schema=RL_PROMPTS.columns, orient="row").write_parquet(path)
    return path


@pytest.fixture
def told(tmp_path, monkeypatch):
    """A function that gives the arguments that TRL gets for a method and its recipe."""
    from mrt.training.rl import Train

    monkeypatch.setattr(Train, "reporters", lambda self: [])  # they tell the environment where to log
    files = {name: tmp_path / name for name in ("prompts", "out", "history", "state")}
    rows = [{"prompt": "1", "answer": "1", "forced": "1", "inside": False, "prefix_text": "", "thinking": None}] * 16

    def arguments(method, recipe):
        stage = Train(model=str(TOY_BASE), method=method, recipe=recipe, **files)
        return stage.usual(rows, tmp_path)["args"]

    return arguments


def batches_of(trainer, rows, size, *, epoch, skipped=0, processes=1):
    """The rows of each batch of an epoch, of the last of some processes, as a trainer that resumes there requests them.

    Batches are skipped, and split over processes, by samplers around the trainer's sampler.
    """
    from accelerate.data_loader import prepare_data_loader, skip_first_batches
    from torch.utils.data import DataLoader

    trainer.state.epoch = epoch
    loader = DataLoader(list(range(rows)), batch_size=size, sampler=trainer._get_train_sampler())
    split = {"num_processes": processes, "process_index": processes - 1, "put_on_device": False}
    loader = prepare_data_loader(loader, **split)
    return [batch.tolist() for batch in (skip_first_batches(loader, skipped) if skipped else loader)]


def check_that_epochs_resume(trainer, rows, size):
    """A training that resumes in its second epoch has the order that it would have had, on several processes too."""
    for processes in (1, 2):
        first, second = (batches_of(trainer, rows, size, epoch=epoch, processes=processes) for epoch in (None, 1.0))
        resumed = batches_of(trainer, rows, size, epoch=1.4, skipped=3, processes=processes)
        assert first != second and resumed == second[3:]


def figures_reading(*measures):
    """Names of the figures and tables whose first measure is one of these."""
    from mrt.figures.figure import figures

    shown = {name: entry.figure for name, entry in figures().items() if not entry.figure.checkpoints}
    return [name for name, figure in shown.items() if figure.measures[0] in measures and not figure.needs]


def checkout(folder):
    """A copy of the project to run in, so that runs leave no files here."""
    for name in ("Snakefile", "config.yaml"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("workflow", "mrt", "envs", "config", "experiments"):
        shutil.copytree(ROOT / name, folder / name)  # dates and compiled modules too
    kept = Path(
        tempfile.gettempdir(), f"mrt-tests-{os.getuid()}", "fingerprints"
    )  # by content: all checkouts share them
    kept.mkdir(parents=True, exist_ok=True)
    (folder / ".snakemake").mkdir(exist_ok=True)
    (folder / ".snakemake" / "fingerprints").symlink_to(kept)
    return folder


def snakemake(folder, *arguments, check=True):
    command = [str(Path(sys.executable).parent / "snakemake"), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    logs = (
        "".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("logs/**/*.log"))
        if done.returncode
        else ""
    )
    assert not check or done.returncode == 0, done.stderr[-6000:] + logs[-20000:]
    return done


def python(*arguments, folder=ROOT):
    """The output of a Python command that has to succeed."""
    done = subprocess.run([sys.executable, *map(str, arguments)], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


def planned(folder, *arguments):
    """The rules that a dry run would run, with their counts."""
    done = snakemake(folder, "-n", *arguments, "--quiet", "rules")
    return dict(re.findall(r"^(\w+) +(\d+)$", done.stdout + done.stderr, re.MULTILINE))


def planned_jobs(folder, *arguments):
    """The jobs that a dry run would run: {rule: {"model dataset", ...}}, without the target rule."""
    done = snakemake(folder, "-n", *arguments)
    jobs = {}
    for rule, block in re.findall(r"^(?:local)?rule (\w+):\n((?: +.*\n)*)", done.stdout + done.stderr, re.MULTILINE):
        wildcards = re.search(r"^ +wildcards: (.*)$", block, re.MULTILINE)
        values = re.findall(r"=([^,]+)", wildcards[1]) if wildcards else []
        jobs.setdefault(rule, set()).add(" ".join(sorted(values)))
    jobs.pop("all", None)
    return jobs


def copy_of(finished, folder):
    """A copy of a finished run elsewhere, dates kept, with its results and Snakemake's records."""
    shutil.copytree(finished, folder, symlinks=True)
    return folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A finished run of tiny.yaml, made once; each of pytest's processes has a copy.

    In the folder MRT_FINISHED, if the environment names one: .ci/run calls pytest twice.
    """
    temporary = tmp_path_factory.getbasetemp()
    shared = Path(
        os.environ.get("MRT_FINISHED") or (temporary.parent if "PYTEST_XDIST_WORKER" in os.environ else temporary)
    )
    with FileLock(shared / "finished.lock"):
        if not (shared / "finished").exists():
            folder = checkout(tmp_path_factory.mktemp("tiny"))
            shutil.copy(ROOT / "tests" / "tiny.yaml", folder / "config.yaml")
            snakemake(folder, "--cores", "2")
            folder.rename(shared / "finished")
    return copy_of(shared / "finished", temporary / "finished_run")


class Cluster:
    """A real SLURM on this machine, by tests/slurm/lab.sh, with partitions cpu and gpu; settings are the script's."""

    def __init__(self, folder, **settings):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1] % 15000 + 10000  # below those that the kernel hands out
        self.environment = {**os.environ, "LAB": str(folder), "PORT": str(port), **settings}

    def start(self, *command, script="run", **options):
        """A command as on the login node, started; its process id is the command's."""
        lab = ROOT / "tests" / "slurm" / "lab.sh"
        return subprocess.Popen(["bash", lab, script, *map(str, command)], env=self.environment, **options)

    def run(self, *command, **options):
        """The output of a command. Raises CalledProcessError if it fails."""
        started = self.start(*command, stdout=subprocess.PIPE, text=True, **options)
        out, _ = started.communicate(timeout=100)
        if started.returncode:
            raise subprocess.CalledProcessError(started.returncode, command, out)
        return out

    def controller(self, what):
        self.run(what, script="controller")


@contextmanager
def brought_up(cluster):
    """The cluster while it is up; skips where it cannot be brought up."""
    try:
        up = cluster.start(script="up", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        _, said = up.communicate(timeout=100)
        if up.returncode == 3:
            pytest.skip(said.strip())
        assert up.returncode == 0, said
        yield cluster
    finally:
        cluster.run(script="down")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A SLURM of three nodes."""
    with brought_up(Cluster(tmp_path_factory.mktemp("slurm"))) as cluster:
        yield cluster


def fake_cards(folder, monkeypatch, count, driver="580.65.06", used=500):
    """Have this machine look as if it had GPUs, by an nvidia-smi that lists n GPUs; their locks lie in `locks`."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "nvidia-smi"
    listed = "\n".join(f"'{i}, GPU-{i}'" for i in range(count)).replace("\n", " ")
    program.write_text(
        f"""#!/bin/sh
case "$1" in
--query-gpu=index,uuid) printf '%s\\n' {listed} ;;
--query-gpu=index) seq 0 {count - 1} ;;
--query-gpu=uuid,memory.used,memory.total)
    for i in $(seq 0 {count - 1}); do echo "GPU-$i, {used} MiB, 81559 MiB"; done ;;
--query-gpu=driver_version) for i in $(seq {count}); do echo {driver}; done ;;
*) exit 1 ;;
esac
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("MRT_GPU_FOLDER", str(folder / "locks"))
    for name in ("MRT_DEVICE", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PYTORCH_NVML_BASED_CUDA_CHECK"):
        monkeypatch.setenv(name, "")  # so that variables set meanwhile are removed
        monkeypatch.delenv(name)
    for name in ("MRT_GPU_HOLDER", "MRT_GPU_LOCKS", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


def has_ended(process):
    """Whether a process has ended, even if its status was not read yet."""
    status = Path(f"/proc/{process}/status")
    return not status.exists() or "State:\tZ" in status.read_text()
