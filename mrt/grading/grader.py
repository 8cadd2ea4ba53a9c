"""What compares answers of mathematics, in bulk.

The answer is searched in the answer part (`mrt.grading.answers`). Two answers are compared first by exact rules that
need no algebra; undecided pairs go to worker processes (`mrt.grading.equality`, `mrt.grading.workers`), whose CPU time
and memory are limited. A pair that exceeds a limit counts as unequal. Each distinct pair is judged once. A doubtful
pair is unequal: accepting a wrong answer is the worse error (docs/grading.md).
"""

import os
from collections.abc import Sequence

from mrt.grading.answers import find_box
from mrt.grading.equality import exact, normalise, value_of
from mrt.grading.task import clustered
from mrt.grading.workers import TIMEOUT, Pool, shared_pool
from mrt.grading.workers import Task as Comparison


class Grader:
    """Extracts, judges and clusters answers in bulk; remembers every verdict, so each distinct pair is judged once.

    `workers` is the number of processes (default: the available CPUs), `timeout` the CPU seconds a pair may take. Where
    Math-Verify judges `alone`, our rules do not.
    """

    def __init__(
        self,
        workers: int | None = None,
        timeout: float = TIMEOUT,
        pool: Pool | None = None,
        *,
        alone: bool = False,
    ) -> None:
        if timeout <= 0 or (workers is not None and workers < 1):
            raise ValueError("grading needs at least one worker and a time limit above 0 seconds")
        self.workers = workers or len(os.sched_getaffinity(0))
        self.timeout, self.pool = timeout, pool
        self.alone = alone
        self.verdicts: dict[tuple[str, str], bool] = {}  # of (prediction, gold), normalised where our rules judge
        self.timed_out = 0  # pairs and extractions that ran out of time

    def _run(self, tasks: Sequence[Comparison]) -> list[bool | str | None]:
        results = (self.pool or shared_pool()).run(tasks, self.workers, self.timeout) if tasks else []
        self.timed_out += sum(late for _, late in results)
        return [value for value, _ in results]

    def extract(self, parts: Sequence[str | None]) -> list[str | None]:
        r"""The answer that each answer part gives, as text; None if it is unparseable.

        The last `\boxed{...}` counts, else the answer in a sentence or a line `####`, else the one that Math-Verify
        finds in the last 2,000 characters. None where there is no answer part, as of a thought that never closes
        (`mrt.episodes.thinking.answer_parts`), and for an answer longer than 2,000 characters. Each distinct text is
        searched once.
        """
        boxes = list(map(find_box, parts))
        texts = list(dict.fromkeys(text for _, text in boxes if text is not None))
        answers = dict(zip(texts, self._run([("search_answer", text, "") for text in texts]), strict=True))
        return [answer if text is None else str(answers[text] or "") or None for answer, text in boxes]

    def equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Whether prediction and gold are equal, for each pair of bare answers (prediction, gold)."""
        keys = [pair if self.alone else (normalise(pair[0]), normalise(pair[1])) for pair in pairs]
        tasks: dict[tuple[str, str], Comparison] = {}
        for key, pair in zip(keys, pairs, strict=True):
            if key not in self.verdicts and key not in tasks:
                verdict = None if self.alone else exact(*pair)
                if verdict is None:
                    tasks[key] = ("math_verify" if self.alone else "same_answer", *pair)
                else:
                    self.verdicts[key] = verdict
        self.verdicts.update(zip(tasks, map(bool, self._run(list(tasks.values()))), strict=True))
        return [self.verdicts[key] for key in keys]

    def right(self, parts: Sequence[str | None], gold: Sequence[str]) -> list[bool]:
        """Whether the answer of each answer part equals its gold answer."""
        return self.equal([(answer or "", right) for answer, right in zip(self.extract(parts), gold, strict=True)])

    def clusters(self, groups: Sequence[Sequence[str | None]]) -> list[list[int]]:
        """The cluster of each answer of each group (`mrt.grading.task.clustered`)."""
        return clustered(groups, lambda pairs, _: self.equal(pairs), value_of)
