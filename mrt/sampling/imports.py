"""Imported rollouts: completions that were sampled elsewhere become a model's rollouts.

    python -m mrt.sampling.imports --file traces.jsonl --completions.model QwQ-32B \\
        --problems problems.parquet --out rollouts.parquet --reading reading.parquet

The file (JSONL, Parquet or CSV) has one row per completion, with `problem_id` and `text`, and optionally `model`,
`prompt`, `tokens` and `finish_reason`. Files of evaluation harnesses are read too (`mrt.problems.harnesses`); their
rows are numbered by completion. Rows whose problem is not in the dataset are left out and counted; several rows
of one problem are its samples, in the order of the file.

Each row says whether its text begins inside a thought (`inside`), by the first of these that applies:

- its prompt: an opening tag at its end, or in the model's turn, leaves a thought open;
- its text: one that begins with an opening tag opens the thought itself; one that closes a thought which it did not
  open begins inside it;
- `begins`, if it is given. `outside` also counts where prompts open thoughts and no text of the model closes one, as
  where its reasoning was taken out of the texts;
- its prompt: one that ends in the model's turn opens no thought, so the text is an answer. This holds unless a text of
  the model closes a thought that nothing opened: then the prompts of the file lack their ends;
- otherwise the text is an answer, unless rows of its model show thoughts. Then it is unknown whether this one was cut
  off in a thought, and the import stops with the numbers of such rows. A prompt shows a thought if it has an opening
  tag followed by other text, and no turn of a chat: the tag may be the prompt's or the question's.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import polars as pl
from pydantic import Field, model_validator

from mrt.core.artifacts import PROBLEMS, READING, ROLLOUTS
from mrt.core.cli import Stage, run
from mrt.core.settings import Settings
from mrt.episodes.thinking import (
    FAMILIES,
    THINK,
    Setting,
    Thinking,
    answers_at_once,
    ends_in_turn,
    in_prompt,
    opens_later,
    shown_in,
    take_apart,
    whole,
)
from mrt.grading.equality import exact
from mrt.problems.decontamination import contents, squeezed
from mrt.problems.harnesses import Rows, expected, flattened
from mrt.problems.sources import check_characters, read_file, text

USED = ("problem_id", "text", "model", "prompt", "tokens", "finish_reason")
ENDED = (
    "stop",
    "eos",
    "eos_token",
    "end",
    "end_turn",
    "stop_sequence",
    "stop_token",
    "completed",
    "complete",
    "finished",
    "tool_calls",
    "tool_use",
    "function_call",
)
CUT = ("length", "max_tokens", "max_length", "max_output_tokens", "max_new_tokens", "model_length", "token_limit")
ABORTED = ("truncated", "incomplete", "content_filter", "safety", "abort", "aborted", "cancelled", "timeout", "error")
UNKNOWN = ("unknown", "none", "null", "nan", "unspecified")
FINISH = {
    **dict.fromkeys(UNKNOWN, "unknown"),
    **dict.fromkeys(ENDED, "stop"),
    **dict.fromkeys((*CUT, *ABORTED), "length"),
}

# Tokens that end a completion. Tools that decode special tokens leave them in its text; they are no part of an answer.
ENDS = re.compile(
    r"(?:(?:<[|｜](?:im_end|end|endoftext|end_of_text|eot_id|eom_id|return|call|end▁of▁sentence|END_OF_TURN_TOKEN|pad)"
    r"[|｜]>|<(?:eos|pad|end_of_turn|turn\|)>|\[EOS\]|</s>)\s*)+\Z"
)
# Those after which a run-on text goes on with another turn; `<|end|>` may be between a model's own messages.
TURN_ENDS = re.compile(
    r"(?:<[|｜](?:im_end|endoftext|end_of_text|eot_id|end▁of▁sentence)[|｜]>|<end_of_turn>)\s*<[|｜]?(?:im_start|start).*",
    re.DOTALL,
)
CLOSES, OPENED = "the text closes a thought", "the prompt opens a thought"


class Completions(Settings):
    """Which completions of a file are a model's, and how they are read."""

    model: str | None = Field(None, description="Keep only the rows with this `model`.")
    thinking: Setting = Field(
        "auto",
        description="How the model writes thoughts. auto: as the tags of its texts and prompts show. none: it"
        " writes no thoughts. Or the texts that open and close a thought, `{open: ..., close: ...}`.",
    )
    begins: Literal["inside", "outside"] | None = Field(
        None,
        description="Whether texts begin inside a thought, for rows that do not show it: their prompt opens"
        " none, and their text has no tag. Needed if other rows of the model show thoughts. `outside` also counts"
        " where prompts open thoughts and no text closes one.",
    )

    @model_validator(mode="after")
    def _begins_in_a_thought(self) -> Self:
        if self.begins == "inside" and self.thinking == "none":
            raise ValueError(
                "`begins: inside` says that texts begin inside a thought, and `thinking: none` that the model writes"
                " none; leave out one of them"
            )
        return self


class Place(NamedTuple):
    """Where a text begins (None: unknown), the evidence, and whether this shows that the model writes thoughts."""

    inside: bool | None
    by: str
    shows: bool = False


class Row(NamedTuple):
    """A completion of a file, with the number of its row."""

    number: int
    problem_id: str
    text: str
    prompt: str
    tokens: int | None
    finish_reason: str
    inside: bool
    thinking: Thinking | None
    by: str  # what said where the text begins


def _string(row: Mapping[str, Any], name: str) -> str | None:
    value = row.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        shown = f"{value!r}"[:80]
        hint = "; a chat message's text is its `content`" if isinstance(value, dict | list) else ""
        raise ValueError(f"{name} is no text but {shown}{hint}")
    try:
        check_characters(value)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from error
    return value


def _tokens(value: Any) -> int | None:
    """A number of tokens; raises ValueError for anything but a whole number from 0 on (64 bits), or its digits."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    number = value
    if isinstance(number, str) and re.fullmatch(r"\s*\d+(\.0*)?\s*", number):
        number = float(number)
    whole = isinstance(number, int) and not isinstance(number, bool)
    if not (whole or (isinstance(number, float) and number.is_integer())) or not 0 <= number < 2**63:
        raise ValueError(f"tokens is no number of tokens: {value!r}")
    return int(number)


def _finish(reason: str | None) -> str:
    """stop, length or unknown; raises ValueError for a reason that is not known."""
    if reason is None or not reason.strip():
        return "unknown"
    name = re.sub(
        r"\A(?:\w+\.)?(?:finish_reason_)?", "", reason.strip().lower()
    )  # of an enumeration: FinishReason.STOP
    finish = "stop" if re.fullmatch(r"<[^<>\s]+>", name) else FINISH.get(name)  # the token that ended it: <|im_end|>
    if finish is None:
        known = f"{', '.join(ENDED)}, a token as <eos> (ended by itself); {', '.join((*CUT, *ABORTED))} (cut); unknown"
        raise ValueError(f"finish_reason {reason!r} is not known; these are: {known}")
    return finish


def completions_in(file: Path, settings: Completions | None = None) -> list[Row]:
    """The completions of a file that are a model's (`settings.model`), or all.

    Raises ValueError that names the row. Reasons: a required column is missing, a value is of another type or half a
    character, a finish reason is unknown. Others: there are several models, or nothing says where a text begins.
    """
    return completions_of(file, flattened(file, read_file(file)), settings or Completions())


def completions_of(file: Path, rows: Rows, settings: Completions) -> list[Row]:
    """The same, of the rows of a file that was read already. Raises as `completions_in`."""
    names = dict.fromkeys(name for _, row in rows for name in row)
    missing = [name for name in ("problem_id", "text", *(["model"] if settings.model else [])) if name not in names]
    if missing:
        kinds = f"; files of harnesses are read too: {expected()}" if rows and missing != ["model"] else ""
        raise ValueError(f"{file}: no column {', '.join(missing)}; found {', '.join(names) or 'no rows'}{kinds}")
    csv, chosen, models = file.suffix.lower() == ".csv", list[tuple[int, dict[str, Any]]](), set[str | None]()
    for number, row in rows:
        given = {name: row.get(name) for name in USED}
        if csv:  # an empty cell is null, unless it is the text
            given = {name: value if value or name == "text" else None for name, value in given.items()}
        try:
            model = _string(given, "model")
            models.add(model)
            if settings.model not in (None, model):
                continue
            given["problem_id"] = text(given["problem_id"])  # as ids of problems are read
            if given["problem_id"] is None:
                raise ValueError("problem_id is empty or missing")
            if given["text"] is None:
                raise ValueError("text is null; leave the row out, or write an empty text")
            given |= {name: _string(given, name) for name in ("text", "prompt")}
            given["text"] = ENDS.sub("", TURN_ENDS.sub("", given["text"]))
            given |= {"tokens": _tokens(given["tokens"]), "finish_reason": _finish(_string(given, "finish_reason"))}
        except ValueError as error:
            raise ValueError(f"{file}, row {number}: {error}") from error
        chosen.append((number, given))
    named = ", ".join(sorted(filter(None, models)))
    if settings.model and not chosen:
        raise ValueError(f"{file}: no row has model {settings.model!r}; there are {named}")
    if settings.model is None and len(models) > 1:
        none = ", or name none" if None in models else ""
        raise ValueError(
            f"{file}: its rows are of several models ({named}{none}), whose mean would be of none; choose one by"
            f" `rollouts: {{model: {min(filter(None, models))}}}`"
        )
    return _with_starts(file, chosen, settings)


def _with_starts(file: Path, rows: Sequence[tuple[int, dict[str, Any]]], settings: Completions) -> list[Row]:
    """The rows of one model, with where their texts begin."""
    thinking = _tags_of(file, rows, settings)
    for number, row in rows if settings.thinking == "none" else ():
        if take_apart(row["text"], thinking=None) != whole(row["text"]):
            raise ValueError(
                f"{file}, row {number}: the text shows a thought, and `thinking: none` says that the model writes none:"
                f" {row['text'].strip()[:60]!r}. If it is one, leave `thinking` out or say how the model writes them:"
                " `rollouts: {thinking: {open: ..., close: ...}}`; if it belongs to the answer, take its tags out of"
                " the file"
            )
    places = {number: _place(row, thinking) for number, row in rows}
    if settings.begins is None and not any(place.by.startswith(CLOSES) for place in places.values()):
        for number, row in rows:  # prompts are whole, as far as the texts tell
            if places[number].inside is None and not places[number].shows and ends_in_turn(row["prompt"] or ""):
                places[number] = Place(False, "an answer, as the prompt ends in the model's turn and opens no thought")
    shows = next(((number, place.by) for number, place in places.items() if place.shows), None)
    undecided = [number for number, place in places.items() if place.inside is None]
    if undecided and shows is not None and settings.begins is None:
        listed = ", ".join(map(str, undecided[:5])) + (", ..." if len(undecided) > 5 else "")
        raise ValueError(
            f"{file}: row {shows[0]} shows a thought ({shows[1]}), and {len(undecided)} rows of the same model do not"
            f" say where they begin, neither by a tag nor by the end of a prompt (rows {listed}). Do they begin inside"
            " a thought, which is then cut off and has no answer, or are they answers? Say so: `rollouts: {begins:"
            " inside}` or `outside`"
        )
    if settings.begins == "outside" and not any(_closes(row["text"], thinking) for _, row in rows):
        places = {number: Place(None, "") if place.by == OPENED else place for number, place in places.items()}
    if settings.begins:
        rest = (settings.begins == "inside", f"`begins: {settings.begins}`")
    else:
        rest = (False, "an answer without a thought")
    result = []
    for number, row in rows:
        place = places[number]
        inside, by = rest if place.inside is None else (place.inside, place.by)
        values = (row["problem_id"], row["text"], row["prompt"] or "", row["tokens"], row["finish_reason"])
        result.append(Row(number, *values, inside, thinking, by))
    return result


def _closes(text: str, thinking: Thinking | None) -> bool:
    """Whether a text closes a thought, if its prompt opened one."""
    return take_apart(text, inside=True, thinking=thinking).closed


def _tags_of(file: Path, rows: Sequence[tuple[int, dict[str, Any]]], settings: Completions) -> Thinking | None:
    """How a model writes thoughts: as the settings say, else by the tags that its texts and prompts show."""
    if isinstance(settings.thinking, Thinking):
        return settings.thinking
    if settings.thinking == "none":
        return None
    shown: dict[Thinking, int] = {}
    for number, row in rows:
        for thinking in shown_in(row["text"], row["prompt"] or ""):
            shown.setdefault(thinking, number)
    written = "\n".join(f"{row['prompt'] or ''}\n{row['text']}" for _, row in rows)
    for thinking in [kind for kind in shown if kind.opening not in written]:
        if any(kind is not thinking and kind.closing == thinking.closing for kind in shown):
            del shown[thinking]  # the file has another opening tag
    say = "`rollouts: {thinking: {open: ..., close: ...}}`"
    if len(shown) > 1:
        tags = " and ".join(f"{t.opening} (row {n})" for t, n in shown.items())
        raise ValueError(f"{file}: the texts of one model show thoughts in {tags}; say which are its own: {say}")
    for thinking, number in shown.items():
        if thinking not in FAMILIES and not re.search(thinking.patterns[1], written):
            raise ValueError(
                f"{file}: row {number} opens a thought with {thinking.opening}, and no text closes one with"
                f" {thinking.closing}; say how this model writes thoughts: {say}"
            )
    return next(iter(shown), THINK if settings.begins else None)


def _place(row: Mapping[str, Any], thinking: Thinking | None) -> Place:
    """Where a text begins."""
    if thinking is None:
        return Place(None, "")
    written, prompt = row["text"], in_prompt(row["prompt"] or "", thinking)
    if prompt == "opens":
        return Place(True, OPENED, shows=True)
    parts = take_apart(written, thinking=thinking)
    if answers_at_once(written, thinking):
        return Place(False, "the text opens with the header of an answer", shows=True)
    if re.match(rf"\s*(?:{thinking.patterns[0]})", written):
        return Place(False, "the text opens a thought", shows=True)
    if parts.closed and not parts.opening:
        return Place(True, f"{CLOSES} with {thinking.closing}", shows=True)
    if prompt == "closes":
        return Place(False, "an answer, as the prompt closes the thought", shows=True)
    if parts.opening:
        shows = parts.closed or opens_later(written, thinking)
        return Place(False, "the text opens a thought later on", shows=shows)
    return Place(None, f"{thinking.opening} stands in its prompt, with text behind it", shows=prompt == "may open")


def check_ids(file: Path, rows: Iterable[Row], ids: Collection[str], dataset: str) -> None:
    """Raise ValueError if no completion is of a problem with one of these ids."""
    problem_ids = {row.problem_id: None for row in rows}
    if not problem_ids.keys() & set(ids):
        theirs, ours = (", ".join(map(repr, [*names][:3])) for names in (problem_ids, ids))
        raise ValueError(
            f"{file}: no completion is of a problem of {dataset}: problem_id is {theirs or 'nowhere'} ..., ids of the"
            f" problems are {ours} ... (without a column `id`, <set>-<row>, rows from 0)"
        )


def check_apart(file: Path, rows: Iterable[Row], problems: Mapping[str, Mapping[str, str]]) -> None:
    """Raise ValueError if the id of a completion is that of different problems; `problems` are by dataset and id."""
    names = dict.fromkeys(row.problem_id for row in rows)
    first: dict[str, tuple[str, str]] = {}
    for dataset, texts in problems.items():
        for name in (name for name in names if name in texts):
            other, problem = first.setdefault(name, (dataset, texts[name]))
            if problem != texts[name]:
                raise ValueError(
                    f"{file}: the id {name!r} is of a problem of {other} and of another one of {dataset}. Write a file"
                    " for each set, of two models with `evaluate_on`, or give the sets ids of their own"
                )


def check_prompts(file: Path, rows: Sequence[Row], problems: Mapping[str, str], dataset: str) -> None:
    """Warn of prompts that do not contain the problem with their id; `problems` are texts by id.

    Raises ValueError, with the row, for prompts that show that ids are of different problems. They contain another
    problem (of at least 20 characters), or lack one that another prompt with the same id contains.
    """
    texts = {name: squeezed(problem) for name, problem in problems.items()}
    prompts = {row: squeezed(row.prompt) for row in rows if row.prompt and row.problem_id in texts}
    strangers = [row for row, prompt in prompts.items() if texts[row.problem_id] not in prompt]
    right_ids = {row.problem_id for row in prompts.keys() - {*strangers}}
    for row in strangers:
        others = [name for name, text in texts.items() if len(text) >= 20 and text in prompts[row]]
        if others or row.problem_id in right_ids:
            which = f"has the problem {others[0]!r}" if others else "lacks it, which other rows with this id have"
            raise ValueError(f"{file}, row {row.number}: its problem_id is {row.problem_id!r}, and its prompt {which}")
    if strangers:
        print(
            f"warning: {len(strangers)} of {len(prompts)} prompts lack the problem of {dataset} with their id,"
            f" such as that of row {strangers[0].number} ({strangers[0].problem_id!r})"
        )


def check_golds(file: Path, rows: Rows, problems: pl.DataFrame, dataset: str) -> None:
    """Warn of gold answers of a harness's file that differ from those of the problems with the same id.

    Raises ValueError if most of them do: ids of a harness are places in its data set, perhaps of other problems.
    """
    ours = dict(problems.select("id", "answer").iter_rows())
    theirs = {row["problem_id"]: row["answer"] for _, row in rows if row.get("answer") and row["problem_id"] in ours}
    differ = {name: gold for name, gold in theirs.items() if exact(gold, ours[name]) is not True}
    if not differ:
        return
    name = next(iter(differ))
    what = (
        f"{len(differ)} of {len(theirs)} gold answers are not those of {dataset}, such as of the problem {name!r}:"
        f" {differ[name]!r}, there {ours[name]!r}"
    )
    if len(differ) > len(theirs) / 2:
        raise ValueError(f"{file}: {what}; its ids seem to be of other problems")
    print(f"warning: {what}")


class Import(Stage):
    """Make rollouts from a file of completions."""

    file: Path = Field(description="Completions (JSONL, Parquet or CSV).")
    problems: Path = Field(description="Dataset (Parquet).")
    others: list[Path] = Field([], description="Other datasets (Parquet) whose problems the file has completions of.")
    out: Path = Field(description="Rollouts (Parquet).")
    reading: Path = Field(description="Number of rows that were read in each way (Parquet).")
    completions: Completions = Field(
        default_factory=Completions, description="Which completions are the model's, and how they are read."
    )

    def cli_cmd(self) -> None:
        raw = read_file(self.file)
        flat = flattened(self.file, raw)
        rows = completions_of(self.file, flat, self.completions)
        problems = PROBLEMS.read(self.problems, ["id", "answer", "extra"])
        ids = problems["id"].to_list()
        texts = {path.stem: dict(contents(path)["id", "content"].iter_rows()) for path in (self.problems, *self.others)}
        check_ids(self.file, rows, ids, self.problems.stem)
        check_apart(self.file, rows, texts)
        check_prompts(self.file, rows, texts[self.problems.stem], self.problems.stem)
        # elsewhere a column `answer` need not be a gold answer; with `extra` the task may have changed the gold answer
        if flat is not raw and "extra" not in problems.columns:
            check_golds(self.file, flat, problems, self.problems.stem)
        samples, known, kept = Counter[str](), set(ids), list[tuple[Any, ...]]()
        how = Counter[str]()
        for row in rows:
            if row.problem_id in known:
                how[f"{'begin inside a thought' if row.inside else 'begin outside a thought'}: {row.by}"] += 1
                tags = row.thinking.cell() if row.thinking else None
                size_and_end = (row.tokens, None, row.finish_reason, None)
                kept.append(
                    (row.problem_id, samples[row.problem_id], row.prompt, row.text, *size_and_end, row.inside, tags)
                )
            else:
                how[f"are of problems outside {self.problems.stem} and left out"] += 1
            samples[row.problem_id] += 1
        table = pl.DataFrame(kept, schema=ROLLOUTS.columns, orient="row").sort(ROLLOUTS.keys)
        how["are empty"] = table.filter(text="").height
        how["are cut off"] = table.filter(finish_reason="length").height
        ROLLOUTS.write(table, self.out)
        read = [(what, count) for what, count in how.most_common() if count]
        READING.write(pl.DataFrame(read, schema=READING.columns, orient="row"), self.reading)
        print(f"{table.height} of {len(rows)} rows imported")
        print(*(f"{count} {what}" for what, count in read), sep="\n")
        opened = [row for row in rows if row.by == OPENED]
        if opened and not any(_closes(row.text, row.thinking) for row in rows):
            print(
                f"warning: {len(opened)} prompts open a thought, and no text closes one, so none has an answer. If the"
                " reasoning was taken out of the texts, set `rollouts: {begins: outside}`"
            )
        if uncounted := table["tokens"].null_count():
            what = f"{uncounted} of {table.height} completions have no `tokens`"
            print(f"warning: {what}: figures and tables against tokens leave them out")
        if unsampled := len(ids) - table["problem_id"].n_unique():
            print(
                f"{unsampled} problems of {self.problems.stem} have no completion: this model is measured without them"
            )


if __name__ == "__main__":
    run(Import)
