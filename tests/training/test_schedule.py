"""How many steps a training takes, on what, at which rates."""

from collections import Counter
from itertools import chain
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt.training.schedule import (
    EveryStepLearns,
    carried,
    carried_steps_of,
    did_not_fall,
    in_words,
    rate,
    too_few,
    warm,
)

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


@pytest.mark.parametrize(
    ("kind", "warmup", "first"),
    [
        ("linear", 4, 1 / 4),
        ("linear", 0.2, 1 / 2),
        ("linear", 30, 1 / 30),
        ("polynomial", 4, 0.0),
        ("constant", 0, 1.0),
    ],
)
def test_a_warm_up_is_a_number_of_steps_or_a_share_and_other_kinds_are_transformers(kind, warmup, first, tmp_path):
    import torch
    from transformers import Trainer, TrainingArguments

    class Learning(EveryStepLearns, Trainer):
        pass

    args = TrainingArguments(str(tmp_path), lr_scheduler_type=kind, warmup_steps=warmup, report_to="none", use_cpu=True)
    trainer = Learning(torch.nn.Linear(1, 1), args)
    optimizer = torch.optim.SGD(trainer.model.parameters(), lr=1.0)
    assert trainer.create_scheduler(10, optimizer).get_last_lr() == pytest.approx([first])


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


def test_a_batch_that_takes_the_whole_set_is_told():
    said = "4 examples, all in each step (batch_size is 256), epochs: 3: 3 steps, the first 1 warm up"
    assert in_words("examples", 4, 256, 3, 0.1) == said


@pytest.mark.parametrize(("steps", "warned"), [(1, True), (9, True), (10, False), (500, False)])
def test_fewer_than_ten_steps_are_too_few(steps, warned):
    said = too_few(steps, "4 examples", most=True)
    assert bool(said) == warned
    assert said is None or said.startswith(f"at most {steps} step{'s' * (steps > 1)} on 4 examples: fewer than 10")


@given(st.integers(1, 20), st.integers(2, 5), st.floats(0.01, 1), st.floats(-0.5, 0.5))
def test_epochs_are_compared_however_much_their_batches_differ(of_epoch, epochs, slope, spread):
    """An epoch's batches differ by `spread` a step; only what changes between epochs counts."""
    ends = [(i + 1) / of_epoch for i in range(of_epoch * epochs)]
    falling = [5 - slope * (i // of_epoch) + spread * (i % of_epoch) for i in range(of_epoch * epochs)]
    assert did_not_fall(falling, ends) is None
    assert "the loss did not fall" in did_not_fall(falling[::-1], [end for end in ends])
    assert did_not_fall([1.0] * len(ends), ends) is not None


def test_thirds_are_compared_in_a_single_epoch_and_a_single_step_says_nothing():
    ends = [i / 9 for i in range(1, 10)]
    assert did_not_fall([3, 3, 3, 9, 9, 9, 2, 2, 2], ends) is None
    assert "2 in the first steps, 3 in the last ones" in did_not_fall([2, 2, 2, 1, 1, 1, 3, 3, 3], ends)
    assert did_not_fall([3.0], [1.0]) is did_not_fall([], []) is None
