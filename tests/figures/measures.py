"""Made-up measures of models on twelve problems, and what tests of figures and tables do with them."""

import json

import numpy as np
import polars as pl

from mrt.figures.stage import of_runs
from mrt.figures.style import ModelStyle

MODELS = {
    "base": ModelStyle(label="Base"),
    "star_1": ModelStyle(label="STaR", method="star", iteration=1, colour="#009E73"),
    "mrt_2": ModelStyle(label="MRT (STaR)", method="mrt", iteration=2, colour="#D55E00"),
}
PROBLEMS = [f"p{i}" for i in range(12)]
TRACE = {"sample": 0}
OF_PROBLEM = {  # rows of a problem in a measure: of its index, six random numbers and the model's name
    "accuracy": lambda i, x, m: [{"difficulty": 3.0 + i % 3, "accuracy": x[0], "tokens": 90.0, "characters": 300.0}],
    "maj": lambda i, x, m: [{"k": k, "maj": x[0], "pass": 1.0, "tokens": 80.0 * k} for k in (1, 2, 4)],
    "direct": lambda i, x, m: [{"k": k, "maj": x[0], "pass": x[1], "tokens": 9.0 * k} for k in (1, 2, 4)],
    "regret": lambda i, x, m: [
        {"extensions": max(0, b // 64 - 2), "budget": b, "regret": x[0]} for b in (64, 128, 192, 256)
    ],
    "episode_regret": lambda i, x, m: [
        {"episodes": b, "regret": x[b], "hopeless": 0.25, "reached": 1 - b / 8} for b in range(1, 3 + len(m) % 3)
    ],
    "budget_forcing": lambda i, x, m: [
        TRACE | {"extensions": e, "accuracy": x[e // 2], "thought_tokens": 9 * e, "tokens": 9.0 * e + 20}
        for e in (0, 2, 4, 6, 8)
    ],
    "early_exit": lambda i, x, m: [
        TRACE
        | {"rule": rule, "tau": tau, "accuracy": x[n], "tokens": 40.0 + 9 * n, "paid_tokens": 40.0 + n * (9 + spent)}
        for n, (rule, tau, spent) in enumerate(
            [("oracle", None, 0), ("agree 0.5", 0.5, 90), ("agree 1.0", 1.0, 90), ("whole", None, 0)]
        )
    ],
    "episodes": lambda i, x, m: [TRACE | {"episodes": 2 + i % 4, "closed": True}],
    "prefixes": lambda i, x, m: [
        TRACE | {"episodes": 2 + i % 4, "prefix": j, "p": p, "maj": x[j], "tokens": 60.0 + 15 * j + 8 * p}
        for j in range(3 + i % 4)
        for p in (1, 2, 4, 8)
    ],
    "progress": lambda i, x, m: [
        TRACE | {"episodes": 2 + i % 4, "prefix": j, "J": x[j], "progress": x[j] - x[j - 1] if j else None}
        for j in range(3 + i % 4)
    ],
}
MADE_UP = {*OF_PROBLEM, "linearized", "sft_log", "rl_log", "cost"}


def measure(name, model):
    """The table of a measure of a model."""
    if name.endswith("_log"):
        steps, noise = np.arange(1, 61), np.random.default_rng(len(model)).random(60)
        columns = {"loss": 1 / steps + noise, "reward": noise, "completion_tokens": 90.0 + steps}
        return pl.DataFrame({"step": steps, **columns})
    if name == "cost":
        tokens = {"generated_tokens": 1000 * len(model), "prefill_tokens": 5, "trained_tokens": 7}
        return pl.DataFrame([{"trained_model": model, "phase": "training", **tokens, "flops": 1e12}])
    name = "maj" if name == "linearized" else name
    rng = np.random.default_rng([len(name), len(model)])
    values = [rng.random(6) for _ in PROBLEMS]
    rows = [OF_PROBLEM[name](i, values[i], model) for i in range(len(PROBLEMS))]
    return pl.DataFrame([{"problem_id": PROBLEMS[i], **row} for i, of in enumerate(rows) for row in of])


def of_models(name, *models):
    """The rows of models, all of MODELS by default, on the dataset toy_test, as a figure gets them."""
    columns = {model: [pl.lit(model).alias("model"), pl.lit("toy_test").alias("dataset")] for model in models or MODELS}
    return of_runs(pl.concat(measure(name, model).select(*first, pl.all()) for model, first in columns.items()), {})


def partial(name="accuracy"):
    """Measures of three models, the last of which lacks ten of twelve problems."""
    whole = of_models(name, "base", "star_1").with_columns(samples=pl.lit(8, pl.Int64))
    part = of_models(name, "mrt_2").filter(pl.col("problem_id").is_in(["p0", "p1"]))
    return pl.concat([whole, part.with_columns(samples=pl.lit(2, pl.Int64))])


def table_of(columns, rows, **first):
    """Rows of (model, ...) as a figure gets them; `first` names the model that a further run repeats."""
    return of_runs(pl.DataFrame(rows, schema=columns.split(), orient="row"), first)


def styles(**methods):
    """Models of these methods ("base": not trained), whose labels are their names in capitals."""
    return {name: ModelStyle(label=name.upper(), method=method) for name, method in methods.items()}


def arguments(figure, folder, measures, models=MODELS):
    """Command line of a figure of all models' tables, which are written to a folder."""
    tables = {}
    for name in measures:
        for model in ["direct"] if name == "direct" else models:
            path = folder / f"{name}.{model}.parquet"
            measure(name, model).write_parquet(path)
            tables.setdefault(name, {})[model] = {"toy_test": str(path)}
    looks = json.dumps({name: style.model_dump() for name, style in models.items()})
    return [figure, "--tables", json.dumps(tables), "--models", looks, "--out"]
