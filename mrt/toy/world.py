"""Problems and reasoning traces of the toy world.

A problem asks for the largest sum of some of 3 to 7 numbers that does not exceed a limit; its difficulty is how many
numbers there are, its gold answer comes from enumeration. A trace thinks in episodes of three steps ("Try 13 + 15 =
28.", "28 is at most 46.", "Best so far is 28."), each opened by one of the paper's markers (Figure 21). The reasoner
has the vices that the paper is about (Section 5):

- it explores: each trace mixes blind attempts with attempts that heed the room left, in a proportion of its own;
- it slips: the later the episode, the likelier it is to forget its best and keep the present sum instead;
- it over-thinks: how long it goes on is drawn before it begins, and after reaching the limit exactly, where no sum can
  be better, it mostly goes on all the same.

What the world hands to training is text only; everything is drawn from one `random.Random`.
"""

import random
from dataclasses import dataclass
from itertools import combinations

MARKERS = ("Wait", "But wait", "Alternatively", "But hold on")
DIFFICULTIES = (3, 4, 5, 6, 7)
LARGEST_NUMBER, LARGEST_LIMIT = 20, 60
GAPS = (0, 0, 0, 1, 1, 1, 2, 2, 3)  # how far the best sum stays below the limit: the limit itself is a poor guess
EPISODES = (2, 3, 4, 5, 6, 8, 10, 12, 14)
HEED = (0.3, 0.6, 0.9)  # share of a trace's attempts that heed the room left
SEES_EXACT = 0.7  # a heeding attempt takes the number that fills the room exactly, when it sees it
SLIP_PER_EPISODE, LARGEST_SLIP = 0.025, 0.3
STOPS_WHEN_EXACT = 0.2
LARGEST_GUESS_GAP = 4


@dataclass(frozen=True)
class Problem:
    """A problem: `numbers`, the `limit`, and the largest sum `best` that some of the numbers reach within it."""

    numbers: tuple[int, ...]
    limit: int
    best: int

    @property
    def text(self) -> str:
        numbers = ", ".join(map(str, self.numbers))
        return f"What is the largest sum of some of the numbers {numbers} that does not exceed {self.limit}?"


def draw_problem(rng: random.Random, difficulty: int) -> Problem:
    """Draw a problem with `difficulty` distinct numbers; raises ValueError outside 3 to 8."""
    if not 3 <= difficulty <= 8:
        raise ValueError(f"difficulty is how many numbers a problem has, 3 to 8; got {difficulty}")
    gap = rng.choice(GAPS)
    while True:
        numbers = tuple(rng.sample(range(1, LARGEST_NUMBER + 1), difficulty))
        sums = {sum(c) for size in range(1, difficulty + 1) for c in combinations(numbers, size)}
        lowest = max(max(numbers) + 1, int(0.4 * sum(numbers)))
        highest = min(LARGEST_LIMIT, int(0.85 * sum(numbers)))
        limits = [
            x for x in range(lowest, highest + 1) if x - gap in sums and not sums & set(range(x - gap + 1, x + 1))
        ]
        if limits:
            limit = rng.choice(limits)
            return Problem(numbers, limit, limit - gap)


def attempt(rng: random.Random, problem: Problem, heed: bool) -> list[int]:
    """Pick numbers one after the other, until the limit is passed, nothing fits, or (not heeding) at random."""
    left = list(problem.numbers)
    rng.shuffle(left)
    size = len(left) if heed else rng.randint(2, len(left))
    picked = [left.pop()]
    while left and len(picked) < size and sum(picked) <= problem.limit:
        room = problem.limit - sum(picked)
        fitting = [x for x in left if x <= room] if heed else left
        if not fitting:
            break
        exact = heed and room in left and rng.random() < SEES_EXACT
        picked.append(room if exact else rng.choice(fitting))
        left.remove(picked[-1])
    return picked


def episode_steps(problem: Problem, opening: str, picked: list[int], best: int) -> list[str]:
    """The three steps of one episode: the sum worked out, its comparison with the limit, the best so far."""
    total, sums = picked[0], str(picked[0])
    for number in picked[1:]:
        total += number
        sums += f" + {number} = {total}"
    if total == problem.limit:
        verdict = f"{total} is exactly the limit {problem.limit}."
    else:
        verdict = f"{total} is {'at most' if total < problem.limit else 'more than'} {problem.limit}."
    return [f"{opening} {sums}.", verdict, f"Best so far is {best}."]


def think(rng: random.Random, problem: Problem) -> tuple[list[str], list[int]]:
    """Draw a thought: its episodes (steps joined by blank lines) and the best so far that each ends with."""
    heed, length = rng.choice(HEED), rng.choice(EPISODES)
    episodes: list[str] = []
    bests: list[int] = []
    best = 0
    for index in range(length):
        picked = attempt(rng, problem, heed=rng.random() < heed)
        total = sum(picked)
        if total <= problem.limit:
            slips = rng.random() < min(LARGEST_SLIP, SLIP_PER_EPISODE * index)
            best = total if slips else max(best, total)
        opening = f"{rng.choice(MARKERS)}, try" if episodes else "Try"
        episodes.append("\n\n".join(episode_steps(problem, opening, picked, best)))
        bests.append(best)
        if total == problem.limit and rng.random() < STOPS_WHEN_EXACT:
            break
    return episodes, bests


def guess(rng: random.Random, problem: Problem, best: int) -> int:
    """The answer that the reasoner gives: its best so far, or a guess near the limit if it has none."""
    return best or problem.limit - rng.randint(0, LARGEST_GUESS_GAP)


def answer_text(answer: int) -> str:
    """What follows the answer header `1. **` (Figure 22)."""
    return f"Sum:** the largest sum is \\boxed{{{answer}}}."
