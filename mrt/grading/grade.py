r"""Grading: extract the answer of each completion, compare it with the gold answer, and cluster equal answers.

    python -m mrt.grading.grade --problems problems.parquet --answers rollouts.parquet --out grades.parquet

The answer is searched after the thought (`mrt.grading.answers`). Two answers are compared first by exact rules that
need no algebra; undecided pairs go to worker processes (`mrt.grading.equality`, `mrt.grading.workers`), whose CPU time
and memory are limited. A pair that exceeds a limit counts as unequal. Each distinct pair is judged once. A doubtful
pair is unequal: accepting a wrong answer is the worse error (docs/grading.md).
"""

import os
from collections.abc import Hashable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import Field

from mrt.core.artifacts import ANSWER, ANSWER_GRADES, GRADES, PROBLEMS, PROVER, ROLLOUTS
from mrt.core.cli import Stage, run
from mrt.core.settings import Settings
from mrt.core.storage import columns_of
from mrt.episodes.parameterization import CLOSE, OPEN
from mrt.grading.answers import find_box
from mrt.grading.equality import exact, normalise, number_in, plain_text
from mrt.grading.workers import TIMEOUT, Pool, Task, shared_pool


class Grading(Settings):
    """How answers are judged."""

    by: Literal["exact_and_math_verify", "math_verify"] = Field(
        "exact_and_math_verify",
        description="Our rules with Math-Verify behind them; or Math-Verify alone, as published numbers have it.",
    )


class Grader:
    """Extracts, judges and clusters answers in bulk; remembers every verdict, so each distinct pair is judged once.

    `workers` is the number of processes (default: the available CPUs), `timeout` the CPU seconds a pair may take.
    """

    def __init__(
        self,
        workers: int | None = None,
        timeout: float = TIMEOUT,
        pool: Pool | None = None,
        grading: Grading | None = None,
    ) -> None:
        if timeout <= 0 or (workers is not None and workers < 1):
            raise ValueError("grading needs at least one worker and a time limit above 0 seconds")
        self.workers = workers or len(os.sched_getaffinity(0))
        self.timeout, self.pool = timeout, pool
        self.alone = grading is not None and grading.by == "math_verify"
        self.verdicts: dict[tuple[str, str], bool] = {}  # of (prediction, gold), normalised where our rules judge
        self.timed_out = 0  # pairs and extractions that ran out of time

    def _run(self, tasks: Sequence[Task]) -> list[bool | str | None]:
        results = (self.pool or shared_pool()).run(tasks, self.workers, self.timeout) if tasks else []
        self.timed_out += sum(late for _, late in results)
        return [value for value, _ in results]

    def extract(
        self, completions: Sequence[str] | pl.Series, thinking: Sequence[bool] | bool = False
    ) -> list[str | None]:
        r"""The answer that each completion gives after its thought, as text; None if it is unparseable.

        The last `\boxed{...}` counts, else what a sentence or a line `####` says, else what Math-Verify finds in the
        last 2,000 characters. None for a thought that never closes (`thinking`: the completion starts inside one, its
        tag being in the prompt), and for an answer longer than 2,000 characters. Each distinct text is searched once.
        """
        flags = [thinking] * len(completions) if isinstance(thinking, bool) else thinking
        found = [find_box(text, flag) for text, flag in zip(completions, flags, strict=True)]
        texts = list(dict.fromkeys(text for _, text in found if text is not None))
        answers = dict(zip(texts, self._run([("search_answer", text, "") for text in texts]), strict=True))
        return [answer if text is None else str(answers[text] or "") or None for answer, text in found]

    def equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Whether prediction and gold are equal, for each pair of bare answers (prediction, gold)."""
        keys = [pair if self.alone else (normalise(pair[0]), normalise(pair[1])) for pair in pairs]
        tasks: dict[tuple[str, str], Task] = {}
        for key, pair in zip(keys, pairs, strict=True):
            if key not in self.verdicts and key not in tasks:
                verdict = None if self.alone else exact(*pair)
                if verdict is None:
                    tasks[key] = ("math_verify" if self.alone else "same_answer", *pair)
                else:
                    self.verdicts[key] = verdict
        self.verdicts.update(zip(tasks, map(bool, self._run(list(tasks.values()))), strict=True))
        return [self.verdicts[key] for key in keys]

    def right(
        self, completions: Sequence[str], gold: Sequence[str], thinking: Sequence[bool] | bool = False
    ) -> list[bool]:
        """Whether the answer of each completion equals its gold answer."""
        found = self.extract(completions, thinking)
        return self.equal([(answer or "", right) for answer, right in zip(found, gold, strict=True)])

    def clusters(self, groups: Sequence[Sequence[str | None]]) -> list[list[int]]:
        """The cluster of each answer of each group: 0, 1, ... in order of first appearance; -1 for None.

        An answer is in a cluster if it equals the cluster's first answer. In each round, the first answer of a group
        that is in no cluster yet represents a new one, and the others left are compared with it, in all groups at once.
        """
        labels = [[-1] * len(group) for group in groups]
        left: list[dict[Hashable, list[int]]] = [{} for _ in groups]  # by name, the places in no cluster yet
        for places, group in zip(left, groups, strict=True):
            for i, answer in enumerate(group):
                if answer is not None:
                    places.setdefault(_name(answer), []).append(i)
        number = 0
        while any(left):
            asked: list[tuple[int, Hashable]] = []
            for g, places in enumerate(left):
                if all(isinstance(name, Fraction) for name in places):  # numbers of different values: none are equal
                    for k, own in enumerate(places.values()):
                        _label(labels[g], own, number + k)
                    places.clear()
                else:
                    first, *others = places
                    _label(labels[g], places[first], number)
                    asked += [(g, name) for name in others if not isinstance(first, Fraction) or type(name) is str]
            pairs = [
                (groups[g][left[g][name][0]] or "", groups[g][next(iter(left[g].values()))[0]] or "")
                for g, name in asked
            ]
            for (g, name), same in zip(asked, self.equal(pairs), strict=True):
                if same:
                    _label(labels[g], left[g].pop(name), number)
            for places in left:
                places.pop(next(iter(places), None), None)
            number += 1
        return labels


def _label(labels: list[int], places: list[int], number: int) -> None:
    for place in places:
        labels[place] = number


def _name(answer: str) -> Hashable:
    """The value of an exact number (`1,234` may be a list), else the normalised answer; those of one name are equal."""
    text = normalise(answer)
    value = number_in(plain_text(text))
    return value[0] if value and not value[1] and "," not in text else text or answer


def extract_answer(completion: str, thinking: bool = False) -> str | None:
    """The answer of a completion (`Grader.extract`)."""
    return Grader(1).extract([completion], thinking)[0]


def is_correct(completion: str, gold: str, thinking: bool = False) -> bool:
    """Whether the answer of a completion equals the gold answer (`Grader.right`)."""
    return Grader(1).right([completion], [gold], thinking)[0]


def extract_forced(grader: Grader, texts: Sequence[str]) -> list[str | None]:
    """The answers of forced answers (`Grader.extract`): texts that begin after the closed thought.

    All of such a text is new, but mu may write a tag once more. Where nothing is found behind it, the whole text is
    searched.
    """
    found = grader.extract(texts)
    again = [i for i, answer in enumerate(found) if answer is None and (OPEN in texts[i] or CLOSE in texts[i])]
    whole = [texts[i].replace(OPEN, "\n").replace(CLOSE, "\n") for i in again]
    for i, answer in zip(again, grader.extract(whole), strict=True):
        found[i] = answer
    return found


def right_forced(grader: Grader, texts: Sequence[str], gold: Sequence[str]) -> list[bool]:
    """Whether each forced answer is right."""
    return grader.equal([(a or "", g) for a, g in zip(extract_forced(grader, texts), gold, strict=True)])


def starts_inside(prompt: str | None) -> bool:
    """Whether a completion starts inside a thought: the last `<think>` of its prompt is not closed."""
    return prompt is not None and OPEN in prompt.rpartition(CLOSE)[2]


def grade_table(answers: pl.DataFrame, gold: dict[str, str], grader: Grader) -> pl.DataFrame:
    """Grades of a rollouts or a prover table: its key columns, answer, parsed, correct, cluster (within a problem).

    `gold` maps problem ids to answers. The column `prompt` says whether a text starts inside a thought; without that
    column it does not. Those of a prover table are read by `extract_forced`. Raises KeyError for a problem that `gold`
    lacks.
    """
    prompts = answers["prompt"] if "prompt" in answers.columns else [None] * len(answers)
    texts = answers["text"].fill_null("").to_list()
    forced = "prefix" in answers.columns
    extracted = extract_forced(grader, texts) if forced else grader.extract(texts, list(map(starts_inside, prompts)))
    pairs = [(answer or "", gold[i]) for answer, i in zip(extracted, answers["problem_id"], strict=True)]
    rows: dict[str, list[int]] = {}
    for i, problem_id in enumerate(answers["problem_id"]):
        rows.setdefault(problem_id, []).append(i)
    cluster = [-1] * len(answers)
    for own, labels in zip(
        rows.values(), grader.clusters([[extracted[i] for i in own] for own in rows.values()]), strict=True
    ):
        for i, label in zip(own, labels, strict=True):
            cluster[i] = label
    return answers.select(key for key in ANSWER if key in answers.columns).with_columns(
        pl.Series("answer", extracted, pl.String),
        pl.Series("parsed", [answer is not None for answer in extracted], pl.Boolean),
        pl.Series("correct", grader.equal(pairs), pl.Boolean),
        pl.Series("cluster", cluster, pl.Int64),
    )


class Grade(Stage):
    """Grade rollouts or forced answers: extract, judge against the gold answers, cluster by equality."""

    problems: Path = Field(description="Dataset (Parquet): id, answer.")
    answers: Path = Field(description="Rollouts or forced answers (Parquet): problem_id, sample, text.")
    out: Path = Field(description="Grades (Parquet): the keys, answer, parsed, correct, cluster.")
    grading: Grading = Field(default_factory=Grading, description="How answers are judged.")
    workers: int | None = Field(None, ge=1, description="Worker processes; as many as available CPUs if not given.")
    timeout: float = Field(TIMEOUT, gt=0, description="Seconds of CPU time a pair may take; then it counts as unequal.")

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
        grader = Grader(self.workers, self.timeout, grading=self.grading)
        gold = dict(problems.iter_rows())
        grades = grade_table(table, gold, grader)
        (ANSWER_GRADES if forced else GRADES).write(grades, self.out)
        print(
            f"{len(grades)} answers, {grades['correct'].sum()} correct, {(~grades['parsed']).sum()} unparseable;"
            f" {len(grader.verdicts)} distinct pairs judged, {grader.timed_out} timed out",
            flush=True,
        )


if __name__ == "__main__":
    run(Grade)
