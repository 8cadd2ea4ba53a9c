"""Token efficiency.

How many times fewer tokens the model of the row needs than that of the column for the same maj@k, averaged over the
accuracies that both curves reach. The two are compared on the problems that both were measured on. Intervals are 95 %,
over |over|. From Figure 7 the paper reads 1.2 to 1.6 against outcome-reward training and 4 to 5 against the base. If an
interval contains 1, it is not significant which model is more efficient. Rows marked linearized compare attempts in a
row (Section 8.4) with each other; there the paper has 1.6 to 1.7 against RISE and GRPO.
"""

from collections.abc import Mapping
from itertools import permutations

import numpy as np
import numpy.typing as npt
import polars as pl

from mrt.analysis.intervals import runs_of
from mrt.analysis.token_efficiency import efficiency_of_curves, ratio_interval
from mrt.figures.figure import RESULT, Figure
from mrt.figures.stage import Tables, main_table
from mrt.figures.style import SINGLE, ModelStyle, most_runs, one_run, over, sample_sizes, shortfall, usual_samples
from mrt.figures.tables import Layout

FIGURE = Figure(RESULT, ("maj", "linearized"), paper=("Section 8.3",))

NOTE = (
    "How many times fewer tokens the model of the row needs for the same maj@k, averaged over the accuracies that"
    " both reach, with a 95 % interval over {over}; ≥ and ≤: one curve lies wholly above the other, and the"
    " ratio is a bound. Bold: the interval excludes 1 from above, where both models were measured on all problems."
)
NOTHING = (
    "No two models have known token counts of the same problems, so there is nothing to compare. Imported completions"
    " have them where their rows have `tokens`."
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
    "n": pl.Int64,  # problems that both models were measured on
    "of": pl.Int64,  # problems that any model was measured on
    "runs": pl.Int64,
    "reference_runs": pl.Int64,
    "samples_least": pl.Int64,  # of a problem, of either model
    "samples_most": pl.Int64,
    "over": pl.String,  # the interval is over runs and problems, or problems
}


def summary(tables: Tables, models: Mapping[str, ModelStyle]) -> pl.DataFrame:
    """One row per mode, dataset, model and reference, if both models have known lengths of a problem."""
    rows = []
    parts = {"parallel": tables["maj"], "linearized": tables.get("linearized", pl.DataFrame())}
    modes = [part.with_columns(pl.lit(mode).alias("mode")) for mode, part in parts.items() if part.height]
    data = pl.concat(modes, how="diagonal").drop_nulls("tokens")
    for (mode, dataset), here in data.group_by("mode", "dataset", maintain_order=True):
        of_model = {str(model): of_model for (model,), of_model in here.group_by("model")}
        samples = sample_sizes(here.filter(pl.col("k") == pl.col("k").min()), ["model"])
        for model, reference in permutations([m for m in models if m in of_model], 2):
            pair = [of_model[model], of_model[reference]]
            shared = set.intersection(*(set(complete(table)) for table in pair))
            if not shared:
                continue
            curves, reference_curves = (maj_curves(table.filter(pl.col("problem_id").is_in(shared))) for table in pair)
            fixed = one_run(models, model, curves[0]) or one_run(models, reference, reference_curves[0])
            estimate, bound = efficiency_of_curves(*curves, *reference_curves, fixed=fixed)
            both = samples.filter(pl.col("model").is_in([model, reference]))
            sizes = (len(shared), here["problem_id"].n_unique(), len(curves[0]), len(reference_curves[0]))
            least, most = both["samples_least"].min(), both["samples_most"].max()
            of = "problems" if fixed else "runs and problems"
            rows.append((mode, dataset, model, reference, *ratio_interval(estimate), bound, *sizes, least, most, of))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def complete(maj: pl.DataFrame) -> list[str]:
    """Problems on which all runs of a model were measured."""
    return runs_of(maj.filter(pl.col("k") == pl.col("k").min()), "maj").problems


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
    sizes = dict(table.group_by("dataset").agg(pl.col("of").max()).iter_rows())
    header += [f"{name} (n = {sizes[name]}): than {models[reference].label}" for name, reference in columns]
    samples, runs = usual_samples(table), most_runs(table, models)
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
                    alone = "†" if row["over"] == "problems" and runs > 1 else ""
                    less = shortfall(row, samples if mode == "parallel" else 0)
                    text = f"{bound}{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]{alone}"
                    cells[-1][-1] = f"{text}, {less}" if less else text
                    if row["ratio_low"] > 1 and row["bound"] != "at most" and row["n"] == row["of"]:
                        bold.add((len(cells) - 1, len(cells[-1]) - 1))
    note = NOTE.format(over=over(runs)) if cells else NOTHING
    marked = runs > 1 and table.filter(pl.col("over") == "problems").height
    return Layout("token efficiency", header, cells, bold, note + (f" {SINGLE}" if marked else ""))


if __name__ == "__main__":
    main_table(summary, layout, __doc__)
