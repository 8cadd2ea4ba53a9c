"""Problems and reasoning traces of the toy world.

A problem gives 3 to 8 numbers and the sum of some of them. Its answer is the sum of the smallest and the largest of
these; only one choice of numbers has the given sum. Its difficulty is how many numbers there are, its gold answer comes
from enumeration. As in mathematics, finding is hard and checking is easy: a choice that adds up is known to be right. A
trace thinks in episodes, each opened by one of the paper's markers (Figure 21). An episode has three steps ("Try
13 + 15 = 28.", "28 is less than 46.", "No answer so far."). The reasoner has the flaws that the paper studies
(Section 5):

- it explores: each trace mixes blind attempts with attempts that heed the rest to the target, in a random ratio;
- it slips: the later the episode, the likelier it is to take the answer of an attempt that does not add up;
- it over-thinks: the length of a trace is sampled before it begins, and it mostly goes on after finding the answer.

There are two reasoners. One thinks for 2 to 14 episodes; the other explores more, on harder problems, for 10 to 30,
which is closer to R1-like models (Section 5: 6 to 45). Training sees text only; everything is sampled from one
`random.Random`.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

MARKERS = ("Wait", "But wait", "Alternatively", "But hold on")
DIFFICULTIES = (3, 4, 5, 6, 7)
LARGEST_NUMBER, LARGEST_TARGET = 20, 60
SEES_EXACT = 0.5  # probability that a heeding attempt sees a number that reaches the target exactly


@dataclass(frozen=True)
class Reasoner:
    """How a reasoner thinks; `difficulties` are those of the problems that it is shown."""

    difficulties: tuple[int, ...]
    episodes: tuple[int, ...]  # of a trace, sampled before it begins
    heed: tuple[float, ...]  # share of a trace's attempts that heed the rest to the target
    slip_per_episode: float  # probability of a slip: this, times the number of episodes before it
    largest_slip: float
    stop_probability: float  # after an attempt that adds up


SHORT = Reasoner(DIFFICULTIES, (2, 3, 4, 5, 6, 8, 10, 12, 14), (0.2, 0.5, 0.8), 0.025, 0.3, 0.2)
LONG = Reasoner((6, 7, 8), (10, 14, 18, 22, 26, 30), (0.0, 0.2, 0.4), 0.006, 0.1, 0.15)


@dataclass(frozen=True)
class Problem:
    """A problem: `numbers`, the `target` that one choice of them adds up to, and the `answer`, that choice's `ends`."""

    numbers: tuple[int, ...]
    target: int
    answer: int

    @property
    def text(self) -> str:
        numbers = ", ".join(map(str, self.numbers))
        return (
            f"Some of the numbers {numbers} add up to {self.target}."
            " What is the sum of the smallest and the largest of them?"
        )


def ends(picked: Sequence[int]) -> int:
    """The sum of the smallest and the largest of the numbers picked."""
    return min(picked) + max(picked)


def draw_problem(rng: random.Random, difficulty: int) -> Problem:
    """Draw a problem with `difficulty` distinct numbers; raises ValueError outside 3 to 8."""
    if not 3 <= difficulty <= 8:
        raise ValueError(f"difficulty is how many numbers a problem has, 3 to 8; got {difficulty}")
    while True:
        numbers = tuple(rng.sample(range(1, LARGEST_NUMBER + 1), difficulty))
        choices: dict[int, list[tuple[int, ...]]] = {}
        for size in range(1, difficulty + 1):
            for choice in combinations(numbers, size):
                choices.setdefault(sum(choice), []).append(choice)
        targets = [
            target
            for target, solutions in choices.items()
            if target <= LARGEST_TARGET and len(solutions) == 1 and 2 <= len(solutions[0]) < difficulty
        ]
        if targets:
            target = rng.choice(targets)
            return Problem(numbers, target, ends(choices[target][0]))


def attempt(rng: random.Random, problem: Problem, heed: bool) -> list[int]:
    """Pick numbers until their sum reaches or passes the target, nothing fits, or (without `heed`) at random."""
    left = list(problem.numbers)
    rng.shuffle(left)
    size = len(left) if heed else rng.randint(2, len(left))
    picked = [left.pop()]
    while left and len(picked) < size and sum(picked) < problem.target:
        room = problem.target - sum(picked)
        fitting = [x for x in left if x <= room] if heed else left
        if not fitting:
            break
        exact = heed and room in left and rng.random() < SEES_EXACT
        picked.append(room if exact else rng.choice(fitting))
        left.remove(picked[-1])
    return picked


def episode_steps(problem: Problem, opening: str, picked: list[int], answer: int | None) -> list[str]:
    """The three steps of one episode: the sum worked out, its comparison with the target, the answer so far."""
    total, sums = picked[0], str(picked[0])
    for number in picked[1:]:
        total += number
        sums += f" + {number} = {total}"
    if total == problem.target:
        verdict = f"{total} is exactly {problem.target}."
    else:
        verdict = f"{total} is {'less' if total < problem.target else 'more'} than {problem.target}."
    if answer == ends(picked):
        result = f"The answer so far is {min(picked)} + {max(picked)} = {answer}."
    else:
        result = f"The answer so far is {answer}." if answer else "No answer so far."
    return [f"{opening} {sums}.", verdict, result]


def think(rng: random.Random, problem: Problem, reasoner: Reasoner = SHORT) -> tuple[list[str], list[int | None]]:
    """Draw a thought: its episodes (steps joined by blank lines) and the answer so far that each ends with."""
    heed, length = rng.choice(reasoner.heed), rng.choice(reasoner.episodes)
    episodes: list[str] = []
    answers: list[int | None] = []
    answer: int | None = None
    for index in range(length):
        picked = attempt(rng, problem, heed=rng.random() < heed)
        adds_up = sum(picked) == problem.target
        slips = len(picked) > 1 and rng.random() < min(reasoner.largest_slip, reasoner.slip_per_episode * index)
        if adds_up or slips:
            answer = ends(picked)
        opening = f"{rng.choice(MARKERS)}, try" if episodes else "Try"
        episodes.append("\n\n".join(episode_steps(problem, opening, picked, answer)))
        answers.append(answer)
        if adds_up and rng.random() < reasoner.stop_probability:
            break
    return episodes, answers


def guess(rng: random.Random, problem: Problem, answer: int | None) -> int:
    """The answer that the reasoner gives: its answer so far, or the sum of two random numbers if it has none."""
    return answer or sum(rng.sample(problem.numbers, 2))


def answer_text(answer: int) -> str:
    """What follows the answer header `1. **` (Figure 22)."""
    return f"Ends:** they add up to \\boxed{{{answer}}}."
