"""The task `math`: answers of mathematics, compared by rules and by computer algebra (docs/grading.md)."""

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Literal

from pydantic import Field

from mrt.grading.equality import value_of
from mrt.grading.grader import Grader
from mrt.grading.spellings import spellings
from mrt.grading.task import Row, Task
from mrt.grading.workers import TIMEOUT


class Math(Task):
    """Answers of mathematics: the last box, else the answer in the text; equal by rules or by Math-Verify."""

    by: Literal["exact_and_math_verify", "math_verify"] = Field(
        "exact_and_math_verify",
        description="Our rules, then Math-Verify; or Math-Verify alone, as in published numbers.",
    )
    timeout: float = Field(
        TIMEOUT, gt=0, description="Seconds of CPU time for a pair; a pair that takes longer counts as unequal."
    )

    @cached_property
    def grader(self) -> Grader:
        """What compares answers; it remembers every verdict."""
        return Grader(self._workers, self.timeout, alone=self.by == "math_verify")

    def answers(self, parts: Sequence[str], problems: Sequence[Row]) -> list[str | None]:
        return self.grader.extract(parts)

    def right(self, answers: Sequence[str], problems: Sequence[Row]) -> list[bool]:
        return self.grader.equal([(one, row["answer"]) for one, row in zip(answers, problems, strict=True)])

    def same(self, pairs: Sequence[tuple[str, str]], problems: Sequence[Row]) -> list[bool]:
        return self.grader.equal(pairs)

    def value(self, answer: str) -> Hashable:
        return value_of(answer)

    def golds(self, problem: Row) -> list[str]:
        return spellings(problem["answer"])

    def note(self) -> str:
        return f"{len(self.grader.verdicts)} distinct pairs judged, {self.grader.timed_out} timed out"
