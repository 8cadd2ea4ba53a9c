"""Measure one model on one dataset: a row a problem, or a trace; figures and tables aggregate them.

    python -m mrt.analysis.evaluate --measure regret --tables progress=progress.parquet \\
        --options '{"budgets": [64, 256]}' --out regret.parquet

What measures read and give is in docs/artifacts.md; each has a file in `mrt/analysis/measures/`, or one of a user's.
"""

from pathlib import Path
from typing import Any

from pydantic import Field

from mrt.analysis.measure import MEASURES, Measure
from mrt.core.cli import Stage, run
from mrt.core.storage import write_table


class Evaluate(Stage):
    """Measure one model on one dataset."""

    measure: str = Field(description="A name of mrt/analysis/measures, or FILE.py:NAME.")
    tables: dict[str, Path] = Field({}, description="The tables that it reads (Parquet), by its parameters.")
    options: dict[str, Any] = Field({}, description="Its settings, as JSON.")
    out: Path = Field(description="Table of the measure (Parquet).")

    def plugins(self) -> tuple[str, ...]:
        return tuple(MEASURES.starts(self.measure))

    def cli_cmd(self) -> None:
        measure: Measure = MEASURES.find(self.measure)
        table = measure.measured(self.tables, self.options)
        write_table(table, self.out, measure.keys)
        print(f"{measure.name}: {table.height} rows")


if __name__ == "__main__":
    run(Evaluate)
