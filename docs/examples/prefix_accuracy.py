"""Episodes, progress and regret of real R1-family traces: the script of experiments/real_traces/results.md.

    python docs/examples/prefix_accuracy.py ../shared/data/traces --out docs/images

Reads `reasoning_traces.jsonl` and `prefix_accuracy.jsonl` of that folder, prints the page's tables and draws
`real_prefix_accuracy.png`. No Snakemake, no torch. J is a share in [0, 1]; lengths are characters of the thought.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).parents[2]))  # the checkout, in case mrt is not installed

from mrt.analysis.progress import progress
from mrt.analysis.regret import cumulative_regret, normalized_regret
from mrt.episodes.parameterization import split_episodes
from mrt.episodes.thinking import take_apart
from mrt.figures.style import errorbar, legend, panels, problems_in, with_intervals

BUDGETS = (1000, 2000, 4000, 8000)  # C_0 of Section 8.5.1, here in characters
ROLLOUTS = 100  # continuations that one J averages, as the data's README has it
NEAR = 0.05  # J that stays this close to the outcome, 1 or 0, has settled
GROUPS = ((6, 10), (26, 30), (41, 45))  # total episodes of the solutions in Figure 3
COLOURS = {"right": "#56B4E9", "wrong": "#882255"}
GROUP = ["outcome", "model"]


class Curve(NamedTuple):
    """J along one trace: before each of its sentences, and at its k + 1 episode boundaries."""

    key: dict[str, str]  # problem_id, outcome, model
    start: Any  # [sentences] characters before each
    share: Any  # [sentences] the same as a share of the thought
    J: Any  # [sentences]
    at: Any  # [k + 1] sentence that begins at each boundary; at the end, the last sentence
    found: dict[str, int]  # how many sentences, sentences not verbatim, episodes, boundaries inside a sentence


def place(row: dict[str, Any], text: str) -> Curve:
    """The curve of a row of prefix_accuracy.jsonl; sentences are found in the trace whatever their white space."""
    thought, start, end = take_apart(text, inside=True).thought, [], 0
    for chunk in row["chunks"]:
        match = re.compile(r"\s+".join(map(re.escape, chunk["text"].split()))).search(thought, end)
        if match is None or thought[end : match.start()].strip():
            raise ValueError(f"{row['source']}: a sentence is not where it should be: {chunk['text']!r}")
        start.append(match.start())
        end = match.end()
    cuts = np.cumsum([0, *map(len, split_episodes(thought))])
    at = np.minimum(np.searchsorted(start, cuts), len(start) - 1)  # the first sentence at or after a boundary
    odd = sum(chunk["text"] not in thought for chunk in row["chunks"])
    inside = sum(bool(thought[cut : start[i]].strip()) for cut, i in zip(cuts[:-1], at, strict=False))
    found = {"sentences": len(start), "not verbatim": odd, "episodes": len(cuts) - 1, "begin inside one": inside}
    outcome = "right" if row["final_correct"] else "wrong"
    key = {"problem_id": row["problem_id"], "outcome": outcome, "model": short(row["model"])}
    start, J = np.array(start), np.array([chunk["accuracy"] for chunk in row["chunks"]])
    return Curve(key, start, start / len(thought), J, at, found)


def short(model: str) -> str:
    return model.split("/")[-1].removeprefix("DeepSeek-")


def episode_counts(traces: list[dict[str, Any]]) -> pl.DataFrame:
    """How many episodes thoughts have, by dataset and model (Section 5, Figure 23)."""
    rows = []
    for t in traces:
        parts = take_apart(t["text"], inside=True)
        rows.append(
            (t["problem_id"].split("-")[0], short(t["model"]), not parts.closed, len(split_episodes(parts.thought)))
        )
    data, k = pl.DataFrame(rows, schema=["problems", "model", "truncated", "k"], orient="row"), pl.col("k")
    spread = {"quartiles": (k.quantile(0.25, "linear"), k.quantile(0.75, "linear")), "range": (k.min(), k.max())}
    columns = [pl.len().alias("traces"), pl.col("truncated").sum(), k.median().alias("median")]
    columns += [pl.format("{} to {}", *ends).alias(name) for name, ends in spread.items()]
    columns += [k.is_between(a, b).sum().alias(f"{a} to {b}") for a, b in GROUPS]
    return data.group_by("problems", "model").agg(columns).sort("problems", "model")


def losses(J: Any, what: str) -> dict[str, float]:
    """Share of steps that lose J, and that lose over 1.96 standard errors of a difference (2.5 % do by chance)."""
    p, steps = (J[1:] + J[:-1]) / 2, progress(J)
    sure = steps < -1.96 * np.sqrt(2 * p * (1 - p) / ROLLOUTS)
    return {f"{what} that lose": (steps < 0).mean(), f"{what} beyond noise": sure.mean()}


def measures(c: Curve) -> list[dict[str, float]]:
    """A trace's rows of the tables of progress (Definition 6.1), prefixes, and regret (Definition 4.1, 8.5.1)."""
    best, k, boundary = int(c.J.argmax()), len(c.at) - 1, c.J[c.at]
    regret = cumulative_regret(boundary[:-1])  # against the oracle, which is right at once
    settled = max(np.flatnonzero(np.abs(c.J - (c.key["outcome"] == "right")) > NEAR), default=-1) + 1
    steps = {"episodes": k, "progress an episode": progress(boundary).mean()}
    prefixes = {
        "J at 0": c.J[0],
        "last J": c.J[-1],
        "lost from the best": c.J[best] - c.J[-1],
        "largest loss in a sentence": -progress(c.J).min(),
        "thought after the best": 1 - c.share[best],
        "thought after J settles": 1 - np.append(c.share, 1.0)[settled],
        "best boundary is 0": float(boundary.argmax() == 0),
    }
    budgets = {f"C_0 = {x}": normalized_regret(c.start, c.J, x) for x in BUDGETS}
    steps |= losses(boundary, "episodes") | losses(c.J, "sentences")
    return [steps, prefixes, {"cumulative regret": regret, "... an episode": regret / k, **budgets}]


def balance(curves: list[Curve]) -> pl.DataFrame:
    """Change of J from 0 to x characters, a right trace counting J_0 and a wrong one 1 - J_0, as often as they come."""
    rows = []
    for right in (c for c in curves if c.key["outcome"] == "right"):
        wrong = next(c for c in curves if c.key == {**right.key, "outcome": "wrong"})
        base = (right.J[0] + wrong.J[0]) / 2  # one quantity, measured twice
        for x in BUDGETS:
            a, b = (c.J[np.searchsorted(c.start, x, "right") - 1] for c in (right, wrong))
            rows.append((right.key["problem_id"], x, base * a + (1 - base) * b - base))
    return pl.DataFrame(rows, schema=["problem_id", "characters", "change of J"], orient="row")


def show(table: pl.DataFrame) -> None:
    """Print a table as markdown."""
    lines = [table.columns, ["---"] * table.width, *table.rows()]
    print("\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n")


def show_intervals(data: pl.DataFrame, by: list[str], columns: list[str]) -> None:
    """Print means over problems, `mean [95 % interval]`; n is the number of problems."""
    table = with_intervals(data, by, columns)
    for c in columns:
        ends = table.select(c, f"{c}_low", f"{c}_high").rows()
        table = table.with_columns(pl.Series(c, [f"{mean:z.2f} [{low:z.2f}, {high:z.2f}]" for mean, low, high in ends]))
    show(table.select(*by, "n", *columns))


def draw(curves: list[Curve], regret: pl.DataFrame) -> Any:
    """J along the thought, a panel a model, and normalized regret by budget."""
    figure, axes = panels(3, height=3.1)
    grid = np.linspace(0, 1, 41)
    along = [{**c.key, "x": x, "J": np.interp(x, c.share, c.J)} for c in curves for x in grid]
    along = with_intervals(pl.DataFrame(along), [*GROUP, "x"], ["J"])
    regret = regret.unpivot([f"C_0 = {x}" for x in BUDGETS], index=["problem_id", *GROUP], value_name="regret")
    regret = with_intervals(regret, [*GROUP, "variable"], ["regret"])
    for i, model in enumerate(sorted({c.key["model"] for c in curves})):
        for outcome, colour in COLOURS.items():
            here = (pl.col("model") == model) & (pl.col("outcome") == outcome)
            for c in curves:
                if c.key["model"] == model and c.key["outcome"] == outcome:
                    axes[i].plot(c.share[c.at], c.J[c.at], ".-", color=colour, linewidth=0.6, markersize=3, alpha=0.6)
            style = {"color": colour, "linestyle": ("-", "--")[i], "label": f"{model}, {outcome} traces"}
            errorbar(axes[i], grid, along.filter(here), "J", linewidth=2.2, **style)
            errorbar(axes[2], BUDGETS, regret.filter(here), "regret", marker="os"[i], markersize=4, **style)
        axes[i].set(title=f"{model} ({problems_in(along)})", xlabel="share of the thought")
        axes[i].set(ylabel="J (share of continuations right)", ylim=(-0.02, 1.02))
    axes[2].set(title=f"regret ({problems_in(regret)})", xlabel="budget C_0 (characters of the thought)")
    axes[2].set(ylabel="normalized regret", ylim=(0, 1), xscale="log")
    axes[2].set_xticks(BUDGETS, BUDGETS)
    axes[2].minorticks_off()
    legend(figure, axes[2])
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, help="folder of the two files")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="folder of the figure")
    options = parser.parse_args()
    files = [options.traces / f"{name}.jsonl" for name in ("reasoning_traces", "prefix_accuracy")]
    traces, rows = ([json.loads(line) for line in file.open(encoding="utf-8")] for file in files)
    show(episode_counts(traces))
    text = {t["source"]: t["text"] for t in traces}
    curves = [place(row, text[row["source"].replace("chunks_labeled", "base_solution")]) for row in rows]
    show(pl.DataFrame([c.found for c in curves]).sum())
    for rows in zip(*map(measures, curves), strict=True):
        data = pl.DataFrame([{**c.key, **row} for c, row in zip(curves, rows, strict=True)])
        both = pl.concat([data, data.with_columns(pl.lit("both").alias("model"))])
        show_intervals(both.sort(GROUP), GROUP, list(rows[0]))
    show_intervals(balance(curves), ["characters"], ["change of J"])
    draw(curves, data).savefig(options.out / "real_prefix_accuracy.png", metadata={"Software": None})


if __name__ == "__main__":
    main()
