r"""How often the grader agrees with labelled pairs of answers, which of its rules pay, and on sources that chose none.

    python -m benchmarks.agreement ../shared/data/graded [FOLDER ...]  # prints the numbers of benchmarks/agreement.md

Reads all `*.jsonl` of the folders: gold, pred, correct, source, and perhaps kind ("response": the answer must be found
in pred first). Each rule of `mrt.grading.equality` and each rewriting is switched off in turn. Leave one source out:
for each source, only those rules judge that gain more verdicts than they lose on all other sources. Equal and unequal
pairs are also generated (`benchmarks.answer_pairs`).
"""

import argparse
import json
import logging
import random
import signal
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.answer_pairs import KINDS, pair
from benchmarks.record import markdown
from mrt.grading import equality
from mrt.grading.answers import find_box

LIMIT = 5.0  # seconds of CPU time a pair
Row = dict[str, Any]


class Late(BaseException):
    """A pair has run out of time."""


def late(signum: int, frame: FrameType | None) -> None:
    raise Late


def limited(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result, or None if the function fails or takes longer than the limit."""
    signal.signal(signal.SIGPROF, late)
    try:
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        return function(*arguments)
    except (Exception, Late):
        return None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def rows_of(folder: Path) -> list[Row]:
    """The labelled pairs of a folder, those that are not a matter of fact left out."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines() if "policy" not in path.name else ():
            row = json.loads(line)
            response = row.get("kind", "response" if "responses" in path.name else "bare") == "response"
            found.append({**row, "file": f"{folder.name}/{path.stem}", "response": response})
    return found


def answer_in(row: Row) -> str:
    if not row["response"]:
        return str(row["pred"])
    answer, text = find_box(row["pred"])
    return answer or (text and limited(equality.search_answer, text)) or ""


PARTS: dict[str, Any] = {rule.__name__: rule for rule in equality.RULES if rule is not equality.algebra}
PARTS |= {f"rewriting: {name}": by for name, by in equality._REWRITES.items()}


@contextmanager
def without(parts: Collection[str]) -> Iterator[None]:
    """The grader without some of its rules and rewritings."""
    rules, rewrites = [list(equality.RULES), list(equality.EXACT)], dict(equality._REWRITES)
    off = [PARTS[name] for name in parts]
    for current, before in zip((equality.RULES, equality.EXACT), rules, strict=True):
        current[:] = [rule for rule in before if rule not in off]
    for name, by in rewrites.items():
        if by in off:
            del equality._REWRITES[name]
    try:
        yield
    finally:
        equality.RULES[:], equality.EXACT[:] = rules
        equality._REWRITES.clear()
        equality._REWRITES.update(rewrites)
        equality.normalise.cache_clear()
        equality._parse.cache_clear()


def judged(rows: list[Row], off: Collection[str]) -> list[bool]:
    with without(off):
        equality.normalise.cache_clear()
        return [bool(limited(equality.same_answer, row["answer"], row["gold"])) for row in rows]


def used_by(row: Row) -> set[str]:
    """The rules that answered for a pair, also for parts of it, and the rewritings that changed it."""
    used: set[str] = set()

    def watched(rule: equality.Rule) -> equality.Rule:
        def watching(pred: str, gold: str) -> bool | None:
            verdict = rule(pred, gold)
            used.update([rule.__name__] if verdict is not None else [])
            return verdict

        return watching

    rules = list(equality.RULES)
    equality.RULES[:] = map(watched, rules)
    limited(equality.same_answer, row["answer"], row["gold"])
    equality.RULES[:] = rules
    text = f"{row['answer']} {row['gold']}".translate(equality._SYMBOLS)
    return used | {name for name, part in PARTS.items() if isinstance(part, tuple) and part[0].search(text)}


def share(rows: list[Row], verdicts: list[bool]) -> str:
    """Agreement, and the number of false accepts if there are any."""
    agree = sum(v == row["correct"] for v, row in zip(verdicts, rows, strict=True)) / len(rows)
    wrong = sum(v and not row["correct"] for v, row in zip(verdicts, rows, strict=True))
    return f"{agree:.3f}, {wrong} false" if wrong else f"{agree:.3f}"


def labelled(folders: list[Path]) -> None:
    rows = [row for folder in folders for row in rows_of(folder)]
    for row in rows:
        row["answer"] = answer_in(row)
    base = judged(rows, [])
    uses = [used_by(row) for row in rows]
    theirs = [bool(limited(equality.math_verify, row["answer"], row["gold"])) for row in rows]
    sources = sorted({source(row) for row in rows})
    gains: dict[str, dict[str, int]] = {}
    table = []
    for part in PARTS:
        own = [i for i in range(len(rows)) if part in uses[i]]
        again = dict(zip(own, judged([rows[i] for i in own], [part]), strict=True))
        verdicts = [again.get(i, base[i]) for i in range(len(rows))]
        gain: dict[str, int] = defaultdict(int)
        for row, now, before in zip(rows, verdicts, base, strict=True):
            gain[source(row)] += (before == row["correct"]) - (now == row["correct"])
        accepts = sum(now and not row["correct"] for row, now in zip(rows, verdicts, strict=True))
        gains[part] = gain
        paid = {name: n for name, n in gain.items() if n}
        table.append((part, sum(paid.values()), len(paid), accepts))
    out = [False] * len(rows)
    for one in sources:
        off = [part for part in PARTS if sum(n for name, n in gains[part].items() if name != one) <= 0]
        own = [i for i, row in enumerate(rows) if source(row) == one]
        for i, verdict in zip(own, judged([rows[i] for i in own], off), strict=True):
            out[i] = verdict
    files = sorted({row["file"] for row in rows})
    lines = []
    for name in files:
        own = [i for i, row in enumerate(rows) if row["file"] == name]
        some = [rows[i] for i in own]
        lines.append((name, len(own), *(share(some, [v[i] for i in own]) for v in (base, out, theirs))))
    print(markdown(("pairs", "number", "ours", "ours, one source left out", "Math-Verify"), lines))
    print(markdown(("rule", "verdicts gained", "sources", "false accepts without it"), table))


def source(row: Row) -> str:
    return str(row["source"]).split(":")[0]


def generated(count: int) -> None:
    """Unequal pairs of each kind, and a quarter as many equal ones."""
    lines, all_equal = [], 0
    for kind in KINDS:
        equal = [pair(kind, True, random.Random(f"{kind}{i}")) for i in range(count // 4)]
        unequal = [pair(kind, False, random.Random(f"{kind}{i}")) for i in range(count)]
        same, wrong = (sum(bool(limited(equality.same_answer, *both)) for both in pairs) for pairs in (equal, unequal))
        all_equal += same
        lines.append((kind, f"{same} of {len(equal)}", f"{wrong} of {count}"))
    print(markdown(("kind", "equal pairs found equal", "unequal pairs accepted"), lines))
    print(f"in all {all_equal / len(KINDS) / (count // 4):.4f} of the equal pairs")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="folders of labelled pairs")
    parser.add_argument("--generated", type=int, default=0, help="generated pairs of each kind, equal and unequal")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if given.folders:
        labelled(given.folders)
    if given.generated:
        generated(given.generated)
