r"""Grading: `mrt.grading.grade` against Math-Verify called naively, and what hostile answers cost the others.

    python -m benchmarks grading

Naively: in one process, one answer after the other, parse the gold answer, parse the answer, verify. The comparison is
in answers per second, on distinct labelled pairs (folder `shared` beside the checkout; without it, generated ones), and
on a table in which answers repeat, as forced answers do: 20 per prefix, most of them equal. Our time includes messages
to the workers, which have started but have graded nothing yet. Whether the verdicts agree: `benchmarks.agreement`.

A hostile answer is graded among 200 ordinary ones as in RL (one worker). Its cost is the seconds of that batch less
those of the ordinary ones alone. Hostile answers in `\boxed` test the comparison; the others test the search for it.
"""

import json
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import polars as pl

from benchmarks.answer_pairs import KINDS, pair
from benchmarks.record import ANSWERS, TRACES, Goal, Record, Report, markdown, middle, timed
from mrt.grading.equality import math_verify, normalise, plain_text
from mrt.grading.grader import Grader
from mrt.grading.workers import TIMEOUT, Pool

TITLE = "Grading"
GRADED = TRACES.parent / "graded"
FILES = ("testsuite", "hard_verify", "model_answers")  # bare answers with objective verdicts
LIMIT = 1.0  # seconds per pair, in the batches with a hostile answer
PROCESSES = (1, 2)
HOSTILE = {
    "a tower of powers": r"\boxed{9^{9^{9^9}}}",
    "a power of a billion digits": r"\boxed{7^{2 \cdot 10^9} + x}",
    "factorials of factorials": r"\boxed{99999999!!!!}",
    "a huge binomial": r"\boxed{\binom{10^9}{5 \cdot 10^8}}",
    "a sum of 10^12 terms": r"\boxed{\sum_{k=1}^{10^{12}} \frac{1}{k^k}}",
    "190 nested fractions": r"\boxed{" + r"\frac{" * 190 + "1" + "}{2}" * 190 + "}",
    "120 nested \\left(": r"\boxed{" + r"\left(" * 120 + "x" + r"\right)" * 120 + "}",
    "5,000 nested \\left(": r"\boxed{" + r"\left(" * 5_000 + "x" + r"\right)" * 5_000 + "}",
    "10,000 braces": r"\boxed{" + "{" * 10_000,
    "100,000 boxes in boxes": r"\boxed{" * 100_000 + "1" + "}" * 100_000,
    "a megabyte of boxes": r"\boxed{1}, " * 100_000,
    "a megabyte of digits": r"\boxed{" + "1" * 2**20 + "}",
    "a megabyte of text": "$x^2$ = 1, so " * 75_000,
    "a tower of powers, not boxed": "The answer is $9^{9^{9^9}}$",
    "200 square roots, not boxed": "The answer is $" + r"\sqrt{" * 200 + "2" + "}" * 200 + "$",
    "10,000 braces, not boxed": "The answer is $" + "{" * 10_000 + "2" + "}" * 10_000 + "$",
}

Pair = tuple[str, str]  # answer, gold answer


def distinct_pairs(count: int) -> list[Pair]:
    """Distinct pairs: labelled ones, or without them generated ones."""
    rng = random.Random(0)
    if GRADED.is_dir():
        lines = [line for name in FILES for line in (GRADED / f"{name}.jsonl").read_text().splitlines()]
        rows = [(row["pred"], row["gold"]) for row in map(json.loads, lines)]
    else:
        rows = [pair(rng.choice(list(KINDS)), equal, rng) for _ in range(count) for equal in (True, False)]
    return rng.sample(rows, min(count, len(rows)))


def repeating(pairs: Sequence[Pair], prefixes: int) -> list[Pair]:
    """ANSWERS answers at each prefix, from those given to one problem; three in four are the most frequent one."""
    rng = random.Random(1)
    given: dict[str, list[str]] = {}
    for answer, gold in pairs:
        given.setdefault(gold, [gold]).append(answer)
    table = []
    for _ in range(prefixes):
        gold = rng.choice(sorted(given))
        most = rng.choice(given[gold])
        table += [(most if rng.random() < 0.75 else rng.choice(given[gold]), gold) for _ in range(ANSWERS)]
    return table


def naive(pairs: Sequence[Pair]) -> list[bool]:
    return [math_verify(*both) for both in pairs]


def theirs(pairs: Sequence[Pair]) -> float:
    """Seconds of Math-Verify in a fresh process, because SymPy and ANTLR also cache."""
    with ProcessPoolExecutor(1, get_context("forkserver")) as pool:
        pool.submit(naive, [("x + 1", "1 + x")]).result()  # imports everything
        return pool.submit(timed, naive, pairs).result()[0]


def ours(pairs: Sequence[Pair], processes: int) -> float:
    """Seconds of a grader whose workers have started, with empty caches."""
    normalise.cache_clear()
    plain_text.cache_clear()
    pool = Pool()
    try:
        pool.run([("same_answer", str(i), "x") for i in range(8 * processes)], processes, 5.0)
        return timed(Grader(processes, pool=pool).equal, pairs)[0]
    finally:
        pool.close()


def measure_rates(record: Record, quick: bool) -> None:
    pairs = distinct_pairs(40 if quick else 180)
    table = repeating(pairs, 50 if quick else 2_000)
    some = table[:: len(table) // (20 if quick else 100)]
    for _ in range(1 if quick else 2):
        for kind, all_pairs, few in (("distinct", pairs, pairs), ("repeating", table, some)):
            record.add(f"naive, {kind}", "answers a second", len(few) / theirs(few))
            for processes in PROCESSES:
                record.add(f"ours, {kind}", "answers a second", len(all_pairs) / ours(all_pairs, processes), processes)
    record.add("distinct", "pairs", len(pairs))
    record.add("repeating", "answers", len(table))
    record.add("repeating", "pairs", len(set(table)))


def measure_hostile(record: Record, quick: bool) -> None:
    ordinary = repeating(distinct_pairs(60), 10)
    texts, golds = [rf"So it is $\boxed{{{answer}}}$." for answer, _ in ordinary], [gold for _, gold in ordinary]
    pool = Pool()

    def grade(hostile: Sequence[str]) -> tuple[float, list[float], int]:
        """Seconds, rewards and number of timeouts of a grader with an empty cache."""
        grader = Grader(1, LIMIT, pool)
        seconds, found = timed(grader.right, [*hostile, *texts], ["2"] * len(hostile) + golds)
        return seconds, found, grader.timed_out

    try:
        grade([])  # starts the worker
        without = min((grade([]) for _ in range(3)), key=lambda found: found[0])
        record.add("ordinary", "seconds", without[0])
        for name, completion in list(HOSTILE.items())[: 3 if quick else None]:
            seconds, found, late = grade([completion])
            record.add(f"hostile: {name}", "seconds", seconds)
            record.add(f"hostile: {name}", "ran out of time", late)
            record.add(f"hostile: {name}", "judged right", found[0])
            changed = sum(now != before for now, before in zip(found[1:], without[1], strict=True))
            record.add(f"hostile: {name}", "other verdicts changed", changed)
    finally:
        pool.close()


def measure(record: Record, quick: bool) -> None:
    measure_rates(record, quick)
    measure_hostile(record, quick)


def hostile_costs(table: pl.DataFrame) -> dict[str, float]:
    """Seconds that each hostile answer adds to its batch, the most expensive first."""
    cases = table.filter(pl.col("case").str.starts_with("hostile: "))["case"].unique(maintain_order=True)
    alone = middle(table, "ordinary", "seconds")
    costs = {case: max(0.0, middle(table, case, "seconds") - alone) for case in cases}
    return dict(sorted(costs.items(), key=lambda cost: -cost[1]))


def report(table: pl.DataFrame) -> Report:
    def rate(case: str, size: float = 0) -> float:
        return middle(table, case, "answers a second", size)

    def count(case: str, quantity: str) -> int:
        return int(middle(table, case, quantity))

    kinds = {"distinct": "all different", "repeating": "repeating"}
    rows = []
    for kind, name in kinds.items():
        usual = rate(f"naive, {kind}")
        rows.append((name, "Math-Verify, one by one", usual, 1.0))
        for n in PROCESSES:
            mine = rate(f"ours, {kind}", n)
            rows.append((name, f"`mrt.grading.grade`, {n} process{'es' * (n > 1)}", mine, mine / usual))
    costs = hostile_costs(table)
    changed = sum(count(case, "other verdicts changed") + count(case, "judged right") for case in costs)
    header = ("hostile answer", "adds, in s", "ran out of time", "other verdicts changed")
    dearest, cost = next(iter(costs.items()))
    return Report(
        [
            markdown(("answers", "graded by", "answers a second", "ratio"), rows),
            f"{count('distinct', 'pairs')} different pairs, and {count('repeating', 'answers'):,} answers with"
            f" {count('repeating', 'pairs'):,} different pairs, each judged once. Worker processes parse pairs that"
            " the exact rules do not decide. [Grading](../docs/grading.md#agreement) has the agreement with labels.",
            f"Hostile answers, each graded together with 200 ordinary ones (which take"
            f" {middle(table, 'ordinary', 'seconds'):.2f} s by themselves), with one worker, as in RL,"
            f" and a limit of {LIMIT:g} s (RL has {TIMEOUT:g} s):",
            markdown(
                header,
                [
                    (case.removeprefix("hostile: "), cost, *(count(case, quantity) for quantity in header[2:]))
                    for case, cost in costs.items()
                ],
            ),
        ],
        [
            Goal("Grading distinct pairs in two processes, times Math-Verify's rate", rows[2][3], 1.5),
            Goal("Grading a table whose answers repeat, two processes, times Math-Verify's rate", rows[5][3], 50),
            Goal("The dearest hostile answer, seconds added to its batch", cost, LIMIT + 2, True, f"It is {dearest}."),
            Goal("Hostile answers that left all other verdicts as they were, share", 1 - changed / len(costs), 1),
        ],
    )
