"""J for the price of reading: mrt.sampling.likelihood against 20 answers at every prefix.

    python -m benchmarks likelihood

Toy world: traces of the toy base, with 60 forced answers at every prefix from the real engine, in three parts, and the
probability of the gold answer behind the opening with which all of these answers begin. Compared with J by the first 20
are J by likelihood and J by the second 20: correlation, bias, the decisions of MRT (STaR)'s filter. The third 20 are
the J of the prefixes kept. The tokens of mu are those prefilled behind the traces, each distinct one once, and those
generated.
"""

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks import workload
from benchmarks.allocation import FILTER
from benchmarks.prover import ANSWERS
from benchmarks.record import Goal, Record, Report, markdown, middle
from mrt.core import vllm_environment
from mrt.grading.grade import Grader
from mrt.sampling.cache import CacheSettings
from mrt.sampling.engine import Completion
from mrt.sampling.likelihood import Score, probability
from mrt.sampling.prover import Place, ProverSettings
from mrt.training.flops import distinct

TITLE = "Progress for the price of reading"
OPENING = "Ends:** they add up to \\boxed{"  # of all of the toy's answers
TOLERANCE = 0.05  # of the prefix kept
EDGES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the bins of J
PARTS = 3  # of the answers: those that decide, those that decide again, those that judge
Floats = npt.NDArray[np.float64]


def decisions(J: Floats, traces: list[list[int]], tolerance: float = 0.0) -> list[tuple[bool, int]]:
    """Of each trace, given its prefixes: whether MRT (STaR) keeps it, and the best prefix."""
    rule = FILTER.model_copy(update={"tolerance": tolerance})
    best = [own[rule.best(J[own])] for own in traces]
    return [(bool(FILTER.decide(J[b], J[own[0]])), b) for b, own in zip(best, traces, strict=True)]


def compare(record: Record, name: str, J: Floats, answers: Floats, judge: Floats, traces: list[list[int]]) -> None:
    """Compare an estimate of J at all prefixes with J by answers; `judge` is J by answers that neither has seen."""
    known = pl.DataFrame({"J": J, "answers": answers})
    record.add(name, "rank correlation of J", known.select(pl.corr("J", "answers", method="spearman")).item())
    record.add(name, "correlation of J", known.select(pl.corr("J", "answers")).item())
    ours, theirs = (np.concatenate([np.diff(x[own]) for own in traces]) for x in (J, answers))
    record.add(name, "correlation of progress", float(np.corrcoef(ours, theirs)[0, 1]))
    record.add(name, "mean difference of J", float((J - answers).mean()))
    for case, tolerance in ((name, 0.0), (f"{name}, within {TOLERANCE}", TOLERANCE)):
        pairs = list(zip(decisions(J, traces, tolerance), decisions(answers, traces, tolerance), strict=True))
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
    vllm_environment.tell(cpu=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        workload.make_traces(folder, 10 if quick else 120, seed=1)
        sampling = workload.prover(folder, PARTS * ANSWERS)
        options = sampling.model_dump() | {"problems": folder / "problems.parquet", "filters": [FILTER]}
        prover = ProverSettings(estimate="likelihood", opening=OPENING, decoding=sampling.prover.decoding)
        stage = Score(**options | {"prover": prover})
        vars(stage)["sampler"] = sampling.sampler
        places = list(sampling.places(sampling.traces(None)))
        traces: dict[str, list[int]] = {}
        for i, place in enumerate(places):
            traces.setdefault(place.problem_id, []).append(i)
        own = [places_of for places_of in traces.values() if len(places_of) > 1]

        scored = stage.score(places, CacheSettings())
        J = np.array([sum(probability(c) for c in at if c.finish_reason == "scored") for at in scored])
        drawn = sampling.sampler.generate([place.request for place in places])
        golds = dict(pl.read_parquet(folder / "problems.parquet").select("id", "answer").iter_rows())
        gold = [golds[place.problem_id] for place in places for _ in range(PARTS * ANSWERS)]
        right = np.reshape(Grader().right([c.text for at in drawn for c in at], gold), (len(places), PARTS * ANSWERS))
        first, second, third = right.reshape(len(places), PARTS, ANSWERS).mean(axis=2).T

        record.add("toy world", "traces", len(own))
        record.add("toy world", "prefixes a trace", len(places) / len(traces))
        compare(record, "likelihood", J, first, third, own)
        compare(record, f"another {ANSWERS} answers", second, first, third, own)
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
        f"The toy base, {middle(table, 'toy world', 'traces'):.0f} traces of"
        f" {middle(table, 'toy world', 'prefixes a trace'):.1f} prefixes, against J by {ANSWERS} answers.",
        markdown(("J by", *OF_J), rows),
        "MRT (STaR)'s decisions: to keep or drop a trace, and up to which prefix. Likelihoods tell J of 0.9998 from"
        f" 0.9999, and their maximum is often a later prefix; within {TOLERANCE} (`rules.tolerance`) the shorter one is"
        " kept, by either estimate. J lost is that at the prefix which the answers keep less that at the one which the"
        " estimate keeps, by a third 20 answers.",
        markdown(("J by", *OF_DECISIONS), decided),
        "Calibration, by J of the likelihood:",
        markdown(("prefixes", "J by likelihood", f"J by {PARTS * ANSWERS} answers"), calibration),
        "Tokens of mu at a prefix, without those of the trace, which are read once either way. No number here depends"
        " on the machine.",
        markdown(("", "prefilled", "generated"), [[way, *(f"{n:.1f}" for n in them)] for way, them in spent.items()]),
    ]
    ratio = sum(spent["likelihood"]) / sum(spent[answers])
    why = "The toy's stop phrase and answers are a few tokens each; the longer the answers, the smaller this share."
    return Report(
        text, [Goal(f"tokens of mu by likelihood, as a share of {answers}", ratio, 0.1, at_most=True, why=why)]
    )
