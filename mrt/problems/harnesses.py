"""Files of evaluation harnesses: problems, gold answers, completions and verdicts, one row a completion.

| file | its columns |
| --- | --- |
| lighteval 0.13, `--save-details`: `details_TASK_DATE.parquet` | `doc`, `model_response`, `metric` |
| lm-evaluation-harness 0.4.7, `--log_samples`: `samples_TASK_DATE.jsonl` | `doc_id`, `doc`, `target`, ... |
| vLLM's `vllm run-batch`, and OpenAI's batches: the output file | `custom_id`, `response`, `error` |

vLLM documents no other file of completions: `LLM.generate` returns Python objects. A file is recognised by its columns.
"""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

from mrt.grading.answers import find_box

Rows = list[tuple[int, dict[str, Any]]]  # each with its line, or row, from 1
NO_ANSWER = "[invalid]"  # what lm-evaluation-harness writes where its filter matches nothing
PROBLEM = ("problem", "question", "query", "input")  # columns of a dataset that may hold the problem


class Verdict(NamedTuple):
    """A harness's verdict on the completions of a row: a metric's value, with the answer that it read."""

    judge: str  # the metric, and lm-evaluation-harness's filter
    score: float  # 0 to 1; NaN for any other value
    answer: str | None  # "" where the harness read no answer; None if the file has none


class Harness(NamedTuple):
    """A kind of file: the columns that identify it, the column whose equal values are one unit, and its reader."""

    columns: tuple[str, ...]
    unit: str | None
    read: Callable[[list[Any]], Iterator[dict[str, Any]]]
    repeats: bool = False  # whether several units may be of one problem


def harness_of(names: Sequence[str]) -> str | None:
    """The harness that writes these columns; None for another file."""
    return next((name for name, kind in HARNESSES.items() if {*kind.columns} <= {*names}), None)


def expected() -> str:
    """The columns of each kind of file, for messages."""
    return "; ".join(f"{name} ({', '.join(kind.columns)})" for name, kind in HARNESSES.items())


def flattened(file: Path, rows: Rows) -> Rows:
    """The completions of a harness's file as rows of an imported file, numbered from 1; other rows as they are.

    Columns: `problem_id` and `id`, `text`, `unit` (the row of the file), `of` (its number of completions), `verdicts`
    (list of `Verdict`). Where the file has them: `problem`, `answer` (if there is one alone), `prompt`, `tokens`,
    `finish_reason`, `model`.

    Raises:
        ValueError: names file and row. A request failed, a row has no completions, or rows of a unit contradict.
    """
    name = harness_of([*rows[0][1]]) if rows else None
    if name is None:
        return rows
    kind, units = HARNESSES[name], dict[Any, Rows]()
    for number, row in rows:
        if kind.unit and row.get(kind.unit) is None:
            raise ValueError(f"{file}, row {number}: it has no {kind.unit}")
        units.setdefault(str(row[kind.unit]) if kind.unit else number, []).append((number, row))
    completions: list[dict[str, Any]] = []
    first = dict[str, int]()  # row of each problem
    for unit in units.values():
        number = unit[0][0]
        try:
            read = list(kind.read([row for _, row in unit]))
            if not read or not all(isinstance(row["text"], str) for row in read):
                raise ValueError("it has no completions; only generative tasks have them")
        except ValueError as error:
            raise ValueError(f"{file}, row {number}: {error}") from error
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"{file}, row {number}: not as {name} writes it ({error!r})") from error
        problem_id = read[0]["problem_id"]
        if first.setdefault(problem_id, number) != number and not kind.repeats:
            again = f"the problem {problem_id!r} is in row {first[problem_id]}, too; give the file of one task and run"
            raise ValueError(f"{file}, row {number}: {again}")
        completions += [row | {"id": row["problem_id"], "unit": number, "of": len(read)} for row in read]
    return list(enumerate(completions, start=1))


def gold_in(text: str) -> str:
    """The gold answer in a target, which may be a solution with its answer in a box or after `####`."""
    return find_box(text)[0] or text.strip()


def one_of(golds: Sequence[str]) -> dict[str, str]:
    """The column `answer`; none where there are several gold answers, of which we could not compare with each."""
    answers = {gold_in(gold) for gold in golds}
    return {"answer": answers.pop()} if len(answers) == 1 else {}


def score_of(value: Any) -> float:
    """A metric's value if it may be a verdict, from 0 to 1; else NaN."""
    return float(value) if isinstance(value, bool | int | float) and 0 <= value <= 1 else nan


def of_lighteval(rows: list[Any]) -> Iterator[dict[str, Any]]:
    """The completions in a row of lighteval's details."""
    ((doc, response, metric),) = ((row["doc"], row["model_response"], row["metric"]) for row in rows)
    golds = doc["gold_index"] if isinstance(doc["gold_index"], list) else [doc["gold_index"]]
    texts, tokens = response["text"], response.get("output_tokens") or []
    answers = extracted(doc, [*metric]) if len(texts) == 1 else {}
    common = {
        "problem_id": str(doc["id"]),
        "problem": doc["query"],
        **one_of([doc["choices"][index] for index in golds]),
        "prompt": response["input"] if isinstance(response.get("input"), str) else None,
        "verdicts": [Verdict(judge, score_of(value), answers.get(judge)) for judge, value in metric.items()],
    }
    reasonings = response.get("reasonings") or []
    for i, text in enumerate(texts):
        reasoning = reasonings[i] if i < len(reasonings) else None
        whole = with_reasoning(text, reasoning or None)
        yield {**common, "text": whole, **(size(tokens[i], doc.get("generation_size")) if i < len(tokens) else {})}


def extracted(doc: Mapping[str, Any], judges: Sequence[str]) -> dict[str, str]:
    """The answer that lighteval read, by metric. A file keeps one, so of several extracting metrics none is certain."""
    answers = (doc.get("specific") or {}).get("extracted_predictions")
    extracting = [judge for judge in judges if "extractive_match" in judge] or [*judges]
    return {} if answers is None or len(extracting) != 1 else {extracting[0]: ([*answers] or [""])[-1]}


def size(tokens: Sequence[int], limit: int | None) -> dict[str, Any]:
    """Number of tokens, and whether they reach the limit; nothing where lighteval may have padded them to a batch.

    Fewer tokens may be cut too, by the model's context.
    """
    if [*tokens[-1:]] == [*tokens[-2:-1]]:
        return {}
    return {"tokens": len(tokens)} | ({"finish_reason": "length"} if limit is not None and len(tokens) >= limit else {})


def of_lm_eval(rows: list[Any]) -> Iterator[dict[str, Any]]:
    """The completions of a problem in lm-evaluation-harness's samples, which have a row for each filter."""
    first, filters = rows[0], [row.get("filter") for row in rows]
    if len({str([row[name] for name in ("doc", "target", "resps")]) for row in rows}) > 1:  # as texts, as NaN != NaN
        raise ValueError(f"doc_id {first['doc_id']} has different texts in its rows; give the file of one task and run")
    if len({*filters}) < len(filters):
        raise ValueError(f"doc_id {first['doc_id']} has two rows of one filter; give the file of one task and run")
    if len(first["resps"]) != 1:
        raise ValueError(f"doc_id {first['doc_id']} has {len(first['resps'])} requests; only one can be read")
    prompt, doc = first["arguments"]["gen_args_0"]["arg_0"], first["doc"]
    for text in first["resps"][0]:
        yield {
            "problem_id": str(first["doc_id"] if doc.get("id") is None else doc["id"]),
            "problem": next((doc[name] for name in PROBLEM if isinstance(doc.get(name), str)), prompt),
            **one_of(targets(first["target"])),
            "prompt": prompt if isinstance(prompt, str) else None,
            "text": text,
            "verdicts": [verdict for row in rows for verdict in verdicts_of(row)],
        }


def targets(target: Any) -> list[str]:
    """The gold answers in a target. Several are a list of texts, which lm-evaluation-harness writes as Python does."""
    try:
        read = ast.literal_eval(target) if isinstance(target, str) else target
    except (ValueError, SyntaxError):
        read = target
    return read if isinstance(read, list) and read and all(isinstance(x, str) for x in read) else [str(target)]


def verdicts_of(row: Mapping[str, Any]) -> Iterator[Verdict]:
    """The verdicts in a row of lm-evaluation-harness. Without a filter a metric reads the text itself."""
    unfiltered = row.get("filter") in (None, "none")
    read = row["filtered_resps"]
    while isinstance(read, list) and len(read) == 1:
        (read,) = read
    answer = read.replace(NO_ANSWER, "") if isinstance(read, str) and not unfiltered else None
    for metric in row["metrics"]:
        yield Verdict(metric if unfiltered else f"{metric}, {row['filter']}", score_of(row[metric]), answer)


def of_batch(rows: list[Any]) -> Iterator[dict[str, Any]]:
    """The completions of a request in a batch. Reasoning that vLLM's parser took out is put back in tags."""
    (row,) = rows
    response = row["response"] or {}
    if row["error"] or response.get("status_code") not in (None, 200):
        fault = str(row["error"] or response)[:120]
        raise ValueError(f"the request {row['custom_id']!r} failed: {fault}; run it again, or remove the row")
    body = response["body"]
    tokens = (body.get("usage") or {}).get("completion_tokens") if len(body["choices"]) == 1 else None  # else of all
    for choice in body["choices"]:
        yield {
            "problem_id": str(row["custom_id"]),
            "model": body.get("model"),
            "text": text_of(choice),
            "tokens": tokens,
            "finish_reason": choice.get("finish_reason"),
            "verdicts": [],
        }


def text_of(choice: Mapping[str, Any]) -> str | None:
    """The completion of a choice, with its reasoning, if vLLM has separated it, in `<think>`."""
    message = choice.get("message") or {"content": choice.get("text")}
    return with_reasoning(message.get("content"), message.get("reasoning") or message.get("reasoning_content"))


def with_reasoning(content: str | None, reasoning: str | None) -> str | None:
    """The text of a completion whose reasoning is stored apart, with the reasoning in `<think>`."""
    if reasoning is None:
        return content
    return f"<think>{reasoning}" if content is None else f"<think>{reasoning}</think>{content}"


HARNESSES = {
    "lighteval": Harness(("doc", "model_response", "metric"), None, of_lighteval),
    "lm-evaluation-harness": Harness(
        ("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "metrics"), "doc_id", of_lm_eval
    ),
    "vLLM": Harness(("custom_id", "response", "error"), None, of_batch, repeats=True),
}
