"""The two parameterizations of episodes (Section 7, Figure 5): how a completion is cut, and how the
meta-prover mu answers at a prefix.

Open-ended: a thought between tags, cut where a marker ("Wait", "Alternatively", ...) opens a step. A prefix is followed
by the stop phrase "Time is up.", and mu closes the thought (Figure 22).

Backtracking search: no thought. A completion begins with an attempt in numbered steps that ends in an answer. Next come
a backtrack, which says that something is off and names the step to redo, and a revision from that step on, to an
answer. Further backtracks may follow (Appendix A, Figure 30). As every attempt ends in an answer, mu is the policy
itself: after an attempt it repeats that attempt's answer, after a backtrack it continues to the revision's.

Both cut losslessly: joining the episodes restores the text. Prefix j is the first j episodes.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from mrt.core.settings import Settings
from mrt.episodes.thinking import THINK, Thinking, take_apart

MARKERS = (
    "Wait",
    "But wait",
    "Alternatively",
    "Is there another way to think about this?",
    "But let me double-check",
    "But hold on",
)
STEP_END = "\n\n"
BLANK_LINES = re.compile(r"\r?\n(?:[^\S\n]*\n)+")  # what separates steps


Split = Callable[[str], list[str]]


class Cut(NamedTuple):
    """Episodes of a completion, and whether it is finished: its thought is closed, or it ended with an answer."""

    episodes: list[str]
    closed: bool


class Segmentation(Settings):
    """How thoughts are cut (Appendix D)."""

    min_steps: int = Field(3, ge=1, description="Minimum number of steps of an episode (Appendix D).")
    max_episodes: int | None = Field(
        None,
        ge=0,
        description="Maximum number of cuts. The rest is the last episode, so there is at most one episode more.",
    )
    markers: tuple[str, ...] = Field(MARKERS, description="A step that begins with one of these opens an episode.")
    by: Literal["markers", "steps"] | Annotated[str, Field(pattern=r"\.py:\w+$")] = Field(
        "markers",
        description="Step that opens an episode: one that begins with a marker, as in the paper, or every step,"
        " for models whose thoughts have no markers. A step is a paragraph; blank lines separate"
        " steps. Or `FILE.py:NAME`, a function of yours (docs/extend.md).",
    )

    @model_validator(mode="after")
    def _of_ours(self) -> Self:
        if self.by not in ("markers", "steps") and (unread := self.model_fields_set - {"by"}):
            raise ValueError(f"{', '.join(sorted(unread))}: {self.by} cuts by itself; leave it out")
        return self


class Template(Settings):
    """The texts of the meta-prover after a prefix; the default is Figure 22's."""

    stop: str = Field(
        "Time is up.\n\nGiven the time I've spent and the approaches I've tried, I should stop thinking and formulate"
        " a final answer based on what I already have.\n",
        description="Stop phrase that ends an unfinished thought.",
    )
    close: str | None = Field(None, description="Closes the thought; by default as the model does (`thinking.close`).")
    header: str = Field("**Step-by-Step Explanation and Answer:**\n\n1. **", description="Opening of the answer.")

    def closing(self, thinking: Thinking = THINK) -> str:
        """The text that closes a thought of a model that thinks in these tags."""
        return thinking.close if self.close is None else self.close

    def force(self, prefix: str, *, stop: bool = True, thinking: Thinking = THINK) -> str:
        """A prefix of an unfinished thought, the stop phrase (unless `stop` is off), and the opening of the answer."""
        body = prefix.rstrip("\r\n")
        phrase = self.stop if stop else ""
        break_ = ("\n\n" if stop else "\n") if body else prefix
        return body + break_ + phrase + self.closing(thinking) + self.header

    def finish(self, thought: str, thinking: Thinking = THINK) -> str:
        """A complete thought that the model closed itself, with its closing tag."""
        return thought + self.closing(thinking)


class OpenEnded(Settings):
    """Thoughts between tags (Section 7)."""

    kind: Literal["open_ended"] = Field("open_ended", description="Which parameterization this is.")
    segmentation: Segmentation = Field(default_factory=Segmentation, description="How thoughts are cut.")
    template: Template = Field(default_factory=Template, description="Text that forces an answer.")
    thinking: Thinking = Field(THINK, description="The tags of a thought, where a row of rollouts does not name them.")

    def of(self, thinking: Thinking | None) -> "OpenEnded":
        """The same for a row whose model thinks in these tags."""
        return self if thinking in (None, self.thinking) else self.model_copy(update={"thinking": thinking})

    @property
    def closing(self) -> str | None:
        """Text that marks a finished completion; None: one is finished that leaves no thought open."""
        return None

    @property
    def answer_ends(self) -> tuple[str, ...]:
        """Stop strings of mu's answers, besides the end-of-text token."""
        return ()

    def cut(self, completion: str, before: str = "", *, inside: bool = True, split: Split | None = None) -> Cut:
        """Episodes of `before + completion`, where the completion continues the prefix `before`.

        `inside` says whether `before + completion` begins inside a thought. A tag that the model wrote to open its
        thought belongs to the first episode (Figure 22). A completion without a thought has no episodes. `split` is the
        function of a user's file, if `segmentation` names one (`mrt.episodes.segmentation.splitter`).
        """
        opening, thought, closed, _ = take_apart(before + completion, inside=inside, thinking=self.thinking)
        if split is None:
            episodes = split_episodes(thought, **self.segmentation.model_dump())
        else:
            episodes = split(thought) if thought else []
        if opening:
            episodes = [opening + "".join(episodes[:1]), *episodes[1:]]
        return Cut(episodes, closed)

    def force(self, prefix: str, *, inside: bool = True) -> str:
        """Text after the chat prompt that makes mu answer at a prefix; it opens the thought if nothing else does."""
        opening = "" if inside or prefix else self.thinking.open
        return opening + self.template.force(prefix, thinking=self.thinking)

    def finish(self, thought: str) -> str:
        """Text after the chat prompt that makes mu answer after a thought that the model closed itself."""
        return self.template.finish(thought, self.thinking)


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
        description="Heading of the answer that ends an attempt; include the space after it if the model's tokenizer"
        " puts both in one token.",
    )

    def of(self, thinking: Thinking | None) -> "Backtracking":
        """The same: attempts are not part of a thought."""
        return self

    @property
    def closing(self) -> str | None:
        """Text that marks a finished completion."""
        return self.answer

    @property
    def answer_ends(self) -> tuple[str, ...]:
        """Stop strings of mu's answers, besides the end-of-text token."""
        return (STEP_END + self.marker,)

    @property
    def backtrack(self) -> re.Pattern[str]:
        """Pattern of a backtrack: the marker at the beginning of a paragraph, and the step to redo if one is named.

        It ends with the step's number, so that the token after it ("`: Take`") is not split.
        """
        heading = re.escape(self.step.partition("{}")[0]) + r"\d+"
        return re.compile(rf"(?:(?<=\n\n)|\A){re.escape(self.marker)}\n*(?:{heading})?")

    def cut(self, completion: str, before: str = "", *, inside: bool = False, split: Split | None = None) -> Cut:
        """Episodes of `before + completion`, where the completion continues the prefix `before`."""
        text = before + completion
        cuts = sorted({0, *(end for match in self.backtrack.finditer(text) for end in match.span()), len(text)})
        episodes = [text[a:b] for a, b in pairwise(cuts)]
        return Cut(episodes, bool(episodes) and self.answer in episodes[-1])

    def force(self, prefix: str, *, inside: bool = False) -> str:
        """Text after the chat prompt that makes mu answer at a prefix.

        After an attempt, the text ends at the heading of its last answer, so that mu repeats the answer; after a
        backtrack nothing is added.
        """
        *before, last = self.cut(prefix).episodes or [""]
        if not last or self.backtrack.fullmatch(last):
            return prefix
        body, heading, _ = last.rpartition(self.answer)
        forced = body + heading if heading else last.rstrip("\n") + STEP_END + self.answer
        return "".join(before) + forced

    def finish(self, thought: str) -> str:
        """Text after the chat prompt that makes mu answer after a completion that ended by itself."""
        return self.force(thought)


Parameterization = OpenEnded | Backtracking


@lru_cache(maxsize=64)
def _start_of(markers: tuple[str, ...]) -> re.Pattern[str]:
    """A pattern of a text that begins with one of the markers, as a whole word."""
    words = (
        re.escape(marker) + (r"(?![^\W\d_])" if marker[-1:].isascii() and marker[-1:].isalpha() else "")
        for marker in markers
    )
    return re.compile("|".join(words) or "(?!)")


def split_episodes(
    thought: str,
    *,
    min_steps: int = 3,
    max_episodes: int | None = None,
    markers: Sequence[str] = MARKERS,
    by: str = "markers",
) -> list[str]:
    """Episodes of a thought, in order; `"".join(...)` of them is the thought. An empty thought has none.

    A step that begins with one of the markers, as a whole word, opens an episode, or any step with `by="steps"`.
    `min_steps` is the number of steps that an episode needs before the next may begin, `max_episodes` the maximum
    number of cuts (the text after the last cut is one episode). Raises ValueError if either is out of range, or for
    another `by`.
    """
    if by not in ("markers", "steps"):
        raise ValueError(f"{by} is no way to cut of this package; what reads it has to load it")
    if min_steps < 1 or (max_episodes is not None and max_episodes < 0):
        raise ValueError(f"min_steps must be at least 1 and max_episodes at least 0; got {min_steps}, {max_episodes}")
    if not thought:
        return []
    start = _start_of(tuple(markers))
    cuts, steps, position = [0], 0, 0
    for step_end in [*(blank.end() for blank in BLANK_LINES.finditer(thought)), len(thought)]:
        step = thought[position:step_end].lstrip()
        opens = bool(start.match(step)) if by == "markers" else bool(step)
        if opens and steps >= min_steps and (max_episodes is None or len(cuts) <= max_episodes):
            cuts.append(position)
            steps = 0
        steps += bool(step)
        position = step_end
    return [thought[a:b] for a, b in zip(cuts, [*cuts[1:], len(thought)], strict=True)]
