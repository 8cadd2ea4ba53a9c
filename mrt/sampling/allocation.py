"""Adaptive allocation: the same training set from fewer meta-prover answers, sampled where the decision is open.

    python -m mrt.sampling.allocation --model results/laptop/models/base --rollouts rollouts.parquet \\
        --episodes episodes.parquet --problems problems.parquet --out prover.parquet --names base --names toy_train \\
        --prover '{"answers": 20}' --filters '[{"minimum_J": 0.6}]'

Most prefixes of a thought are plainly hopeless or plainly solved, and neighbours are much alike. So every prefix first
gets `first` answers. Then, until the trace is settled, more answers go to the prefix that MRT (STaR) would keep now and
to its strongest rival. While it is open whether the trace is kept at all, the empty prefix gets more answers too. This
is top-two sampling for best-arm identification (Russo 2020, "Simple Bayesian algorithms for best-arm identification").
It is stopped by the expected opportunity cost (Chick and Inoue 2001). The prior on J is a Markov chain along the trace.
From one prefix to the next, J stays the same with probability `stay`, else it is sampled again from Beta(1/2, 1/2).
Paths of J are sampled exactly from the posterior (forward filtering, backward sampling). On each path, the answers that
are still missing to have `answers` at every prefix are simulated. A trace is settled when

    - with probability 1 - `error`, the filter would decide the same given all answers at every prefix, and
    - if it keeps the trace, the best prefix's J is expected to exceed the kept one's by at most `tolerance`.

Each filter allocates by itself, as if it were alone; filters share the answers that several of them want. The column
`allocated` names the filters that an answer counts for, so that one more filter changes no training set of another.

The answers of a prefix are the first ones, by seed, that `mrt.sampling.prover` samples there. At prefixes with fewer
answers than the kept one, J is a rough estimate, and a high value may be luck. So `mrt.methods.mrt` chooses among the
prefixes with the most answers. The first `first` answers of every prefix are sampled unconditionally, so their mean is
unbiased. Measures (regret, maj@k at a prefix) use evaluation sets, whose prefixes always get all answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from mrt.core.cli import run
from mrt.core.settings import Settings
from mrt.grading.grade import right_forced
from mrt.grading.task import Choice, problem_rows, reference, task_of
from mrt.sampling.cache import CacheSettings
from mrt.sampling.engine import Completion, Request
from mrt.sampling.prover import Place, Prove

LEVELS = (np.arange(20) + 0.5) / 20  # grid of the values of J
FRESH = (LEVELS * (1 - LEVELS)) ** -0.5  # Beta(1/2, 1/2) on the grid: mostly near 0 or 1
FRESH /= FRESH.sum()
ROUNDING = 1e-9  # differences of J are rounded: 0.75 - 0.7 is a little more than 0.05
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Allocation(Settings):
    """How answers are allocated to the prefixes of a trace."""

    first: int = Field(2, ge=1, description="Initial answers at every prefix.")
    batch: int = Field(4, ge=1, description="Answers added to a prefix at a time.")
    error: float = Field(
        0.02, gt=0, lt=1, description="Maximum probability that the filter would decide otherwise given all answers."
    )
    tolerance: float = Field(0.05, ge=0, le=1, description="Maximum expected J lost by keeping this prefix.")
    stay: float = Field(0.7, ge=0, lt=1, description="Probability that J is the same after one more episode.")
    paths: int = Field(200, ge=10, description="Paths of J sampled to test whether a trace is settled.")


class Thresholds(Settings):
    """The thresholds on J in a filter of MRT (STaR)."""

    minimum_J: float = Field(0.0, ge=0, le=1, description="Minimum J of the prefix that MRT keeps.")
    minimum_progress: float = Field(
        0.0, ge=0, lt=1, description="Cumulative progress of that prefix must be above this (Algorithm 1, line 7)."
    )
    tolerance: float = Field(
        0.0,
        ge=0,
        le=1,
        description="MRT keeps the shortest prefix whose J is at most this much below the highest. With"
        " estimate: likelihood, differences too small for any answers would else favour later"
        " prefixes.",
    )

    @property
    def limits(self) -> tuple[float, ...]:
        """The thresholds, which alone tell filters apart."""
        return tuple(getattr(self, name) for name in Thresholds.model_fields)

    @property
    def key(self) -> str:
        """The filter in the column `allocated` of forced answers."""
        return " ".join(f"{name}={limit}" for name, limit in zip(Thresholds.model_fields, self.limits, strict=True))

    def best(self, J: Floats) -> int:
        """The prefix to keep, given J at all: the shortest within `tolerance` of the best, never the empty one."""
        return 1 + int((J[1:] >= J[1:].max() - self.tolerance - ROUNDING).argmax())

    def decide(self, best: Floats, start: Floats) -> npt.NDArray[np.bool_]:
        """Whether traces are kept, given J at their best prefix and at the empty one."""
        return (best >= self.minimum_J) & (best - start > self.minimum_progress + ROUNDING)


def paths_of_J(answers: Ints, right: Ints | Floats, stay: float, paths: int, rng: np.random.Generator) -> Floats:
    """Sample paths of J along a trace from the posterior, given `right` correct ones of the `answers` at each prefix.

    Args:
        answers, right: counts at each prefix, in order [prefixes].
        stay: probability that J stays the same from one prefix to the next; else it is sampled from `FRESH`.
        paths: number of paths.

    Returns:
        J of each path at each prefix [paths, prefixes], values of `LEVELS`.
    """
    log = right[:, None] * np.log(LEVELS) + (answers - right)[:, None] * np.log1p(-LEVELS)
    likelihood = np.exp(log - log.max(axis=1, keepdims=True))
    belief = np.empty_like(likelihood)  # given the answers up to each prefix
    before = FRESH
    for j, of_answers in enumerate(likelihood):
        belief[j] = of_answers * (before if j == 0 else stay * before + (1 - stay) * FRESH)
        belief[j] /= belief[j].sum()
        before = belief[j]
    cumulative = np.cumsum(belief, axis=1)
    cumulative[:, -1] = 1.0  # rounding
    level = np.empty((paths, len(answers)), dtype=np.int64)
    uniform = rng.random((2, paths, len(answers)))
    for j in range(len(answers) - 1, -1, -1):
        level[:, j] = np.searchsorted(cumulative[j], uniform[0, :, j])
        if j + 1 < len(answers):
            after = level[:, j + 1]
            same, other = stay * belief[j, after], (1 - stay) * FRESH[after]
            stayed = uniform[1, :, j] * (same + other) < same
            level[stayed, j] = after[stayed]
    return LEVELS[level]


class Trace:
    """Counts a filter's answers at the prefixes of a trace, and decides which come next; prefix 0 is the empty one."""

    def __init__(self, prefixes: int, most: int, allocation: Allocation, rule: Thresholds, seed: int = 0) -> None:
        self.allocation, self.rule, self.most, self.seed = allocation, rule, most, seed
        self.answers = np.zeros(prefixes, dtype=np.int64)
        self.right = np.zeros(prefixes)
        self.rounds = 0

    def add(self, prefix: int, right: Sequence[float]) -> None:
        """More answers at a prefix, given their scores."""
        self.answers[prefix] += len(right)
        self.right[prefix] += sum(right)

    def best(self) -> int:
        """The prefix to keep, if any: the highest J among the prefixes with the most answers; ties go to the first.

        The same as `mrt.methods.mrt.best_prefixes`.
        """
        J = np.where(self.answers == self.answers[1:].max(), self.right / np.maximum(self.answers, 1), -1.0)
        return 1 + int(J[1:].argmax())

    def next(self) -> dict[int, int]:
        """Number of answers to draw, by prefix; empty if the trace is settled or has all its answers."""
        self.rounds += 1
        if len(self.answers) < 2:  # no episode, nothing to keep
            return {} if self.answers.all() else {0: min(self.allocation.first, self.most)}
        if not self.answers.all():
            return {j: min(self.allocation.first, self.most) for j in range(len(self.answers))}
        rng = np.random.default_rng([self.seed, self.rounds])
        J = paths_of_J(self.answers, self.right, self.allocation.stay, self.allocation.paths, rng)
        kept = self.best()
        missing = self.most - self.answers
        whole = (self.right + rng.binomial(missing, J)) / self.most  # J from all answers, simulated on each path
        now = self.right / self.answers
        keeps = bool(self.rule.decide(now[kept], now[0]))
        otherwise = self.rule.decide(whole[:, 1:].max(axis=1), whole[:, 0]) != keeps
        open_ = float(np.mean(otherwise)) > self.allocation.error
        lost = float(np.mean(J[:, 1:].max(axis=1) - J[:, kept]))
        if not open_ and not (keeps and lost > self.allocation.tolerance):
            return {}
        wins = np.bincount(1 + J[:, 1:].argmax(axis=1), minlength=len(J[0]))
        wins[[0, kept]] = -1
        wins[missing == 0] = -1  # these have all their answers
        candidates = {kept, int(wins.argmax()), *([0] if open_ else [])}
        candidates = {j for j in candidates if missing[j] and (wins[j] > 0 or j in (0, kept))}
        if not candidates:
            return {}
        most = int(self.answers.max())
        behind = {j: most - int(self.answers[j]) for j in candidates if self.answers[j] < most}
        return behind or {j: min(self.allocation.batch, int(missing[j])) for j in candidates}


class Answers:
    """The answers at the prefixes of one trace, sampled as its filters need them, one filter after the other.

    At the end, each prefix has at least `everywhere` answers.
    """

    def __init__(self, places: Sequence[Place], traces: Sequence[Trace], everywhere: int = 0) -> None:
        self.places, self.traces, self.everywhere = places, traces, everywhere
        self.answers: list[list[Completion]] = [[] for _ in places]
        self.scores: list[list[float]] = [[] for _ in places]
        self.settled = 0  # how many filters are
        self.wanted: dict[int, int] = {}  # by prefix, of the filter that comes next
        self.waiting = 0  # unanswered requests

    def requests(self) -> list[tuple[int, Request]]:
        """What to draw next, by prefix; empty if all filters are settled."""
        while self.settled < len(self.traces):
            trace = self.traces[self.settled]
            self.wanted = trace.next()
            if not self.wanted:
                self.settled += 1
            elif requests := self.lacking({j: int(trace.answers[j]) + count for j, count in self.wanted.items()}):
                return requests
            else:
                self.give()
        return self.lacking(dict.fromkeys(range(len(self.places)), self.everywhere))

    def lacking(self, counts: Mapping[int, int]) -> list[tuple[int, Request]]:
        """Requests for as many answers at each prefix as it lacks.

        Follow-ups run first, so that they find the text before them in the prefix cache.
        """
        requests = []
        for j, count in counts.items():
            whole, known = self.places[j].request, len(self.answers[j])
            if count > known:
                part = replace(whole, n=count - known, seed=whole.seed + known, priority=-1 if known else 0)
                requests.append((j, part))
        self.waiting = len(requests)
        return requests

    def add(self, j: int, completions: Sequence[Completion], scores: Sequence[float]) -> None:
        """Add answers that were sampled at a prefix."""
        self.answers[j] += completions
        self.scores[j] += scores
        self.waiting -= 1
        if not self.waiting:
            self.give()

    def give(self) -> None:
        """Hand the filter the scores that it wanted."""
        for j, count in self.wanted.items():
            trace = self.traces[self.settled]
            known = int(trace.answers[j])
            trace.add(j, self.scores[j][known : known + count])

    def allocated(self) -> list[list[list[str]]]:
        """The filters that each answer at each prefix counts for."""
        return [
            [[t.rule.key for t in self.traces if index < t.answers[j]] for index in range(len(answers))]
            for j, answers in enumerate(self.answers)
        ]


class Allocate(Prove):
    """Force answers at every prefix of every thought, but only as many as the filter's decision needs."""

    problems: Path = Field(description="Dataset with the gold answers (Parquet).")
    task: Choice | None = Field(
        None, description="The task that judges: its name, or name and settings; by default math."
    )
    allocation: Allocation = Field(default_factory=Allocation, description="How answers are allocated.")
    filters: list[Thresholds] = Field(
        [Thresholds()], min_length=1, description="Filters whose decisions must be settled."
    )
    everywhere: bool = Field(
        False, description="Also sample all answers at every prefix, for a method without a filter."
    )

    def plugins(self) -> tuple[str, ...]:
        return (reference(self.task),)

    def cli_cmd(self) -> None:
        traces, cache = self.shard_of_traces(self.prover.traces)
        places = list(self.places(traces))
        by_trace = self.allocate(places, cache)
        if self.cache.shard:
            return
        answers = [at_place for trace in by_trace for at_place in trace.answers]
        self.write(places, answers, [names for trace in by_trace for names in trace.allocated()])
        most = self.prover.answers * len(places)
        print(f"{sum(map(len, answers))} of the {most} answers that every prefix would have had together")

    def allocate(self, places: Sequence[Place], cache: CacheSettings) -> list[Answers]:
        """The answers at the places of each trace, in order."""
        problems, task = problem_rows(self.problems), task_of(self.task)
        everywhere = self.prover.answers if self.everywhere else 0
        traces = [
            Answers(group, [self.trace(group, rule) for rule in self.filters], everywhere)
            for group in (list(rows) for _, rows in groupby(places, lambda at: at.trace))
        ]
        origin: list[tuple[Answers, int]] = []  # the trace and the prefix of each request

        def ask(trace: Answers) -> list[Request]:
            requests = trace.requests()
            origin.extend((trace, j) for j, _ in requests)
            return [request for _, request in requests]

        def then(request: int, completions: list[Completion]) -> list[Request]:
            trace, j = origin[request]
            rows = [problems[trace.places[j].problem_id]] * len(completions)
            trace.add(j, completions, right_forced(task, [c.text for c in completions], rows))
            return [] if trace.waiting else ask(trace)

        requests = [request for trace in traces for request in ask(trace)]
        self.draw(requests, then, cache=cache, shard_of=lambda number: origin[number][0].places[0].trace)
        return traces

    def trace(self, places: Sequence[Place], rule: Thresholds) -> Trace:
        """A filter's view of the trace at these places."""
        seed = self.seed_of(places[0].problem_id, places[0].sample)
        return Trace(len(places), self.prover.answers, self.allocation, rule, seed)


if __name__ == "__main__":
    run(Allocate)
