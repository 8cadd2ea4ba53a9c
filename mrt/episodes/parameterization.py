"""The two parameterizations of episodes (Section 7, Figure 5): how a completion is cut, and how mu answers at a prefix.

Open-ended: a thought in `<think>` markers, cut where a marker ("Wait", "Alternatively", ...) opens a step. Mu is told
"Time is up." after a prefix and closes the thought (Figure 22).

Backtracking search: no thought. A completion is an attempt in numbered steps that ends in an answer; a backtrack, which
says that something is off and names the step to redo; a revision from that step on, to an answer; perhaps another
backtrack, and so on (Appendix A, Figure 30). As every attempt ends in an answer, mu is the policy itself: after an
attempt it says that attempt's answer, after a backtrack it goes on to the revision's.

Both cut losslessly: joining the episodes gives the cut text back. The prefix j is the first j episodes.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from pydantic import Field

from mrt.core.settings import Settings

MARKERS = (
    "Wait",
    "But wait",
    "Alternatively",
    "Is there another way to think about this?",
    "But let me double-check",
    "But hold on",
)
STEP_END = "\n\n"
OPEN, CLOSE = "<think>", "</think>"


class Cut(NamedTuple):
    """Episodes of a completion, and whether it ended them as it should: by `</think>`, or with an answer."""

    episodes: list[str]
    closed: bool


class Segmentation(Settings):
    """How thoughts are cut (Appendix D)."""

    min_steps: int = Field(3, ge=1, description="Steps an episode has at least (Appendix D).")
    max_episodes: int | None = Field(None, ge=0, description="Cuts made at most; what follows the last is one episode.")
    markers: tuple[str, ...] = Field(MARKERS, description="A step that begins with one of these opens an episode.")
    by: Literal["markers", "steps"] = Field(
        "markers",
        description="What opens an episode: a step that begins with a marker, as in the paper, or every step, for"
        " models whose thoughts have no markers. A step is a paragraph: what stands between blank lines.",
    )


class Template(Settings):
    """What the meta-prover writes after a prefix; the default is Figure 22's."""

    stop: str = Field(
        "Time is up.\n\nGiven the time I've spent and the approaches I've tried, I should stop thinking and formulate"
        " a final answer based on what I already have.\n",
        description="Stop phrase that ends an unfinished thought.",
    )
    close: str = Field("</think>\n\n", description="Closes the thought.")
    header: str = Field("**Step-by-Step Explanation and Answer:**\n\n1. **", description="Opening of the answer.")

    def force(self, prefix: str, *, stop: bool = True) -> str:
        """A prefix of an unfinished thought, ended by the stop phrase (unless `stop` is off), and the answer begun."""
        body = prefix.rstrip("\n")
        phrase = self.stop if stop else ""
        break_ = ("\n\n" if stop else "\n") if body else prefix
        return body + break_ + phrase + self.close + self.header

    def finish(self, thought: str) -> str:
        """The whole of a thought that the model closed itself, closed."""
        return thought + self.close


class OpenEnded(Settings):
    """Thoughts in `<think>` markers (Section 7)."""

    kind: Literal["open_ended"] = Field("open_ended", description="Which parameterization this is.")
    segmentation: Segmentation = Field(default_factory=Segmentation, description="How thoughts are cut.")
    template: Template = Field(default_factory=Template, description="What forces an answer.")

    @property
    def inside(self) -> bool:
        """Whether a completion begins inside a thought, and has no answer unless it closes it."""
        return True

    @property
    def closing(self) -> str:
        """What a completion has that came to its answer."""
        return CLOSE

    @property
    def answer_ends(self) -> tuple[str, ...]:
        """Texts that end an answer of mu, besides its end of text."""
        return ()

    def cut(self, completion: str, before: str = "") -> Cut:
        """Episodes of a completion that goes on from the prefix `before` (which is cut anew with it)."""
        parts = take_apart(completion)
        return Cut(split_episodes(before + parts.thought, **self.segmentation.model_dump()), parts.closed)

    def force(self, prefix: str) -> str:
        """What follows the chat prompt to have mu answer at a prefix."""
        return self.template.force(prefix)

    def finish(self, thought: str) -> str:
        """The same, after the whole of a thought that the model closed itself."""
        return self.template.finish(thought)


class Backtracking(Settings):
    """Attempts, backtracks and revisions (Appendix A)."""

    kind: Literal["backtracking"] = Field("backtracking", description="Which parameterization this is.")
    marker: str = Field(
        "Wait, this seems off. Let's try something else.",
        min_length=1,
        description="The paragraph that opens a backtrack (Figure 30).",
    )
    step: str = Field("Step {}:", pattern=r"\{\}", description="Heading of a step; `{}` stands for its number.")
    answer: str = Field(
        "Answer:",
        min_length=1,
        description="Heading of the answer that ends an attempt; with the space behind it if the model's tokenizer has"
        " that in the same token.",
    )

    @property
    def inside(self) -> bool:
        """Whether a completion begins inside a thought, and has no answer unless it closes it."""
        return False

    @property
    def closing(self) -> str:
        """What a completion has that came to its answer."""
        return self.answer

    @property
    def answer_ends(self) -> tuple[str, ...]:
        """Texts that end an answer of mu, besides its end of text."""
        return (STEP_END + self.marker,)

    @property
    def backtrack(self) -> re.Pattern[str]:
        """A backtrack: the marker at the beginning of a paragraph, and the step to redo if one is named.

        It ends with the step's number: a token that begins behind it ("`: Take`") must not be cut.
        """
        heading = re.escape(self.step.partition("{}")[0]) + r"\d+"
        return re.compile(rf"(?:(?<=\n\n)|\A){re.escape(self.marker)}\n*(?:{heading})?")

    def cut(self, completion: str, before: str = "") -> Cut:
        """Episodes of a completion that goes on from the prefix `before` (which is cut anew with it)."""
        text = before + completion
        cuts = sorted({0, *(end for found in self.backtrack.finditer(text) for end in found.span()), len(text)})
        episodes = [text[a:b] for a, b in pairwise(cuts)]
        return Cut(episodes, bool(episodes) and self.answer in episodes[-1])

    def force(self, prefix: str) -> str:
        """What follows the chat prompt to have mu answer at a prefix.

        After an attempt, its last answer is begun again, so that mu says it; after a backtrack nothing is added.
        """
        *before, last = self.cut(prefix).episodes or [""]
        if not last or self.backtrack.fullmatch(last):
            return prefix
        body, heading, _ = last.rpartition(self.answer)
        begun = body + heading if heading else last.rstrip("\n") + STEP_END + self.answer
        return "".join(before) + begun

    def finish(self, thought: str) -> str:
        """The same, after the whole of a completion that ended itself."""
        return self.force(thought)


Parameterization = OpenEnded | Backtracking


class Parts(NamedTuple):
    """A completion taken apart: its thought, whether `</think>` closed it, and the answer part after it."""

    thought: str
    closed: bool
    answer: str


def take_apart(completion: str, *, inside: bool = True) -> Parts:
    """Thought and answer part of a completion; the thought ends at the first `</think>`.

    `inside` says that the prompt opened the thought. If it did not, a completion without either tag has no thought, and
    all of it is the answer part.
    """
    body = completion.removeprefix(OPEN)
    thought, close, answer = body.partition(CLOSE)
    if not (inside or close or OPEN in completion):
        return Parts("", False, completion)
    return Parts(thought, bool(close), answer)


def split_episodes(
    thought: str,
    *,
    min_steps: int = 3,
    max_episodes: int | None = None,
    markers: Sequence[str] = MARKERS,
    by: Literal["markers", "steps"] = "markers",
) -> list[str]:
    """Episodes of a thought, in order; `"".join(...)` of them is the thought. No thought, no episodes.

    A step that begins with one of the markers opens an episode, or with `by="steps"` any step. `min_steps` is how many
    steps an episode has before another may begin, `max_episodes` how many cuts are made at most (what follows the last
    cut is one episode). Raises ValueError if either is out of range.
    """
    if min_steps < 1 or (max_episodes is not None and max_episodes < 0):
        raise ValueError(f"min_steps must be at least 1 and max_episodes at least 0; got {min_steps}, {max_episodes}")
    if not thought:
        return []
    cuts, start, steps, position = [0], tuple(markers), 0, 0
    for step in thought.split(STEP_END):
        opens = step.startswith(start) if by == "markers" else bool(step.strip())
        if opens and steps >= min_steps and (max_episodes is None or len(cuts) <= max_episodes):
            cuts.append(position)
            steps = 0
        steps += 1
        position += len(step) + len(STEP_END)
    return [thought[a:b] for a, b in zip(cuts, [*cuts[1:], len(thought)], strict=True)]
