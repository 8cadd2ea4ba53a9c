"""Warmstart sets from solution trees, in the three constructions of Figure 14 (Appendix A.2).

| method | prompt | completion |
|---|---|---|
| warmstart | x, a failing attempt | the marker, and a right solution from the best node of that attempt on |
| rise | x, a failing attempt | the marker, and any right solution from its first step on |
| rejection | x | a right solution |

The best node of an attempt is the node of highest value on its path that also lies on a right solution of the tree. In
a tie it is the deepest, which repeats least. The prompt carries no loss: the model learns to go back. Each failing leaf
(for `rejection`, each right leaf) gives one example, in an order shuffled by the seed. Each construction is limited to
the token total of the smallest of the three, so that they are compared on equal terms.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

import polars as pl

from mrt.core.artifacts import RULES, SET
from mrt.episodes.parameterization import STEP_END, Backtracking
from mrt.sampling.engine import seed_of
from mrt.training.method import SFTMethod
from mrt.training.sets import ModelTexts, Source

CONSTRUCTIONS = ("warmstart", "rise", "rejection")


class Example(NamedTuple):
    """The example of one leaf: a failing attempt (empty for `rejection`), where it goes back to, and the completion."""

    leaf: int
    attempt: str
    kept: int  # steps of the attempt that are kept
    completion: str


class Paths:
    """The solutions of one tree, from the rows of its table."""

    def __init__(self, tree: pl.DataFrame) -> None:
        self.rows = {row["node"]: row for row in tree.sort("node").iter_rows(named=True)}
        self.leaves = [n for n, row in self.rows.items() if row["leaf"]]
        self.right = [n for n in self.leaves if self.rows[n]["right"]]
        self.wrong = [n for n in self.leaves if not self.rows[n]["right"]]

    def path(self, node: int) -> list[int]:
        """Nodes from below the root to this one."""
        nodes = []
        while (parent := self.rows[node]["parent"]) is not None:
            nodes.append(node)
            node = parent
        return nodes[::-1]

    def text(self, nodes: list[int]) -> str:
        return "".join(self.rows[n]["text"] for n in nodes)


def examples(paths: Paths, method: str, words: Backtracking, rng: random.Random) -> Iterator[Example]:
    """The examples that a construction (`method`) makes from one tree."""
    back = STEP_END + words.marker + STEP_END
    solutions = [paths.path(leaf) for leaf in paths.right]
    if method == "rejection":
        yield from (Example(path[-1], "", 0, paths.text(path)) for path in solutions)
    elif solutions:
        for leaf in paths.wrong:
            path = paths.path(leaf)
            if method == "rise":
                yield Example(leaf, paths.text(path), 0, back + paths.text(rng.choice(solutions)))
                continue
            known = [
                solutions,
                *([s for s in solutions if node in s] for node in path[:-1]),
            ]  # right solutions through each node of the path
            values = [paths.rows[node]["value"] for node in (0, *path[:-1])]
            kept = max((d for d in range(len(path)) if known[d]), key=lambda d: (values[d], d))
            revision = rng.choice(known[kept])[kept:]
            yield Example(leaf, paths.text(path), kept, back + paths.text(revision))


def constructed(source: Source, construction: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The examples of a construction and their table of rules."""
    chat = ModelTexts(source)
    assert isinstance(source.parameterization, Backtracking)
    tables = source.table("tree").partition_by("problem_id", maintain_order=True)
    trees = {table["problem_id"][0]: Paths(table) for table in tables}
    of_all, totals = {}, {}
    for each in CONSTRUCTIONS:
        rng = random.Random(seed_of(source.seed, each))
        made = [(name, e) for name, paths in trees.items() for e in examples(paths, each, source.parameterization, rng)]
        rng.shuffle(made)
        counts = chat.count_tokens([example.completion for _, example in made])
        of_all[each], totals[each] = list(zip(made, counts, strict=True)), sum(counts)
    limit, spent, rows = min(totals.values()), 0, []
    for (name, example), tokens in of_all[construction]:
        if spent + tokens <= limit:
            prompt = chat.prompts[name] + example.attempt
            rows.append((name, example.leaf, example.kept, prompt, example.completion, 1.0))
            spent += tokens
    possible = len(of_all[construction])
    rules = [
        ("leaves that it can be made of", possible, 0),
        (f"{limit} tokens, as all constructions", len(rows), possible - len(rows)),
    ]
    table = pl.DataFrame(rows, schema=SET.columns, orient="row").sort(SET.keys)
    return table, pl.DataFrame(rules, schema=RULES.columns, orient="row")


def warmstart_set(source: Source) -> tuple[pl.DataFrame, pl.DataFrame]:
    return constructed(source, "warmstart")


def rise_set(source: Source) -> tuple[pl.DataFrame, pl.DataFrame]:
    return constructed(source, "rise")


def rejection_set(source: Source) -> tuple[pl.DataFrame, pl.DataFrame]:
    return constructed(source, "rejection")


READS = ("trees", "tokenizer")
warmstart = SFTMethod("#666666", READS, warmstart_set, teacher=True, only="backtracking")
rise = SFTMethod("#56B4E9", READS, rise_set, teacher=True, only="backtracking")
rejection = SFTMethod("#882255", READS, rejection_set, teacher=True, only="backtracking")
