"""The task `choice`: one of several options, which the problem's row holds (GPQA, MMLU-Pro, AQuA, ARC)."""

import random
import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any, Literal

from pydantic import Field

from mrt.grading.answers import boxed
from mrt.grading.task import Row, Task

_LABEL = r"[(\[]?\s*{}\s*(?:[).:\]]|\s-)\s*"  # `A)`, `(A)`, `A.`, `A:` before an option's text
_WRAPPED = re.compile(r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf|sf)|mbox|boxed)\s*\{([^{}]*)\}")
_STATED = re.compile(r"(?i)\b(?:answer|choice|option)\s*(?:\bis\b|[:=])\s*([^\n]*)")
_CALLED_RIGHT = re.compile(r"\b(?i:option|choice|answer)\s+\(?([A-Z])\)?\s+is\s+(?:the\s+)?(?:correct|right)\b")
_LETTERS = re.compile(r"(?<![A-Za-z'])([A-Z])(?![A-Za-z'])")
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

    def posed(self, problem: Row) -> Row:
        """The problem with its options below, lettered; its answer is a letter. Raises ValueError if none is right."""
        of_columns = [problem[name] for name in self.columns]
        texts = texts_of(of_columns[0] if isinstance(self.options, str) else of_columns)
        gold = self.gold_text(problem["answer"], texts, complete=isinstance(self.options, str))
        texts = texts if gold in texts else [gold, *texts]
        if len({plain(text) for text in texts}) < len(texts) or not 2 <= len(texts) <= len(ascii_uppercase):
            raise ValueError(f"its options are {texts}; they must be 2 to 26 different ones")
        if self.shuffle is not None:
            random.Random(f"{self.shuffle} {problem['problem']}").shuffle(texts)
        lettered = "\n".join(f"{letter}) {text}" for letter, text in zip(ascii_uppercase, texts, strict=False))
        ask = "Answer with the letter of the right option."
        letter = ascii_uppercase[texts.index(gold)]
        return {**problem, "problem": f"{problem['problem']}\n\n{lettered}\n\n{ask}", "answer": letter, "texts": texts}

    def gold_text(self, answer: str, texts: list[str], *, complete: bool) -> str:
        """The text of the right option; `complete`: the options hold it. Raises ValueError for none, or two."""
        if not complete:  # the answer's column has the right option
            return answer
        by_letter = ascii_uppercase.find(answer.strip("() .").upper()) if len(answer.strip("() .")) == 1 else -1
        readings = {
            "letter": [texts[by_letter]] if 0 <= by_letter < len(texts) else [],
            "text": [text for text in texts if plain(text) == plain(answer)],
            "index": [texts[int(answer)]] if answer.isdecimal() and int(answer) < len(texts) else [],
        }
        kinds = ["letter", "text"] if self.gold == "auto" else [self.gold]
        golds = {text for kind in kinds for text in readings[kind]}
        if len(golds) == 1:
            return golds.pop()
        fault = "may mean several" if golds else "is none"
        raise ValueError(f"its answer {answer!r} {fault} of the options {texts}; `gold` says how it is written")

    def answer(self, part: str, problem: Row) -> str | None:
        texts = problem["texts"]
        box = boxed(part)
        if box is not None:
            return letter_of(box, texts)
        stated = [letter_stated(statement, texts) for statement in _STATED.findall(part)]
        stated += _CALLED_RIGHT.findall(part)
        if not stated:
            return letter_of(part, texts)
        return stated[0] if len({*stated}) == 1 else None

    def right(self, answers: Sequence[str], problems: Sequence[Row]) -> list[bool]:
        pairs = zip(answers, problems, strict=True)
        return [letter_of(answer, row["texts"]) == row["answer"] for answer, row in pairs]

    def golds(self, problem: Row) -> list[str]:
        return [problem["answer"], problem["texts"][ascii_uppercase.index(problem["answer"])]]


def texts_of(options: Any) -> list[str]:
    """The texts of a source's options, without letters. Raises ValueError if they are neither list nor mapping."""
    if isinstance(options, Mapping):  # {"A": "...", ...}, or ARC's {"label": [...], "text": [...]}
        options = options["text"] if isinstance(options.get("text"), list) else list(options.values())
    if not isinstance(options, list):
        raise ValueError(f"its options are {options!r}, neither a list nor letters with texts")
    texts = [str(option).strip() for option in options]
    labels = [re.match(_LABEL.format(letter), text) for letter, text in zip(ascii_uppercase, texts, strict=False)]
    if texts and all(labels):
        texts = [text[label.end() :] for text, label in zip(texts, labels, strict=False) if label]
    return texts


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
    first = re.split(r"[.,;]\s|\s+(?:because|since|as|which|so)\b", statement, maxsplit=1)[0]
    letter = letter_of(statement, texts) or letter_of(first, texts)
    others = {*_LETTERS.findall(statement.replace(texts[ascii_uppercase.index(letter)], ""))} if letter else set()
    return None if others & {*ascii_uppercase[: len(texts)]} - {letter} else letter


def letter_of(text: str, texts: Sequence[str]) -> str | None:
    """The letter of the option that a text names, by its letter, by its text, or by both if they agree; else None."""
    text = re.sub(r"\\(?:[,;:! ]|q?quad(?![A-Za-z]))|[$*`]", " ", unwrapped(text)).strip().rstrip(".").strip()
    letters = ascii_uppercase[: len(texts)]
    if (chosen := _CHOSEN.fullmatch(text)) and chosen[1] in letters:
        rest = plain(chosen[2])
        if rest in ("", plain(texts[letters.index(chosen[1])])):
            return chosen[1]
    same = [letter for letter, option in zip(letters, texts, strict=True) if plain(option) == plain(text)]
    return same[0] if len(same) == 1 else None
