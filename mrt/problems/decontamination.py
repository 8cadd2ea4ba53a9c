"""Decontamination: whether two datasets share a problem."""

import math
import re
import unicodedata
from collections.abc import Iterable

from mrt.problems.filters import without_markup

Shingles = set[str]  # each is its tokens joined by spaces
SHINGLE = 10  # tokens
OVERLAP = 0.4  # share of the shorter problem's shingles


def squeezed(problem: str) -> str:
    """A problem's text without white space: equal for exact duplicates."""
    return "".join(problem.split())


def plain_math(problem: str) -> str:
    """A problem's text in lower case, with its LaTeX normalised, and drawings and layout removed."""
    plain = re.sub(r"\[asy\].*?\[/asy\]", " ", unicodedata.normalize("NFKC", problem), flags=re.DOTALL | re.IGNORECASE)
    plain = re.sub(r"\\[dt]frac\b", r"\\frac", plain)
    plain = re.sub(r"\\(?:left|right|displaystyle|limits|[bB]igg?[lr]?)(?![a-zA-Z])", " ", plain)
    plain = re.sub(r"\\(?:not\s*=|neq?(?![a-zA-Z]))", " != ", plain)
    plain = re.sub(r"\\([lg])(?:eqslant|eq|e)(?![a-zA-Z])", r" \\\1e ", plain)
    return re.sub(r"\\[()\[\]]|\$", " ", without_markup(plain)).lower()


class Sets:
    """Problems that another set must not share.

    A problem is shared if its text equals one of these up to case, white space, punctuation and LaTeX layout, or if the
    two problems have in common at least 40% of the shorter one's 10-token shingles (tokens are words, numbers and
    operators). A single common shingle, even of 13 tokens, is too weak a criterion: it drops 217 of the 975 AIME
    problems of 1983-2023 against five benchmarks, because of phrases such as "where m and n are relatively prime
    positive integers".
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.equal: set[str] = set()
        self.own: list[Shingles] = []  # of each problem
        self.owners: dict[str, list[int]] = {}
        for owner, problem in enumerate(problems):
            self.equal.add(self.key(problem))
            self.own.append(self.shingles(problem))
            for shingle in self.own[-1]:
                self.owners.setdefault(shingle, []).append(owner)
        self.owners_rarely: dict[str, list[int]] = {}  # the same, for each problem's rare shingles only
        for owner, shingles in enumerate(self.own):
            for shingle in self.rare(shingles):
                self.owners_rarely.setdefault(shingle, []).append(owner)

    @staticmethod
    def key(problem: str) -> str:
        return re.sub(r"\s+|[.,;:?!'\"]+(?!\d)", "", plain_math(problem))

    @staticmethod
    def shingles(problem: str) -> Shingles:
        tokens = re.findall(r"[^\W\d_]+|\d+|[-+*/=^<>!]", plain_math(problem))
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
        return any(self.enough(mine, self.own[owner]) for owner in alike)

    @staticmethod
    def enough(mine: Shingles, theirs: Shingles) -> bool:
        common = len(mine & theirs)
        return common > 0 and common >= OVERLAP * min(len(mine), len(theirs))

    def rare(self, shingles: Shingles) -> list[str]:
        """The rarest shingles of a problem, so many that the remaining ones alone are too few to be enough."""
        too_few = max(math.ceil(OVERLAP * len(shingles)), 1) - 1
        return sorted(shingles, key=lambda shingle: len(self.owners.get(shingle, ())))[: len(shingles) - too_few]


def toy_key(problem: str) -> tuple[int, ...]:
    """A key that equal toy problems share: those with the same target and the same numbers in any order."""
    *numbers, target = [int(x) for x in re.findall(r"\d+", problem)] or [0]
    return (*sorted(numbers), target)
