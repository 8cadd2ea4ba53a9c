"""What a solution tree costs and finds, against as many tokens of independent solutions (Appendix A.2).

    python -m benchmarks tree

Training problems of config/backtracking.yaml and the toy base. The search has that file's settings; independent
solutions are drawn on the same engine, as many as take the same number of tokens. The time includes grading.
"""

import time

import polars as pl
import yaml

from benchmarks.record import ROOT, Record, Report, markdown, middle
from mrt.config import measuring
from mrt.config.load import load
from mrt.problems.build import build
from mrt.sampling.tree import Search, Tree

TITLE = "Searching solution trees"
WAYS = ("beam search", "independent solutions")


def told(record: Record, name: str, trees: list[Tree], seconds: float) -> int:
    """Record what a search found and in how many seconds; returns its tokens."""
    leaves = [[node for node in tree.nodes if node.leaf] for tree in trees]
    tokens = sum(node.tokens for tree in trees for node in tree.nodes)
    record.add(name, "seconds", seconds)
    record.add(name, "tokens", tokens)
    record.add(name, "problems solved", sum(any(node.right for node in found) for found in leaves))
    both = sum(any(n.right for n in found) and any(not n.right for n in found) for found in leaves)
    record.add(name, "problems with right and wrong solutions", both)
    record.add(name, "different solutions", sum(map(len, leaves)))
    return tokens


def measure(record: Record, quick: bool) -> None:
    count = 10 if quick else 100
    config = load(yaml.safe_load((ROOT / "config" / "backtracking.yaml").read_text()))
    training = config.problems["toy_train"].model_copy(update={"disjoint_from": []})
    problems = build("toy_train", training)[0].head(count).to_dicts()
    stage = Search(
        model=str(ROOT / "mrt" / "toy" / "weights_attempts"), problems="-", out="-", names=("base", "toy_train"),
        search=config.training.tree, parameterization=measuring.parameterization(config), prompt=config.prompt,
        engine=config.engine,
    )  # fmt: skip
    stage.grown(problems[: count // 5])  # warm
    # A search of one round from the root alone is independent sampling.
    once = stage.search.model_copy(update={"depth": 1})
    some = stage.model_copy(update={"search": once}).grown(problems[: count // 4])
    a_solution = sum(tree.nodes[0].tokens for tree in some) / (len(some) * once.rollouts)
    for _ in range(1 if quick else 2):
        began = time.perf_counter()
        trees = stage.grown(problems)
        tokens = told(record, WAYS[0], trees, time.perf_counter() - began)
        alone = once.model_copy(update={"rollouts": round(tokens / a_solution / count)})
        began = time.perf_counter()
        trees = stage.model_copy(update={"search": alone, "seed": 1}).grown(problems)
        told(record, WAYS[1], trees, time.perf_counter() - began)


def report(table: pl.DataFrame) -> Report:
    quantities = ("seconds", "tokens", "problems solved", "problems with right and wrong solutions")
    quantities += ("different solutions",)
    rows = [(name, *(middle(table, name, quantity) for quantity in quantities)) for name in WAYS]
    each = [middle(table, name, "seconds") / middle(table, name, "tokens") for name in WAYS]
    return Report(
        [
            "The trees of [backtracking search](backtracking.md), and independent solutions of about as many tokens:",
            markdown(("", *quantities), rows),
            f"A token of the search takes {each[0] / each[1]:.2f} times as long as one of an independent solution.",
        ]
    )
