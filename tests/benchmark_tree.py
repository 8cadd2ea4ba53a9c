"""What a solution tree costs and finds, beside as many tokens of independent solutions (Appendix A.2).

    python -m tests.benchmark_tree

200 training problems of config/backtracking.yaml and the toy base; the search as that file has it, and, in the same
engine, independent solutions by the number that brings as many tokens. Both are graded within the time.
"""

import time

import yaml

from mrt.backtracking.tree import Search, Tree
from mrt.config import load
from mrt.engine import Engine
from mrt.problems import build
from tests.conftest import ROOT, TOY_ATTEMPTS

PROBLEMS = 200


def told(name: str, trees: list[Tree], seconds: float) -> int:
    """Print what was found in which time; returns the tokens."""
    leaves = [[node for node in tree.nodes if node.leaf] for tree in trees]
    tokens = sum(node.tokens for tree in trees for node in tree.nodes)
    solved = sum(any(node.right for node in found) for found in leaves)
    both = sum(any(n.right for n in found) and any(not n.right for n in found) for found in leaves)
    print(
        f"{name}: {seconds:.1f} s, {tokens:,} tokens, {1e6 * seconds / tokens:.0f} us a token; solved {solved} of"
        f" {len(trees)} problems, {both} with a wrong attempt too; {sum(map(len, leaves))} different solutions",
        flush=True,
    )
    return tokens


def main() -> None:
    config = load(yaml.safe_load((ROOT / "config" / "backtracking.yaml").read_text()))
    training = config.problems["toy_train"].model_copy(update={"disjoint_from": []})
    problems = build("toy_train", training)[0].head(PROBLEMS)
    stage = Search(
        model=str(TOY_ATTEMPTS), problems="-", out="-", names=("base", "toy_train"), settings=config.training.tree,
        parameterization=config.parameterization, prompt=config.prompt, engine=config.engine,
    )  # fmt: skip
    engine = Engine(stage.model, config.engine)
    stage.search(engine, problems.head(20))  # warm
    spent = {}
    start = time.perf_counter()
    trees = stage.search(engine, problems)
    spent["search"] = time.perf_counter() - start
    tokens = told("beam search", trees, spent["search"])
    # A search of one round from the root alone is independent sampling.
    alone = stage.settings.model_copy(update={"depth": 1})
    once = stage.model_copy(update={"settings": alone}).search(engine, problems.head(50))
    a_solution = sum(t.nodes[0].tokens for t in once) / (50 * alone.rollouts)
    alone = alone.model_copy(update={"rollouts": round(tokens / a_solution / PROBLEMS)})
    start = time.perf_counter()
    trees = stage.model_copy(update={"settings": alone, "seed": 1}).search(engine, problems)
    spent["alone"] = time.perf_counter() - start
    told(f"{alone.rollouts} independent solutions", trees, spent["alone"])
    print(f"time of the search in that of independent solutions: {spent['search'] / spent['alone']:.2f}")


if __name__ == "__main__":
    main()
