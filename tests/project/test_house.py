"""The house rules: clean tools, no Snakemake in the library, light imports, every stage runnable by hand."""

import importlib
import re
import shlex
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from conftest import ROOT

BIN = Path(sys.executable).parent
STAGES = [
    *("problems.build", "episodes.cut", "grading.grade"),
    *("sampling.rollouts", "sampling.imports", "sampling.prover", "sampling.allocation", "sampling.budget_forcing"),
    *("sampling.tree", "sampling.linearized", "analysis.progress", "analysis.evaluate", "training.toy_base"),
    *("training.sets", "training.prompts", "training.sft", "training.rl"),
    *(
        "training.log",
        "training.cost",
        "figures.pass1",
        "figures.regret",
        "figures.runs",
        "figures.provenance",
        "figures.report",
    ),
    *(
        "sampling.likelihood",
        "sampling.pool",
        "sampling.parity",
        "problems.contamination",
        "planning.calibrate",
        "planning.trial",
        "traces.page",
    ),
]


def run(*command, **options):
    return subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, **options)


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
        ["snakefmt", "--check", "Snakefile", "workflow"],
        ["snakemake", "--lint"],
    ],
    ids=" ".join,
)
def test_tools_are_clean(command):
    done = run(BIN / command[0], *command[1:])
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_library_knows_nothing_of_snakemake():
    for path in (ROOT / "mrt").rglob("*.py"):
        assert "import snakemake" not in path.read_text() and "from snakemake" not in path.read_text(), path


def test_no_two_rooms_import_each_other_however_far_round():
    """docs/architecture.md lists each subpackage below those that it imports."""
    graph = {room.name: set() for room in (ROOT / "mrt").iterdir() if (room / "__init__.py").is_file()}
    for room, used in graph.items():
        for path in (ROOT / "mrt" / room).rglob("*.py"):
            used |= set(re.findall(r"^ *(?:from|import) mrt\.(\w+)", path.read_text(), re.MULTILINE)) - {room}
    TopologicalSorter(graph).prepare()  # raises CycleError
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = re.findall(r"^\| `(\w+)` \|.*\| (.*) \| (.*) \|$", page, re.MULTILINE)
    drawn = {room: set(re.findall(r"\w+", re.sub(r"\(.*?\)", "", imports))) for room, _, imports in table}
    assert drawn == graph
    for place, (room, modules, _) in enumerate(table):
        assert graph[room] <= set(list(drawn)[:place]), f"{room} stands above a room that it imports"
        files = {path.name.removesuffix(".py") for path in (ROOT / "mrt" / room).glob("[!_.]*")}
        if room in ("tasks", "methods", "figures"):  # a new file of these is no edit of the page
            files -= {path.stem for path in (ROOT / "mrt" / room).glob("*.py")} - {*re.findall(r"`(.+?)`", modules)}
        assert {name.rstrip("/") for name in re.findall(r"`(.+?)`", modules)} == files, room


def test_importing_the_library_or_reading_a_config_imports_nothing_heavy():
    heavy = ("torch", "vllm", "trl", "transformers", "datasets")
    code = "import sys, mrt.config.load, mrt.analysis.evaluate, mrt.grading.grade\n"
    code += f"print([module for module in {heavy} if module in sys.modules])"
    assert run(sys.executable, "-c", code).stdout.strip() == "[]"


def test_every_stage_is_run_by_hand():
    """Of figures, which share one main function, some are."""
    modules = {path for path in (ROOT / "mrt").rglob("*.py") if "\n    run(" in path.read_text()}
    names = {
        ".".join(path.relative_to(ROOT / "mrt").with_suffix("").parts).removesuffix(".__main__") for path in modules
    }
    assert names - {
        "core.show",
        "planning.clean",
        "planning.plan",
        "planning.publish",
        "planning.why",
        "figures.stage",
        "config.reference",
    } <= set(STAGES)


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_runs_by_hand(stage):
    done = run(sys.executable, "-m", f"mrt.{stage}", "--help")
    assert done.returncode == 0 and "--out" in done.stdout, done.stderr
    assert done.stdout.startswith(f"usage: python -m mrt.{stage} ") and "<lambda>" not in done.stdout


@pytest.mark.fast
@pytest.mark.parametrize("stage", [name for name in STAGES if not name.startswith("figures.")])
def test_the_command_in_a_stages_docstring_has_the_options_that_it_needs(stage):
    """As far as options are checked before files are read; those of figures stand for long ones (`...`)."""
    module = importlib.import_module(f"mrt.{stage}")
    file = Path(module.__file__)
    main = file.with_name("__main__.py") if file.name == "__init__.py" else file  # a package is run by it
    own = getattr(module, re.findall(r"^    run\((\w+)\)", main.read_text(), re.MULTILINE)[0])
    shown = re.search(r"^    (?:python -m )?mrt[. ]\S+ (.*(?:(?<=\\)\n.*)*)", module.__doc__, re.MULTILINE)
    own(_cli_parse_args=shlex.split(shown[1].replace("\\\n", " "), comments=True))


def test_a_wrong_option_is_one_clear_message():
    done = run(sys.executable, "-m", "mrt.episodes.cut", "--rollouts", "absent.parquet", "--out", "x.parquet")
    assert done.returncode == 1
    assert done.stderr.strip() == "mrt.episodes.cut: absent.parquet: no such file"


@pytest.mark.parametrize("name", ["figures", "figures.nothing", "nothing"])
def test_what_is_no_stage_ends_in_the_list_of_stages(name):
    done = run(sys.executable, "-m", "mrt", name)
    assert done.returncode == 1 and done.stderr.strip() == f"there is no stage {name!r}"
    assert "figures.pass1" in done.stdout


def test_nothing_unsafe_is_written_or_read():
    for path in [*(ROOT / "mrt").rglob("*.py"), *(ROOT / "workflow").rglob("*.smk")]:
        text = path.read_text()
        assert "trust_remote_code=True" not in text and "import pickle" not in text, path
