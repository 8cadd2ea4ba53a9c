r"""Grading: find the answer of each completion, judge it by the task of its problem set, and cluster equal answers.

    python -m mrt.grading.grade --problems problems.parquet --answers rollouts.parquet --out grades.parquet

The answer is searched after the thought (`mrt.episodes.thinking`), by the task (`mrt.grading.task`, by default `math`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl
from pydantic import Field

from mrt.core.artifacts import ANSWER, ANSWER_GRADES, GRADES, PROVER, ROLLOUTS
from mrt.core.cli import Stage, run
from mrt.core.storage import columns_of
from mrt.episodes.thinking import answer_parts, of_cell, take_apart, without_tags
from mrt.grading.task import Choice, Row, Task, answers_in, clusters, problem_rows, reference, scores, task_of


def extract_answer(completion: str, inside: bool = False) -> str | None:
    """The answer of a completion to a problem of mathematics; `inside` says that its prompt left a thought open."""
    return answers_in(task_of(), [take_apart(completion, inside=inside).answer], [{}])[0]


def is_correct(completion: str, gold: str, inside: bool = False) -> bool:
    """Whether the answer of a completion equals the gold answer; `inside`: its prompt left a thought open."""
    return scores(task_of(), [extract_answer(completion, inside)], [{"answer": gold}]) == [1.0]


def answers_forced(task: Task, texts: Sequence[str], problems: Sequence[Row]) -> list[str | None]:
    """The answers of forced answers: texts that begin after the closed thought.

    All of such a text is new, but mu may write a tag once more. Where no answer is found after it, the whole text is
    searched.
    """
    answers = answers_in(task, [take_apart(text).answer for text in texts], problems)
    whole = {i: text for i, answer in enumerate(answers) if answer is None and (text := without_tags(texts[i]))}
    for i, answer in zip(whole, answers_in(task, list(whole.values()), [problems[i] for i in whole]), strict=True):
        answers[i] = answer
    return answers


def right_forced(task: Task, texts: Sequence[str], problems: Sequence[Row]) -> list[float]:
    """The score of each forced answer."""
    return scores(task, answers_forced(task, texts, problems), problems)


def grade_table(answers: pl.DataFrame, problems: Mapping[str, Row], task: Task) -> pl.DataFrame:
    """Grades of a rollouts or a prover table: its key columns, answer, parsed, correct, cluster (within a problem).

    `problems` are rows by id. Rows of rollouts say how their texts are taken apart (`inside`, `thinking`); those of a
    prover table are read by `answers_forced`. A column `score` is added where some answer has partial credit. Raises
    KeyError for a problem that `problems` lacks.
    """
    texts, rows = answers["text"].fill_null("").to_list(), [problems[i] for i in answers["problem_id"]]
    if "prefix" in answers.columns:
        extracted = answers_forced(task, texts, rows)
    else:
        tags = list(map(of_cell, answers["thinking"]))
        extracted = answers_in(task, answer_parts(texts, answers["inside"].to_list(), tags), rows)
    places_of: dict[str, list[int]] = {}
    for i, problem_id in enumerate(answers["problem_id"]):
        places_of.setdefault(problem_id, []).append(i)
    cluster, groups = [-1] * len(answers), [[extracted[i] for i in places] for places in places_of.values()]
    labels_of = clusters(task, groups, [problems[problem_id] for problem_id in places_of])
    for places, labels in zip(places_of.values(), labels_of, strict=True):
        for i, label in zip(places, labels, strict=True):
            cluster[i] = label
    score = scores(task, extracted, rows)
    partial = {"score": pl.Series(score, dtype=pl.Float64)} if {*score} - {0.0, 1.0} else {}
    return answers.select(key for key in ANSWER if key in answers.columns).with_columns(
        pl.Series("answer", extracted, pl.String),
        pl.Series("parsed", [answer is not None for answer in extracted], pl.Boolean),
        pl.Series("correct", [value == 1 for value in score], pl.Boolean),
        pl.Series("cluster", cluster, pl.Int64),
        **partial,
    )


class Grade(Stage):
    """Grade rollouts or forced answers: find the answers, judge them by a task, cluster those that are the same."""

    problems: Path = Field(description="Dataset (Parquet): id, answer, and the columns that the task reads.")
    answers: Path = Field(description="Rollouts or forced answers (Parquet): problem_id, sample, text.")
    out: Path = Field(description="Grades (Parquet): the keys, answer, parsed, correct, cluster.")
    task: Choice | None = Field(
        None, description="The task that judges: its name, or name and settings; by default math."
    )
    workers: int | None = Field(None, ge=1, description="Worker processes; as many as available CPUs if not given.")

    def plugins(self) -> tuple[str, ...]:
        return (reference(self.task),)

    def cli_cmd(self) -> None:
        problems, task = problem_rows(self.problems), task_of(self.task, self.workers)
        forced = "prefix" in columns_of(self.answers)
        kind = PROVER if forced else ROLLOUTS
        table = kind.read(self.answers, [*kind.keys, "text", *([] if forced else ["inside", "thinking"])])
        strangers = [i for i in table["problem_id"].unique(maintain_order=True) if i not in problems]
        if strangers:
            raise ValueError(f"{self.answers}: problem {strangers[0]!r} is not in {self.problems}")
        grades = grade_table(table, problems, task)
        (ANSWER_GRADES if forced else GRADES).write(grades, self.out)
        counts = f"{len(grades)} answers, {grades['correct'].sum()} correct, {(~grades['parsed']).sum()} unparseable"
        print("; ".join(filter(None, (counts, task.note()))), flush=True)


if __name__ == "__main__":
    run(Grade)
