"""Cost and results of training.

Rows are methods: a model and its replicates, which differ only by seed. A cell is a mean over runs and problems with
its 95 % interval. In parentheses is the difference to the outcome-reward baseline (the first GRPO model of the same
base, else the first STaR model), on the problems that both were measured on. A star marks an interval that excludes 0.
Intervals are over |over|. Cost is the mean over runs and includes the whole lineage. A difference between methods means
nothing if it is smaller than the differences between runs of one method. The paper reports one run of each.
"""

from collections.abc import Collection, Mapping
from typing import Any

import polars as pl

from mrt.analysis.claims import values_of
from mrt.analysis.intervals import difference_of_shares, mean_of, runs_of, share
from mrt.figures.figure import TRAINING, Figure
from mrt.figures.stage import Tables, main_table
from mrt.figures.style import SINGLE, ModelStyle, most_runs, one_run, over, shortfall, usual_samples
from mrt.figures.tables import Layout

MEASURES = ("cost", "accuracy", "regret", "sft_log", "rl_log")
FIGURE = Figure(TRAINING, MEASURES, paper=("Section 9",), skips_unmeasured=True)

OUTCOME_REWARD = ("grpo", "star")  # methods that a difference is taken to, the first that there is
NOTE = (
    "A cell is a mean with its 95 % interval over {over}{difference}. Tokens are those"
    " generated to train the model and its ancestors. FLOPs are those of generating, prefilling and training. Both are"
    " means over the runs."
)
DIFFERENCE = "; in parentheses the difference to {reference}"
SAME_BASE = ", whichever has the same base"
STARS = ", with * where its interval excludes 0"
SCHEMA = {
    "dataset": pl.String,
    "model": pl.String,
    "value": pl.String,
    "runs": pl.Int64,
    "n": pl.Int64,
    "of": pl.Int64,  # problems that any model was measured on
    "samples_least": pl.Int64,  # completions or traces of a problem in a run
    "samples_most": pl.Int64,
    **dict.fromkeys(["estimate", "low", "high", "difference", "difference_low", "difference_high"], pl.Float64),
    "difference_n": pl.Int64,
    "difference_over": pl.String,  # runs and problems, or problems, where a training has one run
    "generated_tokens": pl.Float64,
    "flops": pl.Float64,
    "examples": pl.Float64,  # of its set, or problems of RL; the mean over runs
    "steps": pl.Float64,
    "remark": pl.String,  # what tells that its training may have taught nothing
}


def baselines(names: Collection[str], models: Mapping[str, ModelStyle]) -> dict[str, str | None]:
    """The model, among those named, that each is compared with: one that was trained from the same base."""
    root = {name: models[name].root or name for name in names}
    whole = [name for name in names if not models[name].checkpoint_of]
    rivals = [name for method in OUTCOME_REWARD for name in whole if models[name].method == method]
    return {name: next((rival for rival in rivals if root[rival] == root[name]), None) for name in names}


def trainings(tables: Tables) -> dict[str, tuple[float | None, float, str | None]]:
    """Examples and steps of each model that was trained here, means over runs, and what may be wrong with them."""
    logs = [tables[name] for name in ("sft_log", "rl_log") if name in tables and tables[name].height]
    learnt = {}
    for (model,), log in pl.concat(logs, how="diagonal_relaxed").group_by("model") if logs else ():
        of_runs = log.sort("step").group_by("run", maintain_order=True).last()
        examples = of_runs["examples"].mean() if "examples" in log.columns else None
        remarks = of_runs["remark"].drop_nulls().unique(maintain_order=True) if "remark" in log.columns else ()
        learnt[str(model)] = (examples, of_runs["step"].mean(), "; ".join(remarks) or None)
    return learnt  # type: ignore[return-value]  # means of numbers are numbers


def costs(cost: pl.DataFrame) -> dict[str, tuple[float, float]]:
    """Tokens generated and FLOPs of each model that was trained here, with its ancestors'; the mean over runs."""
    if cost.is_empty():
        return {}
    of_run = cost.group_by("model", "run").agg(pl.col("generated_tokens", "flops").sum().cast(pl.Float64))
    means = of_run.group_by("model").agg(pl.col("generated_tokens", "flops").mean())
    return {name: (tokens, flops) for name, tokens, flops in means.iter_rows()}


def summary(tables: Tables, models: Mapping[str, ModelStyle]) -> pl.DataFrame:
    """A row for each dataset, measured value and method."""
    regret = tables.get("regret", pl.DataFrame())
    within = regret.filter(pl.col("extensions") == 0) if regret.height else regret
    values = values_of({"accuracy": tables.get("accuracy", pl.DataFrame()), "regret": within})
    totals, learnt = costs(tables["cost"]), trainings(tables)
    rows: list[tuple[Any, ...]] = []
    for (dataset, value), here in values.group_by("dataset", "value", maintain_order=True):
        grids = {name: runs_of(of, "x") for name in models if (of := here.filter(pl.col("model") == name)).height}
        references = baselines(grids, models)
        for name, grid in grids.items():
            estimate = mean_of(grid.values).interval()
            interval = share(estimate, len(grid.problems)) if value != "tokens" else estimate
            difference: tuple[Any, ...] = (None,) * 5
            reference = references[name]
            shared = set(grid.problems) & set(grids[reference].problems) if reference not in (None, name) else ()
            if reference and shared:
                sides = [
                    side.values[:, [problem in shared for problem in side.problems]]
                    for side in (grid, grids[reference])
                ]
                fixed = one_run(models, name, sides[0]) or one_run(models, reference, sides[1])
                paired = (
                    difference_of_shares(*sides, fixed=fixed)
                    if value != "tokens"
                    else mean_of(*sides, fixed=fixed).interval()
                )
                difference = (*paired, len(shared), "problems" if fixed else "runs and problems")
            counts = here.filter(pl.col("model") == name)["samples"]
            sizes = (len(grid.values), len(grid.problems), here["problem_id"].n_unique(), counts.min(), counts.max())
            of_training = (*totals.get(name, (0.0, 0.0)), *learnt.get(name, (None, None, None)))
            rows.append((dataset, name, value, *sizes, *interval, *difference, *of_training))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def layout(table: pl.DataFrame, models: Mapping[str, ModelStyle], *, stars: bool = True) -> Layout:
    """The table as text; stars mark differences whose interval excludes 0, without correction."""
    names = table["model"].unique(maintain_order=True).to_list()
    first = {row["model"]: row for row in table.unique("model", keep="first").iter_rows(named=True)}
    header = ["model", "runs", "generated tokens", "FLOPs"]
    cells = [
        [models[n].label, str(first[n]["runs"]), f"{first[n]['generated_tokens']:,.0f}", f"{first[n]['flops']:.2e}"]
        for n in names
    ]
    if table["steps"].count():
        header += ["examples", "steps"]
        for line, name in zip(cells, names, strict=True):
            counts = (first[name][column] for column in ("examples", "steps"))
            line += ["" if count is None else f"{count:,.0f}" for count in counts]
    runs = most_runs(table, models)
    for (dataset, value), here in table.group_by("dataset", "value", maintain_order=True):
        header.append(f"{dataset}: {value} (n = {here['of'].to_numpy().max()})")
        rows = {row["model"]: row for row in here.iter_rows(named=True)}
        for index, name in enumerate(names):
            less = shortfall(rows[name], usual_samples(here)) if name in rows else ""
            cells[index].append((cell(rows[name], runs, stars) + (f", {less}" if less else "")) if name in rows else "")
    references = list(dict.fromkeys(filter(None, baselines(names, models).values())))
    difference = DIFFERENCE.format(reference=" or ".join(models[n].label for n in references)) if references else ""
    difference += (SAME_BASE if len(references) > 1 else "") + (STARS if references and stars else "")
    note = NOTE.format(over=over(runs), difference=difference)
    marked = runs > 1 and table.filter(pl.col("difference_over") == "problems").height
    remarks = [f" {models[n].label}: {remark}." for n in names if (remark := first[n]["remark"])]
    return Layout("training runs", header, cells, set(), note + (f" {SINGLE}" if marked else "") + "".join(remarks))


def cell(row: Mapping[str, Any], runs: int, stars: bool) -> str:
    """An estimate with its interval and the difference to the baseline; `runs` is the largest number of a model's."""
    scale, digits = {"accuracy": (100, 1), "tokens": (1, 1)}.get(row["value"], (1, 3))
    low, middle, high = (f"{scale * row[name]:.{digits}f}" for name in ("low", "estimate", "high"))
    text = f"{middle} [{low}, {high}]"
    if row["difference"] is None:
        return text
    clear = "*" if stars and (row["difference_low"] > 0 or row["difference_high"] < 0) else ""
    alone = "†" if row["difference_over"] == "problems" and runs > 1 else ""
    on = f" on {row['difference_n']}" if row["difference_n"] < row["n"] else ""
    return f"{text} ({scale * row['difference']:+.{digits}f}{clear}{alone}{on})"


if __name__ == "__main__":
    main_table(summary, layout, __doc__)
