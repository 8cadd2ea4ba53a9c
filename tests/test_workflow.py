"""The whole DAG, for real: the tiny experiment from problems to figures, and real traces where they are at hand."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from conftest import ROOT, needs_shared

FIGURES = ("maj_tokens", "regret", "scaling", "episode_counts", "progress")


def checkout(folder):
    """A copy of the project to run in, so that runs leave nothing behind."""
    for name in ("Snakefile", "config.yaml"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("workflow", "mrt", "envs", "config"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
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


def planned(folder, *arguments):
    """The rules that a dry run would run, with their counts."""
    done = snakemake(folder, "-n", *arguments)
    return dict(re.findall(r"^(\w+) +(\d+)$", done.stdout + done.stderr, re.MULTILINE))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = checkout(tmp_path_factory.mktemp("tiny"))
    snakemake(folder, "--cores", "2", "--configfile", ROOT / "tests" / "tiny.yaml")
    return folder


def test_one_command_makes_tables_and_figures(finished):
    results = finished / "results" / "tiny"
    for figure in FIGURES:
        for suffix in ("pdf", "png", "parquet"):
            assert (results / "figures" / f"{figure}.{suffix}").stat().st_size > 500
    table = (results / "tables" / "pass1.md").read_text()
    assert "| Base |" in table and "| MRT (STaR) |" in table.replace("**", "")
    for model in ("star_1", "mrt_1"):
        assert (results / "models" / model / "model.safetensors").exists()
        log = pl.read_parquet(results / "models" / f"{model}.log.parquet")
        assert log.height > 0 and log["loss"].is_finite().all()
    assert not list((results / ".state").glob("*"))
    assert not list(results.rglob("*.part")) and not list(results.rglob("*.pkl"))


def test_artifacts_agree_with_each_other(finished):
    results = finished / "results" / "tiny"
    rollouts = pl.read_parquet(results / "rollouts" / "base" / "toy_train.parquet")
    episodes = pl.read_parquet(results / "episodes" / "base" / "toy_train.parquet")
    progress = pl.read_parquet(results / "progress" / "base" / "toy_train.parquet")
    thoughts = (
        episodes.sort("problem_id", "sample", "episode")
        .group_by("problem_id", "sample")
        .agg(pl.col("text").str.join(""))
    )
    joined = rollouts.join(thoughts, on=["problem_id", "sample"], validate="1:1")
    assert joined.height == rollouts.height == 80
    for text, thought in joined.select("text", "text_right").iter_rows():
        assert text.split("</think>")[0] == thought
    telescoped = (
        progress.sort("prefix")
        .group_by("problem_id", "sample")
        .agg((pl.col("progress").sum() - (pl.col("J").last() - pl.col("J").first())).abs().alias("error"))
    )
    assert telescoped["error"].max() < 1e-9
    for model in ("star_1", "mrt_1"):
        counts = pl.read_parquet(results / "sets" / f"{model}.rules.parquet")
        assert counts["kept"][-1] == pl.read_parquet(results / "sets" / f"{model}.parquet").height > 0


def test_a_finished_run_has_nothing_to_do_and_a_lost_figure_comes_back_alone(finished):
    arguments = ("--configfile", ROOT / "tests" / "tiny.yaml")
    assert planned(finished, *arguments) == {}
    figure = finished / "results" / "tiny" / "figures" / "regret.png"
    before = figure.read_bytes()
    figure.unlink()
    target = figure.relative_to(finished)
    assert planned(finished, target, *arguments) == {"regret": "1", "total": "1"}
    snakemake(finished, target, "--cores", "1", *arguments)
    assert figure.read_bytes() == before


def test_the_report_has_the_figures(finished):
    snakemake(finished, "--configfile", ROOT / "tests" / "tiny.yaml", "--report", "report.html")
    text = (finished / "report.html").read_text(errors="replace")
    assert "Normalized regret" in text and "regret.png" in text


def test_a_bad_config_stops_before_any_job(tmp_path):
    folder = checkout(tmp_path)
    bad = (ROOT / "tests" / "tiny.yaml").read_text().replace("parent: base, method: star", "parent: bsae, method: star")
    (folder / "bad.yaml").write_text(bad)
    done = snakemake(folder, "--cores", "1", "--configfile", "bad.yaml", check=False)
    assert done.returncode == 1
    assert "models.star_1.parent: there is no 'bsae'" in done.stderr
    assert "Traceback" not in done.stderr and not (folder / "results").exists()


@needs_shared
def test_real_traces_go_through(tmp_path):
    (tmp_path / "project").mkdir()
    folder = checkout(tmp_path / "project")
    (tmp_path / "shared").symlink_to(ROOT.parent / "shared")
    snakemake(folder, "--cores", "2", "--configfile", "config/real_traces.yaml")
    results = folder / "results" / "real_traces"
    assert (results / "figures" / "episode_counts.png").exists()
    rollouts = [pl.read_parquet(path) for path in results.glob("rollouts/*/*.parquet")]
    assert sum(table.height for table in rollouts) == 223
    table = pl.read_parquet(results / "tables" / "pass1.parquet").filter(pl.col("difficulty") == "all")
    accuracy = {(m, s): a for m, s, a in table.select("model", "problem_set", "accuracy").iter_rows()}
    assert accuracy["qwq_32b", "aime2025"] > accuracy["r1_qwen_1_5b", "aime2025"]
    print(table.select("model", "problem_set", "accuracy", "accuracy_low", "accuracy_high", "n"))
