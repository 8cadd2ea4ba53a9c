"""The task `choice`: one of several options, which the problem's row holds (GPQA, MMLU-Pro, AQuA, ARC)."""

import random
import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any, Literal

from pydantic import Field

from mrt.grading.answers import boxed, tagged
from mrt.grading.task import Row, Task

_LABEL = r"[(\[]?\s*{}\s*(?:[).:\]]|\s-)\s*"  # `A)`, `(A)`, `A.`, `A:` before an option's text
_WRAPPED = re.compile(r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf|sf)|mbox|boxed)\s*\{([^{}]*)\}")
_STATED = re.compile(r"(?i)\b(?:answer|choice|option)[\s*_]*(?:\bis\b[\s*_]*:?|[:=])[\s*_]*([^\n]*)")
_CALLED_RIGHT = re.compile(r"\b(?i:option|choice|answer)\s+\(?([A-Z])\)?\s+is\s+(?:the\s+)?(?:correct|right)\b")
_NAMED = re.compile(  # letters that name an option, and are not words ("A force", "I hope") or called wrong
    r"(?:[(\[]\s*|\b(?i:or|and|maybe|perhaps|actually|no|wait|but|mean|as|it(?:'s|\s+is)"
    r"|(?:option|choice|answer)(?:\s+is)?:?)[\s,]+[*(]*"
    r"|(?:^|[,;.&/])\s*(?=[A-Z]\s*(?:[,;.&/]|$)))([AI](?!\s+[a-z])|[B-HJ-Z])(?![A-Za-z'])"
    r"(?!\W*\s(?:is|was|are)\s+(?:not|wrong|incorrect|false)\b)"
)
_CHOSEN = re.compile(
    r"(?:(?i:option|choice|answer)\s*:?\s*)?[(\[]?\s*([A-Z])\s*[)\]]?\s*(?:[.:,-]\s*|\s|$)(.*)", re.DOTALL
)


class Choice(Task):
    """One of several options: right by its letter, or by its text; never if two are named."""

    options: str | tuple[str, ...] = Field(
        "options",
        description="Column of the options: a list, or letters with texts. Or several columns of one option each.",
    )
    gold: Literal["auto", "letter", "text", "index"] = Field(
        "auto", description="How the source writes the right option; `index` counts from 0."
    )
    shuffle: int | None = Field(
        None, ge=0, description="Seed by which the options of each problem are shuffled; else the source's order."
    )

    @property
    def columns(self) -> Sequence[str]:  # type: ignore[override]
        """The columns of the options."""
        return (self.options,) if isinstance(self.options, str) else self.options

    def options_in(self, problem: Row) -> dict[str, str]:
        """The options in the columns of a problem (`options_of`)."""
        of_columns = [problem[name] for name in self.columns]
        return options_of(of_columns[0] if isinstance(self.options, str) else of_columns)

    def posed(self, problem: Row) -> Row:
        """The problem with its options below, lettered; its answer is a letter. Raises ValueError if none is right."""
        options = self.options_in(problem)
        gold = self.gold_text(problem["answer"], options, complete=isinstance(self.options, str))
        texts = [*options.values()]
        if gold not in texts:
            if self.shuffle is None:
                raise ValueError("its right option has a column of its own, and would always be A; set `shuffle: 0`")
            texts = [gold, *texts]
        if len({plain(text) for text in texts}) < len(texts) or not 2 <= len(texts) <= len(ascii_uppercase):
            raise ValueError(f"its options are {texts}; they must be 2 to 26 different ones")
        if self.shuffle is not None:
            random.Random(f"{self.shuffle} {problem['problem']}").shuffle(texts)
        lettered = "\n".join(f"{letter}) {text}" for letter, text in zip(ascii_uppercase, texts, strict=False))
        ask = "Answer with the letter of the right option."
        letter = ascii_uppercase[texts.index(gold)]
        return {**problem, "problem": f"{problem['problem']}\n\n{lettered}\n\n{ask}", "answer": letter, "texts": texts}

    def content(self, problem: Row) -> str:
        """The question with its options, sorted, since many questions begin alike."""
        options = self.options_in(problem).values()
        further = [] if isinstance(self.options, str) or len(str(problem["answer"])) == 1 else [str(problem["answer"])]
        return "\n".join([str(problem["problem"]), *sorted({*options, *further})])

    def gold_text(self, answer: str, options: Mapping[str, str], *, complete: bool) -> str:
        """The text of the right option; `complete`: the options hold it. Raises ValueError for none, or two."""
        texts, label = [*options.values()], answer.strip("() .").upper()
        by_place = dict(zip(ascii_uppercase, texts, strict=False))
        by_label = (
            options if label in options or any(len(each) == 1 and each.isalpha() for each in options) else by_place
        )
        readings = {
            "letter": [by_label[label]] if label in by_label else [],
            "text": [text for text in texts if plain(text) == plain(answer)],
            "index": [texts[int(answer)]] if answer.isdecimal() and int(answer) < len(texts) else [],
        }
        kinds = ["letter", "text"] if self.gold == "auto" else [self.gold]
        golds = {text for kind in kinds for text in readings[kind]}
        if len(golds) == 1 and (complete or self.gold != "auto" or not readings["letter"]):
            return golds.pop()
        if not complete and not golds and self.gold in ("auto", "text"):  # the answer's column has the right option
            return answer
        fault = "may mean several" if golds else "is none"
        raise ValueError(f"its answer {answer!r} {fault} of the options {texts}; `gold` says how it is written")

    def answer(self, part: str, problem: Row) -> str | None:
        texts = problem["texts"]
        box = boxed(part)
        if box is not None:
            return letter_of(box, texts)
        part = tagged(part) or part
        stated = [letter_stated(statement, texts) for statement in _STATED.findall(part)]
        called = _CALLED_RIGHT.findall(part)
        if not (stated or called):
            return letter_of(part, texts)
        rest = _CALLED_RIGHT.split(part)[-1]
        if not stated and named(rest, texts) - {*called}:  # as in "one could think that option A is correct, but (C)"
            return None
        letters = {*stated, *called}
        return letters.pop() if len(letters) == 1 else None

    def right(self, answers: Sequence[str], problems: Sequence[Row]) -> list[bool]:
        pairs = zip(answers, problems, strict=True)
        return [letter_of(answer, row["texts"]) == row["answer"] for answer, row in pairs]

    def golds(self, problem: Row) -> list[str]:
        letter, texts = problem["answer"], problem["texts"]
        text = texts[ascii_uppercase.index(letter)]
        return [letter, text] if letter_of(text, texts) == letter else [letter]  # an option "B" may be D's text


def options_of(options: Any) -> dict[str, str]:
    """The texts of a source's options by label, by default A, B, ...; labelled ones are in the order of their labels.

    Raises ValueError if they are neither list nor mapping, or labels repeat.
    """
    labels: list[str] | None = None
    if isinstance(options, Mapping):  # {"A": "...", ...}, or ARC's {"label": [...], "text": [...]}
        pairs = isinstance(options.get("text"), list)
        given = options.get("label") or () if pairs else options
        labels = [str(label).strip().strip("() .").upper() for label in given] or None
        options = options["text"] if pairs else list(options.values())
    if not isinstance(options, list):
        raise ValueError(f"its options are {options!r}, neither a list nor letters with texts")
    texts = [str(option).strip() for option in options]
    written = [re.match(_LABEL.format(letter), text) for letter, text in zip(ascii_uppercase, texts, strict=False)]
    if texts and all(written):
        texts = [text[label.end() :] for text, label in zip(texts, written, strict=False) if label]
    labels = labels or [*ascii_uppercase[: len(texts)]]
    if len({*labels}) != len(texts):
        raise ValueError(f"its options have the labels {labels}; each option needs a different one")
    return dict(sorted(zip(labels, texts, strict=True), key=lambda pair: (len(pair[0]), pair[0])))


def unwrapped(text: str) -> str:
    """A text without the commands around it, such as `\\text`."""
    while (bare := _WRAPPED.sub(r"\1", text)) != text:
        text = bare
    return text


def plain(text: str) -> str:
    """A text without mark-up, letter case and white space."""
    return re.sub(r"[\s$*`]|\\[,;:! ()\[\]]|\.\s*$", "", unwrapped(text)).casefold()


def letter_stated(statement: str, texts: Sequence[str]) -> str | None:
    """The letter that "the answer is ..." goes on with; None if it names another one, as in "B, or maybe C"."""
    first = re.split(r"[.,;!]\s|\s+(?:because|since|as|which|so)\b", statement, maxsplit=1)[0]
    letter = letter_of(statement, texts) or letter_of(first, texts)
    if letter is None:
        return None
    return None if named(statement.replace(texts[ascii_uppercase.index(letter)], ""), texts) - {letter} else letter


def named(text: str, texts: Sequence[str]) -> set[str]:
    """The letters of options that a text names, except those that it calls wrong."""
    return {*_NAMED.findall(text)} & {*ascii_uppercase[: len(texts)]}


def letter_of(text: str, texts: Sequence[str]) -> str | None:
    """The letter of the option that a text names, by its letter, by its text, or by both if they agree; else None."""
    text = re.sub(r"\\(?:[,;:! ()\[\]]|q?quad(?![A-Za-z]))|[$*`]", " ", unwrapped(text)).strip().rstrip(".!").strip()
    letters = ascii_uppercase[: len(texts)]
    if (chosen := _CHOSEN.fullmatch(text)) and chosen[1] in letters:
        rest = plain(chosen[2])
        if rest in ("", plain(texts[letters.index(chosen[1])])):
            return chosen[1]
    same = [letter for letter, option in zip(letters, texts, strict=True) if plain(option) == plain(text)]
    small = re.fullmatch(r"[(\[]?\s*([a-z])\s*[)\].]?", text)
    if not same and small and small[1].upper() in letters:
        return small[1].upper()
    return same[0] if len(same) == 1 else None
