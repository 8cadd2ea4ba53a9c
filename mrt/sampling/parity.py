"""Parity: the verdicts of an evaluation harness against ours, sample by sample, and why they differ.

    python -m mrt parity samples.jsonl --out parity.csv
    python -m mrt parity batch.jsonl --problems problems.jsonl

The file is one of `mrt.problems.harnesses`. Its gold answers count, unless `problems` has others.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from pydantic import Field
from pydantic_settings import CliPositionalArg

from mrt.core.cli import Stage, run
from mrt.core.markdown import table_of
from mrt.core.storage import write_text
from mrt.episodes.thinking import answer_parts
from mrt.grading.answers import boxed
from mrt.grading.task import Choice, Task, answers_in, clusters, reference, scores, task_of
from mrt.problems.harnesses import Rows, Verdict, expected, flattened, gold_in, harness_of
from mrt.problems.sources import read_file, text
from mrt.sampling.imports import Completions, Row, completions_of

REASONS = {
    "agree": "the verdicts agree",
    "no answer": "they agree, as neither side finds an answer",
    "truncated": "the text or its thought is cut off, and we find no answer",
    "no box": "the text has no box that we can read, and we find no answer or another one",
    "unread": "the harness finds no answer, or overlooks a text equal to the gold answer",
    "another answer": "the two answers are from different places",
    "notation": "only we accept an answer written otherwise than the gold answer",
    "comparison": "only the harness accepts the answer that both find",
    "mean": "the means of several texts differ",
    "unknown": "only the harness accepts the text, and the file lacks its answer",
    "no verdict": "the file has no verdict",
}
COLUMNS = {
    "judge": pl.String,
    "problem_id": pl.String,
    "theirs": pl.Float64,
    "ours": pl.Float64,
    "their_answer": pl.String,
    "our_answer": pl.String,
    "gold": pl.String,
    "reason": pl.String,
}


class Ours(NamedTuple):
    """Our reading of a completion: the answer part, its answer and score; whether the completion was cut off."""

    part: str | None
    answer: str | None
    score: float
    cut: bool


def judged(rows: Sequence[Row], problems: Sequence[Mapping[str, Any]], task: Task) -> list[Ours]:
    """Our verdicts on completions."""
    parts = answer_parts([r.text for r in rows], [r.inside for r in rows], [r.thinking for r in rows])
    answers = answers_in(task, parts, problems)
    cut = [row.finish_reason == "length" or part is None for row, part in zip(rows, parts, strict=True)]
    return list(map(Ours, parts, answers, scores(task, answers, problems), cut))


def reason(verdict: Verdict, ours: Ours, gold: str, same: bool) -> str:
    """Why the verdicts on one completion differ, or that they agree; `same`: the two answers are equal."""
    if verdict.score == ours.score:
        return "no answer" if ours.answer is None and verdict.answer == "" else "agree"
    if ours.answer is None:
        return "truncated" if ours.cut else "no box"
    if verdict.answer == "":
        return "unread"
    if same:
        return "notation" if ours.score > verdict.score else "comparison"
    if verdict.answer is None and ours.score > verdict.score:
        return "unread" if ours.answer.strip() == gold.strip() else "notation"
    if not boxed(ours.part or ""):
        return "no box"
    return "another answer" if verdict.answer else "unknown"


def averaged(judge: str) -> int:
    """The number of first completions whose mean a metric is (lighteval's names); 0 if it is no mean."""
    of_mean = re.match(r"(?:avg@n:|pass@k:k=1&)(?:.*&)?n=(\d+)", judge)
    return int(of_mean[1]) if of_mean else 0


def compared(samples: Rows, ours: Sequence[Ours], golds: Sequence[str], task: Task) -> pl.DataFrame:
    """A row for each verdict of the harness (`COLUMNS`), and for each completion without verdicts."""
    units: dict[int, list[int]] = {}
    for i, (_, sample) in enumerate(samples):
        units.setdefault(sample["unit"], []).append(i)
    cases = [(places, verdict) for places in units.values() for verdict in samples[places[0]][1]["verdicts"]]
    pairs = [[verdict.answer or None, ours[places[0]].answer] for places, verdict in cases]
    problems = [{**samples[places[0]][1], "answer": golds[places[0]]} for places, _ in cases]
    same = [labels[0] == labels[1] >= 0 for labels in clusters(task, pairs, problems)]
    rows = []
    for (places, verdict), equal in zip(cases, same, strict=True):
        first, gold = ours[places[0]], golds[places[0]]
        score, answer, why = first.score, first.answer, ""
        if len(places) == 1:
            why = reason(verdict, first, gold, equal)
        else:
            used = places[: averaged(verdict.judge)]
            score, answer = sum(ours[i].score for i in used) / len(used), None
            why = "agree" if abs(score - verdict.score) < 1e-9 else "mean"
        problem_id = samples[places[0]][1]["problem_id"]
        rows.append((verdict.judge, problem_id, verdict.score, score, verdict.answer, answer, gold, why))
    for (_, sample), our, gold in zip(samples, ours, golds, strict=True):
        if not sample["verdicts"]:
            rows.append((None, sample["problem_id"], None, our.score, None, our.answer, gold, "no verdict"))
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")


def usable(samples: Rows) -> tuple[Rows, dict[str, str]]:
    """The completions with the metrics that can be compared; and why the others cannot."""
    excluded: dict[str, str] = {}
    for _, sample in samples:
        for judge, score, _ in sample["verdicts"]:
            if isnan(score):
                excluded.setdefault(judge, f"row {sample['unit']} has no value from 0 to 1")
            elif sample["of"] == 1 and score not in (0, 1):
                excluded.setdefault(judge, "its values lie between 0 and 1")
            elif sample["of"] > 1 and not 0 < averaged(judge) <= sample["of"]:
                excluded.setdefault(judge, "it is no mean of several texts")
    kept = [
        (number, sample | {"verdicts": [v for v in sample["verdicts"] if v.judge not in excluded]})
        for number, sample in samples
    ]
    return kept, excluded


def golds_in(file: Path) -> tuple[dict[str, str], bool]:
    """Gold answers by id, or by row from 0; and whether no row has an id.

    Raises:
        ValueError: names file and row. An answer is missing, an id has different answers, or there are no rows.
    """
    golds, rows = dict[str, str](), flattened(file, read_file(file))
    for index, (number, row) in enumerate(rows):
        answer = text(row.get("answer"))
        if answer is None:
            raise ValueError(f"{file}, row {number}: no answer; parity reads gold answers from the column `answer`")
        problem_id, gold = text(row.get("id")) or str(index), gold_in(answer)
        if golds.setdefault(problem_id, gold) != gold:
            raise ValueError(f"{file}, row {number}: the id {problem_id!r} has different answers")
    if not golds:
        raise ValueError(f"{file}: it has no rows")
    return golds, all(text(row.get("id")) is None for _, row in rows)


def shown(value: Any) -> str:
    """A value as a cell of a table."""
    if isinstance(value, float):
        return {0.0: "wrong", 1.0: "right"}.get(value, f"{value:.3g}")
    if not value:
        return "-" if value is None else "none"
    line = " ".join(str(value).split())
    return line if len(line) <= 40 else f"{line[:37]}..."


class Parity(Stage):
    """Compare an evaluation harness's verdicts with ours, sample by sample, and say why they differ."""

    timed = False

    file: CliPositionalArg[Path] = Field(description="Details of lighteval, samples of lm-evaluation-harness, a batch.")
    problems: Path | None = Field(
        None,
        description="Problems with gold answers (JSONL, Parquet or CSV; id, answer); by default those of the file.",
    )
    out: Path | None = Field(None, description="Table with a row for each verdict, also those that agree (CSV).")
    rows: int = Field(20, ge=0, description="Number of differing rows that are printed.")
    task: Choice | None = Field(
        None, description="The task that judges: its name, or name and settings; by default math."
    )
    workers: int | None = Field(None, ge=1, description="Worker processes; as many as available CPUs if not given.")
    completions: Completions = Field(default_factory=Completions, description="How the completions are read.")

    def plugins(self) -> tuple[str, ...]:
        return (reference(self.task),)

    def cli_cmd(self) -> None:
        if self.out and self.out.resolve() in {path.resolve() for path in (self.file, self.problems) if path}:
            raise ValueError(f"--out {self.out}: it would replace a file that is read; name another one")
        content = read_file(self.file)
        harness = harness_of([*content[0][1]]) if content else None
        if harness is None:
            columns = ", ".join(content[0][1]) if content else "no rows"
            raise ValueError(f"{self.file}: not a file of a harness; it has {columns}. Expected: {expected()}")
        samples = flattened(self.file, content)
        try:
            rows = completions_of(self.file, samples, self.completions)
        except ValueError as error:
            where = "; for this command `--completions.begins` and `--completions.thinking`"
            raise ValueError(f"{error}{where if '`rollouts: {' in str(error) else ''}") from error
        numbers = {row.number for row in rows}
        samples, excluded = usable([(number, sample) for number, sample in samples if number in numbers])
        golds = self.golds([sample for _, sample in samples])
        problems = [{**sample, "answer": gold} for (_, sample), gold in zip(samples, golds, strict=True)]
        task = task_of(self.task, self.workers)
        table = compared(samples, judged(rows, problems, task), golds, task)
        self.report(harness, samples, table, excluded)
        if self.out:
            write_text(table.write_csv(), self.out)

    def golds(self, samples: Sequence[Mapping[str, Any]]) -> list[str]:
        """The gold answer of each completion; raises ValueError if there is none."""
        known, by_row = golds_in(self.problems) if self.problems else ({}, False)
        missing = [s["problem_id"] for s in samples if s["problem_id"] not in known and (known or "answer" not in s)]
        if missing:
            where = f"{self.problems} has no" if self.problems else "it has no gold answer, or several, of the"
            raise ValueError(
                f"{self.file}: {where} problem {missing[0]!r}; name problems with `id` and `answer`: --problems FILE"
            )
        golds = [known.get(s["problem_id"]) or s["answer"] for s in samples]
        for sample, gold in zip(samples, golds, strict=True):
            if by_row and sample.get("answer", gold) != gold:  # rows that are counted otherwise are other problems
                raise ValueError(
                    f"{self.problems}: row {sample['problem_id']}, counted from 0, has the answer {gold!r}, but"
                    f" {self.file} has {sample['answer']!r}; name the problems in a column `id`"
                )
        return golds

    def report(self, harness: str, samples: Rows, table: pl.DataFrame, excluded: Mapping[str, str]) -> None:
        """Print the counts of each metric, the differing rows, and the meaning of their reasons."""
        problems = table["problem_id"].n_unique()
        print(f"{self.file}: {harness}, {len(samples)} completions of {problems} problems")
        for judge, why in excluded.items():
            print(f"{judge} is not compared: {why}")
        units = len({sample["unit"] for _, sample in samples})
        for (judge,), group in table.group_by("judge", maintain_order=True):
            counts = ", ".join(f"{n} {why}" for why, n in Counter(group["reason"]).most_common())
            counts += f"; {units - group.height} of {units} rows lack it" if judge and group.height < units else ""
            print(f"{judge or 'no metric'}: theirs {percent(group['theirs'])}, ours {percent(group['ours'])}; {counts}")
        differing = table.filter(~pl.col("reason").is_in(["agree", "no answer", "no verdict"]))
        if differing.height and self.rows:
            cells = ([shown(value) for value in row] for row in differing.head(self.rows).rows())
            print(f"\n{table_of(differing.columns, cells)}\n")
            print(*(f"{why}: {REASONS[why]}" for why in differing["reason"].unique(maintain_order=True)), sep="\n")
        if differing.height > self.rows:
            print(f"{differing.height - self.rows} more rows differ; --out FILE.csv has all")


def percent(values: pl.Series) -> str:
    """The mean of verdicts in percent."""
    mean = values.mean()
    return "-" if not isinstance(mean, float) else f"{100 * mean:.1f} %"


if __name__ == "__main__":
    run(Parity)
