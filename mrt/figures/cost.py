"""Accuracy and regret against the cost of training.

Accuracy and normalized regret against generated tokens, and against FLOPs of generation, prefill and training. Both
costs are summed over the lineage. Regret is at the largest budget that most models have within their token limits.
Points are means over a model's training runs, bars and bands 95 % intervals; a dotted line is a model that was not
trained here. Intervals are over |over|. MRT (RL) generates more tokens than GRPO in the same number of steps, so
compare its gain with its cost. The paper leaves this comparison open.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

from mrt.figures.figure import TRAINING, Figure
from mrt.figures.runs import summary
from mrt.figures.stage import Tables, main
from mrt.figures.style import Appearance, ModelStyle, below, labelled, panels, problems_in

FIGURE = Figure(TRAINING, ("cost", "accuracy", "regret"), paper=("Section 9",), opens=True, skips_unmeasured=True)

AXES = {"generated_tokens": "tokens generated to train", "flops": "FLOPs to train"}


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    table = summary(tables, models)
    models_of = {value: here["model"].n_unique() for (value,), here in table.group_by("value", maintain_order=True)}
    most = max(models_of.values(), default=0)  # of models that are extended, larger budgets are extrapolated
    budgets = [value for value, number in models_of.items() if value.startswith("regret") and number == most]
    shown = [value for value in ("accuracy", *budgets[-1:]) if value in models_of]
    table = table.filter(pl.col("value").is_in(shown))
    sets = table["dataset"].unique(maintain_order=True).to_list()
    look = Appearance(labelled(table, models))
    figure, axes = panels(len(sets) * len(shown) * len(AXES), columns=2)
    from matplotlib.ticker import EngFormatter  # only now: `panels` decides what matplotlib reads

    handles: dict[str, Any] = {}
    places = ((s, value, x) for s in sets for value in shown for x in AXES)
    for axis, (dataset, value, x) in zip(axes, places, strict=True):
        here = table.filter(dataset=dataset, value=value)
        for row in here.iter_rows(named=True):
            style = look.line(row["model"]) | {"linestyle": "none"}
            if not row["flops"]:  # not trained here: a reference level
                line = axis.axhline(row["estimate"], color=style["color"], linewidth=0.8, linestyle=":")
                axis.axhspan(row["low"], row["high"], color=style["color"], alpha=0.08, linewidth=0)
                handles[style["label"]] = line
                continue
            # where all problems are alike, an end may lie on the wrong side by rounding
            ends = [[max(0.0, row["estimate"] - row["low"])], [max(0.0, row["high"] - row["estimate"])]]
            handles[style["label"]] = axis.errorbar(row[x], row["estimate"], yerr=ends, **style | {"linewidth": 1})
        axis.set(xlabel=AXES[x], ylabel=value.replace("at", "at $C_0$ ="))
        axis.set_xlim(0, 1.05 * max(here[x], default=0) or None)
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.set_title(f"{dataset}\n{runs_in(here)}")
    below(figure, list(handles.values()), list(handles))
    return figure, table


def runs_in(here: pl.DataFrame) -> str:
    """Number of problems, and of the runs of each trained model, for a title."""
    counts = sorted({count for count in here.filter(pl.col("flops") > 0)["runs"]}) or [0]
    each = f"{' to '.join(map(str, dict.fromkeys([counts[0], counts[-1]])))} run{'s' if counts[-1] > 1 else ''} each"
    return f"{problems_in(here.drop('runs'))}, {each}"


if __name__ == "__main__":
    main(draw, __doc__)
