r"""Grading: the answer of a completion, right or wrong against the gold answer, and clusters of equal answers.

    python -m mrt.grading.grade --problems problems.parquet --answers rollouts.parquet --out grades.parquet

An answer is looked for after the thought: the last `\boxed{...}` with balanced braces, or what Math-Verify finds. Two
answers are compared first by exact rules that need no algebra (equal text, numbers, fractions, words); what these leave
open goes to Math-Verify, in worker processes. A worker is interrupted at the time limit of a pair, killed if that does
not help (C code cannot be interrupted), and its memory is bounded; the pair then counts as unequal. Each distinct pair
is judged once. A doubtful pair is unequal: accepting a wrong answer is the worse error.
"""

import atexit
import logging
import math
import multiprocessing
import os
import re
import resource
import signal
import threading
import time
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import polars as pl
from pydantic import Field

from mrt.core.artifacts import ANSWER, ANSWER_GRADES, GRADES, PROBLEMS, PROVER, ROLLOUTS
from mrt.core.cli import Stage, run
from mrt.core.storage import columns_of

TIMEOUT = 5.0  # seconds a pair
LONGEST = 2_000  # characters; longer answers are unparseable, and Math-Verify searches only so much of an answer part
MEMORY = 4 << 30  # bytes of address space of a worker
START = 120.0  # seconds a worker may take to import Math-Verify
BATCH = 8  # pairs in a message to a worker

# --- From a completion to its answer ----------------------------------------------------------------------------------

_BOX_TOKEN = re.compile(r"\\\\?(?:boxed|fbox)\s*(\{)|\\.|[{}]", re.DOTALL)
_FILLED = re.compile(r"\S")
_LINKS = re.compile(r"\\q?quad|\\text|\b(?:and|or)\b|\w{1,9}\s*=|[\s$\\()\[\]{},;!.]")
_JOINS = re.compile(r"[,;]|\b(?:and|or)\b")
_LETTER = re.compile(
    r"(?i:answer)(?i:\s+is)?\s*:?\s*(?:[a-z]+\s+){0,3}[(*]{0,3}([A-J])[)*]{0,3}(?=\s{0,3}(?:[.,;:\n]|$))"
)


def answer_part(completion: str, thinking: bool = False) -> str | None:
    """What stands after the last `</think>`; None if the thought never closes.

    `thinking` says that the completion starts inside a thought, the tag having been in the prompt.
    """
    _, closed, tail = completion.rpartition("</think>")
    if closed:
        return tail
    return None if thinking or "<think>" in completion else completion


def boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{...}` or `\fbox{...}` that closes and is not empty, outermost if nested.

    Boxes that follow each other with nothing but "and", "or" or a comma between them make one list. Linear time.
    """
    opened: list[tuple[int, int]] = []  # (start of the token, start of the content or -1), one for each open brace
    boxes: list[tuple[int, int, int]] = []  # start, start of the content, end of the content
    for token in _BOX_TOKEN.finditer(text):
        if token.group(1):
            opened.append((token.start(), token.end()))
        elif token.group() == "{":
            opened.append((token.start(), -1))
        elif token.group() == "}" and opened:
            start, content = opened.pop()
            if content >= 0 and (filled := _FILLED.search(text, content)) and filled.start() < token.start():
                while boxes and boxes[-1][0] > start:
                    boxes.pop()
                boxes.append((start, content, token.start()))
    if not boxes:
        return None
    answers = [text[boxes[-1][1] : boxes[-1][2]].strip()]
    for (_, content, end), (start, _, _) in zip(reversed(boxes[:-1]), reversed(boxes), strict=False):
        gap = text[end + 1 : start]
        if len(gap) > 60 or _LINKS.sub("", gap) or not _JOINS.search(gap):
            break
        answers.append(text[content:end].strip())
    return ", ".join(dict.fromkeys(reversed(answers)))


def _find_box(completion: str, thinking: bool) -> tuple[str | None, str | None]:
    """(the boxed answer, None), or (None, the text that Math-Verify should search), or (None, None)."""
    part = answer_part(completion, thinking)
    if part is None or not part.strip():
        return None, None
    answer = boxed(part)
    if answer is not None:
        return (answer if len(answer) <= LONGEST else None), None
    letters = _LETTER.findall(part[-LONGEST:])
    return (letters[-1], None) if letters else (None, part[-LONGEST:])


# --- Exact rules ------------------------------------------------------------------------------------------------------

_SYMBOLS = {
    "\u00a0": " ", "\u2009": " ", "\u202f": " ", "−": "-", "–": "-", "×": r"\times ", "÷": r"\div ", "·": r"\cdot ",
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "°": r"^\circ ", "∪": r"\cup ",
    "∩": r"\cap ", "∈": r"\in ", "±": r"\pm ", "∀": r"\forall ", "⁰": "^{0}", "¹": "^{1}", "²": "^{2}", "³": "^{3}",
    "⁴": "^{4}", "⁵": "^{5}", "⁶": "^{6}", "⁷": "^{7}", "⁸": "^{8}", "⁹": "^{9}",
} | {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # fmt: skip
_TRANSLATE = str.maketrans(_SYMBOLS)
_REWRITES: list[tuple[re.Pattern[str], str]] = [
    (re.compile(r"<sup>([^<>]{0,99})</sup>"), r"^{\1}"),
    (re.compile(r"<sub>([^<>]{0,99})</sub>"), r"_{\1}"),
    (re.compile(r"(?<!\\)\\[!,;:> ]|~|\\q?quad(?![A-Za-z])"), " "),
    (re.compile(r"\\(?:left|right|bigg?[lrm]?|Bigg?[lrm]?|displaystyle|limits)(?![A-Za-z])\.?"), ""),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\\$"), ""),
    (re.compile(r"(?<=\d) ?\\binom(?![A-Za-z])"), r"\\cdot \\binom"),  # Math-Verify reads a mixed number
    (re.compile(r"(?<=\d) ?\^?\{?(?:\\(?:text|mathrm) ?\{)?(?:st|nd|rd|th)\}{1,2}"), ""),
    (re.compile(r"(?<=\d)(?:st|nd|rd|th)\b"), ""),
    (re.compile(r"(?<=\d)\{,\}(?=\d)"), ","),
]
_WRAPS = [("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`")]
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|sf|normal)?|mathrm|mathbf|mbox|operatorname|textup)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"(?<=\W)\s|\s(?=\W)")
_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+)")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?|[+-]?[1-9]\d{0,2}(?: \d{3})+(?:\.\d*)?")
_RATIO = re.compile(r"([+-]?)(?:(\d+)/(\d+)|\\frac\{(-?\d+)\}\{(-?\d+)\}|\\frac(\d)(\d))")
_MIXED = re.compile(r"([+-]?)(\d+) (\d+)/(\d+)|([+-]?)(\d+) ?\\frac\{(\d+)\}\{(\d+)\}")
_WORDY = re.compile(r"[A-Za-z][A-Za-z\s,.'’\"!-]*")
_LONG_WORD = re.compile(r"[A-Za-z]{4}")
_CHOICE = re.compile(r"\(?([A-Z])[).]?|\(([A-Z])\)\.?")
_CHOICE_AND_VALUE = re.compile(r"(?:\(([A-J])\)|([A-J])[).]) ?([\w\\$-].*)", re.DOTALL)
_UNIT = re.compile(r"(?<=[\d})]) ?([A-Za-z]+)\.?(?:\^\{?(\d)\}?)?$")
_UNITS = {
    name: names.split()[0]
    for names in (
        "mm millimeter millimeters millimetre millimetres", "cm centimeter centimeters centimetre centimetres",
        "m meter meters metre metres", "km kilometer kilometers kilometre kilometres", "in inch inches",
        "ft foot feet", "yd yard yards", "mi mile miles", "mg milligram milligrams", "g gram grams",
        "kg kilogram kilograms", "lb lbs pound pounds", "oz ounce ounces", "ms millisecond milliseconds",
        "s sec second seconds", "min minute minutes", "h hr hour hours", "day days", "week weeks", "month months",
        "year years", "ml mL milliliter milliliters", "L liter liters litre litres", "dollar dollars", "cent cents",
        "deg degree degrees", "rad radian radians", "Pa", "kPa", "N", "J", "kJ", "W", "kW", "V", "Hz", "kHz", "MHz",
        "eV", "keV", "MeV", "GeV", "mol", "mmol", "K",
    )
    for name in names.split()
}  # fmt: skip


@lru_cache(maxsize=1 << 16)
def normalise(answer: str) -> str:
    r"""The answer without what never changes its value: delimiters, spacing commands, `\left`, a closing full stop.

    The result is still LaTeX, and normalising it again changes nothing that matters to a comparison.
    """
    text = answer.translate(_TRANSLATE)
    if r"\begin" not in text and r"\\" in text:  # escaped once too often; elsewhere `\\` ends a row
        text = re.sub(r"(?<!\\)\\\\(?=[A-Za-z]{2}|[(){}\[\]])", r"\\", text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    before = None
    while before != text:
        before = text = text.strip()
        if r"\boxed" in text or r"\fbox" in text:
            text = boxed(text) or text
        for left, right in _WRAPS:
            inner = text[len(left) : -len(right)]
            if len(text) > len(left + right) and text.startswith(left) and text.endswith(right) and left not in inner:
                text = inner
        if text.endswith(("^", "\\")) and not text.endswith("\\\\"):
            text = text[:-1]
        if text.endswith((".", ",", ";")) and not text.endswith("..") and _LONG_WORD.search(text[-5:-1]) is None:
            text = text[:-1]
    if text.count("$") == 1:
        text = text.replace("$", "")
    return text.strip()


@lru_cache(maxsize=1 << 16)
def _plain(text: str) -> str:
    r"""A normalised answer with the wrappers of words (`\text{}` and the like) taken off, and spaces made even."""
    before = None
    while before != text:
        before, text = text, _TEXT.sub(r" \1 ", text)
    return _SPACE.sub("", " ".join(text.split()))


@lru_cache(maxsize=1 << 16)
def _number(text: str) -> tuple[Fraction, bool] | None:
    """The value of a normalised integer, decimal, fraction or mixed number, and whether it was written as a decimal."""
    if len(text) > 200:
        return None
    if _THOUSANDS.fullmatch(text):
        text = re.sub("[ ,]", "", text)
    if _INTEGER.fullmatch(text):
        return Fraction(int(text)), False
    if _DECIMAL.fullmatch(text):
        return Fraction(text), True
    if match := _RATIO.fullmatch(text):
        top, bottom = [int(group) for group in match.groups()[1:] if group is not None]
        sign = -1 if match.group(1) == "-" else 1
        return (Fraction(sign * top, bottom), False) if bottom else None
    if match := _MIXED.fullmatch(text):
        minus, *parts = [group for group in match.groups() if group is not None]
        whole, above, below = map(int, parts)
        value = whole + Fraction(above, below) if above < below else None
        return None if value is None else (-value if minus == "-" else value, False)
    return None


def _words(plain: str) -> str | None:
    """The words of an answer that is nothing but words, without case or punctuation; None for anything else."""
    if _WORDY.fullmatch(plain) and _LONG_WORD.search(plain):
        return " ".join(re.findall(r"[a-z]+", plain.lower()))
    return None


def _unit(plain: str) -> tuple[str, str, str | None] | None:
    """What stands before a unit at the end of an answer, the unit, and its exponent if it has one."""
    tail = _UNIT.search(plain, max(0, len(plain) - 40))
    unit = _UNITS.get(tail.group(1)) if tail else None
    return (plain[: tail.start()], unit, tail.group(2)) if tail and unit else None


def exact(pred: str, gold: str) -> bool | None:
    """Equality of two answers as far as it shows without algebra; None if that does not settle it.

    Numbers are compared as fractions; a decimal equals what it rounds to six significant digits, not fewer.
    """
    if len(pred) > LONGEST or len(gold) > LONGEST:
        return False
    pred, gold = normalise(pred), normalise(gold)
    if not pred or not gold:
        return False
    if pred == gold:
        return True
    p, g = _plain(pred), _plain(gold)
    if p == g:
        return True
    one, other = _number(p), _number(g)
    if one and other:
        gap, size = abs(one[0] - other[0]), max(abs(one[0]), abs(other[0]))
        return gap == 0 or ((one[1] or other[1]) and gap <= min(Fraction(1, 10**6), size / 10**5))
    if label := _CHOICE.fullmatch(g):
        chosen = _CHOICE.fullmatch(p) or _CHOICE_AND_VALUE.fullmatch(p)
        if chosen:
            return (chosen.group(1) or chosen.group(2)) == (label.group(1) or label.group(2))
    words, meant = _words(p), _words(g)
    if words is not None and meant is not None:
        return words == meant
    mine, due = _unit(p), _unit(g)
    if mine and due:
        if mine[1] != due[1] or (mine[2] and due[2] and mine[2] != due[2]):
            return False
        return exact(mine[0], due[0])
    return None


# --- Math-Verify, inside a worker -------------------------------------------------------------------------------------

_HEAD = re.compile(r"((?:\\[A-Za-z]+ ?)?\{?[A-Za-z]?\w?\}?(?:_\{?\w+\}?)?'?(\([a-z]\))?)\s*=\s*([^=]+)")
_BUILDER = re.compile(r"\\\{\s*[A-Za-z]\s*(?:\\mid(?![A-Za-z])|\||:)(.+)\\\}", re.DOTALL)
_OPEN, _CLOSE = "([{", ")]}"


def items(text: str) -> list[str]:
    """The items of a list that has no brackets around it: cut at commas, semicolons, "and", "or" outside brackets."""
    depth, cuts, start = 0, [], 0
    for match in re.finditer(r"\\text\s*\{\s*,?\s*(?:and|or)\s*\}|\\.|[()\[\]{},;]|\b(?:and|or)\b", text, re.DOTALL):
        token = match.group()
        if token in _OPEN:
            depth += 1
        elif token in _CLOSE:
            depth -= 1
        elif token[-2:] in (r"\{", r"\}"):
            depth += 1 if token == r"\{" else -1
        elif depth == 0 and not (token.startswith("\\") and len(token) == 2):
            cuts.append(text[start : match.start()].strip())
            start = match.end()
    return [cut for cut in [*cuts, text[start:].strip()] if cut]


@lru_cache(maxsize=4)
def _cleaning(units: bool) -> Any:
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig

    return NormalizationConfig(
        basic_latex=True, units=units, malformed_operators=True, nits=True, boxed="all", equations=False
    )


@lru_cache(maxsize=256)
def _parse(text: str, units: bool) -> list[Any]:
    """What Math-Verify makes of an answer (an expression, and the text it was read from), without its units or with."""
    from latex2sympy2_extended.latex2sympy2 import normalize_latex
    from math_verify import LatexExtractionConfig, parse

    if not units and normalize_latex(text, _cleaning(False)) == normalize_latex(text, _cleaning(True)):
        return _parse(text, True)
    config = LatexExtractionConfig(boxed_match_priority=0, normalization_config=_cleaning(units))
    return list(parse(rf"\boxed{{{text}}}", [config], parsing_timeout=0))


def _algebra(pred: str, gold: str) -> bool:
    """Equality by Math-Verify, with what looks like units taken off, and with it left on (`m` can be a variable)."""
    from math_verify import verify

    one, other = _parse(pred, True), _parse(gold, True)
    if _far_apart(pred, gold, one, other):
        return False
    if verify(other, one, allow_set_relation_comp=True, timeout_seconds=0):
        return True
    mine, theirs = _parse(pred, False), _parse(gold, False)
    if mine is one and theirs is other:
        return False
    return bool(verify(theirs, mine, allow_set_relation_comp=True, timeout_seconds=0))


def _far_apart(pred: str, gold: str, one: list[Any], other: list[Any]) -> bool:
    """Whether both answers are real numbers that plainly differ, which spares Math-Verify a search for a proof."""
    from sympy import Expr

    if any(re.search(r"%|percent|pct|\\pm|\\mp", text) for text in (pred, gold)):
        return False
    values = []
    for parsed in (one, other):
        if not (parsed and isinstance(parsed[0], Expr) and parsed[0].is_number):
            return False
        value = parsed[0].evalf(15)
        if not value.is_Float and not value.is_Integer:
            return False
        values.append(float(value))
    size = max(map(abs, values))
    return math.isfinite(size) and abs(values[0] - values[1]) > 1e-3 * size


def _simpler(pred: str, gold: str) -> tuple[str, str]:
    """Both answers as they compare best: sets as their conditions, one-sided `x = ` and choice labels dropped."""
    if match := _BUILDER.fullmatch(pred):
        pred = match.group(1).strip()
    if match := _BUILDER.fullmatch(gold):
        gold = match.group(1).strip()
    label = _CHOICE_AND_VALUE.fullmatch(_plain(pred))
    if label and not _CHOICE_AND_VALUE.fullmatch(_plain(gold)):
        pred = normalise(label.group(3))
    left, right = _HEAD.fullmatch(pred), _HEAD.fullmatch(gold)
    if left and "=" not in gold:
        return left.group(3), gold
    if right and "=" not in pred:
        return pred, right.group(3)
    if left and right and (left.group(2) or right.group(2)):  # f(x) = ..., named otherwise or of another variable
        mine, theirs = left.group(2), right.group(2)
        body = left.group(3)
        if mine and theirs and mine != theirs and theirs[1] not in body:
            body = re.sub(rf"(?<![A-Za-z\\]){mine[1]}(?![A-Za-z])", theirs[1], body)
            return (body, right.group(3)) if left.group(1)[0] == right.group(1)[0] else (pred, gold)
        if left.group(1) == "y" or right.group(1) == "y":
            return body, right.group(3)
    return pred, gold


def _same(pred: str, gold: str, lists: bool = True) -> bool:
    """Equality by the exact rules, then item by item if both are lists of one length, then by algebra."""
    settled = exact(pred, gold)
    if settled is not None:
        return settled
    if " OR " in gold:  # a gold answer in several forms
        return any(_same(pred, form) for form in gold.split(" OR "))
    whole = pred, gold = normalise(pred), normalise(gold)
    pred, gold = _simpler(pred, gold)
    if (pred, gold) != whole and (settled := exact(pred, gold)) is not None:
        return settled
    if lists:
        left, right = items(pred), items(gold)
        if len(left) == len(right) > 1 and len(left) <= 12:
            return _matched(left, right)
    return _algebra(pred, gold)


def _matched(left: list[str], right: list[str]) -> bool:
    rest = list(right)
    for item in left:
        twin = next((i for i, other in enumerate(rest) if _same(item, other, lists=False)), None)
        if twin is None:
            return False
        rest.pop(twin)
    return True


def _search(text: str) -> str | None:
    """What Math-Verify takes for the answer of a text, as it stands there (LaTeX or a plain number)."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    found = parse(text, [LatexExtractionConfig(), ExprExtractionConfig()], parsing_timeout=0)
    source = next((item for item in reversed(found) if isinstance(item, str)), "")
    return source.strip() or None


# --- Workers ----------------------------------------------------------------------------------------------------------

Task = tuple[Literal["same", "search"], str, str]
_GRACE = 1.0  # seconds after the time limit of a pair until its worker is killed
_TURNS = 5_000  # tasks after which a worker makes way for a fresh one, whose caches are empty


class _Late(BaseException):
    """A task has run out of time; not an Exception, so that no handler inside Math-Verify or SymPy takes it."""


def _serve(pipe: Connection, memory: int) -> None:
    """Answer batches of tasks until the pipe closes: (index, value, whether it ran out of time) for each in turn."""
    armed = False

    def alarm(signum: int, frame: FrameType | None) -> None:
        if armed:
            raise _Late

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is the one to stop
    signal.signal(signal.SIGALRM, alarm)
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _same("x + 1", "1 + x")  # imports everything
        _, ceiling = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (memory if ceiling < 0 else min(memory, ceiling), ceiling))
        pipe.send((-1, None, False))
    except ImportError as error:
        pipe.send((-2, str(error), False))
        return
    while True:
        try:
            timeout, tasks = pipe.recv()
        except (EOFError, OSError):
            return
        for index, (kind, one, other) in tasks:
            # The kernel ends even C code at its processor time, should the parent be gone by then.
            _, ceiling = resource.getrlimit(resource.RLIMIT_CPU)
            allowed = math.ceil(time.process_time() + timeout + 3 * _GRACE)
            resource.setrlimit(resource.RLIMIT_CPU, (allowed if ceiling < 0 else min(allowed, ceiling), ceiling))
            value: bool | str | None = None
            late = False
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, timeout, 0.2)  # again and again, lest a bare `except` swallow it
                value = _same(one, other) if kind == "same" else _search(one)
            except _Late:
                late = True
            except Exception:  # whatever Math-Verify, SymPy and ANTLR raise on text that is not mathematics
                value = None
            finally:
                armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
            pipe.send((index, value, late))


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    ready: bool = False
    tasks: deque[int] = field(default_factory=deque)  # given and not yet answered, in order
    deadline: float = 0.0  # of the first of these, or of the start; on the clock of time.monotonic
    turns: int = 0


class Pool:
    """Worker processes that are killed when they overrun; they start when needed and stay for the next call."""

    def __init__(self, memory: int = MEMORY) -> None:
        self.memory = memory
        self.owner = os.getpid()
        self.lock = threading.Lock()
        self.workers: list[_Worker] = []
        self.failures = 0  # starts in a row that failed
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["math_verify", "mrt.core.cli", "mrt.core.storage"])

    def run(self, tasks: Sequence[Task], workers: int, timeout: float) -> list[tuple[bool | str | None, bool]]:
        """(value, whether it ran out of time) of each task, in order; the value is None if the task failed.

        `timeout` is in seconds a task. Raises RuntimeError if no worker can be started.
        """
        results: list[tuple[bool | str | None, bool]] = [(None, False)] * len(tasks)
        pending = deque(range(len(tasks)))
        size = max(1, min(BATCH, len(tasks) // (4 * workers)))
        with self.lock:
            try:
                while pending or any(worker.tasks for worker in self.workers):
                    while len(self.workers) < min(workers, len(pending)):
                        self._start()
                    for worker in [w for w in self.workers if w.ready and not w.tasks]:
                        if pending:
                            self._give(worker, tasks, pending, size, timeout)
                    self._collect(results, pending, timeout)
            except BaseException:
                self.close()
                raise
        return results

    def _start(self) -> None:
        here, there = self.context.Pipe()
        process = self.context.Process(target=_serve, args=(there, self.memory), daemon=True)
        process.start()
        there.close()
        self.workers.append(_Worker(process, here, deadline=time.monotonic() + START))

    def _give(self, worker: _Worker, tasks: Sequence[Task], pending: deque[int], size: int, timeout: float) -> None:
        if worker.turns >= _TURNS or not worker.process.is_alive():
            self._end(worker)
            return
        batch = [pending.popleft() for _ in range(min(size, len(pending)))]
        worker.tasks.extend(batch)
        worker.turns += len(batch)
        worker.deadline = time.monotonic() + timeout + _GRACE
        try:
            worker.pipe.send((timeout, [(index, tasks[index]) for index in batch]))
        except OSError:  # it died while idle; that is nobody's fault
            pending.extendleft(reversed(worker.tasks))
            self._end(worker)

    def _collect(self, results: list[tuple[bool | str | None, bool]], pending: deque[int], timeout: float) -> None:
        """Take in what workers have answered by the next deadline, and end those that are past theirs or have died."""
        active = [worker for worker in self.workers if worker.tasks or not worker.ready]
        if not active:
            return
        nearest = min(worker.deadline for worker in active)
        heard = wait([worker.pipe for worker in active], max(0.0, nearest - time.monotonic()))
        now = time.monotonic()
        for worker in active:
            if worker.pipe in heard:
                try:
                    index, value, late = worker.pipe.recv()
                except (EOFError, OSError):
                    self._lose(worker, results, pending, late=False)
                    continue
                if index == -2:
                    raise RuntimeError(f"grading needs Math-Verify, and a worker cannot import it: {value}")
                if index == -1:
                    worker.ready, self.failures = True, 0
                else:
                    results[index] = value, late
                    worker.tasks.remove(index)
                    worker.deadline = now + timeout + _GRACE
            elif now >= worker.deadline:
                self._lose(worker, results, pending, late=True)

    def _lose(
        self, worker: _Worker, results: list[tuple[bool | str | None, bool]], pending: deque[int], late: bool
    ) -> None:
        """End a worker; the task that it was at has failed, those it had not begun go back to the queue."""
        if worker.tasks:
            results[worker.tasks.popleft()] = None, late
            pending.extendleft(reversed(worker.tasks))
        elif not worker.ready:
            self.failures += 1
            if self.failures >= 3:
                raise RuntimeError(
                    "grading cannot start its worker processes; a script that grades needs `if __name__ == '__main__':`"
                )
        self._end(worker)

    def _end(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        worker.process.kill()
        worker.pipe.close()
        worker.process.join()

    def close(self) -> None:
        """End all workers; a later `run` starts new ones."""
        for worker in list(self.workers):
            self._end(worker)


_pool: Pool | None = None


def _shared_pool() -> Pool:
    """The pool of this process; a forked child makes its own."""
    global _pool
    if _pool is None or _pool.owner != os.getpid():
        _pool = Pool()
        atexit.register(_pool.close)
    return _pool


# --- Many answers at once ---------------------------------------------------------------------------------------------


class Grader:
    """Extracts, judges and clusters answers in bulk; remembers every verdict, so each distinct pair is judged once.

    `workers` is the number of processes (default: the processors at hand), `timeout` the seconds a pair may take.
    """

    def __init__(self, workers: int | None = None, timeout: float = TIMEOUT, pool: Pool | None = None) -> None:
        if timeout <= 0 or (workers is not None and workers < 1):
            raise ValueError("grading needs at least one worker and a time limit above 0 seconds")
        self.workers = workers or len(os.sched_getaffinity(0))
        self.timeout = timeout
        self.pool = pool
        self.verdicts: dict[tuple[str, str], bool] = {}  # of normalised (prediction, gold)
        self.timed_out = 0  # pairs and extractions that ran out of time

    def _run(self, tasks: Sequence[Task]) -> list[bool | str | None]:
        if not tasks:
            return []
        results = (self.pool or _shared_pool()).run(tasks, self.workers, self.timeout)
        self.timed_out += sum(late for _, late in results)
        return [value for value, _ in results]

    def extract(
        self, completions: Sequence[str] | pl.Series, thinking: Sequence[bool] | bool = False
    ) -> list[str | None]:
        """`extract_answer` of each completion; each distinct text is searched once, a column part by part."""
        flags = [thinking] * len(completions) if isinstance(thinking, bool) else thinking
        found = [_find_box(text, flag) for text, flag in zip(completions, flags, strict=True)]
        texts = list(dict.fromkeys(text for _, text in found if text is not None))
        answers = dict(zip(texts, self._run([("search", text, "") for text in texts]), strict=True))
        return [_string(answers[text]) if text is not None else answer for answer, text in found]

    def equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Whether prediction and gold are equal, for each pair of bare answers (prediction, gold)."""
        keys, open_ = [], {}
        for pred, gold in pairs:
            if len(pred) > LONGEST or len(gold) > LONGEST:
                keys.append(("", ""))
                self.verdicts["", ""] = False
                continue
            key = normalise(pred), normalise(gold)
            keys.append(key)
            if key not in self.verdicts and key not in open_:
                settled = exact(pred, gold)
                if settled is None:
                    open_[key] = (pred, gold)
                else:
                    self.verdicts[key] = settled
        tasks: list[Task] = [("same", pred, gold) for pred, gold in open_.values()]
        self.verdicts.update(zip(open_, map(bool, self._run(tasks)), strict=True))
        return [self.verdicts[key] for key in keys]

    def right(
        self, completions: Sequence[str], gold: Sequence[str], thinking: Sequence[bool] | bool = False
    ) -> list[bool]:
        """Whether the answer of each completion equals its gold answer."""
        found = self.extract(completions, thinking)
        verdicts = iter(self.equal([(answer, g) for answer, g in zip(found, gold, strict=True) if answer is not None]))
        return [answer is not None and next(verdicts) for answer in found]

    def clusters(self, groups: Sequence[Sequence[str | None]]) -> list[list[int]]:
        """`clusters` of each group of answers; the comparisons of all groups go to the workers together.

        The first string of a group that has no cluster yet represents the next one, and what is left of the group is
        compared with it, round after round.
        """
        names = [{answer: _name(answer) for answer in group if answer is not None} for group in groups]
        left = [_firsts(of_group) for of_group in names]
        labels: list[dict[Hashable, int]] = [{} for _ in groups]
        number = 0
        while any(left):
            for i, rest in enumerate(left):
                if all(isinstance(name, Fraction) for name, _ in rest):  # numbers of different values: none are equal
                    labels[i].update((name, number + k) for k, (name, _) in enumerate(rest))
                    left[i] = []
            pairs = [(answer, rest[0][1]) for rest in left if rest for name, answer in rest[1:] if _open(name, rest)]
            verdicts = iter(self.equal(pairs))
            for i, rest in enumerate(left):
                if not rest:
                    continue
                labels[i][rest[0][0]] = number
                left[i] = []
                for name, answer in rest[1:]:
                    if _open(name, rest) and next(verdicts):
                        labels[i][name] = number
                    else:
                        left[i].append((name, answer))
            number += 1
        return [
            [-1 if answer is None else labels[i][names[i][answer]] for answer in group]
            for i, group in enumerate(groups)
        ]


def _string(value: bool | str | None) -> str | None:
    return value if isinstance(value, str) else None


def _name(answer: str) -> Hashable:
    """What answers that are trivially equal share: the value of an exact number, else the normalised text."""
    if len(answer) > LONGEST:
        return answer
    value = _number(_plain(normalise(answer)))
    return value[0] if value and not value[1] else normalise(answer) or answer


def _open(name: Hashable, rest: Sequence[tuple[Hashable, str]]) -> bool:
    """Whether an answer of this name may equal the first of the rest; two exact numbers of two names do not."""
    return not (isinstance(name, Fraction) and isinstance(rest[0][0], Fraction))


def _firsts(names: dict[str, Hashable]) -> list[tuple[Hashable, str]]:
    """(name, first answer of that name), in order of appearance."""
    firsts: dict[Hashable, str] = {}
    for answer, name in names.items():
        firsts.setdefault(name, answer)
    return list(firsts.items())


def extract_answer(completion: str, thinking: bool = False) -> str | None:
    r"""The answer that a completion gives after its thought, as text, or None if it is unparseable.

    The last `\boxed{...}` counts, else a letter after "answer", else what Math-Verify finds in the last 2,000
    characters. No answer: a thought that never closes (`thinking`: the completion starts inside one, its tag being in
    the prompt), or an answer longer than 2,000 characters.
    """
    return Grader(1).extract([completion], thinking)[0]


def equal(pred: str, gold: str, timeout: float = TIMEOUT) -> bool:
    """Whether two bare answers are equal; False if that cannot be shown within `timeout` seconds."""
    return Grader(1, timeout).equal([(pred, gold)])[0]


def is_correct(completion: str, gold: str, thinking: bool = False) -> bool:
    """Whether the answer of a completion equals the gold answer; `thinking` as in `extract_answer`."""
    answer = extract_answer(completion, thinking)
    return answer is not None and equal(answer, gold)


def grade(pairs: Sequence[tuple[str, str]], workers: int | None = None, timeout: float = TIMEOUT) -> list[bool]:
    """Whether prediction and gold are equal, for many pairs of bare answers; each distinct pair is judged once.

    `workers` processes (default: the processors at hand); a pair that takes over `timeout` seconds is unequal.
    """
    return Grader(workers, timeout).equal(pairs)


def clusters(answers: Sequence[str | None], workers: int | None = None, timeout: float = TIMEOUT) -> list[int]:
    """Numbers that equal answers share, 0, 1, ... in order of first appearance; -1 for None.

    Equality is that with the first answer of a cluster. `Grader.clusters` does many groups in one go.
    """
    return Grader(workers, timeout).clusters([answers])[0]


# --- The stage --------------------------------------------------------------------------------------------------------


def starts_inside(prompt: str | None) -> bool:
    """Whether what follows a prompt stands inside a thought: its last `<think>` is not closed."""
    return prompt is not None and "<think>" in prompt.rpartition("</think>")[2]


def grade_table(
    answers: pl.DataFrame, gold: dict[str, str], grader: Grader, thinking: bool | None = None
) -> pl.DataFrame:
    """Grades of a rollouts or a prover table: its key columns, answer, parsed, correct, cluster (within a problem).

    `gold` maps problem ids to answers. `thinking` says whether texts start inside a thought; if None, the column
    `prompt` does, and without that column they do not. Raises KeyError for a problem that `gold` lacks.
    """
    if thinking is None and "prompt" in answers.columns:
        inside = [starts_inside(prompt) for prompt in answers["prompt"]]
    else:
        inside = [bool(thinking)] * len(answers)
    extracted = grader.extract(answers["text"].fill_null(""), inside)
    ids = answers["problem_id"].to_list()
    parsed = [(i, answer) for i, answer in enumerate(extracted) if answer is not None]
    correct = [False] * len(ids)
    for (i, _), verdict in zip(parsed, grader.equal([(a, gold[ids[i]]) for i, a in parsed]), strict=True):
        correct[i] = verdict
    rows: dict[str, list[int]] = {}
    for i, problem_id in enumerate(ids):
        rows.setdefault(problem_id, []).append(i)
    cluster = [-1] * len(ids)
    for own, labels in zip(
        rows.values(), grader.clusters([[extracted[i] for i in own] for own in rows.values()]), strict=True
    ):
        for i, label in zip(own, labels, strict=True):
            cluster[i] = label
    return answers.select(key for key in ANSWER if key in answers.columns).with_columns(
        pl.Series("answer", extracted, pl.String),
        pl.Series("parsed", [answer is not None for answer in extracted], pl.Boolean),
        pl.Series("correct", correct, pl.Boolean),
        pl.Series("cluster", cluster, pl.Int64),
    )


class Grade(Stage):
    """Grade rollouts or forced answers: extract, judge against the gold answers, cluster by equality."""

    problems: Path = Field(description="Problem set (Parquet): id, answer.")
    answers: Path = Field(description="Rollouts or forced answers (Parquet): problem_id, sample, text.")
    out: Path = Field(description="Grades (Parquet): the keys, answer, parsed, correct, cluster.")
    thinking: bool | None = Field(None, description="Texts start inside a thought; told by the prompts if not given.")
    workers: int | None = Field(None, ge=1, description="Worker processes; as many as processors if not given.")
    timeout: float = Field(TIMEOUT, gt=0, description="Seconds a pair may take; then it counts as unequal.")

    def cli_cmd(self) -> None:
        problems = PROBLEMS.read(self.problems, ["id", "answer"])
        for wrong, fault in (
            (problems.filter(pl.col("id").is_duplicated()), "occurs twice"),
            (problems.filter(pl.col("answer").is_null()), "has no answer"),
        ):
            if len(wrong):
                raise ValueError(f"{self.problems}: problem {wrong['id'][0]!r} {fault}")
        forced = "prefix" in columns_of(self.answers)
        kind = PROVER if forced else ROLLOUTS
        table = kind.read(self.answers, [*kind.keys, "text", *([] if forced else ["prompt"])])
        strangers = table.join(problems, left_on="problem_id", right_on="id", how="anti", nulls_equal=False)
        if len(strangers):
            raise ValueError(f"{self.answers}: problem {strangers['problem_id'][0]!r} is not in {self.problems}")
        grader = Grader(self.workers, self.timeout)
        gold = dict(problems.iter_rows())
        grades = grade_table(table, gold, grader, self.thinking)
        (ANSWER_GRADES if forced else GRADES).write(grades, self.out)
        print(
            f"{len(grades)} answers, {grades['correct'].sum()} correct, {(~grades['parsed']).sum()} unparseable;"
            f" {len(grader.verdicts)} distinct pairs judged, {grader.timed_out} timed out",
            flush=True,
        )


if __name__ == "__main__":
    run(Grade)
