"""The toy world in numbered steps: attempts that end in an answer, and backtracks to one of their steps.

The problems are those of `mrt.toy.world`. An attempt takes one number per step, until their sum reaches the
target or passes it, or no number fits:

    Step 1: Take 13.

    Step 2: Take 15: 13 + 15 = 28, less than 46.

    Step 3: Take 20: 28 + 20 = 48, more than 46.

    Answer: 13 + 20 = \\boxed{33}

The last step shows whether the attempt is right. It is harder to choose the step to go back to: the first one that took
a wrong number. A share of the wrong attempts backtracks to a random step, so that the base model has seen
backtracks, though rarely and without judgement (Appendix A.2).
"""

import random
from collections.abc import Sequence

from mrt.episodes.parameterization import STEP_END, Backtracking
from mrt.toy.world import SEES_EXACT, Problem

HEEDS = (0.3, 0.6, 0.9)  # probability that an attempt takes a number that fits
GOES_BACK = 0.1


def continue_attempt(
    rng: random.Random, problem: Problem, taken: Sequence[int], heed: float, avoid: int | None = None
) -> list[int]:
    """Extend `taken` until the sum reaches the target or passes it; the first new number is not `avoid`."""
    taken = list(taken)
    start = len(taken)
    while sum(taken) < problem.target:
        room = problem.target - sum(taken)
        left = [x for x in problem.numbers if x not in taken and (x != avoid or len(taken) > start)]
        if not left:
            break
        fitting = [x for x in left if x <= room]
        if taken and not fitting and rng.random() < heed:
            break
        if fitting and rng.random() < heed:
            choice = room if taken and room in left and rng.random() < SEES_EXACT else rng.choice(fitting)
        else:
            choice = rng.choice(left)
        taken.append(choice)
    return taken


def steps(problem: Problem, taken: Sequence[int], words: Backtracking, first: int = 1) -> list[str]:
    """The steps that take these numbers, from step `first` on, and the answer: the smallest plus the largest."""
    lines, total = [], 0
    for number, x in enumerate(taken, start=1):
        before, total = total, total + x
        verdict = "exactly" if total == problem.target else "less than" if total < problem.target else "more than"
        worked = f": {before} + {x} = {total}, {verdict} {problem.target}" if before else ""
        if number >= first:
            lines.append(f"{words.step.format(number)} Take {x}{worked}.")
    low, high = min(taken), max(taken)
    return [*lines, f"{words.answer} {low} + {high} = \\boxed{{{low + high}}}"]


def solve(rng: random.Random, problem: Problem, words: Backtracking, goes_back: float = GOES_BACK) -> str:
    """An attempt; if it does not add up, with probability `goes_back` it backtracks once and redoes a step."""
    heed = rng.choice(HEEDS)
    taken = continue_attempt(rng, problem, (), heed)
    text = steps(problem, taken, words)
    if sum(taken) != problem.target and rng.random() < goes_back:
        first = rng.randint(1, len(taken))
        again = continue_attempt(rng, problem, taken[: first - 1], heed, avoid=taken[first - 1])
        text += [words.marker, *steps(problem, again, words, min(first, len(again)))]
    return STEP_END.join(text)
