"""Problems that are left out: without an answer, those that require a proof, and those that offer options."""

import re
from collections.abc import Collection, Mapping
from typing import Any

NO_ANSWER = re.compile(
    r"(?:(?:the)?answer)?(?:is|was)?not(?:found|available|provided|given)|unanswered|n/a|proof|[?.…_—]+|[-–]{2,}"
    r"|no(?:final)?answer(?:is|was)?(?:found|available|provided|given|extracted)?|(?:答案|证明|過程|过程|證明)?略|见解析|无答案|未找到"
    r"|暂无(?:答案)?|tb[ad]|todo|omitted"
    r"|see(?:the)?(?:solution|explanation|proof|above)|#(?:n/a|ref|value|name|num|null|div/0)"
)  # what data sets write where they have no answer, squeezed
EMPTY = re.compile(r"(?:\\(?:boxed|framebox))?(?:\{\}|\[\]|\(\)|\\\[\\\]|\\\(\\\)|\$+)")  # brackets around nothing
MAYBE_NO_ANSWER = frozenset(("none", "null", "na", "unknown", "missing", "-", "–"))  # which may be answers as well
PROOF_PROBLEM = re.compile(r"\bprove\b|\bshow(?:\s*:|\s+that\b)|\bdemonstrate\s+that\b", re.IGNORECASE)
PROOF_ANSWER = re.compile(
    r"\b(?:dis)?pro(?:of|ofs|ved|ven)\b|\bq\.?\s?e\.?\s?d\b|\bsee (?:the )?(?:above|solution|explanation)\b"
    r"|^\s*\\(?:blacksquare|square)\s*$",
    re.IGNORECASE,
)
OPTION = "A", "B", "C"
OPTION_STYLES = (
    r"(?<![A-Za-z0-9_}}])\(\s*{0}\s*[).:]",  # (A)
    r"(?<![A-Za-z0-9_\\]){0}\s*[:：](?=\s)",  # A: 1, B: 2
    r"(?:^|\n|\s\s|[;|?:)])[\s*$-]*{0}\s*[:.)：．、]",  # A: at the start of a line, or set off by space or a mark
)
OPTION_PATTERNS = [re.compile(".*?".join(style.format(x) for x in OPTION), re.DOTALL) for style in OPTION_STYLES]
OPTION_ANSWER = re.compile(r"\W*(?:(?:the |final |correct |answer |is )*)\W*([A-E])\W*", re.IGNORECASE)


def without_markup(latex: str) -> str:
    r"""Text with LaTeX's fonts and spacing removed: `\textbf{(A)}\ 5 \qquad` becomes `(A) 5`."""
    plain = re.sub(r"\\q?quad\b|\\\\|\\(?:newline|par|hfill|item)\b", "\n", latex)
    plain = re.sub(r"\\(?:text(?:bf|rm|it|sf|tt|normal)?|math(?:rm|bf|it|sf)|bf|rm|boxed)\b\s*", " ", plain)
    return re.sub(r"\\[ ,;:!~]|[{}~]", " ", plain)


def squeezed_word(answer: str) -> str:
    """An answer in lower case without markup and white space, and without marks but `/` and `#` if it has letters."""
    plain = "".join(without_markup(answer).casefold().split())
    return re.sub(r"[^\w/#]|_", "", plain) or plain


def has_no_answer(problem: str, answer: str, row: Mapping[str, Any], words: Collection[str] | None = None) -> bool:
    """Whether an answer is a word for none, as NuminaMath-1.5's `notfound`.

    `words` are those of the settings; by default those of `NO_ANSWER`. Words such as `None` may also be answers, as to
    "how many?". They are words for none only where the source's `row` says that the problem or solution is not valid,
    or that a proof is required. `n/a` is a fraction where the problem speaks of n and a.
    """
    word = squeezed_word(answer)
    if words is not None:
        return word in set(map(squeezed_word, words))
    if EMPTY.fullmatch("".join(answer.split())):
        return True
    if word == "n/a":
        letters = re.findall(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])", problem)
        return not {*re.findall("[A-Za-z]", without_markup(answer))} <= {*letters}
    if word in MAYBE_NO_ANSWER:
        valid = [row.get(name) for name in ("problem_is_valid", "solution_is_valid")]
        invalid = any(value is not None and str(value).casefold() not in ("yes", "true") for value in valid)
        return invalid or is_kind(row, "proof")
    return bool(NO_ANSWER.fullmatch(word))


def is_kind(row: Mapping[str, Any], kind: str) -> bool:
    """Whether the source itself says that a row is of a kind of question (NuminaMath-1.5's `question_type`)."""
    return str(row.get("question_type")).casefold() == kind.casefold()


def asks_proof(problem: str, answer: str) -> bool:
    """Whether a problem, or a part of it, asks to prove or show something, or its answer says so."""
    return bool(PROOF_PROBLEM.search(problem) or PROOF_ANSWER.search(without_markup(answer)))


def offers_choice(problem: str, answer: str) -> bool:
    """Whether a problem lists options A, B, C, or its answer is an option's letter (A to E)."""
    letter = OPTION_ANSWER.fullmatch(without_markup(answer))
    if letter and letter.group(1).isupper():
        return True
    plain = without_markup(problem)
    return any(pattern.search(plain) for pattern in OPTION_PATTERNS)
