"""workflow/terminal.py: the output of a run in the terminal."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from workflow import terminal
from workflow.terminal import JobLines, print_results


def run_of(*rules: str) -> Any:
    """A run of Snakemake that had jobs of these rules."""
    jobs = [SimpleNamespace(rule=SimpleNamespace(name=rule)) for rule in rules]
    return SimpleNamespace(configfiles=["other.yaml"], dag=SimpleNamespace(jobs=jobs))


def test_the_table_at_the_end_fits_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    kinds = ["accuracy", "accuracy_low", "accuracy_high", "tokens", "difference", "difference_low", "difference_high"]
    rows = [
        ("toy_test", "base", "all", 0.495, 0.462, 0.525, 92.0, None, None, None),
        ("toy_test", "base", "3", 0.83, 0.795, 0.865, 60.0, None, None, None),
        ("toy_test", "mrt_2", "all", 0.763, 0.732, 0.795, 1097.4, 0.175, 0.14, 0.21),
        ("average", "mrt_2", "all", 0.5, 0.4, 0.6, None, -0.01, -0.03, 0.01),
    ]
    (tmp_path / "tables").mkdir()
    summary = pl.DataFrame(rows, schema=["dataset", "model", "difficulty", *kinds], orient="row")
    read = pl.Series("reading", [None, None, "38 are cut off", None])
    alone = pl.Series("difference_over", [None, None, "problems", "runs and problems"])
    summary = summary.with_columns(read, alone, pl.Series("n", [5, 2, 4, 9]), pl.lit(5).alias("of"))
    file = tmp_path / "tables" / "pass1.parquet"
    summary.write_parquet(file)
    made = [str(file), str(file.with_suffix(".html")), str(tmp_path / "models" / "mrt_2")]
    print_results(run_of("pass1", "all"), str(tmp_path), {"mrt_2": "MRT [STaR], 2 iterations"}, made)
    said = capsys.readouterr().err
    table, rest = said.split("Made: ", 1)
    cells = [line.split() for line in table.splitlines() if line.strip()]
    assert cells[2:5] == [
        ["toy_test", "base", "49.5", "[46.2,", "52.5]", "92"],
        ["toy_test", "MRT", "[STaR],", "2", "iterations", "76.3", "[73.2,", "79.5]", "+17.5*†", "1,097"],
        ["average", "MRT", "[STaR],", "2", "iterations", "50.0", "[40.0,", "60.0]", "-1.0"],
    ]
    assert "of these training runs, not of others (†)" in " ".join(table.split())
    assert max(map(len, table.splitlines())) <= 80
    assert "MRT [STaR], 2 iterations on toy_test: n = 4 of 5 problems\n" in table
    assert "MRT [STaR], 2 iterations on toy_test, imported: 38 are cut off.\n" in table
    assert f"1 model in {tmp_path}/models: mrt_2\n" in said and f"1 table in {tmp_path}/tables: pass1\n" in said
    assert rest.endswith("snakemake --report report.html --configfile other.yaml\n")


def test_of_a_target_alone_what_is_out_of_date_is_told_and_no_table_of_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "pass1.parquet").touch()  # of an earlier run
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "regret.png").touch()
    planned = "".join(
        f"rule {name}:\n    output: {tmp_path}/figures/{name}.pdf, {tmp_path}/figures/{name}.png\n\n"
        for name in ("regret", "progress")
    )
    monkeypatch.setattr(terminal, "dry_run", lambda files: planned)
    figure = [str(tmp_path / "figures" / "loss.png")]
    print_results(run_of("loss"), str(tmp_path), {}, figure, {"loss"})
    said = capsys.readouterr().err
    assert f"Made: 1 figure in {tmp_path}/figures: loss\n" in said and "pass@1" not in said
    assert "Out of date: regret\nNot made yet: 1 of the figures and tables\n" in said
    assert " --configfile other.yaml (`mrt why --configfile other.yaml` says why)\n" in said
    print_results(run_of("loss"), str(tmp_path), {}, figure)  # a run of all: nothing is left
    assert "Out of date" not in capsys.readouterr().err


@pytest.mark.parametrize("lines", [True, False])
def test_a_job_that_has_ended_shows_the_warnings_of_its_log_once(
    lines: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text("4 examples\nwarning: 3 steps\nwarning: 3 steps\ntook 4 s\n")
    shown = JobLines(lines=lines)

    def tell(event: LogEvent, **fields: Any) -> None:
        shown.emit(logging.makeLogRecord({"event": event, **fields}))

    tell(LogEvent.RUN_INFO, stats={"total": 10})
    tell(
        LogEvent.JOB_INFO,
        jobid=3,
        rule_name="train",
        wildcards={"model": "star_1"},
        log=[str(tmp_path / "log")],
        output=["models/star_1"],
    )
    tell(LogEvent.JOB_FINISHED, job_id=3)
    line = [" 1/10  train star_1  0 s"] if lines else []
    assert shown.made == {"models/star_1"}
    assert capsys.readouterr().err.splitlines() == [*line, "train star_1: warning: 3 steps"]
