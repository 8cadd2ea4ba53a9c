"""Warmstart sets from solution trees, in the three constructions of Figure 14 (Appendix A.2).

    python -m mrt.training.warmstart --method warmstart --model results/base --problems problems.parquet \\
        --tree tree.parquet --out set.parquet --out_rules rules.parquet

| method | prompt | completion |
|---|---|---|
| warmstart | x, a failing attempt | the marker, and a right solution from the best node of that attempt on |
| rise | x, a failing attempt | the marker, and any right solution from its first step on |
| rejection | x | a right solution |

The best node of an attempt is the node of highest value on its path that also lies on a right solution of the tree; in
a tie it is the deepest, which repeats least. The prompt carries no loss: the model learns to go back. Each failing leaf
(for `rejection`, each right leaf) gives one example, in an order drawn from the seed. Each construction is limited to
the token total of the smallest of the three, so that they are compared on equal terms.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import polars as pl
from pydantic import Field

from mrt.core.artifacts import PROBLEMS, RULES, SET, TREE
from mrt.core.cli import run
from mrt.core.hub import folder_of, tokenizer_of
from mrt.episodes.parameterization import STEP_END, Backtracking
from mrt.sampling.engine import seed_of
from mrt.sampling.prompt import Prompt
from mrt.training.methods import TREE_METHODS, TreeMethod
from mrt.training.sets import SetStage


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
        found = []
        while (parent := self.rows[node]["parent"]) is not None:
            found.append(node)
            node = parent
        return found[::-1]

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


class MakeWarmstart(SetStage):
    """Make a warmstart set from solution trees."""

    method: TreeMethod = Field(description="Which construction.")
    model: str = Field(description="Checkpoint folder or hub id of the model to train, for its tokenizer.")
    revision: str | None = Field(None, description="Revision of a hub model.")
    problems: Path = Field(description="Dataset (Parquet).")
    tree: Path = Field(description="Nodes of the solution trees of these problems (Parquet).")
    seed: int = Field(0, ge=0, description="Seed of the order of examples and of choices among solutions.")
    parameterization: Backtracking = Field(default_factory=Backtracking, description="How a backtrack is written.")
    prompt: Prompt = Field(default_factory=Prompt, description="How a problem becomes a prompt.")

    def cli_cmd(self) -> None:
        tokenizer = tokenizer_of(folder_of(self.model, self.revision))
        texts = dict(PROBLEMS.read(self.problems, ["id", "problem"]).iter_rows())
        tables = TREE.read(self.tree).partition_by("problem_id", maintain_order=True)
        trees = {table["problem_id"][0]: Paths(table) for table in tables}
        made, totals = {}, {}
        for method in TREE_METHODS:
            rng = random.Random(seed_of(self.seed, method))
            found = [
                (name, example)
                for name, paths in trees.items()
                for example in examples(paths, method, self.parameterization, rng)
            ]
            rng.shuffle(found)
            ids = tokenizer([e.completion for _, e in found], add_special_tokens=False)["input_ids"] if found else []
            made[method] = list(zip(found, map(len, ids), strict=True))
            totals[method] = sum(map(len, ids))
        limit, spent, rows = min(totals.values()), 0, []
        for (name, example), tokens in made[self.method]:
            if spent + tokens <= limit:
                chat = self.prompt.render(tokenizer, texts[name])
                prompt = chat + example.attempt
                rows.append((name, example.leaf, example.kept, prompt, example.completion, 1.0))
                spent += tokens
        count = len(made[self.method])
        counts = [
            ("leaves that it can be made of", count, 0),
            (f"{limit} tokens, as all constructions", len(rows), count - len(rows)),
        ]
        examples_made = pl.DataFrame(rows, schema=SET.columns, orient="row").sort(SET.keys)
        self.write(examples_made, pl.DataFrame(counts, schema=RULES.columns, orient="row"))


if __name__ == "__main__":
    run(MakeWarmstart)
