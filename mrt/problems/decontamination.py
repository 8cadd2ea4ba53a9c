"""Decontamination: whether two datasets share a problem."""

import json
import math
import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from pathlib import Path

import polars as pl

from mrt.core.artifacts import PROBLEMS
from mrt.grading.equality import as_latex
from mrt.problems.filters import without_markup

Shingles = set[str]  # each is its tokens joined by spaces
SHINGLE = 10  # tokens
COMPARED = "text to compare"  # in the column `extra` of a problem that its task poses; no column of a source
OVERLAP = 0.4  # share of the shorter problem's shingles
TOKEN = re.compile(r"[^\W\d_]+|\d+|[-+*/=^<>!]")  # words, numbers, operators
PUNCTUATION = ".,;:?!'\"" + "。、「」『』《》〈〉【】“”‘’«»؟،؛।॥"
INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")  # soft hyphens, marks of width zero or of direction
UNSPACED = ("THAI ", "LAO ", "KHMER ", "MYANMAR ", "TAI ", "NEW TAI LUE ", "AHOM ", "BALINESE ", "JAVANESE ")
"""Scripts without spaces between words, beside the East Asian ones, as Unicode names their characters (UAX 14)."""


def contents(path: Path) -> pl.DataFrame:
    """Columns id, content and source of a dataset; content is the text by which problems are compared."""
    table = PROBLEMS.read(path, ["id", "problem", "source", "extra"])
    extras = table["extra"] if "extra" in table.columns else [None] * table.height
    pairs = zip(extras, table["problem"], strict=True)
    texts = [json.loads(extra or "{}").get(COMPARED, problem) for extra, problem in pairs]
    return table.select("id", pl.Series("content", texts, dtype=pl.String), "source")


def squeezed(problem: str) -> str:
    """A problem's text without white space: equal for exact duplicates."""
    return "".join(problem.split())


def plain_math(problem: str) -> str:
    """A problem's text in lower case, with its LaTeX normalised, and drawings and layout removed."""
    visible = INVISIBLE.sub("", unicodedata.normalize("NFKC", as_latex(problem)))
    plain = re.sub(r"\[asy\].*?\[/asy\]", " ", visible, flags=re.DOTALL | re.IGNORECASE)
    plain = re.sub(r"(?![0-9])\d", lambda digit: str(unicodedata.decimal(digit[0])), plain)
    plain = re.sub(r"\\[dt]frac\b", r"\\frac", plain)
    plain = re.sub(r"\\(?:left|right|displaystyle|limits|[bB]igg?[lr]?)(?![a-zA-Z])", " ", plain)
    plain = re.sub(r"\\(?:not\s*=|neq?(?![a-zA-Z]))", " != ", plain)
    plain = re.sub(r"\\([lg])(?:eqslant|eq|e)(?![a-zA-Z])", r" \\\1e ", plain)
    return re.sub(r"\\[()\[\]]|\$", " ", without_markup(plain)).lower()


@cache
def is_unspaced(character: str) -> bool:
    """Whether a character is of a script that is written without spaces (Chinese, Japanese, Thai, ...), or of Hangul,
    whose spaces many writers leave out.
    """
    east_asian = unicodedata.east_asian_width(character) in ("W", "F")
    return east_asian or unicodedata.name(character, "").startswith(UNSPACED)


def tokens_of(problem: str) -> list[str]:
    """Words, numbers and operators of a problem; of a script without spaces each character is a token.

    Vowel signs and accents that are separate characters do not count: they would cut words.
    """
    plain = plain_math(problem)
    if plain.isascii():
        return TOKEN.findall(plain)
    bare = "".join(character for character in plain if not unicodedata.category(character).startswith("M"))
    runs = [("".join(run), unspaced) for word in TOKEN.findall(bare) for unspaced, run in groupby(word, is_unspaced)]
    return [token for run, unspaced in runs for token in (run if unspaced else [run])]


class Sets:
    """Problems that another set must not share.

    A problem is shared if its text equals one of these up to case, white space, punctuation and LaTeX layout. It is
    also shared if the two problems have in common at least 40% of the shorter one's 10-token shingles (`tokens_of`). A
    single common shingle, even of 13 tokens, is too weak a criterion. It drops 217 of the 975 AIME problems of
    1983-2023 against five benchmarks, because of phrases such as "where m and n are relatively prime positive
    integers".
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.equal: set[str] = set()
        self.shingles_of: list[Shingles] = []  # of each problem
        self.owners: dict[str, list[int]] = {}
        for owner, problem in enumerate(problems):
            self.equal.add(self.key(problem))
            self.shingles_of.append(self.shingles(problem))
            for shingle in self.shingles_of[-1]:
                self.owners.setdefault(shingle, []).append(owner)
        self.owners_rarely: dict[str, list[int]] = {}  # the same, for each problem's rare shingles only
        for owner, shingles in enumerate(self.shingles_of):
            for shingle in self.rare(shingles):
                self.owners_rarely.setdefault(shingle, []).append(owner)

    @staticmethod
    def key(problem: str) -> str:
        return re.sub(rf"\s+|[{PUNCTUATION}]+(?!\d)", "", plain_math(problem))

    @staticmethod
    def shingles(problem: str) -> Shingles:
        tokens = tokens_of(problem)
        return {" ".join(tokens[at : at + SHINGLE]) for at in range(len(tokens) - SHINGLE + 1)}

    def has(self, problem: str) -> bool:
        """Whether the text is equal to one of the problems."""
        return self.key(problem) in self.equal

    def overlaps(self, problem: str) -> bool:
        """Whether the text has enough shingles in common with one of the problems.

        Two problems with enough shingles in common share at least one rare shingle of the shorter one. Only such pairs
        are compared; otherwise a common phrase would make every problem be compared with every other.
        """
        mine = self.shingles(problem)
        alike = {owner for shingle in mine for owner in self.owners_rarely.get(shingle, ())}
        alike.update(owner for shingle in self.rare(mine) for owner in self.owners.get(shingle, ()))
        return any(self.enough(mine, self.shingles_of[owner]) for owner in alike)

    @staticmethod
    def enough(mine: Shingles, theirs: Shingles) -> bool:
        common = len(mine & theirs)
        return common > 0 and common >= OVERLAP * min(len(mine), len(theirs))

    def rare(self, shingles: Shingles) -> list[str]:
        """The rarest shingles of a problem; the remaining ones alone are too few to be enough."""
        too_few = max(math.ceil(OVERLAP * len(shingles)), 1) - 1
        return sorted(shingles, key=lambda shingle: len(self.owners.get(shingle, ())))[: len(shingles) - too_few]


def toy_key(problem: str) -> tuple[int, ...]:
    """A key that equal toy problems share: those with the same target and the same numbers in any order."""
    *numbers, target = [int(x) for x in re.findall(r"\d+", problem)] or [0]
    return (*sorted(numbers), target)
