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

HOSTILE = (
    "<script>document.body.dataset.broken = 1</script>",
    "</template></script><img src=x onerror='document.body.dataset.broken = 1'>",
    "right \u202eto left\u202c, no width \u200b, bell \u0007",
    "$\\href{javascript:document.body.dataset.broken=1}{x}$ and \\(\\frac{1}{2}\\) and $\\unknown{$",
    "@@script@@ \\1 &lt;b&gt;",
    "x" * 1_000_000,
)
ANSWERS = 4


def write(artifact: Artifact, rows, folder, model="", dataset=""):
    path = folder / artifact.path.format(m=model, d=dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    artifact.write(pl.DataFrame(rows, schema=artifact.columns, orient="row"), path)


def results(folder, problems=12, samples=3, models=("base", "other"), seed=0):
    """Write the tables of `models` on the dataset `toy`: the first trace of each problem is scored by mu."""
    rng = random.Random(seed)
    names = [f"p/{i}?#" for i in range(problems)]
    texts = [HOSTILE[i] if i < len(HOSTILE) - 1 else f"Problem {i}" for i in range(problems)]
    rows = [
        (n, t, str(i), None, float(i % 4), "made", "test") for i, (n, t) in enumerate(zip(names, texts, strict=True))
    ]
    write(PROBLEMS, rows, folder, dataset="toy")
    for model in models:
        rollouts, grades, episodes, prover, verdicts, progress = [], [], [], [], [], []
        for problem, name in enumerate(names):
            for sample in range(samples):
                thought = [f"Try {rng.random()}.\n\n"]
                thought += [f"Wait, {rng.choice(HOSTILE[:5])}\n\n" for _ in range(rng.randrange(5))]
                if (problem, sample) == (0, 0):
                    thought.append("Wait, " + HOSTILE[5])
                text = "<think>\n" + "".join(thought) + "</think>\n\n**Answer**: \\boxed{3}"
                end = rng.choice(["stop", "length"])
                right = rng.random() < 0.5
                rollouts.append((name, sample, "?", text, rng.randrange(9, 99), 3, end, None))
                grades.append((name, sample, str(problem if right else -1), True, right, int(right)))
                episodes += [(name, sample, i, episode, True) for i, episode in enumerate(thought)]
                if sample:
                    continue
                before = None
                for prefix in range(len(thought) + 1):
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
