"""Solution trees: beam search against the 0/1 outcome (Appendix A.2).

    python -m mrt.sampling.tree --model results/base --problems problems.parquet --out tree.parquet \\
        --names base --names train

A node is a step of a solution, a leaf an answer, the root the problem. Search begins at the root. Each round draws
`rollouts` whole solutions from every node of the beam; their steps become nodes, and equal steps below the same node
become one. A node's value is the share of correct rollouts among those that pass it; no process reward model is needed.
The next beam is the `breadth` children of the beam with the highest value, after `child_rollouts` further solutions
from each if there are to be any. A rollout counts at the node from which it was sampled and below, not above: there,
the search's choice of where to sample would bias the value.

All problems are searched at once: a round is one submission to the engine.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
from pydantic import Field

from mrt.core.artifacts import PROBLEMS, TREE
from mrt.core.cli import run
from mrt.core.settings import Settings
from mrt.episodes.parameterization import STEP_END, Backtracking
from mrt.episodes.thinking import take_apart
from mrt.grading.task import Choice, Row, Task, answers_in, problem_rows, reference, scores, task_of
from mrt.sampling.cache import CacheSettings
from mrt.sampling.engine import Completion, Decoding, Request
from mrt.sampling.prompt import Prompt
from mrt.sampling.stage import SamplingStage


class BeamSearch(Settings):
    """How trees are searched; the paper gives no numbers."""

    breadth: int = Field(4, ge=1, le=1000, description="Nodes of the beam.")
    depth: int = Field(
        8, ge=1, le=1000, description="Maximum number of rounds, and so depth of the nodes sampled from."
    )
    rollouts: int = Field(4, ge=1, le=1000, description="Solutions sampled from every node of the beam.")
    child_rollouts: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="Solutions sampled from every child of the beam before the next beam is chosen. Without them"
        " a child is scored by the rollouts that pass it: by only one where no two steps are equal,"
        " as with real models.",
    )
    decoding: Decoding = Field(Decoding(temperature=1.0, max_tokens=2048), description="How solutions are sampled.")


@dataclass
class Node:
    """A step, with the rollouts that passed it (`visits`, `right`) and those sampled from it (`drawn`, `tokens`)."""

    parent: int | None
    depth: int
    text: str
    leaf: bool = False
    visits: int = 0
    right: int = 0
    drawn: int = 0
    tokens: int = 0
    context_tokens: int | None = None
    children: dict[str, int] = field(default_factory=dict)

    @property
    def value(self) -> float:
        return self.right / max(self.visits, 1)

    @property
    def cost(self) -> tuple[int, int, int | None]:
        return self.drawn, self.tokens, self.context_tokens


class Tree:
    """The solutions sampled for one problem, as a tree of their steps; node 0 is the problem itself."""

    def __init__(self, words: Backtracking) -> None:
        self.words = words
        self.nodes = [Node(None, 0, "")]

    def path(self, node: int) -> list[int]:
        """The nodes from the root (excluded) to this one (included)."""
        nodes = []
        while (parent := self.nodes[node].parent) is not None:
            nodes.append(node)
            node = parent
        return nodes[::-1]

    def text(self, node: int) -> str:
        """The solution up to and including a node."""
        return "".join(self.nodes[n].text for n in self.path(node))

    def add(self, start: int, completion: str, right: bool, tokens: int = 0) -> None:
        """Count a rollout sampled from `start`, and add its steps as nodes; text after its answer is ignored."""
        self.nodes[start].drawn += 1
        self.nodes[start].tokens += tokens
        at = start
        for step in [None, *steps_of(completion, self.words)]:
            if step is not None:
                if step not in self.nodes[at].children:
                    leaf = step.startswith(self.words.answer)
                    self.nodes[at].children[step] = len(self.nodes)
                    self.nodes.append(Node(at, self.nodes[at].depth + 1, step, leaf))
                at = self.nodes[at].children[step]
            self.nodes[at].visits += 1
            self.nodes[at].right += right

    def table(self, problem_id: str) -> pl.DataFrame:
        """The nodes as rows of the artifact."""
        rows = [
            (problem_id, n, x.parent, x.depth, x.text, x.value, x.visits, x.right, *x.cost, x.leaf)
            for n, x in enumerate(self.nodes)
        ]
        return pl.DataFrame(rows, schema=TREE.columns, orient="row")

    def below(self, beam: list[int]) -> list[int]:
        """The children of the beam that can go on: no leaves, and no truncated steps."""
        children = [c for node in beam for c in self.nodes[node].children.values()]
        return [c for c in children if self.nodes[c].text.endswith(STEP_END)]

    def best_below(self, beam: list[int], breadth: int) -> list[int]:
        """The children of the beam with the highest value, then most visits."""
        below = self.below(beam)
        return sorted(below, key=lambda n: (-self.nodes[n].value, -self.nodes[n].visits, n))[:breadth]


def steps_of(completion: str, words: Backtracking) -> Iterator[str]:
    """The steps of a solution up to its answer, each with the blank line that ends it: joining them loses nothing."""
    parts = completion.split(STEP_END)
    for index, part in enumerate(parts):
        if part.startswith(words.answer):
            yield part.rstrip("\n")
            return
        last = index == len(parts) - 1
        if part or not last:
            yield part if last else part + STEP_END


class Search(SamplingStage):
    """Search a solution tree of every problem, with vLLM."""

    problems: Path = Field(description="Dataset (Parquet).")
    out: Path = Field(description="Nodes (Parquet).")
    search: BeamSearch = Field(default_factory=BeamSearch, description="How trees are searched.")
    task: Choice | None = Field(
        None, description="The task that judges: its name, or name and settings; by default math."
    )
    parameterization: Backtracking = Field(default_factory=Backtracking, description="How solutions are written.")
    prompt: Prompt = Field(default_factory=Prompt, description="How a problem becomes a prompt.")
    workers: int = Field(1, ge=1, description="Processes that grade.")

    def plugins(self) -> tuple[str, ...]:
        return (reference(self.task),)

    def cli_cmd(self) -> None:
        table, cache = self.rows_of_shard(PROBLEMS.read(self.problems, ["id"]))
        rows = problem_rows(self.problems)
        problems = [rows[name] for name in table["id"]]
        trees = self.grown(problems, cache)
        if self.cache.shard:
            return
        table = pl.concat([tree.table(row["id"]) for row, tree in zip(problems, trees, strict=True)])
        TREE.write(table.sort(TREE.keys), self.out)
        solved = table.filter("leaf", pl.col("right") > 0)["problem_id"].n_unique()
        print(
            f"{table.height} nodes of {len(trees)} problems, of which {solved} were solved;"
            f" {table['tokens'].sum():,} tokens drawn"
        )

    def grown(self, problems: list[Row], cache: CacheSettings | None = None) -> list[Tree]:
        """Search a tree for each of these problems."""
        task = task_of(self.task, self.workers)
        chats = [self.prompt.render(self.sampler.tokenizer, row["problem"]) for row in problems]
        trees = [Tree(self.parameterization) for _ in chats]
        beams = [[0] for _ in trees]
        decoding = self.search.decoding.stopped_by(*self.parameterization.answer_ends)

        def roll(nodes: list[list[int]], rollouts: int, name: str) -> None:
            """Draw solutions from these nodes of each tree."""
            starts = [(i, node) for i, of_tree in enumerate(nodes) for node in of_tree]
            requests = []
            for i, node in starts:
                prefix = trees[i].text(node)
                seed = self.seed_of(problems[i]["id"], "tree", name, prefix)
                requests.append(Request(chats[i] + prefix, rollouts, seed, decoding))
            sizes = self.sampler.count(request.prompt for request in requests)
            for (i, node), size in zip(starts, sizes, strict=True):
                trees[i].nodes[node].context_tokens = size
            completions = self.draw(requests, cache=cache, shard_of=lambda request: starts[request][0])
            self.count(trees, starts, completions or [], problems, task)

        for round_ in range(self.search.depth):
            if not any(beams):
                break
            roll(beams, self.search.rollouts, str(round_))
            if self.search.child_rollouts:
                children = [tree.below(beam) for tree, beam in zip(trees, beams, strict=True)]
                roll(children, self.search.child_rollouts, f"children of {round_}")
            beams = [tree.best_below(beam, self.search.breadth) for tree, beam in zip(trees, beams, strict=True)]
        return trees

    def count(
        self,
        trees: list[Tree],
        starts: list[tuple[int, int]],
        sampled: list[list[Completion]],
        problems: list[Row],
        task: Task,
    ) -> None:
        """Grade the rollouts of a round and add them to their trees; those with a score of 1 are right."""
        each = [(i, node, c) for (i, node), completions in zip(starts, sampled, strict=True) for c in completions]
        whole = [take_apart(trees[i].text(node) + c.text).answer for i, node, c in each]
        rows = [problems[i] for i, _, _ in each]
        for (i, node, completion), score in zip(each, scores(task, answers_in(task, whole, rows), rows), strict=True):
            trees[i].add(node, completion.text, score == 1, completion.tokens)


if __name__ == "__main__":
    run(Search)
