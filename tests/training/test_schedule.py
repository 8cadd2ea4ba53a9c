"""How many steps a training takes, on what, at which rates."""

from collections import Counter
from itertools import chain
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt.training.schedule import carried, carried_steps_of, in_words, rate, warm

KINDS = ("linear", "cosine", "constant_with_warmup")
ratios = st.floats(0, 1, exclude_max=True)


@given(st.integers(1, 300), ratios, st.sampled_from(KINDS))
def test_every_step_learns_and_one_has_the_peak_rate(steps, ratio, kind):
    warming = warm(steps, ratio)
    rates = [rate(step, steps, warming, kind) for step in range(1, steps + 1)]
    assert min(rates) > 0 and max(rates) == rates[warming - 1] == 1
    assert rates[:warming] == pytest.approx([i / warming for i in range(1, warming + 1)])
    assert rates[warming - 1 :] == sorted(rates[warming - 1 :], reverse=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("steps", "ratio"), [(1, 0.1), (7, 0.0), (20, 0.1), (20, 0.9)])
def test_the_rates_are_those_of_transformers_a_step_earlier(kind, steps, ratio):
    import torch
    from transformers import get_scheduler

    def theirs(warming, total):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule = get_scheduler(kind, optimizer, num_warmup_steps=warming, num_training_steps=total)
        found = []
        for _ in range(total):
            found.append(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()
        return found

    warming = warm(steps, ratio)
    ours = [rate(step, steps, warming, kind) for step in range(1, steps + 1)]
    assert ours == pytest.approx(theirs(warming, steps + 1)[1:])
    if not ratio:
        assert ours == pytest.approx(theirs(0, steps))


@pytest.mark.parametrize(("steps", "ratio", "warming"), [(100, 0.07, 7), (100, 0.28, 28), (10, 0.21, 3)])
def test_a_share_is_not_rounded_up_for_an_error_of_floating_point(steps, ratio, warming):
    assert warm(steps, ratio) == warming


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0.01, 5))
def test_all_problems_are_taken_equally_often_but_for_one_time(count, batch, epochs):
    def order(number):
        return [(i + 7 * number) % count for i in range(count)]

    a_pass = ceil(count / batch)
    steps = carried_steps_of(count, batch, epochs)
    batches = list(chain.from_iterable(carried(range(count), batch, e, order) for e in range(steps // a_pass + 1)))
    taken = Counter(chain.from_iterable(batches[:steps]))
    assert all(len(each) == batch for each in batches) and steps * batch >= epochs * count - 1e-4
    assert (steps - 1) * batch < epochs * count
    assert max(taken.values()) - min(taken[i] for i in range(count)) <= 1
    assert list(chain.from_iterable(batches))[:count] == order(0)


def test_a_training_says_its_steps():
    assert in_words("problems", 5, 3, 1, 0.1, carried=True) == (
        "5 problems, 3 a step, epochs: 1: 2 steps, the first 1 warm up; 1 of the problems fill the last step, once more"
        " than epochs says"
    )
    assert in_words("problems", 1000, 16, 0.48, 0.1, carried=True) == (
        "1000 problems, 16 a step, epochs: 0.48: 30 steps, the first 3 warm up; 480 of the problems are trained on,"
        " 520 are left out (epochs is below 1)"
    )
    assert in_words("examples", 40, 4, 3, 0) == "40 examples, 4 a step, epochs: 3: 30 steps, the first 1 warm up"


def test_the_steps_that_configurations_name_stay():
    """config/rl.yaml and those laid over it say how many steps these epochs are, of 1,000 problems at 16 a step."""
    for epochs, steps in ((0.48, 30), (0.8, 50), (0.672, 42), (0.704, 44), (0.624, 39), (0.544, 34)):
        assert carried_steps_of(1000, 16, epochs) == steps
