"""Problems that are left out: those that ask for a proof, and those that offer options to choose from."""

import re

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
