"""The ledger of the shipped bases' training problems, and problems outside of it."""

import random
from hashlib import sha256

import pytest
import yaml
from conftest import ROOT
from pydantic import ValidationError

from mrt.problems.build import Problems, build
from mrt.problems.decontamination import toy_key
from mrt.problems.settings import Dataset, Toy
from mrt.toy import seen as ledger
from mrt.toy.seen import code, seen
from mrt.toy.world import draw_problem
from mrt.training.toy_base import draw_attempt, draw_example, drawer
from workflow.scripts.seen import TRACES, trained_on


def test_a_code_is_one_problem_in_any_order():
    rng, problems = random.Random(3), {}
    for _ in range(3000):
        problem = draw_problem(rng, rng.randint(3, 8))
        shuffled = rng.sample(problem.numbers, len(problem.numbers))
        assert code(shuffled, problem.target) == code(problem.numbers, problem.target) < 2**27
        problems.setdefault(code(problem.numbers, problem.target), set()).add(toy_key(problem.text))
    assert all(len(keys) == 1 for keys in problems.values())


@pytest.mark.parametrize("base", TRACES)
def test_the_ledger_has_what_each_base_was_trained_on(base):
    assert len(trained_on(base, 1500)) > 1300 and trained_on(base, 1500) <= seen()


@pytest.mark.thorough
def test_the_ledger_is_made_from_the_seeds_again():
    """A minute and a half."""
    assert set().union(*(trained_on(*base) for base in TRACES.items())) == seen()


def test_the_bases_draw_their_traces_as_ever():
    """The ledger describes weights that are not made again: their traces must not be sampled otherwise."""
    for base, draw in (("thoughts", draw_example), ("attempts", draw_attempt)):
        words = drawer(base, random.Random(0)).args[1]
        rng, again = random.Random(0), drawer(base, random.Random(0))
        assert [draw(rng, words) for _ in range(20)] == [again() for _ in range(20)]


def drawn(**toy):
    table, tally = build("test", Dataset(toy=Toy(**toy)))
    return {code(numbers, target) for *numbers, target in map(toy_key, table["problem"])}, tally


def test_unseen_problems_are_as_many_and_none_of_them_is_in_the_ledger():
    asked = {"count": 60, "seed": 3, "difficulties": [4, 5, 6, 7]}
    known, _ = drawn(**asked)
    assert known & seen()
    unseen, tally = drawn(**asked, unseen=True)
    assert len(unseen) == 60 and not unseen & seen()
    (dropped,) = [dropped for rule, _, dropped in tally.rules if rule == "a toy base was trained on it"]
    assert dropped > 30
    more, _ = drawn(**asked | {"count": 75}, unseen=True)
    assert unseen < more


def test_all_problems_of_three_numbers_were_seen():
    with pytest.raises(ValidationError, match="all problems of 3 numbers; set difficulties"):
        Toy(count=1, unseen=True)
    rng = random.Random(9)
    for _ in range(500):
        problem = draw_problem(rng, 3)
        assert code(problem.numbers, problem.target) in seen()


def test_another_ledger_is_refused(tmp_path, monkeypatch):
    other = tmp_path / "seen.parquet"
    ledger.write([70, 5, 900], other)
    monkeypatch.setattr(ledger, "LEDGER", other)
    with pytest.raises(ValueError, match=r"seen\.parquet is not the ledger of the shipped toy bases"):
        seen.__wrapped__()
    monkeypatch.setattr(ledger, "SHA256", sha256(other.read_bytes()).hexdigest())
    assert seen.__wrapped__() == {5, 70, 900}


def test_a_set_that_is_no_training_set_says_how_much_of_it_was_seen(tmp_path, capsys):
    said = "of them are among those that a shipped toy base was trained on"
    for toy, split, told in (
        ({"count": 5, "difficulties": [3]}, "test", f"\n5 {said}"),
        ({"count": 5, "difficulties": [4, 6], "unseen": True}, "val", f"\n0 {said}"),
        ({"count": 5, "difficulties": [3]}, "train", None),
    ):
        Problems(name="p", set=Dataset(toy=Toy(**toy), split=split), out=tmp_path / "p.parquet").cli_cmd()
        printed = capsys.readouterr().out
        assert told in printed if told else said not in printed


@pytest.mark.parametrize(
    "names",
    [
        "config.yaml",
        "config/backtracking.yaml",
        "config.yaml config/rl.yaml",
        "config.yaml config/rl.yaml experiments/likelihood_prefixes/config.yaml",
        "config.yaml config/rl.yaml experiments/likelihood_confirmed/config.yaml",
        "config.yaml config/rl.yaml experiments/likelihood_published/config.yaml",
        "config.yaml config/rl.yaml experiments/long_thoughts/config.yaml",
    ],
)
def test_no_base_was_trained_on_a_problem_that_our_experiments_measure_on(names):
    from functools import reduce

    from mrt.core.settings import laid_over

    problems = reduce(laid_over, (yaml.safe_load((ROOT / name).read_text()) for name in names.split()))["problems"]
    held = [Dataset(**dataset) for dataset in problems.values() if dataset["split"] != "train"]
    assert len(held) >= 2 and all(dataset.toy.unseen for dataset in held)
