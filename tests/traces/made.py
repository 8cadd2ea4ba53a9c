"""A results folder with traces made by chance, some of them hostile, for the tests of the page."""

import random

import polars as pl

from mrt.core.artifacts import (
    ANSWER_GRADES,
    EPISODES,
    GRADES,
    PROBLEMS,
    PROGRESS,
    PROVER,
    ROLLOUTS,
    SET,
    TREE,
    Artifact,
)
from mrt.episodes.thinking import THINK

HOSTILE = (
    "<script>document.body.dataset.broken = 1</script>",
    "</template></script><img src=x onerror='document.body.dataset.broken = 1'>",
    "right \u202eto left\u202c, no width \u200b, bell \u0007",
    "$\\href{javascript:document.body.dataset.broken=1}{x}$ and \\(\\frac{1}{2}\\) and $\\unknown{$",
    "@@script@@ \\1 &lt;b&gt;",
    "$" + "{" * 20_000 + "}" * 20_000 + "$ and \\(1 + 1\\), arabic \u061c mark, soft\u00adhyphen, tag \U000e0041",
    "x" * 1_000_000,
)
MANY = len(HOSTILE) - 1  # all but the longest
ANSWERS = 4


def write(artifact: Artifact, rows, folder, model="", dataset=""):
    path = folder / artifact.path.format(m=model, d=dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    artifact.write(pl.DataFrame(rows, schema=artifact.columns, orient="row"), path)


def results(folder, problems=12, samples=3, models=("base", "other"), seed=0, every=1):
    """Write the tables of `models` on the dataset `toy`: the first trace of each problem is scored by mu, at every
    `every`-th prefix and the last.
    """
    rng = random.Random(seed)
    names = [f"p/{i}?#" for i in range(problems)]
    texts = [HOSTILE[i] if i < MANY else f"Problem {i}" for i in range(problems)]
    rows = [
        (n, t, str(i), None, float(i % 4), "made", "test") for i, (n, t) in enumerate(zip(names, texts, strict=True))
    ]
    write(PROBLEMS, rows, folder, dataset="toy")
    for model in models:
        rollouts, grades, episodes, prover, verdicts, progress = [], [], [], [], [], []
        for problem, name in enumerate(names):
            for sample in range(samples):
                thought = [f"Try {rng.random()}.\n\n"]
                thought += [f"Wait, {rng.choice(HOSTILE[:MANY])}\n\n" for _ in range(rng.randrange(5))]
                if (problem, sample) == (0, 0):
                    thought.append("Wait, " + HOSTILE[MANY])
                text = "<think>\n" + "".join(thought) + "</think>\n\n**Answer**: \\boxed{3}"
                end = rng.choice(["stop", "length"])
                right = rng.random() < 0.5
                rollouts.append((name, sample, "?", text, rng.randrange(9, 99), 3, end, None, True, THINK.cell()))
                grades.append((name, sample, str(problem if right else -1), True, right, int(right)))
                episodes += [(name, sample, i, episode, True) for i, episode in enumerate(thought)]
                if sample:
                    continue
                before = None
                for prefix in sorted({*range(0, len(thought), every), len(thought)}):
                    given = [rng.random() < 0.5 for _ in range(ANSWERS)]
                    for i, fine in enumerate(given):
                        answer = str(problem) if fine else "<b>"
                        prover.append((name, sample, prefix, i, f"say {answer}", 4, 3, 10 * prefix, 20, "stop", None))
                        verdicts.append((name, sample, prefix, i, answer, True, fine, int(fine)))
                    J = sum(given) / ANSWERS
                    gained = None if before is None else J - before
                    progress.append((name, sample, prefix, len(thought), 10 * prefix, 9.0, ANSWERS, J, gained))
                    before = J
        tables = [(ROLLOUTS, rollouts), (GRADES, grades), (EPISODES, episodes)]
        tables += [(PROVER, prover), (ANSWER_GRADES, verdicts), (PROGRESS, progress)]
        for artifact, rows in tables:
            write(artifact, rows, folder, model, "toy")
    return folder


def tree(folder):
    """A solution tree of the first problem, of the model `base`."""
    rows = [
        ("p/0?#", 0, None, 0, "", 0.5, 4, 2, 4, 40, 10, False),
        ("p/0?#", 1, 0, 1, "Step 1: <b>add</b>\n\n", 1.0, 2, 2, 0, 0, None, False),
        ("p/0?#", 2, 1, 2, "Answer: 3", 1.0, 2, 2, 0, 0, None, True),
    ]
    write(TREE, rows, folder, "base", "toy")


def training_set(folder, prefixes):
    """A training set that cut the base's first traces at these prefixes."""
    rows = [(f"p/{i}?#", 0, prefix, "?", "!", 1.0) for i, prefix in enumerate(prefixes)]
    write(SET, rows, folder, "mrt_1")


def backtracking(folder):
    """Backtracking search by the model `search` on two problems: an attempt, a backtrack, a revision; and in a line."""
    marker = "Wait, this seems off. Let's try something else.\n\n"
    attempt, back, again = (
        "Step 1: 1 + 1 = 3\n\nAnswer: \\boxed{3}\n\n",
        marker + "Step 1",
        ": 1 + 1 = 2\n\nAnswer: \\boxed{2}",
    )
    names = ["p/0?#", "p/1?#"]
    rollouts = [(n, 0, "?", attempt + back + again, 30, 3, "stop", None, False, None) for n in names]
    episodes = [(n, 0, i, text, True) for n in names for i, text in enumerate((attempt, back, again))]
    line = [(n, 7, j, 0, f"\\boxed{{{3 - j}}}", 4, 3, 10 * j, 20, "stop", None) for n in names for j in (0, 1)]
    verdicts = [(n, 7, j, 0, str(3 - j), True, j == 1, j) for n in names for j in (0, 1)]
    for artifact, rows in ((ROLLOUTS, rollouts), (EPISODES, episodes)):
        write(artifact, rows, folder, "search", "toy")
    for artifact, path, rows in (
        (PROVER, "linearized/search/toy.parquet", line),
        (ANSWER_GRADES, "grades/search/toy.linearized.parquet", verdicts),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        artifact.write(pl.DataFrame(rows, schema=artifact.columns, orient="row"), folder / path)
