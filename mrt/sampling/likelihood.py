"""J by likelihood: the probability that mu writes the gold answer, without sampling or grading.

    python -m mrt.sampling.likelihood --model results/laptop/models/base --rollouts rollouts.parquet \\
        --episodes episodes.parquet --problems problems.parquet --out prover.parquet --names base --names toy_test \\
        --prover '{"estimate": "likelihood"}'

J(mu; z_0:j) is the probability that mu's answer at prefix j is right (Equation 4). Sampled answers estimate it; a model
also knows it. The prompt that forces an answer is followed by `prover.opening`, which ends in `\\boxed{`. After it the
model gives the probabilities of the gold answer's tokens and of a token that begins with `}`, all as it would write
them (`mrt.sampling.scoring.as_written`). One answer may be written in several ways: J is the sum over the texts of the
task (`golds`), of math over `mrt.grading.spellings`. So J is the share of right answers among those that mu would begin
with this opening. An opening without explanation makes a mu that answers at once.

Each spelling at each prefix is a row of the forced answers, with finish_reason `scored` and its log-probability; a
prefix is read once, as for sampled answers. MRT (STaR) needs an answer's text besides: where its filter would keep a
prefix, `EXAMPLES` answers are sampled there, and only there; J does not count them.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import exp
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from mrt.core.cli import run
from mrt.episodes.parameterization import OpenEnded
from mrt.grading.task import Choice, golds_of, problem_rows, reference, task_of
from mrt.sampling.allocation import Thresholds
from mrt.sampling.cache import CacheSettings
from mrt.sampling.engine import Completion, Request
from mrt.sampling.prover import Place, Prefix, Prove

EXAMPLES = 4


class Score(Prove):
    """Read off the gold answer's probability at every prefix of every thought, with vLLM."""

    problems: Path = Field(description="Dataset (Parquet): gold answers.")
    task: Choice | None = Field(None, description="The task that gives their texts: its name, or name and settings.")
    filters: list[Thresholds] = Field(
        [], description="Filters of MRT (STaR): answers are sampled at the prefixes that they keep."
    )
    parameterization: OpenEnded = Field(default_factory=OpenEnded, description="How an answer is forced.")

    def plugins(self) -> tuple[str, ...]:
        return (reference(self.task),)

    def cli_cmd(self) -> None:
        traces, cache = self.shard_of_traces(self.prover.traces)
        places = list(self.places(traces))
        completions = self.score(places, cache)
        if not self.cache.shard:
            self.write(places, [[boxed(completion) for completion in of_place] for of_place in completions])

    def score(self, places: Sequence[Place], cache: CacheSettings) -> list[list[Completion]]:
        """At each place the scored spellings, then the answers that were sampled there."""
        problems, task = problem_rows(self.problems), task_of(self.task)
        golds = {name: golds_of(task, problems[name]) for name in dict.fromkeys(place.problem_id for place in places)}
        spelled = [(i, spelling) for i, place in enumerate(places) for spelling in golds[place.problem_id]]
        of = [i for i, _ in spelled]  # the place of each request
        of_trace: dict[int, list[int]] = defaultdict(list)
        for i, place in enumerate(places):
            of_trace[place.trace].append(i)
        missing = Counter(places[i].trace for i in of)
        J = np.zeros(len(places))

        def then(request: int, completions: list[Completion]) -> list[Request]:
            if request >= len(spelled):
                return []
            at = of[request]
            J[at] += sum(map(probability, completions))
            trace = places[at].trace
            places_of_trace = of_trace[trace]
            missing[trace] -= 1
            kept = (
                [] if missing[trace] else [places_of_trace[j] for j in self.kept(np.minimum(J[places_of_trace], 1.0))]
            )
            of.extend(kept)
            return [replace(places[i].request, n=EXAMPLES, priority=-1) for i in kept]

        requests = [
            replace(places[i].request, n=1, scored=spelling, opening=self.opening(places[i].prefix))
            for i, spelling in spelled
        ]
        completions_of = self.draw(requests, then, cache=cache, shard_of=lambda request: places[of[request]].trace)
        completions_at: list[list[Completion]] = [[] for _ in places]
        for i, completions in zip(of, completions_of or [], strict=True):
            completions_at[i] += completions
        return completions_at

    def opening(self, prefix: Prefix) -> str:
        """The text of mu before the answer; after a thought that the model closed itself, with the header."""
        header = self.parameterization.template.header if prefix.whole else ""
        return header + self.prover.opening

    def kept(self, J: npt.NDArray[np.float64]) -> list[int]:
        """The prefixes that filters of MRT (STaR) keep, given J at all prefixes of a trace."""
        if len(J) < 2:
            return []
        best = [(rule, rule.best(J)) for rule in self.filters]
        return sorted({j for rule, j in best if rule.decide(J[j : j + 1], J[:1])[0]})


def probability(scored: Completion) -> float:
    """The probability of a scored text; 0 if the context was too short for it."""
    return exp(scored.mean_logprob * scored.tokens) if scored.mean_logprob is not None else 0.0


def boxed(completion: Completion) -> Completion:
    """A scored answer in its box, as a sampled one has it."""
    scored = completion.finish_reason == "scored"
    return replace(completion, text=f"\\boxed{{{completion.text}}}") if scored else completion


if __name__ == "__main__":
    run(Score)
