"""Solution trees and the sets made from them: laws that hold for any rollouts."""

import random
import re

import polars as pl
from conftest import TOY_BASE
from hypothesis import given
from hypothesis import strategies as st

from mrt.episodes.parameterization import STEP_END, Backtracking
from mrt.methods.warmstart import Paths, examples
from mrt.sampling.engine import Completion
from mrt.sampling.prompt import Prompt
from mrt.sampling.tree import BeamSearch, Search, Tree, steps_of

WORDS = Backtracking()


@st.composite
def trees(draw):
    """A tree searched with solutions of up to four steps from a small alphabet; right if their steps add up to 4."""
    tree, rng = Tree(WORDS), random.Random(draw(st.integers(0, 10**6)))
    beam = [0]
    for _ in range(draw(st.integers(1, 4))):
        for node in beam:
            for _ in range(draw(st.integers(1, 4))):
                begun = tree.text(node)
                taken = [int(s.split()[-1]) for s in begun.split(STEP_END) if s]
                more = [rng.randint(1, 3) for _ in range(rng.randint(0 if taken else 1, 3))]
                steps = [f"Step {len(taken) + i + 1}: {x}" for i, x in enumerate(more)]
                total = sum(taken + more)
                tree.add(node, STEP_END.join([*steps, f"Answer: {total}"]), total == 4)
        beam = tree.best_below(beam, 2)
    return tree


@given(trees())
def test_a_parents_value_is_that_of_the_rollouts_that_went_on_to_its_children(tree):
    for node in tree.nodes:
        assert 0 <= node.right <= node.visits and 0 <= node.value <= 1
        children = [tree.nodes[c] for c in node.children.values()]
        if node.leaf:
            assert not children and node.right in (0, node.visits) and node.drawn == 0
        else:
            assert node.visits == sum(c.visits - c.drawn for c in children)
            assert node.right >= 0 and node.visits > 0
    root = tree.nodes[0]
    assert root.visits == root.drawn and tree.text(0) == ""


@given(st.text(alphabet="aS1:\n ", max_size=40), st.booleans())
def test_the_steps_of_a_solution_lose_nothing(text, answered):
    text = text.rstrip("\n") if answered else text
    whole = text + (STEP_END + "Answer: 3" if answered else "")
    if not answered:
        assert "".join(steps_of(whole, WORDS)) == whole
    else:
        assert "".join(steps_of(whole + STEP_END + "and on", WORDS)) == whole


@given(trees(), st.integers(0, 100))
def test_every_example_is_a_path_of_the_tree_or_a_splice_of_two(tree, seed):
    paths, back = Paths(tree.table("p")), STEP_END + WORDS.marker + STEP_END
    whole = {paths.text(paths.path(leaf)): leaf for leaf in paths.leaves}
    for method in ("warmstart", "rise", "rejection"):
        for e in examples(paths, method, WORDS, random.Random(seed)):
            if method == "rejection":
                assert e.attempt == "" and whole[e.completion] in paths.right
                continue
            assert whole[e.attempt] in paths.wrong and e.completion.startswith(back)
            attempt = paths.path(e.leaf)
            stays = paths.text(attempt[: e.kept])
            assert whole[stays + e.completion.removeprefix(back)] in paths.right
            assert e.kept == 0 or method == "warmstart"
            assert e.kept < len(attempt)  # it goes back to a step of its prefix, never past its answer
            values = [paths.rows[n]["value"] for n in (0, *attempt[:-1])]
            if method == "warmstart":
                reachable = [
                    v for d, v in enumerate(values) if any(s[:d] == attempt[:d] for s in map(paths.path, paths.right))
                ]
                assert values[e.kept] == max(reachable)


def test_children_are_scored_by_rollouts_of_their_own(tmp_path, monkeypatch):
    """Where no two steps are equal, one rollout passes a child; those sampled from it separate good from bad ones."""
    problems = pl.DataFrame({"id": ["p"], "problem": ["?"], "answer": ["1"]})
    asked = []

    def draw(requests):
        """A solution of two steps whose first one is unique; below a step with an even number all are right."""
        drawn = []
        for request in requests:
            asked.append((str(request.prompt).count("Step"), request.n))
            found = []
            for i in range(request.n):
                seed = (request.seed + i) % 1000
                at = re.search(r"Step (\d+)", str(request.prompt))
                right = at is not None and int(at[1]) % 2 == 0
                text = f"Step {seed}: a\n\nAnswer: \\boxed{{{int(right)}}}"
                found.append(Completion(text, 10, "stop", None))
            drawn.append(found)
        return drawn

    monkeypatch.setattr(Search, "draw", lambda self, requests, **_: draw(requests))

    def grown(child_rollouts):
        asked.clear()
        search = BeamSearch(breadth=2, depth=1, rollouts=8, child_rollouts=child_rollouts)
        stage = Search(
            model=str(TOY_BASE), names=("m", "d"), problems=tmp_path, out=tmp_path, search=search,
            prompt=Prompt(instruction="{problem}", open_thought=""),
        )  # fmt: skip
        (tree,) = stage.grown(problems.to_dicts())
        return tree, [tree.nodes[n] for n in tree.nodes[0].children.values()]

    _, children = grown(None)
    assert asked == [(0, 8)] and {c.value for c in children} == {0.0}  # none tells anything
    tree, children = grown(3)
    assert asked == [(0, 8)] + [(1, 3)] * len(children)
    best = [tree.nodes[n] for n in tree.best_below([0], 2)]
    assert [c.value for c in best] == [0.75, 0.75] and {c.context_tokens is None for c in children} == {False}
    assert sum(c.tokens for c in tree.nodes) == 10 * (8 + 3 * len(children))


def test_of_steps_of_equal_value_the_deepest_is_gone_back_to():
    tree = Tree(WORDS)
    tree.add(0, "Step 1: 1\n\nStep 2: 2\n\nAnswer: 3", False)
    tree.add(0, "Step 1: 1\n\nStep 2: 2\n\nAnswer: 4", True)
    (found,) = examples(Paths(tree.table("p")), "warmstart", WORDS, random.Random(0))
    assert found.kept == 2 and found.completion.endswith("\n\nAnswer: 4") and "Step" not in found.completion
