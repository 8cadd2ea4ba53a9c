r"""J for the price of reading: mrt.sampling.likelihood against 20 answers at every prefix.

    python -m benchmarks likelihood
    python -m benchmarks.likelihood CONFIG ... --model cold --dataset gsm8k_test --opening 'Answer:** \boxed{'

Traces of the toy base, or of a model of a finished experiment, with 60 forced answers at every prefix from the real
engine, in three parts, and the probability of the gold answer behind an opening.
Compared with J by the first 20 are J by likelihood and J by the second 20: correlation, bias, the decisions of MRT
(STaR)'s filter. The third 20 are the J of the prefixes kept. The tokens of mu are those prefilled behind the traces,
each distinct one once, and those generated.
"""

import argparse
import tempfile
from functools import reduce
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import yaml

from benchmarks import workload
from benchmarks.record import ANSWERS, Goal, Record, Report, markdown, middle
from mrt.config import measuring, roots
from mrt.config.load import load
from mrt.core import vllm_environment
from mrt.core.settings import laid_over
from mrt.grading.grade import right_forced
from mrt.grading.task import problem_rows, task_of
from mrt.sampling.allocation import Thresholds
from mrt.sampling.cache import CacheSettings
from mrt.sampling.engine import Completion
from mrt.sampling.likelihood import Score, probability
from mrt.sampling.prover import Place, Prove
from mrt.training.flops import distinct

TITLE = "Progress for the price of reading"
OPENING = "Ends:** they add up to \\boxed{"  # of the toy's answers, if they do not explain
FILTER = Thresholds(minimum_J=0.6)  # MRT (STaR)'s on the toy
TOLERANCE = 0.05  # of the prefix kept
EDGES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the bins of J
PARTS = 3  # of the answers: those that decide, those that decide again, those that judge
Floats = npt.NDArray[np.float64]


def decisions(J: Floats, traces: list[list[int]], rule: Thresholds) -> list[tuple[bool, int]]:
    """Of each trace, given its prefixes: whether MRT (STaR) keeps it, and the best prefix."""
    best = [own[rule.best(J[own])] for own in traces]
    return [(bool(rule.decide(J[b], J[own[0]])), b) for b, own in zip(best, traces, strict=True)]


def compare(
    record: Record, name: str, J: Floats, answers: Floats, judge: Floats, traces: list[list[int]], rule: Thresholds
) -> None:
    """Compare an estimate of J at all prefixes with J by answers; `judge` is J by answers that neither has seen."""
    known = pl.DataFrame({"J": J, "answers": answers})
    record.add(name, "rank correlation of J", known.select(pl.corr("J", "answers", method="spearman")).item())
    record.add(name, "correlation of J", known.select(pl.corr("J", "answers")).item())
    ours, theirs = (np.concatenate([np.diff(x[own]) for own in traces]) for x in (J, answers))
    record.add(name, "correlation of progress", float(np.corrcoef(ours, theirs)[0, 1]))
    record.add(name, "mean difference of J", float((J - answers).mean()))
    for case, tolerance in ((name, 0.0), (f"{name}, within {TOLERANCE}", TOLERANCE)):
        within = rule.model_copy(update={"tolerance": tolerance})
        pairs = list(zip(decisions(J, traces, within), decisions(answers, traces, within), strict=True))
        both = [(a[1], b[1]) for a, b in pairs if a[0] and b[0]]
        record.add(case, "filter decisions changed, %", 100 * float(np.mean([a[0] != b[0] for a, b in pairs])))
        record.add(case, "the same prefix kept, %", 100 * float(np.mean([a == b for a, b in both])) if both else 0)
        record.add(case, "J lost at the cut", float(np.mean([judge[b] - judge[a] for a, b in both])) if both else 0)


def tokens(stage: Score, places: list[Place], drawn: list[list[Completion]], *, scored: bool) -> tuple[int, int]:
    """(prefilled, generated) tokens of mu, without those of the traces, which both ways read once."""
    encode = stage.sampler.encode
    read = encode(str(place.prefix) for place in places)
    traces = encode(place.prefix.chat + place.prefix.text() for place in places)
    if scored:
        behind = [
            encode([stage.opening(place.prefix), c.text])
            for place, own in zip(places, drawn, strict=True)
            for c in own
            if c.finish_reason == "scored"
        ]
        of = [i for i, own in enumerate(drawn) for c in own if c.finish_reason == "scored"]
        read += [[*read[i], *opening, *text] for i, (opening, text) in zip(of, behind, strict=True)]
    generated = sum(c.tokens for own in drawn for c in own if c.finish_reason != "scored")
    return distinct([*traces, *read])[0] - distinct(traces)[0], generated


def measure(record: Record, quick: bool) -> None:
    vllm_environment.configure(cpu=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        workload.make_traces(folder, 10 if quick else 120, seed=1)
        agreement(record, workload.prover(folder, PARTS * ANSWERS), folder / "problems.parquet", OPENING, FILTER)


def agreement(record: Record, sampling: Prove, problems: Path, opening: str, rule: Thresholds) -> None:
    """Compare J by likelihood behind an opening with J by the answers of a stage; the rule is of MRT (STaR)."""
    options = sampling.model_dump() | {"problems": problems, "filters": [rule]}
    prover = sampling.prover.model_copy(update={"estimate": "likelihood", "opening": opening})
    stage = Score(**options | {"prover": prover})
    vars(stage)["sampler"] = sampling.sampler
    places = list(sampling.places(sampling.traces(sampling.prover.traces)))
    traces: dict[tuple[str, int], list[int]] = {}
    for i, place in enumerate(places):
        traces.setdefault((place.problem_id, place.sample), []).append(i)
    own = [places_of for places_of in traces.values() if len(places_of) > 1]

    scored = stage.score(places, CacheSettings())
    J = np.array([sum(probability(c) for c in at if c.finish_reason == "scored") for at in scored])
    drawn = sampling.sampler.generate([place.request for place in places])
    rows = problem_rows(problems)
    asked = [rows[place.problem_id] for place in places for _ in range(PARTS * ANSWERS)]
    texts = [c.text for at in drawn for c in at]
    right = np.reshape(right_forced(task_of(workers=None), texts, asked), (len(places), PARTS * ANSWERS))
    first, second, third = right.reshape(len(places), PARTS, ANSWERS).mean(axis=2).T

    record.add("all", "traces", len(own))
    record.add("all", "prefixes a trace", len(places) / len(traces))
    record.add("all", "share of answers with the opening", share_with(drawn, opening))
    compare(record, "likelihood", J, first, third, own, rule)
    compare(record, f"another {ANSWERS} answers", second, first, third, own, rule)
    for i, low in enumerate((0.0, *EDGES)):
        at = np.digitize(J, EDGES) == i
        if at.any():
            record.add("calibration", "J by likelihood", J[at].mean(), low)
            record.add("calibration", f"J by {PARTS * ANSWERS} answers", right[at].mean(), low)
            record.add("calibration", "prefixes", at.sum(), low)
    ways = {"likelihood": tokens(stage, places, scored, scored=True)}
    ways[f"{ANSWERS} answers"] = tokens(stage, places, [at[:ANSWERS] for at in drawn], scored=False)
    for way, (prefilled, generated) in ways.items():
        record.add(way, "tokens prefilled a prefix", prefilled / len(places))
        record.add(way, "tokens generated a prefix", generated / len(places))


def share_with(drawn: list[list[Completion]], opening: str) -> float:
    """The share of answers that begin with the opening."""
    return float(np.mean([c.text.startswith(opening) for at in drawn for c in at]))


OF_J = ("rank correlation of J", "correlation of J", "correlation of progress", "mean difference of J")
OF_DECISIONS = ("filter decisions changed, %", "the same prefix kept, %", "J lost at the cut")


def report(table: pl.DataFrame) -> Report:
    another, answers = f"another {ANSWERS} answers", f"{ANSWERS} answers"
    ways = ("likelihood", another)
    rows = [[name, *(f"{middle(table, name, q):.3f}" for q in OF_J)] for name in ways]
    cases = [case for name in ways for case in (name, f"{name}, within {TOLERANCE}")]
    decided = [[case, *(f"{middle(table, case, q):.3g}" for q in OF_DECISIONS)] for case in cases]
    spent = {
        way: [middle(table, way, f"tokens {what} a prefix") for what in ("prefilled", "generated")]
        for way in ("likelihood", answers)
    }
    bins = table.filter(pl.col("case") == "calibration", pl.col("quantity") == "prefixes")["size"].unique().sort()
    calibration = [
        [f"{middle(table, 'calibration', 'prefixes', low):.0f}"]
        + [
            f"{middle(table, 'calibration', q, low):.3f}"
            for q in ("J by likelihood", f"J by {PARTS * ANSWERS} answers")
        ]
        for low in bins
    ]
    text = [
        f"J by likelihood, and by another {ANSWERS} answers, compared with J by {ANSWERS} answers at the prefixes of"
        f" {middle(table, 'all', 'traces'):.0f} traces, {middle(table, 'all', 'prefixes a trace'):.1f} each."
        f" {middle(table, 'all', 'share of answers with the opening'):.1%} of the answers begin with the opening.",
        markdown(("J by", *OF_J), rows),
        "The decisions of MRT (STaR): whether a trace is kept, and up to which prefix. A likelihood tells J of 0.9998"
        f" from J of 0.9999, so that its maximum is often at a later prefix. `within {TOLERANCE}` (`rules.tolerance`)"
        f" keeps the first prefix whose J is at most {TOLERANCE} below the maximum. `J lost at the cut`: J of the"
        f" prefix that the {ANSWERS} answers keep, minus J of the prefix that the estimate keeps, both by a third"
        f" {ANSWERS} answers.",
        markdown(("J by", *OF_DECISIONS), decided),
        "Calibration, prefixes grouped by their J by likelihood:",
        markdown(("prefixes", "J by likelihood", f"J by {PARTS * ANSWERS} answers"), calibration),
        "Tokens of mu at a prefix. Those of the trace are left out, as both prefill them once. These numbers are the"
        " same on every machine.",
        markdown(("", "prefilled", "generated"), [[way, *(f"{n:.1f}" for n in them)] for way, them in spent.items()]),
    ]
    ratio = sum(spent["likelihood"]) / sum(spent[answers])
    why = "The toy's stop phrase and answers are a few tokens each; the longer the answers, the smaller this share."
    return Report(
        text, [Goal(f"tokens of mu by likelihood, as a share of {answers}", ratio, 0.1, at_most=True, why=why)]
    )


def main() -> None:
    """Print the report of an experiment's model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="+", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--opening", required=True, help="how its answers go on behind the header, up to the box")
    parser.add_argument("--problems", type=int, help="the first so many; all if not given")
    parser.add_argument("--temperature", type=float, help="of the answers; by default the experiment's")
    asked = parser.parse_args()
    config = load(reduce(laid_over, (yaml.safe_load(path.read_text()) for path in asked.config)))
    sampling, place = config.evaluation, f"{asked.model}/{asked.dataset}.parquet"
    decoding = sampling.prover.decoding
    if asked.temperature is not None:
        decoding = decoding.model_copy(update={"temperature": asked.temperature})
    prover = sampling.prover.model_copy(
        update={"answers": PARTS * ANSWERS, "every": 1, "traces": 1, "decoding": decoding}
    )
    vllm_environment.configure(cpu=True)
    with tempfile.TemporaryDirectory() as made:
        stage = Prove(
            model=roots.weights(config, asked.model) or str(config.results / "models" / asked.model),
            rollouts=config.results / "rollouts" / place,
            episodes=some(config.results / "episodes" / place, Path(made, "episodes.parquet"), asked.problems),
            out=Path(made, "prover.parquet"),
            names=(asked.model, asked.dataset),
            engine=config.engine,
            prover=prover,
            parameterization=measuring.parameterization(config),
        )
        record = Record()
        problems = config.results / "problems" / f"{asked.dataset}.parquet"
        agreement(record, stage, problems, asked.opening, Thresholds(minimum_J=0.5))
    print(*report(record.table()).text, sep="\n\n")


def some(episodes: Path, out: Path, problems: int | None) -> Path:
    """The episodes of the first problems alone."""
    table = pl.read_parquet(episodes)
    first = table["problem_id"].unique(maintain_order=True)[:problems]
    table.filter(pl.col("problem_id").is_in(first.implode())).write_parquet(out)
    return out


if __name__ == "__main__":
    main()
