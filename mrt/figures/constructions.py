"""Warmstart sets from a solution tree.

The beam search's tree of one training problem, and one example of each construction. Red: the attempt that fails;
dashed: the backtrack; green: the revision after it. The backtracking construction keeps the steps up to the best node
of the attempt; RISE starts from scratch; STaR has a right solution alone. The problem has an example in every set, and
its tree has about a dozen leaves.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

from mrt.figures.figure import TRAINING, Figure
from mrt.figures.stage import Tables, main
from mrt.figures.style import ModelStyle, panels

FIGURE = Figure(TRAINING, ("constructions", "trees"), paper=("fig14",))

LEAVES = 12  # about as many as can still be read
WRONG, RIGHT = "#D55E00", "#009E73"


def draw(tables: Tables, models: Mapping[str, ModelStyle]) -> tuple[Any, pl.DataFrame]:
    """One panel per construction: nodes by depth, coloured by the share of right rollouts."""
    sets, trees = tables["constructions"], tables["trees"]
    shown = [m for m in models if sets.filter(model=m).height]
    problem = most_telling(sets, trees, shown)
    if problem is None:
        return panels(0)[0], sets.clear()
    nodes = {row["node"]: row for row in trees.filter(problem_id=problem).iter_rows(named=True)}
    place = {n: (row["depth"], y) for (n, row), y in zip(nodes.items(), heights(nodes), strict=True)}
    figure, axes = panels(len(shown), height=2.6)
    parts = []
    for axis, model in zip(axes, shown, strict=True):
        here = sets.filter(model=model, problem_id=problem)
        example = (here.sort("prefix", descending=True) if "prefix" in here else here).row(0, named=True)
        failed, kept, revised = paths_of(example, nodes)
        for n, row in nodes.items():
            if row["parent"] is not None:
                axis.plot(*zip(place[row["parent"]], place[n], strict=True), color="#cccccc", linewidth=0.7, zorder=1)
        for path, colour, start in ((failed, WRONG, 0), (revised, RIGHT, kept)):
            line = [place[n] for n in ([0, *path][start:] if path else [])]
            axis.plot([x for x, _ in line], [y for _, y in line], color=colour, linewidth=2, zorder=2)
        if failed:
            arrow = {"arrowstyle": "->", "linestyle": "--", "color": WRONG, "connectionstyle": "arc3,rad=-0.3"}
            axis.annotate("", place[[0, *failed][kept]], place[failed[-1]], arrowprops=arrow, zorder=3)
        points = axis.scatter(
            *zip(*place.values(), strict=True), c=[row["value"] for row in nodes.values()],
            cmap="viridis", vmin=0, vmax=1, s=22, zorder=4, edgecolors="black", linewidths=0.4,
        )  # fmt: skip
        axis.set(title=models[model].label, xlabel="steps", yticks=[])
        axis.grid(visible=False)
        parts += [
            {"model": model, "problem_id": problem, "path": name, "place": i, "node": n, "text": nodes[n]["text"]}
            for name, path in (("attempt", failed), ("revision", revised))
            for i, n in enumerate(path)
        ]
    figure.colorbar(points, ax=axes, label="share of right rollouts", shrink=0.8)
    return figure, pl.DataFrame(parts)


def most_telling(sets: pl.DataFrame, trees: pl.DataFrame, shown: list[str]) -> str | None:
    """The problem to draw: with an example in every set, if possible one that keeps a step, and about LEAVES leaves.

    None if no problem has an example in every set.
    """
    of_all = sets.group_by("problem_id").agg(pl.col("model").n_unique(), pl.col("prefix").max())
    telling = of_all.filter(pl.col("model") == len(shown)).with_columns(pl.col("prefix") > 0)
    size = trees.filter("leaf").group_by("problem_id").len()
    candidates = telling.join(size, on="problem_id").with_columns((pl.col("len").cast(pl.Int64) - LEAVES).abs())
    return (
        None
        if candidates.is_empty()
        else str(candidates.sort(pl.col("prefix").not_(), "len", "problem_id")["problem_id"][0])
    )


def heights(nodes: Mapping[int, Mapping[str, Any]]) -> list[float]:
    """Vertical positions: leaves in depth-first order, each other node in the middle of its children."""
    children: dict[int | None, list[int]] = {}
    for n, row in nodes.items():
        children.setdefault(row["parent"], []).append(n)
    height: dict[int, float] = {}
    count = 0

    def walk(node: int) -> float:
        nonlocal count
        below = [walk(child) for child in children.get(node, [])]
        count += not below
        height[node] = sum(below) / len(below) if below else -float(count)
        return height[node]

    walk(0)
    return [height[n] for n in nodes]


def paths_of(example: Mapping[str, Any], nodes: Mapping[int, Mapping[str, Any]]) -> tuple[list[int], int, list[int]]:
    """Nodes of an example's failing attempt, how many of them it keeps, and nodes of the whole revised solution."""

    def path(node: int) -> list[int]:
        parent = nodes[node]["parent"]
        return [] if parent is None else [*path(parent), node]

    sampled = path(example["sample"])
    if nodes[example["sample"]]["right"]:
        return [], 0, sampled
    kept = example["prefix"] or 0
    right = [path(n) for n, row in nodes.items() if row["leaf"] and row["right"]]
    follows = [p for p in right if example["completion"].endswith("".join(nodes[n]["text"] for n in p[kept:]))]
    return sampled, kept, next(p for p in follows if p[:kept] == sampled[:kept])


if __name__ == "__main__":
    main(draw, __doc__)
