"""Token efficiency: how many times fewer tokens a model needs than another for the same maj@k (Section 8.3).

    python -m mrt.figures.token_efficiency --out token_efficiency --models '{"base": {"label": "Base"}, ...}' \
        --tables '{"maj": {"base": {"toy_test": "maj.parquet"}, ...}}'

Rows are models, columns the models that they are compared with. A cell is the ratio of tokens at equal accuracy,
averaged over the accuracies that both curves reach (`mrt.metrics.token_efficiency`), with its 95 % interval, paired
over problems. The paper has 1.2 to 1.6 against outcome-reward training and 4 to 5 against the base.
"""

from collections.abc import Mapping
from itertools import permutations
from typing import Any

import numpy as np
import polars as pl

from mrt.cli import run
from mrt.figures.common import FigureStage, ModelStyle
from mrt.figures.tables import Layout, write_layout
from mrt.metrics import bootstrap_token_efficiency

NOTE = (
    "How many times fewer tokens the model of the row needs for the same maj@k, averaged over the accuracies that both"
    " reach, with a 95 % interval (paired bootstrap over problems); ≥ and ≤: one curve lies wholly above the other,"
    " and the ratio is a bound. Bold: the interval excludes 1 from above."
)
SCHEMA = {
    "problem_set": pl.String,
    "model": pl.String,
    "reference": pl.String,
    "ratio": pl.Float64,
    "ratio_low": pl.Float64,
    "ratio_high": pl.Float64,
    "bound": pl.String,
    "n": pl.Int64,
}


def summary(data: pl.DataFrame, models: Mapping[str, ModelStyle]) -> pl.DataFrame:
    """A row for each problem set, model and reference that were measured on the same problems with known lengths."""
    rows = []
    for (problem_set,), here in data.drop_nulls("tokens").group_by("problem_set", maintain_order=True):
        grids: dict[str, tuple[list[str], Any, Any]] = {}
        for (model,), of_model in here.group_by("model"):
            wide = of_model.sort("problem_id", "k").group_by("problem_id", maintain_order=True).agg("tokens", "maj")
            tokens, maj = (np.array(wide[column].to_list()) for column in ("tokens", "maj"))
            grids[str(model)] = (wide["problem_id"].to_list(), tokens, maj)
        for model, reference in permutations([m for m in models if m in grids], 2):
            (problems, *own), (others, *other) = grids[model], grids[reference]
            if problems == others:
                interval, bound = bootstrap_token_efficiency(*own, *other)
                rows.append((problem_set, model, reference, *interval, bound, len(problems)))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def layout(table: pl.DataFrame, models: Mapping[str, ModelStyle]) -> Layout:
    """The table as text."""
    sets = table["problem_set"].unique(maintain_order=True).to_list()
    shown = [m for m in models if m in table["model"]]
    header, cells = ["model"], [[models[m].label] for m in shown]
    bold: set[tuple[int, int]] = set()
    for problem_set in sets:
        for reference in shown:
            header.append(f"{problem_set}: than {models[reference].label}")
            for index, model in enumerate(shown):
                rows = table.filter(problem_set=problem_set, model=model, reference=reference).to_dicts()
                cells[index].append("")
                for row in rows:
                    bound = {"at least": "≥ ", "at most": "≤ "}.get(row["bound"], "")
                    cells[index][-1] = f"{bound}{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"
                    if row["ratio_low"] > 1:
                        bold.add((index, len(header) - 1))
    return Layout("token efficiency", header, cells, bold, NOTE)


class TokenEfficiency(FigureStage):
    """Write the table of token efficiency."""

    def cli_cmd(self) -> None:
        table = summary(self.gathered()["maj"], self.models)
        write_layout(layout(table, self.models), self.out)
        self.save_data(table)


if __name__ == "__main__":
    run(TokenEfficiency)
