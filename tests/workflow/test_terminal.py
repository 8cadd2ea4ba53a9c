"""workflow/terminal.py: what a run says in the terminal."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from workflow.terminal import print_results


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
    summary.write_parquet(tmp_path / "tables" / "pass1.parquet")
    print_results(run_of("pass1", "all"), str(tmp_path), {"mrt_2": "MRT [STaR], 2 iterations"})
    said = capsys.readouterr().err
    table, rest = said.split("Tables: ")
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
    assert rest.endswith("snakemake --report report.html --configfile other.yaml\n")


def test_nothing_is_said_where_accuracy_was_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_results(run_of("pass1"), str(tmp_path), {})
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "pass1.parquet").touch()  # of an earlier run
    print_results(run_of("regret"), str(tmp_path), {})
    assert capsys.readouterr().err == ""
