"""The task `exact`: the answer's text is that of the gold answer."""

import re
from collections.abc import Sequence

from pydantic import Field

from mrt.grading.answers import boxed, tagged
from mrt.grading.task import Row, Task


class Exact(Task):
    """The last box, else the last `<answer>`, else the text after the last `after`, equals the gold answer.

    White space does not count.
    """

    after: str = Field(
        "Answer:", min_length=1, description="The words before an answer without a box, which ends with its line."
    )
    ignore_case: bool = Field(False, description="Whether upper and lower case are the same.")

    def answer(self, part: str, problem: Row) -> str | None:
        box = boxed(part)
        if box is None:
            box = tagged(part)
        if box is None:
            _, marker, rest = part.rpartition(self.after)
            box = rest.strip().partition("\n")[0] if marker else ""
        return self.form(box) or None

    def form(self, text: str) -> str:
        """A text with single spaces, in one case if that does not count."""
        text = " ".join(re.sub(r"\\text\{([^{}]*)\}", r"\1", text).strip("*` ").split())
        return text.casefold() if self.ignore_case else text

    def right(self, answers: Sequence[str], problems: Sequence[Row]) -> list[bool]:
        return [self.form(answer) == self.form(row["answer"]) for answer, row in zip(answers, problems, strict=True)]

    def same(self, pairs: Sequence[tuple[str, str]], problems: Sequence[Row]) -> list[bool]:
        return [self.form(one) == self.form(other) for one, other in pairs]

    def golds(self, problem: Row) -> list[str]:
        return [problem["answer"]]
