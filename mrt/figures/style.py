"""How figures look: colours, lines and markers of models, panels, curves with intervals, legends, and files.

Changing the style redraws figures and recomputes no measure.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import chdir
from itertools import count, cycle, product
from operator import itemgetter
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import BaseModel

from mrt.analysis.bootstrap import bootstrap_table
from mrt.core.storage import atomic_file
from mrt.training.methods import METHODS

BASE_COLOUR = "#000000"  # a method has the same colour everywhere: mrt.training.methods
SPARE_COLOURS = ("#56B4E9", "#999999", "#0072B2", "#CC79A7", "#E69F00", "#117733", "#882255", "#DDCC77")
ITERATION_STYLES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P")
COLUMN_WIDTH = 3.4  # inches, of a paper's column; a panel of this width must be readable
MOST_LABELS, LONGEST_LABEL = 4, 13  # most labels at line ends, and their most characters; else a legend


class ModelStyle(BaseModel):
    """How a model is drawn: label, method (colour) and iteration (line and marker); its parent, if drawn."""

    label: str
    method: str = "base"
    iteration: int = 0
    parent: str | None = None
    parameterization: str = "open_ended"
    replicate_of: str | None = None


class Appearance:
    """Colour, line and marker of each model."""

    def __init__(self, models: Mapping[str, ModelStyle]) -> None:
        self.models = models
        others = [name for name, m in models.items() if m.method == "base"]
        # Several models without a parent (real models, say) cannot all be black, nor look like a method.
        methods = {METHODS[m.method].colour for m in models.values() if m.method in METHODS}
        spare = [colour for colour in SPARE_COLOURS if colour not in methods] or SPARE_COLOURS
        self._spare = dict(zip(others[1:], cycle(spare), strict=False))
        kinds = [(m.method, m.iteration) for m in models.values()]
        self._step: dict[str, int] = {}
        # The first model of each method and iteration looks as its iteration does; the others (with other
        # hyperparameters, say) take what is left.
        again = [kind in kinds[:i] for i, kind in enumerate(kinds)]
        taken: set[tuple[str, int]] = set()
        for _, name in sorted(zip(again, models, strict=True), key=itemgetter(0)):
            colour, natural = self.colour(name), max(models[name].iteration - 1, 0)
            self._step[name] = next(step for step in count(natural) if (colour, step) not in taken)
            taken.add((colour, self._step[name]))

    def colour(self, name: str) -> str:
        return self._spare.get(name) or (
            METHODS[method].colour if (method := self.models[name].method) in METHODS else BASE_COLOUR
        )

    def outline(self, name: str) -> dict[str, Any]:
        """Keyword arguments of a histogram's outline: a line without markers and label."""
        style = ITERATION_STYLES[self._step[name] % len(ITERATION_STYLES)]
        return {"color": self.colour(name), "linestyle": style, "linewidth": 1.3}

    def line(self, name: str) -> dict[str, Any]:
        """Keyword arguments of a line with markers."""
        markers = {"marker": MARKERS[self._step[name] % len(MARKERS)], "markersize": 3.5}
        return {**self.outline(name), **markers, "label": self.models[name].label}


def pyplot() -> Any:
    """`matplotlib.pyplot`, with matplotlib's own defaults whatever the user's matplotlibrc and MPLBACKEND say."""
    os.environ |= {"MATPLOTLIBRC": os.devnull, "MPLBACKEND": "agg"}
    with chdir(os.sep):  # a matplotlibrc in the working folder would be read first
        import matplotlib.pyplot as plt
    plt.rcdefaults()  # in case somebody imported matplotlib before
    plt.switch_backend("agg")
    return plt


def panels(count: int, height: float = 2.3, columns: int = 3) -> tuple[Any, list[Any]]:
    """A figure with `count` panels and its axes, in the house style; without panels it says that nothing is drawn."""
    plt = pyplot()
    plt.rcParams.update(
        {
            "font.size": 8,
            "axes.titlesize": 8,
            "axes.labelsize": 8,
            "legend.fontsize": 7,
            "legend.frameon": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "grid.linewidth": 0.5,
            "pdf.fonttype": 42,
            "savefig.dpi": 200,
        }
    )
    columns = max(1, min(columns, count))
    rows = max(1, -(-count // columns))
    figure, axes = plt.subplots(
        rows, columns, figsize=(COLUMN_WIDTH * columns, height * rows), squeeze=False, layout="constrained"
    )
    flat = list(axes.flat)
    for unused in flat[count:]:
        unused.set_visible(False)
    if not count:
        figure.text(0.5, 0.5, "nothing to draw", ha="center", va="center")
    return figure, flat[:count]


def with_intervals(data: pl.DataFrame, by: Sequence[str], columns: Sequence[str]) -> pl.DataFrame:
    """Mean of each column within each group, with a 95 % interval over problems, and over training runs if a model has
    several: `c`, `c_low`, `c_high`, the number of problems `n` and of `runs`.

    Rows of one problem within a group (its traces) are averaged first, so n counts problems.
    """
    result = data.select(by).unique(maintain_order=True)
    run = "run" if "run" in data.columns else None
    for column in columns:
        names = {"estimate": column, "low": f"{column}_low", "high": f"{column}_high", "problems": "n"}
        names |= {"runs": "runs"} if run else {}
        known = data.filter(pl.col(column).is_not_null())  # imported rollouts, for example, have no token counts
        intervals = bootstrap_table(known, by, column, run=run).rename(names).select(*by, *names.values())
        if column != columns[0]:
            intervals = intervals.drop("n", *(["runs"] if run else []))
        result = result.join(intervals, on=by, how="left", maintain_order="left")
    return result


def carried(data: pl.DataFrame, index: str, by: Sequence[str], last: int) -> pl.DataFrame:
    """A row of every trace (`by`) at each `index` from 0 to `last`: that of the largest index that it has by then.

    So a trace that has ended counts with its end, and the same traces are behind all points of a curve.
    """
    places = data.select(by).unique(maintain_order=True).join(pl.DataFrame({index: range(last + 1)}), how="cross")
    return places.sort(index).join_asof(data.sort(index), on=index, by=list(by), check_sortedness=False)


def with_room(places: Sequence[float], least: float) -> list[float]:
    """Those of the places, in order, that stand at least so far behind the last one taken: ticks that can be read."""
    taken: list[float] = []
    for place in places:
        if not taken or place - taken[-1] >= least:
            taken.append(place)
    return taken


def problems_in(table: pl.DataFrame) -> str:
    """Number of problems behind the intervals of a table, and of training runs if there are several, for a title."""
    runs = table["runs"].to_numpy().max(initial=1) if "runs" in table.columns else 1
    return f"n = {table['n'].to_numpy().max(initial=0)} problems" + (f", {runs} training runs" if runs > 1 else "")


def errorbar(axis: Any, x: Any, table: pl.DataFrame, column: str, **line: Any) -> None:
    """A line with its interval as a band."""
    axis.plot(x, table[column], **line)
    axis.fill_between(x, table[f"{column}_low"], table[f"{column}_high"], color=line["color"], alpha=0.13, linewidth=0)


def curves(
    table: pl.DataFrame, models: Mapping[str, ModelStyle], x: str | Sequence[str], y: str
) -> tuple[Any, list[tuple[Any, pl.DataFrame]]]:
    """A panel per dataset, and per `x`, with each model's line of `y`; returns it, and each axis with its rows."""
    look = Appearance(models)
    sets = table["dataset"].unique(maintain_order=True).to_list()
    over = [x] if isinstance(x, str) else x
    figure, axes = panels(len(sets) * len(over), columns=3 if len(over) == 1 else len(over))
    drawn = []
    for axis, (name, x) in zip(axes, product(sets, over), strict=True):
        here = table.filter(pl.col("dataset") == name)
        for model in models:
            rows = here.filter(pl.col("model") == model)
            if rows.height:
                errorbar(axis, rows[x], rows, y, **look.line(model))
        axis.set_title(f"{name} ({problems_in(here)})")
        drawn.append((axis, here))
    return figure, drawn


def name_lines(figure: Any, axes: Sequence[Any], *, at_ends: bool = True) -> None:
    """Name the lines: at their ends where that fits (few and short names), else in a legend below the panels."""
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    fits = len(handles) <= MOST_LABELS and all(len(label) <= LONGEST_LABEL for label in handles)
    if at_ends and fits and len(axes) == 1:
        label_ends(axes[0])
    else:
        below(figure, list(handles.values()), list(handles))


def label_ends(axis: Any) -> None:
    """Write each line's name beside its right end, outside the panel, in its colour, without overlaps."""
    lines = [line for line in axis.get_lines() if not str(line.get_label()).startswith("_") and len(line.get_xdata())]
    lines.sort(key=lambda line: line.get_ydata()[-1])
    bottom, top = axis.get_ylim()
    apart, last = (top - bottom) * 0.07, float("-inf")
    for line in lines:
        last = max(line.get_ydata()[-1], last + apart)
        axis.annotate(
            line.get_label(),
            (1.02, last),
            xycoords=("axes fraction", "data"),
            color=line.get_color(),
            va="center",
            fontsize=7,
            annotation_clip=False,
        )


def legend(figure: Any, axis: Any) -> None:
    """One legend for the figure, from one panel's lines, below the panels so that it covers no data."""
    below(figure, *axis.get_legend_handles_labels())


def below(figure: Any, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend below the panels, in as many columns as fit the figure's width; the figure grows with it."""
    inches = 0.5 + 0.055 * max(map(len, labels), default=1)  # width of a column, at the legend's font size
    columns = max(1, min(3, int(figure.get_figwidth() / inches), len(labels)))
    figure.set_figheight(figure.get_figheight() + 0.15 * -(-len(labels) // columns))  # inches
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def save(figure: Any, out: Path) -> None:
    """Write the figure as vector PDF and as PNG, without dates, so that equal figures are equal files."""
    import matplotlib.pyplot as plt

    for suffix, metadata in (("pdf", {"CreationDate": None}), ("png", {"Software": None})):
        with atomic_file(out.with_name(f"{out.name}.{suffix}")) as part:
            figure.savefig(part, format=suffix, metadata=metadata)
    plt.close(figure)
