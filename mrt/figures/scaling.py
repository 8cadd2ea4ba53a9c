"""[maj@p]_j scaling curves.

A row for each model, a column for each group of traces; all panels have the same axes. Solid: accuracy when thinking is
stopped after j episodes. Tokens up to there are below, and j above the panel: each number, or each second, fifth or
tenth where numbers would touch. The band is a 95 % interval over |over|. Dashed: p votes after the same episodes.
Dotted grey: pass@k of a model that does not think, if the experiment has one. With it a problem counts as solved if any
of k answers is right, so no vote could do better; it continues beyond the panel's right edge. Where dashed rises above
solid, voting after fewer episodes beats thinking on. The number n counts problems. A trace that has ended counts with
its last prefix, so that all points of a curve are of the same traces. A curve ends where fewer than a fifth of them
continue. With plain votes maj@2 equals maj@1 in expectation, as a tie is broken evenly; only an unparseable answer,
which casts no vote, makes a difference. These two curves differ in tokens only, unless `evaluation.weighted_votes` is
on. Traces are grouped by their total number of episodes; those of a problem are averaged first. The paper sees steady
gains in short thoughts, and none, or losses, in long ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from mrt.figures.figure import CASE, Figure
from mrt.figures.stage import Tables, main
from mrt.figures.style import (
    Appearance,
    ModelStyle,
    carried,
    errorbar,
    folded,
    legend,
    of_known_length,
    panels,
    room,
    spaced_ticks,
    with_intervals,
)

FIGURE = Figure(
    CASE,
    ("prefixes", "direct"),
    paper=("fig3", "fig24", "fig25", "fig27", "fig28"),
    settings=("evaluation.episode_groups",),
)

GROUPS = 3
VOTES_STYLE = {"linestyle": "--", "linewidth": 0.8, "marker": ".", "markersize": 2}
DIRECT_STYLE = {"color": "0.55", "linestyle": ":", "marker": "s", "markersize": 1.5, "linewidth": 1.2}
TRACE = ["model", "run", "dataset", "problem_id", "sample"]
GO_ON = 0.2  # share of the traces that go on at the last point of a curve


def terciles(data: pl.DataFrame) -> Iterator[tuple[int, int]]:
    """The terciles of the total number of episodes, over all models, to make columns comparable."""
    episodes = data.unique(TRACE)["episodes"].to_numpy()
    edges = np.unique(np.quantile(episodes, [i / GROUPS for i in range(GROUPS + 1)], method="nearest"))
    lows = [int(edge) + (1 if i else 0) for i, edge in enumerate(edges[:-1])] or [int(edges[0])]
    highs = [int(edge) for edge in edges[1:]] or [int(edges[0])]
    yield from zip(lows, highs, strict=True)


def groups(data: pl.DataFrame, wanted: Sequence[tuple[int, int]] | None) -> Iterator[tuple[str, pl.DataFrame]]:
    """Name and rows of the groups of traces by total number of episodes: those wanted and not empty, else terciles."""
    for low, high in wanted or terciles(data):
        rows = data.filter(pl.col("episodes").is_between(low, high))
        if rows.height:
            yield f"{low} to {high} episodes" if high > low else f"{low} episode{'s' * (low > 1)}", rows


def mark_episodes(axis: Any, tokens: Sequence[float], prefixes: Sequence[int]) -> None:
    """A second axis above: how many episodes the points at these tokens have, or each n-th of them."""
    low, high = axis.get_xlim()
    points = [point for point in zip(tokens, prefixes, strict=True) if low <= point[0] <= high]
    digits = len(str(max(prefixes, default=0)))
    apart = (high - low) * (0.04 + 0.045 * digits) / (0.85 * room(axis))  # inches that a number takes
    steps = [[point for point in points if point[1] % step == 0] for step in (1, 2, 5, 10, 20, 50, 100)]
    named = max((of for of in steps if len(spaced_ticks([at for at, _ in of], apart)) == len(of)), key=len, default=[])
    above = axis.secondary_xaxis("top")
    above.set_xticks([at for at, _ in named], [str(prefix) for _, prefix in named])
    above.tick_params(labelsize="x-small", length=2, pad=1)


def curves_table(
    data: pl.DataFrame, direct: pl.DataFrame, models: Sequence[str], wanted: Sequence[tuple[int, int]] | None
) -> pl.DataFrame:
    """The points of all curves with intervals: dataset, model, group, curve (maj or direct), point, prefix, p, ..."""
    by = ["dataset", "model", "group"]
    rows, baselines = [], []
    for _, here in data.group_by("dataset", maintain_order=True):
        for group, of_group in groups(here, wanted):
            rows.append(of_group.with_columns(pl.lit(group).alias("group")))
            for model in models if direct.height else []:
                problems = of_group.filter(pl.col("model") == model).select("dataset", "problem_id").unique()
                same = direct.join(problems, on=["dataset", "problem_id"], how="semi")
                baselines.append(same.with_columns(pl.lit(model).alias("model"), pl.lit(group).alias("group")))
    if not rows:
        raise ValueError(f"no trace has as many episodes as one of evaluation.episode_groups, {wanted}; change them")
    # where every n-th prefix is scored, a trace's last one is between two of others: points count scored prefixes
    scored = pl.col("prefix").rank("dense").over(TRACE).cast(pl.Int64) - 1
    grouped = pl.concat(rows).with_columns(scored.alias("point"))
    reached = grouped.group_by([*by, "point"]).agg(pl.col("prefix").max(), pl.struct(TRACE).n_unique().alias("traces"))
    reached = reached.filter(pl.col("traces") >= GO_ON * pl.col("traces").max().over(by)).drop("traces")
    curves = [
        carried(
            of, "point", [*TRACE, "group", "p"], of.join(reached, on=[*by, "point"], how="semi")["point"].n_unique() - 1
        )
        for of in grouped.partition_by(by, maintain_order=True)
    ]
    table = with_intervals(pl.concat(curves), [*by, "point", "p"], ["maj", "tokens"])
    table = table.with_columns(pl.lit("maj").alias("curve"))
    table = table.join(reached, on=[*by, "point"], validate="m:1", maintain_order="left")
    if not direct.height:
        return table
    curve = with_intervals(of_known_length(pl.concat(baselines)), [*by, "k"], ["pass", "tokens"])
    names = {name: name.replace("pass", "maj") for name in curve.columns if name.startswith("pass")}
    curve = curve.rename({**names, "k": "p"}).with_columns(pl.lit("direct").alias("curve"))
    return pl.concat([table, curve], how="diagonal_relaxed")


def draw_panel(axis: Any, here: pl.DataFrame, line: Mapping[str, Any]) -> None:
    """The curves of one model and group of traces."""
    votes, baseline = here.filter(curve="maj"), here.filter(curve="direct")
    largest = votes["n"].to_numpy().max(initial=0)
    for _, branch in votes.group_by("point", maintain_order=True):
        axis.plot(branch["tokens"], branch["maj"], **VOTES_STYLE, color=line["color"])
    axis.plot(baseline["tokens"], baseline["maj"], **DIRECT_STYLE) if baseline.height else None
    one = votes.filter(pl.col("p") == 1)
    errorbar(axis, one["tokens"], one, "maj", **{**line, "linestyle": "-", "markersize": 3, "label": None})
    mark_episodes(axis, one["tokens"].to_list(), one["prefix"].to_list())
    least = baseline["n"].to_numpy().min(initial=largest)  # the baseline may have been measured on fewer
    about = f"n = {largest}" + (f", direct {least}" if least < largest else "")
    axis.text(0.97, 0.93, about, fontsize="x-small", ha="right", va="top", transform=axis.transAxes)


def draw(
    tables: Tables, models: Mapping[str, ModelStyle], episode_groups: Sequence[tuple[int, int]] | None = None
) -> tuple[Any, pl.DataFrame]:
    data, direct = tables["prefixes"], tables.get("direct", pl.DataFrame())
    thinking = [model for model in models if model in data["model"]]
    table = curves_table(data, direct, thinking, episode_groups)
    votes = table.filter(curve="maj")
    groups_of = {s: list(dict.fromkeys(rows["group"])) for (s,), rows in votes.group_by("dataset", maintain_order=True)}
    columns = max(map(len, groups_of.values()))
    measured = set(votes.select("dataset", "model").iter_rows())
    rows = [(s, m) for s in groups_of for m in thinking if (s, m) in measured]
    figure, grid = panels(len(rows) * columns, height=1.15, columns=columns, least=0.01)
    look = Appearance(models)
    limits = {"xlim": (0, 1.05 * (votes["tokens"].to_numpy().max(initial=0) or 1)), "ylim": (0, 1.05)}
    seen: set[str] = set()
    for i, (dataset, model) in enumerate(rows):
        for axis, group in zip(grid[i * columns :], [*groups_of[dataset], *[""] * columns][:columns], strict=False):
            here = table.filter(dataset=dataset, model=model, group=group).sort("p", "point")
            axis.set_visible(here.height > 0)
            if here.height:
                axis.set(**limits)
                draw_panel(axis, here, look.line(model))
            if dataset not in seen:
                axis.set_title(f"{dataset}\n{group}", fontsize="small")
            axis.tick_params(labelbottom=i + 1 == len(rows), labelleft=axis is grid[i * columns])
        grid[i * columns].set_ylabel(
            "\n".join(folded(models[model].label)), fontsize="small", color=look.colour(model), parse_math=False
        )
        seen.add(dataset)
    figure.supylabel("$[\\mathrm{maj@}p]_j$", fontsize="medium")
    grid[-columns + columns // 2].set_xlabel("tokens (above each panel: episodes j)")
    grid[0].plot([], [], "-", color="0.3", marker="o", markersize=3, label="one vote, more episodes")
    grid[0].plot([], [], **VOTES_STYLE, color="0.3", label=f"p votes after j episodes, p = {listed(votes)}")
    if direct.height:
        grid[0].plot([], [], **DIRECT_STYLE, label=f"direct: pass@k, k = {listed(table.filter(curve='direct'))}")
    legend(figure, grid[0])
    return figure, table


def listed(points: pl.DataFrame) -> str:
    """The numbers of votes, or of samples, of these points."""
    return ", ".join(map(str, points["p"].unique().sort()))


if __name__ == "__main__":
    main(draw, __doc__)
