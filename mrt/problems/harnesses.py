"""Files of evaluation harnesses: problems, gold answers, completions and verdicts, one row a completion.

| file | its columns |
| --- | --- |
| lighteval 0.13, `--save-details`: `details_TASK_DATE.parquet` | `doc`, `model_response`, `metric` |
| lm-evaluation-harness 0.4, `--log_samples`: `samples_TASK_DATE.jsonl` | `doc_id`, `doc`, `target`, `arguments`, ... |
| vLLM's `vllm run-batch`, and OpenAI's batches: the output file | `custom_id`, `response`, `error` |

vLLM documents no other file of completions: `LLM.generate` returns Python objects. A file is recognised by its columns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mrt.grading.answers import find_box

Rows = list[tuple[int, dict[str, Any]]]  # each with its line, or row, from 1
NO_ANSWER = "[invalid]"  # what lm-evaluation-harness writes where its filter matches nothing
PROBLEM = ("problem", "question", "query", "input")  # columns of a dataset that may hold the problem


class Verdict(NamedTuple):
    """A harness's verdict on the completions of a row: a metric's value, with the answer that it read."""

    judge: str  # the metric, and lm-evaluation-harness's filter
    score: float
    answer: str | None  # "" where the harness read no answer; None if the file has none


class Harness(NamedTuple):
    """A kind of file: the columns that identify it, and its reader."""

    columns: tuple[str, ...]
    read: Callable[[Rows], Iterator[dict[str, Any]]]


def harness_of(names: Sequence[str]) -> str | None:
    """The harness that writes these columns; None for another file."""
    return next((name for name, kind in HARNESSES.items() if {*kind.columns} <= {*names}), None)


def expected() -> str:
    """The columns of each kind of file, for messages."""
    return "; ".join(f"{name} ({', '.join(kind.columns)})" for name, kind in HARNESSES.items())


def flattened(file: Path, rows: Rows) -> Rows:
    """The completions of a harness's file as rows of an imported file, numbered from 1; other rows as they are.

    Columns: `problem_id` and `id`, `text`, `unit` (the row of the file), `of` (its number of completions), `verdicts`
    (list of `Verdict`), and where the file has them `problem`, `answer`, `prompt`, `tokens`, `finish_reason`, `model`.
    Raises ValueError that names file and row: a request failed, or a row has no completions.
    """
    name = harness_of([*rows[0][1]]) if rows else None
    if name is None:
        return rows
    try:
        return list(enumerate(HARNESSES[name].read(rows), start=1))
    except ValueError as error:
        raise ValueError(f"{file}, {error} ({name})") from error


def completions(number: int, texts: Any, field: str, common: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each text; raises ValueError that names row and field, if there is none, or one is no text."""
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"row {number}: {field} holds no texts but {str(texts)[:60]}; completions are of generative tasks"
        )
    for text in texts:
        yield {"text": text, "unit": number, "of": len(texts), "id": common["problem_id"], **common}


def gold_in(text: str) -> str:
    """The gold answer in a target, which may be a solution with its answer in a box or after `####`."""
    return find_box(text)[0] or text.strip()


def get(number: int, row: Any, *path: str | int) -> Any:
    """A nested value; raises ValueError that names row and field if it is missing."""
    value = row
    for place in path:
        try:
            value = value[place]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"row {number}: no {'.'.join(map(str, path))}") from None
    return value


def is_score(value: Any) -> bool:
    """Whether a metric's value may be a verdict: 0 to 1."""
    return isinstance(value, bool | int | float) and 0 <= value <= 1


def of_lighteval(rows: Rows) -> Iterator[dict[str, Any]]:
    """Rows of lighteval's details."""
    for number, row in rows:
        doc, response = row["doc"], row["model_response"]
        index = get(number, doc, "gold_index")
        gold = get(number, doc, "choices", index[0] if isinstance(index, list) else index)
        texts, tokens = get(number, response, "text"), response.get("output_tokens") or []
        scores = {judge: float(value) for judge, value in row["metric"].items() if is_score(value)}
        answers = extracted(doc, [*scores]) if len(texts) == 1 else {}
        common = {
            "problem_id": str(get(number, doc, "id")),
            "problem": get(number, doc, "query"),
            "answer": gold_in(gold),
            "prompt": response["input"] if isinstance(response.get("input"), str) else None,
            "verdicts": [Verdict(judge, score, answers.get(judge)) for judge, score in scores.items()],
        }
        for i, completion in enumerate(completions(number, texts, "model_response.text", common)):
            yield completion | (size(tokens[i], doc.get("generation_size")) if i < len(tokens) else {})


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


def of_lm_eval(rows: Rows) -> Iterator[dict[str, Any]]:
    """Rows of lm-evaluation-harness's samples. A problem has a line for each filter, with the same completions."""
    lines: dict[str, Rows] = {}
    for number, row in rows:
        lines.setdefault(str(row["doc_id"]), []).append((number, row))
    filters = {row.get("filter") for _, row in rows}
    for group in lines.values():
        number, row = group[0]
        prompt = get(number, row, "arguments", "gen_args_0", "arg_0")
        doc = row["doc"] if isinstance(row["doc"], dict) else {}
        common = {
            "problem_id": str(row["doc_id"] if doc.get("id") is None else doc["id"]),
            "problem": next((doc[name] for name in PROBLEM if isinstance(doc.get(name), str)), prompt),
            "answer": gold_in(str(row["target"])),
            "prompt": prompt if isinstance(prompt, str) else None,
            "verdicts": [verdict for line in group for verdict in verdicts_of(*line, several=len(filters) > 1)],
        }
        yield from completions(number, get(number, row, "resps", 0), "resps", common)


def verdicts_of(number: int, row: Mapping[str, Any], several: bool) -> Iterator[Verdict]:
    """The verdicts of a line of lm-evaluation-harness, of a file with one filter or `several`."""
    answer: str | None = None  # without a filter a metric reads the text itself
    if row.get("filter") not in (None, "none"):
        answer = str(get(number, row, "filtered_resps", 0)).replace(NO_ANSWER, "")
    for metric in row["metrics"]:
        if is_score(value := get(number, row, metric)):
            yield Verdict(f"{metric}, {row.get('filter')}" if several else metric, float(value), answer)


def of_batch(rows: Rows) -> Iterator[dict[str, Any]]:
    """Rows of a batch's output: chats and completions. Reasoning that vLLM's parser took out is put back in tags."""
    for number, row in rows:
        if row["error"] or (row["response"] or {}).get("status_code") not in (None, 200):
            raise ValueError(
                f"row {number}: the request {row['custom_id']!r} failed: {str(row['error'] or row['response'])[:120]};"
                " run it again, or remove the row"
            )
        body = get(number, row, "response", "body")
        choices = get(number, body, "choices")
        common = {"problem_id": str(row["custom_id"]), "model": body.get("model"), "verdicts": []}
        texts = [text_of(choice) for choice in choices]
        for choice, completion in zip(choices, completions(number, texts, "choices", common), strict=True):
            if len(choices) == 1:  # usage counts the tokens of all
                completion["tokens"] = (body.get("usage") or {}).get("completion_tokens")
            yield completion | {"finish_reason": choice.get("finish_reason")}


def text_of(choice: Mapping[str, Any]) -> str | None:
    """The completion of a choice, with its reasoning, if vLLM has separated it, in `<think>`."""
    message = choice.get("message") or {"content": choice.get("text")}
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    if reasoning is None:
        return message.get("content")
    content = message.get("content")
    return f"<think>{reasoning}" if content is None else f"<think>{reasoning}</think>{content}"


HARNESSES = {
    "lighteval": Harness(("doc", "model_response", "metric"), of_lighteval),
    "lm-evaluation-harness": Harness(
        ("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "metrics"), of_lm_eval
    ),
    "vLLM": Harness(("custom_id", "response", "error"), of_batch),
}
