"""Completions of backtracking search: where they are cut."""

from conftest import TOY_BASE

from mrt.episodes.parameterization import Backtracking
from mrt.sampling.engine import Completion
from mrt.sampling.rollouts import Sample


def test_a_completion_cut_after_a_revision_counts_its_own_tokens():
    attempt, again = "Step 1: Take 13.\n\nAnswer: \\boxed{13}\n\n", Backtracking().marker + "\n\nStep 1:"
    revision = " Take 46.\n\nAnswer: \\boxed{46}\n\n"
    whole = attempt + again + revision + again + revision
    stage = Sample(model=str(TOY_BASE), names=("m", "d"), problems="p", out="o", episodes=3)
    drawn = [Completion(whole, 90, "length", -1.0), Completion(attempt + again + revision, 7, "stop", -1.0)]
    (found,) = stage.cut([drawn], 3)
    assert found[0].text == attempt + again + revision and found[1] is drawn[1]
    (size,) = stage.sampler.count([found[0].text])
    assert (found[0].tokens, found[0].finish_reason, found[0].mean_logprob) == (size, "stop", None)
