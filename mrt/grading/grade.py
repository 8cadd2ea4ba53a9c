r"""Grading: extract the answer of each completion, compare it with the gold answer, and cluster equal answers.

    python -m mrt.grading.grade --problems problems.parquet --answers rollouts.parquet --out grades.parquet

The answer is searched after the thought: the last `\boxed{...}` with balanced braces, or what Math-Verify finds. Two
answers are compared first by exact rules that need no algebra (equal text, numbers, fractions, words); undecided pairs
go to Math-Verify, in worker processes. A worker is interrupted at the time limit of a pair, and killed if that does not
help (C code cannot be interrupted); its memory is limited. A pair that exceeds a limit counts as unequal. Each distinct
pair is judged once. A doubtful pair is unequal: accepting a wrong answer is the worse error.
"""

import os
from collections.abc import Hashable, Sequence
from fractions import Fraction
from pathlib import Path

import polars as pl
from pydantic import Field

from mrt.core.artifacts import ANSWER, ANSWER_GRADES, GRADES, PROBLEMS, PROVER, ROLLOUTS
from mrt.core.cli import Stage, run
from mrt.core.storage import columns_of
from mrt.grading.answers import LONGEST, find_box
from mrt.grading.equality import exact, normalise, number_in, plain_text
from mrt.grading.workers import TIMEOUT, Pool, Task, shared_pool


class Grader:
    """Extracts, judges and clusters answers in bulk; remembers every verdict, so each distinct pair is judged once.

    `workers` is the number of processes (default: the available CPUs), `timeout` the seconds a pair may take.
    """

    def __init__(self, workers: int | None = None, timeout: float = TIMEOUT, pool: Pool | None = None) -> None:
        if timeout <= 0 or (workers is not None and workers < 1):
            raise ValueError("grading needs at least one worker and a time limit above 0 seconds")
        self.workers = workers or len(os.sched_getaffinity(0))
        self.timeout = timeout
        self.pool = pool
        self.verdicts: dict[tuple[str, str], bool] = {}  # of normalised (prediction, gold)
        self.timed_out = 0  # pairs and extractions that ran out of time

    def _run(self, tasks: Sequence[Task]) -> list[bool | str | None]:
        if not tasks:
            return []
        results = (self.pool or shared_pool()).run(tasks, self.workers, self.timeout)
        self.timed_out += sum(late for _, late in results)
        return [value for value, _ in results]

    def extract(
        self, completions: Sequence[str] | pl.Series, thinking: Sequence[bool] | bool = False
    ) -> list[str | None]:
        """`extract_answer` of each completion; each distinct text is searched once, a column in chunks."""
        flags = [thinking] * len(completions) if isinstance(thinking, bool) else thinking
        found = [find_box(text, flag) for text, flag in zip(completions, flags, strict=True)]
        texts = list(dict.fromkeys(text for _, text in found if text is not None))
        answers = dict(zip(texts, self._run([("search", text, "") for text in texts]), strict=True))
        return [_string(answers[text]) if text is not None else answer for answer, text in found]

    def equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Whether prediction and gold are equal, for each pair of bare answers (prediction, gold)."""
        keys, open_ = [], {}
        for pred, gold in pairs:
            if len(pred) > LONGEST or len(gold) > LONGEST:
                keys.append(("", ""))
                self.verdicts["", ""] = False
                continue
            key = normalise(pred), normalise(gold)
            keys.append(key)
            if key not in self.verdicts and key not in open_:
                settled = exact(pred, gold)
                if settled is None:
                    open_[key] = (pred, gold)
                else:
                    self.verdicts[key] = settled
        tasks: list[Task] = [("same", pred, gold) for pred, gold in open_.values()]
        self.verdicts.update(zip(open_, map(bool, self._run(tasks)), strict=True))
        return [self.verdicts[key] for key in keys]

    def right(
        self, completions: Sequence[str], gold: Sequence[str], thinking: Sequence[bool] | bool = False
    ) -> list[bool]:
        """Whether the answer of each completion equals its gold answer."""
        found = self.extract(completions, thinking)
        verdicts = iter(self.equal([(answer, g) for answer, g in zip(found, gold, strict=True) if answer is not None]))
        return [answer is not None and next(verdicts) for answer in found]

    def clusters(self, groups: Sequence[Sequence[str | None]]) -> list[list[int]]:
        """`clusters` of each group of answers; the comparisons of all groups go to the workers together.

        In each round, the first answer of a group that is in no cluster yet represents a new one, and the other
        unassigned answers of the group are compared with it.
        """
        names = [{answer: _name(answer) for answer in group if answer is not None} for group in groups]
        left = [_firsts(of_group) for of_group in names]
        labels: list[dict[Hashable, int]] = [{} for _ in groups]
        number = 0
        while any(left):
            for i, rest in enumerate(left):
                if all(isinstance(name, Fraction) for name, _ in rest):  # numbers of different values: none are equal
                    labels[i].update((name, number + k) for k, (name, _) in enumerate(rest))
                    left[i] = []
            pairs = [(answer, rest[0][1]) for rest in left if rest for name, answer in rest[1:] if _open(name, rest)]
            verdicts = iter(self.equal(pairs))
            for i, rest in enumerate(left):
                if not rest:
                    continue
                labels[i][rest[0][0]] = number
                left[i] = []
                for name, answer in rest[1:]:
                    if _open(name, rest) and next(verdicts):
                        labels[i][name] = number
                    else:
                        left[i].append((name, answer))
            number += 1
        return [
            [-1 if answer is None else labels[i][names[i][answer]] for answer in group]
            for i, group in enumerate(groups)
        ]


def _string(value: bool | str | None) -> str | None:
    return value if isinstance(value, str) else None


def _name(answer: str) -> Hashable:
    """A key that trivially equal answers share: the value of an exact number, else the normalised text."""
    if len(answer) > LONGEST:
        return answer
    value = number_in(plain_text(normalise(answer)))
    return value[0] if value and not value[1] else normalise(answer) or answer


def _open(name: Hashable, rest: Sequence[tuple[Hashable, str]]) -> bool:
    """Whether an answer with this `_name` may equal the first of `rest`; exact numbers with different names do not."""
    return not (isinstance(name, Fraction) and isinstance(rest[0][0], Fraction))


def _firsts(names: dict[str, Hashable]) -> list[tuple[Hashable, str]]:
    """(name, first answer of that name), in order of appearance."""
    firsts: dict[Hashable, str] = {}
    for answer, name in names.items():
        firsts.setdefault(name, answer)
    return list(firsts.items())


def extract_answer(completion: str, thinking: bool = False) -> str | None:
    r"""The answer that a completion gives after its thought, as text, or None if it is unparseable.

    The last `\boxed{...}` counts, else a letter after "answer", else what Math-Verify finds in the last 2,000
    characters. None for a thought that never closes (`thinking`: the completion starts inside one, its tag being
    in the prompt), and for an answer longer than 2,000 characters.
    """
    return Grader(1).extract([completion], thinking)[0]


def equal(pred: str, gold: str, timeout: float = TIMEOUT) -> bool:
    """Whether two bare answers are equal; False if that cannot be shown within `timeout` seconds."""
    return Grader(1, timeout).equal([(pred, gold)])[0]


def is_correct(completion: str, gold: str, thinking: bool = False) -> bool:
    """Whether the answer of a completion equals the gold answer; `thinking` as in `extract_answer`."""
    answer = extract_answer(completion, thinking)
    return answer is not None and equal(answer, gold)


def grade(pairs: Sequence[tuple[str, str]], workers: int | None = None, timeout: float = TIMEOUT) -> list[bool]:
    """Whether prediction and gold are equal, for many pairs of bare answers; each distinct pair is judged once.

    `workers` processes (default: the available CPUs); a pair that takes over `timeout` seconds is unequal.
    """
    return Grader(workers, timeout).equal(pairs)


def clusters(answers: Sequence[str | None], workers: int | None = None, timeout: float = TIMEOUT) -> list[int]:
    """The cluster of each answer: equal answers share a number, 0, 1, ... in order of first appearance; -1 for None.

    An answer is in a cluster if it equals the cluster's first answer. `Grader.clusters` does many groups at once.
    """
    return Grader(workers, timeout).clusters([answers])[0]


def starts_inside(prompt: str | None) -> bool:
    """Whether a completion starts inside a thought: the last `<think>` of its prompt is not closed."""
    return prompt is not None and "<think>" in prompt.rpartition("</think>")[2]


def grade_table(
    answers: pl.DataFrame, gold: dict[str, str], grader: Grader, thinking: bool | None = None
) -> pl.DataFrame:
    """Grades of a rollouts or a prover table: its key columns, answer, parsed, correct, cluster (within a problem).

    `gold` maps problem ids to answers. `thinking` says whether texts start inside a thought; if None, the column
    `prompt` decides, and without that column they do not. Raises KeyError for a problem that `gold` lacks.
    """
    if thinking is None and "prompt" in answers.columns:
        inside = [starts_inside(prompt) for prompt in answers["prompt"]]
    else:
        inside = [bool(thinking)] * len(answers)
    extracted = grader.extract(answers["text"].fill_null(""), inside)
    ids = answers["problem_id"].to_list()
    parsed = [(i, answer) for i, answer in enumerate(extracted) if answer is not None]
    correct = [False] * len(ids)
    for (i, _), verdict in zip(parsed, grader.equal([(a, gold[ids[i]]) for i, a in parsed]), strict=True):
        correct[i] = verdict
    rows: dict[str, list[int]] = {}
    for i, problem_id in enumerate(ids):
        rows.setdefault(problem_id, []).append(i)
    cluster = [-1] * len(ids)
    for own, labels in zip(
        rows.values(), grader.clusters([[extracted[i] for i in own] for own in rows.values()]), strict=True
    ):
        for i, label in zip(own, labels, strict=True):
            cluster[i] = label
    return answers.select(key for key in ANSWER if key in answers.columns).with_columns(
        pl.Series("answer", extracted, pl.String),
        pl.Series("parsed", [answer is not None for answer in extracted], pl.Boolean),
        pl.Series("correct", correct, pl.Boolean),
        pl.Series("cluster", cluster, pl.Int64),
    )


class Grade(Stage):
    """Grade rollouts or forced answers: extract, judge against the gold answers, cluster by equality."""

    problems: Path = Field(description="Dataset (Parquet): id, answer.")
    answers: Path = Field(description="Rollouts or forced answers (Parquet): problem_id, sample, text.")
    out: Path = Field(description="Grades (Parquet): the keys, answer, parsed, correct, cluster.")
    thinking: bool | None = Field(None, description="Texts start inside a thought; read from the prompts if not given.")
    workers: int | None = Field(None, ge=1, description="Worker processes; as many as available CPUs if not given.")
    timeout: float = Field(TIMEOUT, gt=0, description="Seconds a pair may take; then it counts as unequal.")

    def cli_cmd(self) -> None:
        problems = PROBLEMS.read(self.problems, ["id", "answer"])
        for wrong, fault in (
            (problems.filter(pl.col("id").is_duplicated()), "occurs twice"),
            (problems.filter(pl.col("answer").is_null()), "has no answer"),
        ):
            if len(wrong):
                raise ValueError(f"{self.problems}: problem {wrong['id'][0]!r} {fault}")
        forced = "prefix" in columns_of(self.answers)
        kind = PROVER if forced else ROLLOUTS
        table = kind.read(self.answers, [*kind.keys, "text", *([] if forced else ["prompt"])])
        strangers = table.join(problems, left_on="problem_id", right_on="id", how="anti", nulls_equal=False)
        if len(strangers):
            raise ValueError(f"{self.answers}: problem {strangers['problem_id'][0]!r} is not in {self.problems}")
        grader = Grader(self.workers, self.timeout)
        gold = dict(problems.iter_rows())
        grades = grade_table(table, gold, grader, self.thinking)
        (ANSWER_GRADES if forced else GRADES).write(grades, self.out)
        print(
            f"{len(grades)} answers, {grades['correct'].sum()} correct, {(~grades['parsed']).sum()} unparseable;"
            f" {len(grader.verdicts)} distinct pairs judged, {grader.timed_out} timed out",
            flush=True,
        )


if __name__ == "__main__":
    run(Grade)
