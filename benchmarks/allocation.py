"""Fewer answers for the same decisions: mrt.sampling.allocation against 20 answers at every prefix.

    python -m benchmarks allocation

Real traces: J at every sentence is known from 100 rollouts (`prefix_accuracy.jsonl`); answers are drawn from it. Toy
world: traces of the toy base, with 40 forced answers at every prefix from the real engine. The first 20 decide; the
other 20 give an independent second decision and the J of the prefix kept. The decision is MRT (STaR)'s: whether the
trace is kept, and where it is cut (`mrt.training.sets`), with J of at least 0.6. Allocated answers are a subset of the
first 20.

Time: the stage itself against all 20 answers and against the authors' way, on toy text in thoughts of 1,000 tokens.
"""

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks import workload
from benchmarks.prover import ANSWERS, Engines, at_lengths, by_trace, timed
from benchmarks.record import TOY_BASE, TRACES, Goal, Record, Report, has, markdown, middle
from mrt.core import vllm_environment
from mrt.episodes.parameterization import OpenEnded, Segmentation
from mrt.grading.grader import Grader
from mrt.sampling.allocation import Allocate, Allocation, Thresholds, Trace
from mrt.sampling.cache import CacheSettings
from mrt.sampling.prover import Place, Prefix

TITLE = "Fewer answers for the same decisions"
FILTER = Thresholds(minimum_J=0.6)
Bools = npt.NDArray[np.bool_]


def decision(right: Bools) -> tuple[bool, int]:
    """Whether a trace is kept, and up to which prefix, from the same number of answers at every prefix."""
    J = right.mean(axis=1)
    best = 1 + int(J[1:].argmax())
    return bool(FILTER.decide(J[best], J[0])), best


def allocated(right: Bools, allocation: Allocation, seed: int) -> tuple[bool, int, int]:
    """The decision from allocated answers, and how many of them there are."""
    trace = Trace(len(right), right.shape[1], allocation, [FILTER], seed)
    while asked := trace.next():
        for prefix, count in asked.items():
            done = trace.answers[prefix]
            trace.add(prefix, right[prefix, done : done + count])
    best, J = trace.best(), trace.right / trace.answers
    return bool(FILTER.decide(J[best], J[0])), best, int(trace.answers.sum())


def compare(record: Record, name: str, traces: list[tuple[Bools, Bools, npt.NDArray[np.float64]]]) -> None:
    """Compare decisions from all first answers, from allocated ones and from all second answers, by each prefix's J."""
    allocation = Allocation()
    drawn = asked = changed = redrawn = 0
    lost, lost_redrawn = [], []
    for seed, (first, second, J) in enumerate(traces):
        kept, best = decision(first)
        kept_now, best_now, count = allocated(first, allocation, seed)
        kept_again, best_again = decision(second)
        drawn, asked = drawn + count, asked + first.size
        changed, redrawn = changed + (kept != kept_now), redrawn + (kept != kept_again)
        if kept and kept_now:
            lost.append(J[best] - J[best_now])
        if kept and kept_again:
            lost_redrawn.append(abs(J[best] - J[best_again]))
    record.add(name, "traces", len(traces))
    record.add(name, "prefixes a trace", np.mean([len(first) for first, _, _ in traces]))
    record.add(name, "times fewer answers", asked / drawn)
    record.add(name, "changed decisions, percent", 100 * changed / len(traces))
    record.add(name, "changed decisions of another 20 answers, percent", 100 * redrawn / len(traces))
    record.add(name, "J lost at the prefix kept", np.mean(lost) if lost else 0.0)
    record.add(name, "J that another 20 answers change there", np.mean(lost_redrawn) if lost_redrawn else 0.0)


def real_curves(by_episode: bool) -> Iterator[npt.NDArray[np.float64]]:
    """J before each sentence, or before each episode, of the real traces."""
    markers = Segmentation().markers
    for line in (TRACES / "prefix_accuracy.jsonl").read_text().splitlines():
        chunks = json.loads(line)["chunks"]
        begins = [i == 0 or chunk["text"].lstrip().startswith(tuple(markers)) for i, chunk in enumerate(chunks)]
        J = [chunk["accuracy"] for chunk, begin in zip(chunks, begins, strict=True) if begin or not by_episode]
        if len(J) > 1:
            yield np.array(J)


def simulated(curve: npt.NDArray[np.float64], seed: int) -> tuple[Bools, Bools, npt.NDArray[np.float64]]:
    right = np.random.default_rng(seed).random((2, len(curve), ANSWERS)) < curve[:, None]
    return right[0], right[1], curve


def toy_traces(folder: Path, problems: int) -> list[tuple[Bools, Bools, npt.NDArray[np.float64]]]:
    """Whether the real engine's forced answers for toy traces are right, in two halves; J from the second half."""
    workload.make_traces(folder, problems, seed=1)
    stage = workload.prover(folder, 2 * ANSWERS)
    places = list(stage.places(stage.traces(None)))
    golds = dict(pl.read_parquet(folder / "problems.parquet").select("id", "answer").iter_rows())
    drawn = stage.sampler.generate([place.request for place in places])
    texts = [c.text for answers in drawn for c in answers]
    gold = [golds[place.problem_id] for place in places for _ in range(2 * ANSWERS)]
    right = np.array(Grader().right(texts, gold)).reshape(len(places), 2 * ANSWERS)
    rows: dict[str, list[int]] = {}
    for i, place in enumerate(places):
        rows.setdefault(place.problem_id, []).append(i)
    each = [right[own] for own in rows.values() if len(own) > 1]
    return [(own[:, :ANSWERS], own[:, ANSWERS:], own[:, ANSWERS:].mean(axis=1)) for own in each]


def measure(record: Record, quick: bool) -> None:
    vllm_environment.configure(cpu=True)
    if (TRACES / "prefix_accuracy.jsonl").is_file():
        for name, by_episode, draws in (("real traces, by episode", True, 10), ("real traces, by sentence", False, 2)):
            curves = [(s, curve) for s in range(1 if quick else draws) for curve in real_curves(by_episode)]
            compare(record, name, [simulated(curve, i) for i, (_, curve) in enumerate(curves)])
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        compare(record, "toy world", toy_traces(folder, 10 if quick else 200))
        time_all(record, folder, quick)


def time_all(record: Record, folder: Path, quick: bool) -> None:
    """Seconds of the stage, of all answers, and of the authors' way, in turn."""
    stage = workload.prover(folder, ANSWERS)
    places = list(stage.places(stage.traces(None)))
    toy = Engines(TOY_BASE)
    text = "".join(at.prefix.text() for at in places)
    for name, traces in (
        ("toy world", by_trace([((at.problem_id, at.sample), at.request) for at in places])[: 4 if quick else 48]),
        ("thoughts of 1,000 tokens", at_lengths(toy.ours, text, [[80] * 12] * (1 if quick else 8), places[0].request)),
    ):
        ours = Allocate(**stage.model_dump(), problems=folder / "problems.parquet", filters=[FILTER])
        vars(ours)["sampler"] = toy.ours
        names = [at.problem_id for at in {at.problem_id: at for at in places}.values()]
        some = [
            Place(names[t], 0, Prefix("", (), False, OpenEnded(), j), request)
            for t, requests in enumerate(traces)
            for j, request in enumerate(requests)
        ]
        contenders = {
            "allocated": lambda some=some, ours=ours: ours.allocate(some, CacheSettings()),
            "20 each": lambda traces=traces: toy.one_submission(traces),
            "the authors' way": lambda traces=traces: toy.authors(traces),
        }
        toy.authors(traces[:1])
        for _ in range(1 if quick else 3):
            for who, run in contenders.items():
                for llm in (toy.ours.llm, toy.built["default"]):
                    llm.reset_prefix_cache()
                record.add(f"{name}: {who}", "seconds", timed(run))
        since = time.perf_counter()
        count = sum(map(len, ours.allocate(some, CacheSettings())))
        record.add(f"{name}: allocated again, prefixes in the cache", "seconds", time.perf_counter() - since)
        record.add(f"{name}: allocated", "times fewer answers", ANSWERS * len(some) / count)


def report(table: pl.DataFrame) -> Report:
    rows, goals = [], []
    for name in ("real traces, by episode", "real traces, by sentence", "toy world"):
        if not has(table, name):
            continue
        quantities = ["traces", "prefixes a trace", "times fewer answers", "changed decisions, percent"]
        quantities += ["changed decisions of another 20 answers, percent", "J lost at the prefix kept"]
        quantities += ["J that another 20 answers change there"]
        rows.append([name, *(f"{middle(table, name, quantity):.3g}" for quantity in quantities)])
        goals.append(Goal(f"allocation, {name}: times fewer answers", middle(table, name, "times fewer answers"), 3))
        changed = middle(table, name, "changed decisions, percent")
        goals.append(Goal(f"allocation, {name}: changed filter decisions, percent", changed, 2, at_most=True))
    header = ("", "traces", "prefixes each", "times fewer answers", "filter decisions changed, %",
              "of another 20 answers, %", "J lost at the cut", "J that another 20 change there")  # fmt: skip
    text = [
        "`training.allocation` samples at a prefix only as many of the 20 answers as MRT (STaR)'s filter needs. A"
        " filter decision, to keep or drop a trace, is changed if all 20 answers at every prefix decide otherwise; the"
        " next column says how often another 20 answers everywhere change it. `J lost at the cut`: J of the prefix that"
        " all answers keep, minus J of the prefix that the allocated answers keep, both by rollouts or answers that"
        " were used for neither.",
        markdown(header, rows),
    ]
    times = []
    for name in ("toy world", "thoughts of 1,000 tokens"):
        if has(table, f"{name}: allocated"):
            ours = middle(table, f"{name}: allocated", "seconds")
            every = middle(table, f"{name}: 20 each", "seconds") / ours
            authors = middle(table, f"{name}: the authors' way", "seconds") / ours
            fewer = middle(table, f"{name}: allocated", "times fewer answers")
            times.append((name, ours, f"{fewer:.1f}", f"{every:.1f}", f"{authors:.1f}"))
            what = f"meta-prover with allocation, {name}: times faster than the authors' way"
            why = (
                f"With {fewer:.1f} times fewer answers it is {every:.1f} times faster than with all: it samples in"
                " rounds, and each waits for the one before."
            )
            goals.append(Goal(what, authors, 6, why=why))
    text += [
        "Seconds of the whole stage, grading included:",
        markdown(("", "allocated, seconds", "times fewer answers", "20 each: times", "the authors' way: times"), times),
    ]
    return Report(text, goals, {"fewer": draw(table)})


def draw(table: pl.DataFrame) -> Any:
    from mrt.figures.style import panels

    figure, (left, right) = panels(2, height=2.3)
    names = [n for n in ("real traces, by episode", "real traces, by sentence", "toy world") if has(table, n)]
    left.barh(names, [middle(table, n, "times fewer answers") for n in names], 0.5, color="#D55E00")
    left.axvline(3, color="black", linewidth=0.8, linestyle="--")
    left.set_xlabel("times fewer answers (goal: 3)")
    for i, (quantity, label, colour) in enumerate(
        (
            ("changed decisions, percent", "allocated", "#D55E00"),
            ("changed decisions of another 20 answers, percent", "another 20 answers", "#999999"),
        )
    ):
        at = [n + 0.25 * (i - 0.5) for n in range(len(names))]
        right.barh(at, [middle(table, n, quantity) for n in names], 0.25, color=colour, label=label)
    right.axvline(2, color="black", linewidth=0.8, linestyle="--")
    right.set_yticks(range(len(names)), [""] * len(names))
    right.set_xlabel("filter decisions changed, percent (goal: 2)")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=2)
    return figure
