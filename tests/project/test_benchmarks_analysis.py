"""The benchmark of the analysis: its tables are what the stages read, and its Monte Carlo estimates what is exact."""

import numpy as np
import polars as pl
import pytest

from benchmarks import analysis
from benchmarks.record import Record
from mrt.analysis.votes import maj_at_k
from mrt.core import artifacts


def test_its_tables_are_artifacts(tmp_path):
    analysis.make(tmp_path, 2)
    kinds = {"prover": artifacts.PROVER, "grades": artifacts.ANSWER_GRADES, "rollouts": artifacts.ROLLOUTS}
    kinds |= {"rollouts.grades": artifacts.GRADES, "problems": artifacts.PROBLEMS}
    for name, kind in kinds.items():
        table = kind.read(tmp_path / f"{name}.parquet")
        assert set(table.columns) == set(kind.columns)
        assert not table.select(kind.keys).is_duplicated().any()
    assert table.height == 2
    grades = pl.read_parquet(tmp_path / "grades.parquet")
    assert grades.height == 2 * analysis.SAMPLES * analysis.LONG * analysis.FORCED
    assert not grades.filter(pl.col("correct") & (pl.col("cluster") != 0)).height


@pytest.mark.parametrize("votes", [1, 2, 4])
def test_the_estimate_is_of_the_exact_value(votes):
    clusters = np.array([0, 0, 1, 1, 2, -1, 2, 2])
    drawn = analysis.estimate(clusters, clusters == 2, votes, np.random.default_rng(0))
    assert drawn == pytest.approx(maj_at_k(clusters, clusters == 2, votes), abs=0.01)


def test_a_report_tells_what_was_recorded():
    record = Record()
    for how, seconds in (("exact", 0.5), ("Monte Carlo", 25.0)):
        record.add(f"maj@p, {how}", "seconds", seconds)
    record.add("maj@p, Monte Carlo", "largest error", 0.002)
    for quantity in ("answers", "prefixes"):
        record.add("maj@p", quantity, 100)
    record.add(analysis.LARGEST, "answers", 4e6)
    for case in ("intervals", *(f"{analysis.LARGEST}: {stage}" for stage in analysis.STAGES)):
        record.add(case, "seconds", 2)
        record.add(case, "GiB", 5 if case == "intervals" else 1)
    report = analysis.report(record.table())
    assert [(goal.value, goal.met) for goal in report.goals] == [(50, False), (5, False)]
    assert set(report.figures) == {"full_size"}
