"""Token efficiency: how many times fewer tokens a model needs than another for the same maj@k (Section 8.3).

    python -m mrt.figures.token_efficiency --out token_efficiency --models '{"base": {"label": "Base"}, ...}' \\
        --tables '{"maj": {"base": {"toy_test": "maj.parquet"}, ...}}'

Rows are models, columns the models that they are compared with. A cell is the ratio of tokens at equal accuracy,
averaged over the accuracies that both curves reach (`mrt.analysis.token_efficiency`), with its 95 % interval over
training runs and problems, which both models share. The paper has 1.2 to 1.6 against outcome-reward training and 4 to 5
against the base. Linearized search, where it was run, is compared with linearized search (Section 8.4).
"""

from collections.abc import Mapping
from itertools import permutations

import numpy as np
import numpy.typing as npt
import polars as pl

from mrt.analysis.bootstrap import runs_of
from mrt.analysis.token_efficiency import bootstrap_token_efficiency
from mrt.figures.stage import Tables, main_table
from mrt.figures.style import ModelStyle
from mrt.figures.tables import Layout

NOTE = (
    "How many times fewer tokens the model of the row needs for the same maj@k, averaged over the accuracies that both"
    " reach, with a 95 % interval (bootstrap over training runs and problems); ≥ and ≤: one curve lies wholly above the"
    " other, and the ratio is a bound. Bold: the interval excludes 1 from above."
)
SCHEMA = {
    "mode": pl.String,
    "dataset": pl.String,
    "model": pl.String,
    "reference": pl.String,
    "ratio": pl.Float64,
    "ratio_low": pl.Float64,
    "ratio_high": pl.Float64,
    "bound": pl.String,
    "n": pl.Int64,
}


def summary(tables: Tables, models: Mapping[str, ModelStyle]) -> pl.DataFrame:
    """One row per mode, dataset, model and reference, if both models have the same problems and known lengths."""
    rows = []
    parts = {"parallel": tables["maj"], "linearized": tables.get("linearized", pl.DataFrame())}
    modes = [part.with_columns(pl.lit(mode).alias("mode")) for mode, part in parts.items() if part.height]
    data = pl.concat(modes, how="diagonal").drop_nulls("tokens")
    for (mode, dataset), here in data.group_by("mode", "dataset", maintain_order=True):
        found = {str(model): of_model for (model,), of_model in here.group_by("model")}
        for model, reference in permutations([m for m in models if m in found], 2):
            if set(found[model]["problem_id"]) == set(found[reference]["problem_id"]):
                own, other = maj_curves(found[model]), maj_curves(found[reference])
                interval, bound = bootstrap_token_efficiency(*own, *other)
                rows.append((mode, dataset, model, reference, *interval, bound, own[0].shape[1]))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def maj_curves(maj: pl.DataFrame) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Tokens and maj@k of a model's training runs, each [runs, problems, points]."""
    of_k = [rows for _, rows in maj.sort("k").group_by("k", maintain_order=True)]
    tokens, votes = (np.stack([runs_of(rows, column).values for rows in of_k], axis=-1) for column in ("tokens", "maj"))
    return tokens, votes


def layout(table: pl.DataFrame, models: Mapping[str, ModelStyle]) -> Layout:
    """The table as text."""
    sets = table["dataset"].unique(maintain_order=True).to_list()
    shown = [m for m in models if m in table["model"]]
    header, columns = ["model"], [(name, reference) for name in sets for reference in shown]
    header += [f"{name}: than {models[reference].label}" for name, reference in columns]
    cells: list[list[str]] = []
    bold: set[tuple[int, int]] = set()
    for mode in table["mode"].unique(maintain_order=True):
        for model in shown:
            cells.append([models[model].label + ("" if mode == "parallel" else f", {mode}")])
            for dataset, reference in columns:
                rows = table.filter(mode=mode, dataset=dataset, model=model, reference=reference).to_dicts()
                cells[-1].append("")
                for row in rows:
                    bound = {"at least": "≥ ", "at most": "≤ "}.get(row["bound"], "")
                    cells[-1][-1] = f"{bound}{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"
                    if row["ratio_low"] > 1 and row["bound"] != "at most":
                        bold.add((len(cells) - 1, len(cells[-1]) - 1))
    return Layout("token efficiency", header, cells, bold, NOTE)


if __name__ == "__main__":
    main_table(summary, layout, __doc__)
