"""How figures look: colours, lines and markers of models, panels, curves with intervals, legends, and files.

Changing the style redraws figures and recomputes no measure.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import chdir
from contextvars import ContextVar
from itertools import product
from operator import itemgetter
from pathlib import Path
from textwrap import wrap
from typing import Any

import polars as pl
from pydantic import BaseModel

from mrt.analysis.intervals import interval_table
from mrt.core.storage import atomic_file
from mrt.figures.looks import BASE_COLOUR, Drawing, looks

COLUMN_WIDTH = 3.4  # inches, of a paper's column; a panel of this width must be readable
PAGE_WIDTH = 2 * COLUMN_WIDTH
DRAWING: ContextVar[Drawing] = ContextVar("drawing", default=Drawing())  # noqa: B039 (it is never changed)
SINGLE = "†: over problems alone, as one of the two trainings has a single run, whose spread is not known."
FONT_SIZE = 8  # points
LONGEST_TITLE = 34  # characters of a line
MOST_LABELS, LONGEST_LABEL = 13, 15  # most lines of labels at line ends, and characters of a line; else a legend


class ModelStyle(BaseModel):
    """A model in a figure: label, method, iteration, look and ancestors, which need not be in the figure.

    Without a `marker`, `colour` is its method's, and its look follows from its place among the figure's models.
    """

    label: str
    method: str = "base"
    colour: str | None = None
    marker: str | None = None
    line: str | None = None
    iteration: int = 0
    ancestors: tuple[str, ...] = ()  # the models that it was trained from, nearest first
    parameterization: str = "open_ended"
    replicate_of: str | None = None
    checkpoint_of: str | None = None  # the model of whose training it is a checkpoint on the way
    step: int | None = None

    @property
    def parent(self) -> str | None:
        """The model that it was trained from."""
        return self.ancestors[0] if self.ancestors else None

    @property
    def root(self) -> str | None:
        """The given model that its trainings began with; None of a given model."""
        return self.ancestors[-1] if self.ancestors else None

    @property
    def trained(self) -> bool:
        """Whether it was trained, so that another run of its training would be another model."""
        return self.method != "base"


class Appearance:
    """Colour, line and marker of each model."""

    def __init__(self, models: Mapping[str, ModelStyle]) -> None:
        self.models = models
        by_place = looks({name: (style.colour, style.iteration) for name, style in models.items()})
        self._looks = {name: style if style.marker else by_place[name] for name, style in models.items()}

    def colour(self, name: str) -> str:
        return self._looks[name].colour or BASE_COLOUR

    def outline(self, name: str) -> dict[str, Any]:
        """Keyword arguments of a histogram's outline: a line without markers and label."""
        return {"color": self.colour(name), "linestyle": self._looks[name].line or "solid", "linewidth": 1.3}

    def line(self, name: str) -> dict[str, Any]:
        """Keyword arguments of a line with markers."""
        markers = {"marker": self._looks[name].marker, "markersize": 3.5}
        return {**self.outline(name), **markers, "label": self.models[name].label}


def beside(line: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a line that goes with a model's: thin, with open markers, and not named again."""
    return {**line, "linestyle": (0, (3, 2)), "linewidth": 0.9, "fillstyle": "none", "label": None}


def pyplot() -> Any:
    """`matplotlib.pyplot`, with matplotlib's own defaults whatever the user's matplotlibrc and MPLBACKEND say."""
    os.environ |= {"MATPLOTLIBRC": os.devnull, "MPLBACKEND": "agg"}
    with chdir(os.sep):  # a matplotlibrc in the working folder would be read first
        import matplotlib.pyplot as plt
    plt.rcdefaults()  # matplotlib may have been imported before
    plt.switch_backend("agg")
    return plt


def panels(count: int, height: float = 2.3, columns: int = 3, least: float = 2.2) -> tuple[Any, list[Any]]:
    """A figure with `count` panels and its axes, in the house style; without panels it shows a note.

    Args:
        height: inches of a panel.
        columns: most panels beside each other, of at least `least` inches; fewer where rows fill up more evenly.
    """
    plt, drawing = pyplot(), DRAWING.get()
    size = drawing.font_size or FONT_SIZE
    plt.rcParams.update(
        {
            "font.size": size,
            "axes.titlesize": size,
            "axes.titlelocation": "left",
            "axes.labelsize": size,
            "legend.fontsize": "small",
            "legend.frameon": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.alpha": 0.25,
            "grid.linewidth": 0.5,
            "pdf.fonttype": 42,
            "svg.hashsalt": "mrt",
            "savefig.dpi": 200,
        }
    )
    width = drawing.width or min(PAGE_WIDTH, COLUMN_WIDTH * max(1, min(columns, count)))
    rows = max(1, -(-count // max(1, min(columns, int(width / least)))))
    columns = max(1, -(-count // rows))
    figure, axes = plt.subplots(rows, columns, figsize=(width, height * rows), squeeze=False, layout="constrained")
    flat = list(axes.flat)
    for unused in flat[count:]:
        unused.set_visible(False)
    if not count:
        figure.text(0.5, 0.5, "nothing to draw", ha="center", va="center")
    return figure, flat[:count]


def room(axis: Any) -> float:
    """Inches that an axis has of its figure's width, labels included."""
    return float(axis.figure.get_figwidth() / axis.get_subplotspec().get_gridspec().ncols)


def name_panel(axis: Any, label: str, about: str, colour: str) -> None:
    """A panel's title: a model's label in its colour and a remark, in lines that fit."""
    lines = [line for text in (label, about) for line in wrap(text, max(12, int(13 * room(axis) - 4)))]
    axis.set_title("\n".join(lines), color=colour, fontsize="small", parse_math=False)


def of_known_length(data: pl.DataFrame) -> pl.DataFrame:
    """The rows with tokens, of each model and dataset that has any: both axes are of the same completions.

    Rows of others stay: they are in the table of the figure's values, and on no curve.
    """
    known = pl.col("tokens").is_not_null()
    return data.filter(known | ~known.any().over("dataset", "model"))


def with_intervals(data: pl.DataFrame, by: Sequence[str], columns: Sequence[str]) -> pl.DataFrame:
    """Mean of each column within each group, with a 95 % interval over problems, and over training runs if a model has
    several: `c`, `c_low`, `c_high`; and the counts of `sample_sizes`.

    Rows of one problem within a group (its traces) are averaged first, so n counts problems. `c_n` is the number of
    problems with a value of a further column.
    """
    result = data.select(by).unique(maintain_order=True)
    run = "run" if "run" in data.columns else None
    for column in columns:
        known = data.filter(pl.col(column).is_not_null())  # imported rollouts, for example, have no token counts
        names = {"estimate": column, "low": f"{column}_low", "high": f"{column}_high"}
        names |= {} if column == columns[0] else {"problems": f"{column}_n"}
        means = interval_table(known, by, column, run=run).rename(names).select(*by, *names.values())
        if column == columns[0]:
            means = means.join(sample_sizes(known, by), on=by)
        result = result.join(means, on=by, how="left", maintain_order="left")
    return result


def sample_sizes(data: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Numbers of problems, runs and samples of the means of each group, a row a group.

    Columns are `by`; n (problems); of; runs, if the data have a column `run`; samples_least and samples_most. `of`
    counts the problems on which any model was measured, where `by` has the model, else it is n. The last two count
    completions or traces of a problem in a run: the column `samples`, else rows.
    """
    run = ["run"] if "run" in data.columns else []
    counted = pl.col("samples").sum() if "samples" in data.columns else pl.len()
    problems = data.group_by(*by, *run, "problem_id").agg(counted.cast(pl.Int64).alias("samples"))
    groups = problems.group_by(by, maintain_order=True).agg(
        pl.col("problem_id").n_unique().cast(pl.Int64).alias("n"),
        *([pl.col("run").n_unique().cast(pl.Int64).alias("runs")] if run else []),
        pl.col("samples").min().alias("samples_least"),
        pl.col("samples").max().alias("samples_most"),
    )
    others = [name for name in by if name != "model"]
    if "model" not in by or not others:
        most = problems["problem_id"].n_unique() if "model" in by else None
        return groups.with_columns(pl.col("n").alias("of") if most is None else pl.lit(most, pl.Int64).alias("of"))
    union = problems.group_by(others).agg(pl.col("problem_id").n_unique().cast(pl.Int64).alias("of"))
    return groups.join(union, on=others, maintain_order="left")


def carried(data: pl.DataFrame, index: str, by: Sequence[str], last: int) -> pl.DataFrame:
    """A row of every trace (`by`) at each `index` from 0 to `last`: that of the largest index that it has by then.

    So a trace that has ended counts with its end, and all points of a curve are of the same traces.
    """
    places = data.select(by).unique(maintain_order=True).join(pl.DataFrame({index: range(last + 1)}), how="cross")
    return places.sort(index).join_asof(data.sort(index), on=index, by=list(by), check_sortedness=False)


def spaced_ticks(places: Sequence[float], least: float) -> list[float]:
    """Places of ticks that can be read: each at least `least` after the one before."""
    taken: list[float] = []
    for place in places:
        if not taken or place - taken[-1] >= least:
            taken.append(place)
    return taken


def problems_in(table: pl.DataFrame) -> str:
    """The sample sizes of a table, for a title: problems, samples of each, and training runs if several."""
    if table.is_empty():
        return "n = 0 problems"
    runs = table["runs"].to_numpy().max(initial=1) if "runs" in table.columns else 1
    text = f"n = {table['n'].to_numpy().max(initial=0)} problems"
    if "samples_most" in table.columns and (most := usual_samples(table)) > 1:
        text += f", {most} samples each"
    return text + (f", {runs} training runs" if runs > 1 else "")


def usual_samples(table: pl.DataFrame) -> int:
    """The largest number of samples of a problem in a run."""
    return int(table["samples_most"].drop_nulls().to_numpy().max(initial=0))


def heading(name: str, table: pl.DataFrame) -> str:
    """A panel's title: its dataset and the sample sizes of its intervals, on a separate line where it is long."""
    about = problems_in(table)
    return f"{name} ({about})" if len(name) + len(about) <= LONGEST_TITLE else f"{name}\n{about}"


def shortfall(row: Mapping[str, Any], samples: int = 0, runs: int = 0) -> str:
    """The sample sizes of a number that are smaller than those of the numbers beside it; else empty.

    Args:
        row: n and of; samples_least and samples_most; runs (see `sample_sizes`).
        samples, runs: largest numbers, of a problem and of a model, among the compared; 0 leaves them out.
    """
    parts = [f"n = {row['n']} of {row['of']}"] if row["n"] < row["of"] else []
    least, most = row.get("samples_least"), row.get("samples_most")
    if samples and least is not None and most is not None and least < samples:
        parts.append(f"{least} sample{'s' * (least > 1)}" if least == most else f"{least} to {most} samples")
    if runs > 1 and (row.get("runs") or runs) < runs:
        parts.append(f"{row['runs']} run{'s' * (row['runs'] > 1)}")
    return ", ".join(parts)


def most_runs(table: pl.DataFrame, models: Mapping[str, ModelStyle]) -> int:
    """The largest number of training runs of a model; 0 if none was trained."""
    trained = [name for name, style in models.items() if style.trained]
    counts = table.filter(pl.col("model").is_in(trained)) if "runs" in table.columns else table.clear()
    return int(counts["runs"].drop_nulls().to_numpy().max(initial=0)) if counts.height else 0


def over(runs: int) -> str:
    """The source of variance of intervals; `runs`: the most training runs of a model (0: none was trained)."""
    if runs > 1:
        return "training runs and problems"
    return "problems alone: they tell of this one run of each training, not of others" if runs else "problems"


def one_run(models: Mapping[str, ModelStyle], model: str | None, grid: Any) -> bool:
    """Whether values [runs, problems] are of a single training run, whose variance between runs is unknown."""
    return len(grid) == 1 and model is not None and model in models and models[model].trained


def labelled(table: pl.DataFrame, models: Mapping[str, ModelStyle]) -> dict[str, ModelStyle]:
    """The models; labels give sample sizes that are smaller than those of others on the same dataset."""
    notes: dict[str, dict[str, None]] = {}  # in order, each once
    several, of_values = table["dataset"].n_unique() > 1, ["value"] if "value" in table.columns else []
    for (dataset, *_), here in table.drop_nulls("n").group_by("dataset", *of_values, maintain_order=True):
        samples, runs = usual_samples(here), most_runs(here, models)
        for (model,), rows in here.group_by("model", maintain_order=True):
            row = rows.sort("n", "of").row(-1, named=True)
            row |= {"samples_least": rows["samples_least"].min(), "samples_most": rows["samples_most"].max()}
            less = shortfall(row, samples, runs if model in models and models[str(model)].trained else 0)
            if less:
                notes.setdefault(str(model), {})[f"{dataset}: {less}" if several else less] = None
    return {
        name: style.model_copy(update={"label": f"{style.label} ({'; '.join(notes[name])})"} if name in notes else {})
        for name, style in models.items()
    }


def errorbar(axis: Any, x: Any, table: pl.DataFrame, column: str, **line: Any) -> None:
    """A line with its interval as a band."""
    axis.plot(x, table[column], **line)
    axis.fill_between(x, table[f"{column}_low"], table[f"{column}_high"], color=line["color"], alpha=0.13, linewidth=0)


def curves(
    table: pl.DataFrame, models: Mapping[str, ModelStyle], x: str | Sequence[str], y: str
) -> tuple[Any, list[tuple[Any, pl.DataFrame]]]:
    """A panel per dataset, and per `x`, with each model's line of `y`; returns it, and each axis with its rows."""
    look = Appearance(labelled(table, models))
    sets = table["dataset"].unique(maintain_order=True).to_list()
    over = [x] if isinstance(x, str) else x
    figure, axes = panels(len(sets) * len(over), columns=3 if len(over) == 1 else len(over))
    filled = []
    for axis, (name, x) in zip(axes, product(sets, over), strict=True):
        here = table.filter(pl.col("dataset") == name)
        unknown = []  # models whose completions were imported without token counts
        for model in models:
            rows = here.filter(pl.col("model") == model)
            if rows[x].count():
                errorbar(axis, rows[x], rows, y, **look.line(model))
            elif rows.height:
                unknown.append(models[model].label)
        axis.set_title(heading(name, here))
        if unknown:
            text = f"not drawn, as {x} are not known:\n{', '.join(unknown)}"
            axis.text(0.02, 0.02, text, transform=axis.transAxes, fontsize=6, wrap=True)
        filled.append((axis, here))
    return figure, filled


def name_lines(figure: Any, axes: Sequence[Any], *, at_ends: bool = True) -> None:
    """Name the lines: of a single panel at their ends if they are few, else in a legend below the panels."""
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    lines = sum(len(folded(label)) for label in handles)
    if at_ends and len(axes) == 1 and lines <= MOST_LABELS:
        label_ends(axes[0])
    else:
        below(figure, list(handles.values()), list(handles))


def label_ends(axis: Any) -> None:
    """Write each line's name beside the panel, in its colour and without overlaps; a thin line leads to its end."""
    axis.set(xlim=axis.get_xlim(), ylim=axis.get_ylim())
    to_share = axis.transScale + axis.transLimits  # of the panel's width and height
    points = [
        (look_of(line), *point) for line in axis.get_lines() for point in line.get_xydata() if all(point == point)
    ]
    last = {look: (x, y) for look, x, y in sorted(points, key=itemgetter(1))}  # the end of all lines of a model
    named = [line for line in axis.get_lines() if not str(line.get_label()).startswith("_") and look_of(line) in last]
    ends = [
        (to_share.transform(last[look_of(line)])[1], last[look_of(line)], folded(str(line.get_label())), line)
        for line in named
    ]
    panel = axis.figure.get_figheight() - 0.95  # inches, without title and x axis
    height = (DRAWING.get().font_size or FONT_SIZE) / 72 / panel  # share of a line
    places, top = [], float("-inf")
    for share, *_, text, _ in (ends := sorted(ends, key=itemgetter(0))):
        places.append(max(share, top + height * len(text) / 2))
        top = places[-1] + height * len(text) / 2
    for i, (*_, text, _) in reversed([*enumerate(ends)]):  # a name above the limit pushes the others down
        limit = 1.0 if i + 1 == len(ends) else places[i + 1] - height * len(ends[i + 1][2]) / 2
        places[i] = min(places[i], limit - height * len(text) / 2)
    for place, (_, end, text, line) in zip(places, ends, strict=True):
        colour = line.get_color()
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "linestyle": ":", "relpos": (0, 0.5)}
        axis.annotate(
            "\n".join(text), end, (1.06, place), textcoords="axes fraction", color=colour, va="center",
            fontsize="small", annotation_clip=False, arrowprops=leader | {"shrinkA": 0, "shrinkB": 3}, parse_math=False,
        )  # fmt: skip


def folded(label: str) -> list[str]:
    """A label in short lines, which end at its commas if it has some."""
    parts = [label] if len(label) <= LONGEST_LABEL else re.split(r"(?<=,) (?=[^()]*(?:\(|$))", label)
    return [line for part in parts for line in wrap(part, LONGEST_LABEL)]


def look_of(line: Any) -> tuple[Any, Any]:
    """Colour and marker, which all lines of one model share."""
    return line.get_color(), line.get_marker()


def legend(figure: Any, axis: Any) -> None:
    """One legend for the figure, from one panel's lines, below the panels so that it covers no data."""
    below(figure, *axis.get_legend_handles_labels())


def below(figure: Any, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend below the panels, in as many columns as fit the figure's width; the figure grows with it."""
    points = DRAWING.get().font_size or FONT_SIZE
    inches = points / FONT_SIZE * (0.34 + 0.05 * max(map(len, labels), default=1))  # width of a column
    rows = -(-len(labels) // max(1, int(figure.get_figwidth() / inches)))
    columns = -(-len(labels) // max(1, rows))
    figure.set_figheight(figure.get_figheight() + points / 53 * rows)  # inches
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=max(1, columns),
        handlelength=1.6,
        handletextpad=0.5,
        columnspacing=1.2,
    )


def save(figure: Any, out: Path) -> None:
    """Write the figure as vector graphics and as PNG, without dates, so that equal figures are equal files."""
    import matplotlib.pyplot as plt

    undated: dict[str, dict[str, None]] = {
        "pdf": {"CreationDate": None},
        "svg": {"Date": None},
        "png": {"Software": None},
    }
    for suffix in (DRAWING.get().format or "pdf", "png"):
        with atomic_file(out.with_name(f"{out.name}.{suffix}")) as part:
            figure.savefig(part, format=suffix, metadata=undated[suffix])
    plt.close(figure)
