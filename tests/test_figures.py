"""Every figure and table is drawn from a small measure of two models: files, data, and what the numbers say."""

import json
import sys
from importlib import import_module

import numpy as np
import polars as pl
import pytest

from mrt.figures.common import Appearance, ModelStyle, with_intervals

MODELS = {
    "base": ModelStyle(label="Base"),
    "star_1": ModelStyle(label="STaR", method="star", iteration=1),
    "mrt_2": ModelStyle(label="MRT (STaR)", method="mrt", iteration=2),
}
PROBLEMS = [f"p{i}" for i in range(12)]


def measure(name, model):
    rng = np.random.default_rng([len(name), len(model)])
    rows = []
    for index, problem in enumerate(PROBLEMS):
        right = rng.random(6)
        if name == "accuracy":
            rows.append(
                {
                    "problem_id": problem,
                    "difficulty": 3.0 + index % 3,
                    "accuracy": right[0],
                    "tokens": 90.0,
                    "characters": 300.0,
                }
            )
        elif name == "maj":
            rows += [
                {"problem_id": problem, "k": k, "maj": right[0], "pass": 1.0, "tokens": 80.0 * k} for k in (1, 2, 4)
            ]
        elif name == "regret":
            rows += [{"problem_id": problem, "budget": b, "regret": right[0]} for b in (64, 128, 256)]
        else:
            k = 2 + index % 4
            trace = {"problem_id": problem, "sample": 0, "episodes": k}
            if name == "episodes":
                rows.append(trace | {"closed": True})
            elif name == "prefixes":
                rows += [
                    trace | {"prefix": j, "p": p, "maj": right[j], "tokens": 60.0 + 15 * j + 8 * p}
                    for j in range(k + 1)
                    for p in (1, 2, 4, 8)
                ]
            else:
                step = [None, *np.diff(right[: k + 1])]
                rows += [trace | {"prefix": j, "J": right[j], "progress": step[j]} for j in range(k + 1)]
    return pl.DataFrame(rows)


@pytest.mark.parametrize(
    ("figure", "name"),
    [
        ("maj_tokens", "maj"),
        ("regret", "regret"),
        ("scaling", "prefixes"),
        ("episode_counts", "episodes"),
        ("progress", "progress"),
    ],
)
def test_each_figure_is_drawn_and_equal_data_gives_equal_files(figure, name, tmp_path, monkeypatch):
    tables = {}
    for model in MODELS:
        path = tmp_path / f"{model}.parquet"
        measure(name, model).write_parquet(path)
        tables[model] = {"toy_test": str(path)}
    styles = json.dumps({m: s.model_dump() for m, s in MODELS.items()})
    module = import_module(f"mrt.figures.{figure}")
    for out in ("one", "two"):
        arguments = ["--tables", json.dumps(tables), "--models", styles, "--out", str(tmp_path / out)]
        monkeypatch.setattr(sys, "argv", [figure, *arguments])
        module.main(module.draw, module.__doc__)
    assert (tmp_path / "one.pdf").read_bytes().startswith(b"%PDF")
    assert len((tmp_path / "one.png").read_bytes()) > 10_000
    for suffix in ("png", "pdf", "parquet"):
        assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()
    assert set(pl.read_parquet(tmp_path / "one.parquet")["model"]) == set(MODELS)


def test_intervals_are_over_problems_not_over_traces():
    data = pl.DataFrame({"model": "m", "problem_id": ["p", "p", "p", "q"], "J": [1.0, 1.0, 1.0, 0.0]})
    row = with_intervals(data, ["model"], ["J"]).row(0, named=True)
    assert row["J"] == 0.5 and row["n"] == 2
    assert row["J_low"] == 0 and row["J_high"] == 1


def test_unknown_lengths_stay_unknown():
    data = pl.DataFrame(
        {"model": "m", "problem_id": ["p", "q"], "tokens": [None, None]}, schema_overrides={"tokens": pl.Float64}
    )
    assert with_intervals(data, ["model"], ["tokens"]).row(0, named=True)["tokens"] is None


def test_a_method_has_one_colour_and_models_without_a_parent_differ():
    look = Appearance(
        {**MODELS, "star_2": ModelStyle(label="x", method="star", iteration=2), "other": ModelStyle(label="y")}
    )
    assert look.colour("star_1") == look.colour("star_2")
    assert look.line("star_1")["linestyle"] != look.line("star_2")["linestyle"]
    assert look.colour("base") != look.colour("other")


def test_the_table_marks_the_best_and_gives_intervals():
    from mrt.figures.pass1 import latex, layout, markdown, summary

    data = pl.concat(
        measure("accuracy", model).select(
            pl.lit(model).alias("model"), pl.lit("toy_test").alias("problem_set"), pl.all()
        )
        for model in MODELS
    )
    table = summary(data)
    assert set(table["difficulty"]) == {"all", "3", "4", "5"}
    parts = layout(table, MODELS)
    text = markdown(*parts)
    best = table.filter(pl.col("difficulty") == "all").sort("accuracy")[-1]
    row = next(line for line in text.splitlines() if line.startswith(f"| {MODELS[best['model'][0]].label} "))
    assert f"**{100 * best['accuracy'][0]:.1f} [" in row
    assert latex(*parts).count("\\\\") == 4 and "toy\\_test" in latex(*parts)
