"""The command line of figures and tables.

A figure module defines `draw(tables, models)`. `tables` maps each measure that the figure reads to the rows of all
models and datasets (columns `model` and `dataset` in front). `models` gives the models in order. `draw` returns a
matplotlib figure and the plotted table. `main` writes `<out>.pdf` (or `.svg`), `.png`, and the data as `.parquet` and
`.csv`. A table module defines `summary`, which gives the numbers, and `layout`, their text; `main_table` writes
both.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from mrt.core.cli import Stage, run
from mrt.core.storage import read_table, write_table, write_text
from mrt.figures.looks import Drawing
from mrt.figures.style import DRAWING, ModelStyle, save
from mrt.figures.tables import Layout, write_layout

Tables = Mapping[str, pl.DataFrame]
Draw = Callable[..., tuple[Any, pl.DataFrame]]  # of tables and models; some take settings besides


def gather(tables: Mapping[str, Mapping[str, Path]]) -> pl.DataFrame:
    """Concatenate a measure's tables, given as {model: {dataset: path}}; an empty table if there are none."""
    parts = [
        read_table(path).select(pl.lit(model).alias("model"), pl.lit(name).alias("dataset"), pl.all())
        for model, sets in tables.items()
        for name, path in sets.items()
    ]
    return pl.concat(parts, how="diagonal_relaxed") if parts else pl.DataFrame()


def of_runs(table: pl.DataFrame, first: Mapping[str, str | None]) -> pl.DataFrame:
    """The table with a column `run`, the trained model, and `model`, its first run (`first` of the others)."""
    if table.is_empty():
        return table
    return table.with_columns(pl.col("model").alias("run"), pl.col("model").replace(first))


class FigureStage(Stage):
    """Draw a figure from the tables of its measures."""

    tables: dict[str, dict[str, dict[str, Path]]] = Field(
        description="The measures' tables: {measure: {model: {dataset: path}}}, as JSON."
    )
    models: dict[str, ModelStyle] = Field(
        description="The models in order: {model: {label, method, colour, ...}}, as JSON."
    )
    drawing: Drawing = Field(Drawing(), description="Width, font size and format of a figure, as JSON.")
    options: dict[str, Any] = Field({}, description="Further settings of the figure, as JSON.")
    out: Path = Field(description="Output path without suffix; .pdf or .svg, .png, .parquet and .csv are written.")

    def gathered(self) -> Tables:
        """The rows of each measure; those of a further training run have its model's name, and the run's in `run`."""
        first = {name: of for name, style in self.models.items() if (of := style.replicate_of) in self.models}
        return {measure: of_runs(gather(tables), first) for measure, tables in self.tables.items()}

    def shown(self) -> dict[str, ModelStyle]:
        """The models without their further runs."""
        return {name: style for name, style in self.models.items() if style.replicate_of not in self.models}

    def save_data(self, table: pl.DataFrame) -> None:
        """Write the plotted data, as Parquet and, for the report's readers, as CSV."""
        write_table(table, self.out.with_name(f"{self.out.name}.parquet"))
        write_text(table.write_csv(float_precision=6), self.out.with_name(f"{self.out.name}.csv"))


def main_table(
    summary: Callable[..., pl.DataFrame],
    layout: Callable[[pl.DataFrame, Mapping[str, ModelStyle]], Layout],
    doc: str | None,
) -> None:
    """Command line of a table module: `summary` gives the numbers, `layout` their text."""

    class Table(FigureStage):
        __doc__ = doc

        def cli_cmd(self) -> None:
            table = summary(self.gathered(), self.shown(), **self.options)
            write_layout(layout(table, self.shown()), self.out)
            self.save_data(table)

    run(Table)


def main(draw: Draw, doc: str | None) -> None:
    """Command line of a figure module."""

    class Figure(FigureStage):
        __doc__ = doc

        def cli_cmd(self) -> None:
            DRAWING.set(self.drawing)
            figure, table = draw(self.gathered(), self.shown(), **self.options)
            save(figure, self.out)
            self.save_data(table)

    run(Figure)
