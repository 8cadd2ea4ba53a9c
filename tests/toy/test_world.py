import random
import re
from hashlib import sha256
from itertools import combinations

import pytest
from conftest import ROOT, TOY_BASE
from hypothesis import given
from hypothesis import strategies as st

from mrt.episodes.parameterization import MARKERS, Backtracking, Template, split_episodes, take_apart
from mrt.toy import world
from mrt.toy.attempts import solve
from mrt.training.toy_base import OPENING, RECIPE, MakeBase, draw_example, make_tokenizer


@given(st.integers(), st.sampled_from(world.DIFFICULTIES))
def test_one_choice_adds_up_and_its_ends_are_the_gold_answer(seed, difficulty):
    problem = world.draw_problem(random.Random(seed), difficulty)
    choices = [c for size in range(difficulty + 1) for c in combinations(problem.numbers, size)]
    (found,) = [choice for choice in choices if sum(choice) == problem.target]
    assert problem.answer == min(found) + max(found)
    assert len(set(problem.numbers)) == difficulty
    assert all(str(number) in problem.text for number in (*problem.numbers, problem.target))


@given(st.integers(), st.sampled_from((world.SHORT, world.LONG)))
def test_thoughts_are_cut_where_the_world_meant(seed, reasoner):
    rng = random.Random(seed)
    episodes, answers = world.think(rng, world.draw_problem(rng, rng.choice(reasoner.difficulties)), reasoner)
    thought = "\n\n".join(episodes) + "\n"
    assert [part.rstrip("\n") for part in split_episodes(thought)] == episodes
    assert len(answers) == len(episodes)
    assert all(episode.startswith(MARKERS) for episode in episodes[1:])


@given(st.integers(), st.sampled_from(world.DIFFICULTIES), st.booleans())
def test_an_attempt_adds_different_numbers_of_the_problem(seed, difficulty, heed):
    rng = random.Random(seed)
    problem = world.draw_problem(rng, difficulty)
    picked = world.attempt(rng, problem, heed)
    assert len(set(picked)) == len(picked) and set(picked) <= set(problem.numbers)
    assert sum(picked[:-1]) < problem.target
    if heed:  # but for a first number that is too large itself
        assert sum(picked) <= problem.target or len(picked) == 1


def test_the_reasoner_has_the_vices():
    """It gets better over several episodes, loses some of that by thinking on, and goes on with the answer found."""
    rng = random.Random(0)
    first = later = last = lost = went_on = found = 0
    for _ in range(3000):
        problem = world.draw_problem(rng, 5)
        _, answers = world.think(rng, problem)
        right = [answer == problem.answer for answer in answers]
        if len(right) >= 10:
            first, later, last = first + right[0], later + right[6], last + right[-1]
        lost += any(right) and not right[-1]
        found += any(right)
        went_on += any(right[:-1])
    assert later > 1.5 * first
    assert last < later
    assert lost / 3000 > 0.08
    assert went_on / found > 0.5


def test_progress_of_long_thoughts_lasts_over_many_episodes():
    rng, right, lengths = random.Random(0), {1: 0, 5: 0, 10: 0, 20: 0}, 0
    for _ in range(1000):
        problem = world.draw_problem(rng, rng.choice(world.LONG.difficulties))
        _, answers = world.think(rng, problem, world.LONG)
        lengths += len(answers)
        for episodes in right:
            right[episodes] += answers[min(episodes, len(answers)) - 1] == problem.answer
    assert lengths / 1000 > 15
    assert right[5] > 3 * right[1] and right[10] > 1.3 * right[5] and right[20] > 1.05 * right[10]


def test_difficulty_out_of_range_is_refused():
    with pytest.raises(ValueError, match="difficulty"):
        world.draw_problem(random.Random(0), 1)


def test_examples_speak_the_template_of_the_meta_prover():
    rng, template = random.Random(1), Template()
    drawn = [draw_example(rng, template) for _ in range(300)]
    cut = [e for e in drawn if "Time is up." in e["prompt"]]
    assert 30 < len(cut) < 90
    assert all("Time is up." not in e["completion"] for e in drawn)  # the stop phrase carries no loss
    for example in drawn:
        text = (example["prompt"] + example["completion"]).split("<think>")[1]
        _, _, closed, answer = take_apart(text, inside=True)
        assert closed and answer.startswith("\n\n" + template.header) and "\\boxed{" in answer


def test_the_tokenizer_is_lossless_and_keeps_numbers_whole():
    rng = random.Random(2)
    texts = [e["prompt"] + e["completion"] for e in (draw_example(rng, Template()) for _ in range(1000))]
    tokenizer = make_tokenizer(texts, 1024, OPENING["thoughts"])
    for text in texts[:100]:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer("Try 13 + 15 = 28.")["input_ids"]) == 7
    assert len(tokenizer("</think>")["input_ids"]) == 1


@pytest.mark.parametrize("folder", sorted(TOY_BASE.parent.glob("weights*")), ids=lambda folder: folder.name)
def test_the_shipped_weights_are_the_ones_in_their_card(folder):
    import hashlib

    weights = folder / "model.safetensors"
    assert weights.stat().st_size < 3_000_000
    assert hashlib.sha256(weights.read_bytes()).hexdigest() in (folder / "README.md").read_text()


def test_attempts_add_up_and_answer_what_they_took():
    rng, words = random.Random(4), Backtracking()
    right = 0
    for _ in range(300):
        problem = world.draw_problem(rng, rng.choice((3, 5, 7)))
        text = solve(rng, problem, words, goes_back=1.0)
        for before, x, total, verdict, target in re.findall(r"(\d+) \+ (\d+) = (\d+), (\w+) (?:than )?(\d+)", text):
            assert int(before) + int(x) == int(total) and int(target) == problem.target
            sign = {"less": -1, "exactly": 0, "more": 1}[verdict]
            assert (int(total) > problem.target) - (int(total) < problem.target) == sign
        *_, last = words.cut(text).episodes
        low, high, answer = map(int, re.search(r"Answer: (\d+) \+ (\d+) = \\boxed\{(\d+)\}$", last).groups())
        assert low + high == answer and {low, high} <= set(problem.numbers)
        right += answer == problem.answer
    assert 30 < right < 270


@pytest.mark.parametrize("name", ["weights", "weights_long", "weights_attempts"])
def test_the_card_is_of_these_weights(name):
    folder = ROOT / "mrt" / "toy" / name
    assert sha256((folder / "model.safetensors").read_bytes()).hexdigest() in (folder / "README.md").read_text()


def test_a_setting_that_is_given_leaves_the_others_of_the_recipe(tmp_path):
    files = {name: tmp_path / name for name in ("out", "history", "state")}
    recipe = MakeBase(**files, recipe={"bf16": True}).recipe
    assert recipe == MakeBase(**files).recipe.model_copy(update={"bf16": True})
    assert recipe.batch_size == RECIPE["batch_size"]
