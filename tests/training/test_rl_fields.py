"""RL as it is done now: clip-higher, GSPO, dynamic sampling and corrections of the engine, each against its formula."""

import os
import re
import signal
import subprocess
import time
from itertools import pairwise
from types import SimpleNamespace

import polars as pl
import polars.selectors as cs
import pytest
import yaml
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from test_rl import (
    ENGINE,
    GROUP,
    PROMPTS,
    QUICK,
    command,
    complete_checkpoints,
    some_prompts,
    two_processes,
    two_token_trainer,
)

from mrt.config.load import load
from mrt.core import accelerator
from mrt.core.digest import canonical
from mrt.core.settings import laid_over
from mrt.planning.bill import Bill
from mrt.sampling.engine import Decoding
from mrt.training.log import RL_COLUMNS, log_of
from mrt.training.rl import RL, Train
from mrt.training.rl.dynamic_sampling import alike
from mrt.training.schedule import in_words

NEW = {
    *("num_iterations", "epsilon", "epsilon_high", "importance_sampling_level", "dynamic_sampling"),
    *("vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min"),
    *("vllm_enable_sleep_mode", "vllm_mode", "vllm_server_host", "vllm_server_port", "vllm_group_port"),
}
BEFORE, AFTER = 0.4, 1.4  # theta when completions are sampled, and when they are learnt
TEXTS = ("1", "2", "1", "112", "21", "1", "1222", "2")  # the completions of a group: some are right


def test_fields_that_are_off_are_in_no_key():
    assert RL.model_fields.keys() >= NEW and not NEW & canonical(RL()).keys()
    assert canonical(RL(num_iterations=2, epsilon_high=0.28)).keys() & NEW == {"num_iterations", "epsilon_high"}


def with_texts(trainer, monkeypatch, sampled=None):
    """Have each group be TEXTS, with these log-probabilities from an engine [completions][tokens]."""
    tokens = {text: trainer.processing_class(text, add_special_tokens=False)["input_ids"][0] for text in "12"}

    def rollout(prompts, trainer):
        ids = [[tokens[each] for each in text] for text in TEXTS] * (len(prompts) // GROUP)
        return {"prompt_ids": [[tokens["2"]]] * len(prompts), "completion_ids": ids, "logprobs": sampled}

    monkeypatch.setattr(trainer, "rollout_func", rollout)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return tokens["1"]


def logps_of(theta):
    """Log-probabilities of the tokens of each completion of all groups."""
    from torch.nn.functional import logsigmoid

    return [[logsigmoid(theta if each == "1" else -theta) for each in text] for text in TEXTS] * PROMPTS


def learnt(recipe, tmp_path, monkeypatch, by_hand, sampled=None):
    """(the trainer's loss, the one by hand, their gradients) at AFTER, of completions sampled at BEFORE; its output.

    `by_hand` gives the loss, from advantages [completions], and log-probabilities before and after of each token.
    """
    import torch

    trainer, rows, ascent = two_token_trainer(tmp_path, recipe, BEFORE, 0.5, monkeypatch, "grpo")
    one = with_texts(trainer, monkeypatch, sampled)
    if sampled:
        trainer.use_vllm, trainer._last_loaded_step = True, 0
    output = trainer._generate_and_score_completions([dict(row) for row in rows for _ in range(GROUP)])
    with torch.no_grad():
        trainer.model.lm_head.weight[one, 0] = AFTER
    loss = trainer._compute_loss(trainer.model, output)
    loss.backward()
    theta = torch.tensor(AFTER, requires_grad=True)
    before = [[float(logp) for logp in each] for each in logps_of(torch.tensor(BEFORE))]
    expected = by_hand(output["advantages"].tolist(), before, logps_of(theta))
    expected.backward()
    assert abs(expected.item()) > 1e-4 and abs(theta.grad.item()) > 1e-4
    return (loss.item(), ascent()), (expected.item(), -theta.grad.item()), output


def clipped(ratio, advantage, low, high):
    """-min(w A, clip(w) A), of DAPO's Equation 10."""
    import torch

    return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.28), (0.2, 0.5), (0.6, None), (None, None)])
def test_ratios_of_a_second_update_are_clipped_higher(low, high, tmp_path, monkeypatch):
    """Equation 10 of DAPO: the token "1" is 1.34 times as likely as it was, "2" half as likely."""
    below = low or 0.2
    above = high or below

    def by_hand(advantages, before, after):
        tokens = [
            clipped((new - old).exp(), advantage, below, above)
            for advantage, olds, news in zip(advantages, before, after, strict=True)
            for old, new in zip(olds, news, strict=True)
        ]
        return sum(tokens) / len(tokens)

    recipe = RL(num_iterations=2, epsilon=low, epsilon_high=high)
    actual, expected, _ = learnt(recipe, tmp_path, monkeypatch, by_hand)
    assert actual == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_completion_has_one_ratio_in_gspo(tmp_path, monkeypatch):
    """Equation 7 of GSPO, in the mean over completions of its Equation 5."""

    def by_hand(advantages, before, after):
        losses = []
        for advantage, olds, news in zip(advantages, before, after, strict=True):
            ratio = (sum(new - old for old, new in zip(olds, news, strict=True)) / len(olds)).exp()
            losses.append(clipped(ratio, advantage, 0.2, 0.28))
        return sum(losses) / len(losses)

    recipe = RL(num_iterations=2, epsilon=0.2, epsilon_high=0.28, importance_sampling_level="sequence", loss="grpo")
    actual, expected, _ = learnt(recipe, tmp_path, monkeypatch, by_hand)
    assert actual == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_tokens_with_advantages_of_their_own_do_not_share_a_ratio(tmp_path, monkeypatch):
    recipe = RL(num_iterations=2, importance_sampling_level="sequence", variant="per_episode")
    trainer, rows, _ = two_token_trainer(tmp_path, recipe, BEFORE, 0.5, monkeypatch)
    with_texts(trainer, monkeypatch)
    with pytest.raises(ValueError, match="the one ratio of a completion would credit each of its tokens with the mean"):
        trainer._generate_and_score_completions([dict(row) for row in rows for _ in range(GROUP)])


@pytest.mark.parametrize(("low", "high"), [(None, None), (0.5, 1.5)])
@pytest.mark.parametrize("mode", [None, "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "none"])
def test_the_engines_probabilities_are_corrected_as_the_mode_says(mode, low, high, tmp_path, monkeypatch):
    """Tokens, or completions, weigh the trainer's probability over the engine's, cut or left out beyond the bounds."""
    import torch

    if mode == "none" and low:
        with pytest.raises(ValueError, match="clip_min: no ratio is bounded with mode none"):
            RL(vllm_importance_sampling_mode=mode, vllm_importance_sampling_clip_min=low)
        return
    draw = torch.Generator().manual_seed(0)
    ours = [[float(logp) for logp in each] for each in logps_of(torch.tensor(BEFORE))]
    sampled = [[logp + float(torch.randn((), generator=draw)) for logp in each] for each in ours]
    difference = [torch.tensor(a) - torch.tensor(b) for a, b in zip(ours, sampled, strict=True)]
    if (mode or "").startswith("sequence"):
        difference = [each.sum().expand(len(each)) for each in difference]
    ratios = [each.exp() for each in difference]
    least, most = low or 0.0, high or 3.0
    outside = [(ratio < least) | (ratio > most) for ratio in ratios]
    assert any(each.any() for each in outside) and not all(each.all() for each in outside)
    if mode == "none":
        ratios = [torch.ones_like(ratio) for ratio in ratios]
    elif mode and mode.endswith("mask"):
        ratios = [ratio.masked_fill(each, 0.0) for ratio, each in zip(ratios, outside, strict=True)]
    else:
        ratios = [ratio.clamp(least, most) for ratio in ratios]

    def by_hand(advantages, before, after):
        tokens = [
            weight * clipped((new - old).exp(), advantage, 0.2, 0.2)
            for advantage, olds, news, weights in zip(advantages, before, after, ratios, strict=True)
            for old, new, weight in zip(olds, news, weights, strict=True)
        ]
        return sum(tokens) / len(tokens)

    bounds = {"vllm_importance_sampling_clip_min": low, "vllm_importance_sampling_clip_max": high}
    recipe = RL(num_iterations=2, vllm_importance_sampling_mode=mode, **bounds)
    actual, expected, _ = learnt(recipe, tmp_path, monkeypatch, by_hand, sampled)
    assert actual == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_each_batch_of_completions_serves_so_many_updates(tmp_path, monkeypatch):
    """5 problems at 4 a batch: 2 batches, 3 updates with each. Values of samples are logged once a batch."""
    from datasets import Dataset

    recipe = RL(num_iterations=3, batch_size=GROUP * PROMPTS, num_generations=GROUP)
    trainer, rows, _ = two_token_trainer(tmp_path, recipe, BEFORE, 0.5, monkeypatch, "grpo")
    rows = [*rows, rows[0] | {"prompt": "4", "forced": "f4"}]
    trainer.train_dataset = Dataset.from_list(rows)
    trainer.args.max_steps, trainer.args.learning_rate, trainer.args.logging_steps = recipe.steps(len(rows)), 0.5, 1
    rollout, sampled, passes = trainer.rollout_func, [], []
    monkeypatch.setattr(trainer, "rollout_func", lambda *given: sampled.append(given[0][::GROUP]) or rollout(*given))
    loss = trainer._compute_loss
    monkeypatch.setattr(trainer, "_compute_loss", lambda *given: passes.append(given[1]) or loss(*given))
    trainer.train()
    assert recipe.steps(len(rows)) == trainer.state.global_step == 6 and len(sampled) == 2
    assert len({prompt for prompts in sampled for prompt in prompts}) == len(rows)
    of_batch = [each["old_per_token_logps"] for each in passes]  # those of the time when completions were sampled
    assert of_batch[0].equal(of_batch[2]) and of_batch[3].equal(of_batch[5]) and not of_batch[0].equal(of_batch[3])
    pl.DataFrame(trainer.state.log_history, strict=False).write_parquet(tmp_path / "history.parquet")
    columns = dict.fromkeys(RL_COLUMNS)
    log = log_of(tmp_path / "history.parquet")
    assert log.columns == list(columns) and log["step"].to_list() == [1, 2, 3, 4, 5, 6]
    assert log["reward"].is_null().to_list() == [False, True, True] * 2
    assert log["clip_ratio"][0] == log["clip_ratio"][3] == 0 and log["clip_ratio"].max() > 0.1
    assert log["tokens_sampled"].to_list() == [GROUP * PROMPTS] * 3 + [2 * GROUP * PROMPTS] * 3
    assert log["num_tokens"].null_count() == 0 and log["num_tokens"].is_sorted()
    spent = log["flops"].diff().drop_nulls()
    assert spent.min() > 0 and spent[0] == spent[1] == spent[4] < spent[2]  # no sampling, no probabilities before


def test_a_training_is_resumed_between_batches_alone(told, tmp_path, monkeypatch):
    for iterations, every, steps in ((None, 50, 50), (4, 50, 52), (4, 1, 4), (5, 50, 50)):
        recipe = RL(**QUICK | {"save_steps": every, "num_iterations": iterations})
        assert told("grpo", recipe).save_steps == recipe.saved_every == steps
    trainer, rows, _ = two_token_trainer(tmp_path, RL(num_iterations=2), BEFORE, 0.5, monkeypatch, "grpo")
    batch = [dict(row) for row in rows for _ in range(GROUP)]
    trainer.model.train()
    for step in (0, 2):
        trainer.state.global_step = step
        trainer._generate_and_score_completions(list(batch))
    trainer.state.global_step = 3
    with pytest.raises(ValueError, match="resumes at step 3, in the middle of the 2 updates with a batch"):
        trainer._generate_and_score_completions(list(batch))


def test_the_steps_of_several_updates_are_said():
    assert in_words("problems", 8, 4, 1, 0.5, carried=True, iterations=3) == (
        "8 problems, 4 a batch, each for 3 steps, epochs: 1: 6 steps, the first 3 warm up"
    )


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=3, max_size=3), min_size=1, max_size=6))
def test_groups_are_alike_where_all_outcomes_are_one(groups):
    import torch

    outcomes = torch.tensor([outcome for group in groups for outcome in group])
    assert alike(outcomes, 3) == [i for i, group in enumerate(groups) if len(set(group)) == 1]


RIGHT = {"0": 8, "1": 3, "2": 0, "3": 8, "4": 8, "5": 4, "6": 0, "7": 1, "8": 0}  # right answers to each problem, of 8


def drawing(tmp_path, monkeypatch, rounds, method="grpo", **recipe):
    """A trainer with an engine that answers as RIGHT says; its prompts and requests [calls]; the rows of a batch."""
    from datasets import Dataset

    recipe = RL(dynamic_sampling=rounds, **recipe)
    trainer, rows, _ = two_token_trainer(tmp_path, recipe, BEFORE, 0.5, monkeypatch, method)
    rows = [rows[0] | {"prompt": name, "forced": f"f{name}", "answer": str(1 + int(name) % 2)} for name in RIGHT]
    trainer.train_dataset = Dataset.from_list(rows)
    with_texts(trainer, monkeypatch)
    one, two = trainer.mu.encode(["1", "2"])
    calls = []

    def generate(prompts, images, num_generations):
        texts = trainer.processing_class.batch_decode(prompts)
        calls.append(texts)
        place = dict.fromkeys(texts, 0)
        ids = []
        for text in texts:
            name = text.removeprefix("f")
            right = place[text] < RIGHT[name]
            place[text] += 1
            ids.append(one if (int(name) % 2 == 0) == right else two)
        return prompts, ids, [[[0.0]] * len(each) for each in ids], None

    trainer.vllm_generation = SimpleNamespace(
        generate=generate, tensor_parallel_size=1, llm=SimpleNamespace(model_config=SimpleNamespace(max_model_len=99))
    )
    trainer.mu.engine = trainer.vllm_generation
    monkeypatch.setattr(trainer, "rollout_func", trainer.rollout)
    return trainer, calls, [dict(row) for row in rows[:PROMPTS] for _ in range(GROUP)]


@pytest.mark.parametrize("rounds", [None, 1, 2, 50])
def test_groups_that_are_alike_are_drawn_again_of_further_problems(rounds, tmp_path, monkeypatch):
    """Of the problems 0 to 3 only 1 varies, of those that follow 5 and 7; each is sampled and graded once."""
    trainer, calls, batch = drawing(tmp_path, monkeypatch, rounds)
    output = trainer._generate_and_score_completions(batch)
    prompts = trainer.processing_class.batch_decode(output["prompt_ids"])[::GROUP]
    outcomes = trainer.group.outcomes.view(PROMPTS, GROUP)
    assert outcomes.sum(dim=1).tolist() == [RIGHT[name] for name in prompts]
    assert prompts[1] == "1" and len(calls) <= 1 + (rounds or 0)
    if not rounds:
        assert prompts == ["0", "1", "2", "3"] and "groups_varied" not in trainer.notes
        return
    names = [text for call in calls for text in call[::GROUP]]
    assert len(names) == len(set(names)) and calls[0][::GROUP] == ["0", "1", "2", "3"]
    assert len(calls[1]) == 3 * GROUP  # 0, 2 and 3 are replaced
    for call, following in pairwise(calls[1:]):
        assert len(following[::GROUP]) <= sum(RIGHT[name] in (0, 8) for name in call[::GROUP])
    varied = [name for name in prompts if 0 < RIGHT[name] < GROUP]
    assert trainer.notes["groups_varied"] == [len(varied) / PROMPTS]
    assert trainer.notes["groups_redrawn"] == [len(names) / PROMPTS - 1]
    if rounds == 50:  # all problems were used
        assert sorted(varied) == ["1", "5", "7"] and set(names) == set(RIGHT)
    assert trainer.spent.totals(trainer)["tokens_sampled"] == len(names) * GROUP
    assert trainer.notes["outcome"] == [pytest.approx((8 + 3 + 0 + 8) / (4 * GROUP))]  # of the first round
    advantages = output["advantages"].view(PROMPTS, GROUP)
    assert [bool(each.any()) for each in advantages] == [0 < RIGHT[name] < GROUP for name in prompts]


def test_what_is_drawn_again_follows_from_the_step(tmp_path, monkeypatch):
    """So a training that resumes draws the same, and other steps others."""
    replacements = []
    for step in (0, 5, 5, 6, 7):
        trainer, calls, batch = drawing(tmp_path, monkeypatch, 1)
        trainer.state.global_step = step
        trainer._generate_and_score_completions(batch)
        replacements.append(calls[1][::GROUP])
    assert replacements[1] == replacements[2] and len(set(map(tuple, replacements))) > 2


def test_a_group_that_is_drawn_again_has_its_half_told_to_stop(tmp_path, monkeypatch):
    trainer, calls, batch = drawing(tmp_path, monkeypatch, 2, "mrt_rl", variant="implicit")
    trainer._generate_and_score_completions(batch)
    for call in calls:
        for i in range(0, len(call), GROUP):
            assert call[i : i + GROUP] == [call[i]] * (GROUP // 2) + [f"f{call[i]}"] * (GROUP // 2)
    assert trainer.stopped == ([False] * (GROUP // 2) + [True] * (GROUP // 2)) * PROMPTS


def test_J_is_asked_at_the_prompts_that_are_learnt_from(tmp_path, monkeypatch):
    trainer, calls, batch = drawing(tmp_path, monkeypatch, 50, "mrt_rl", variant="explicit", alpha=1.0)
    queries = []
    monkeypatch.setattr(trainer.mu, "accuracy_at", lambda forced, rows: queries.extend(forced) or [0.25] * len(forced))
    output = trainer._generate_and_score_completions(batch)
    prompts = trainer.processing_class.batch_decode(output["prompt_ids"])
    assert queries == [f"f{prompt}" for prompt in prompts] and len(calls) > 1
    outcomes = trainer.group.outcomes
    assert output["advantages"].tolist() == pytest.approx((outcomes + (outcomes - 0.25)).tolist())


def test_processes_that_share_an_engine_ask_it_for_equally_many(tmp_path, monkeypatch):
    """Another process samples all of its 32 completions again; this one fills up, and counts its samples."""
    import accelerate.utils

    trainer, calls, batch = drawing(tmp_path, monkeypatch, 1)
    trainer.vllm_generation.tensor_parallel_size = 2
    monkeypatch.setattr(
        accelerate.utils, "gather_object", lambda values: [*values, 32] if isinstance(values[0], int) else values
    )
    output = trainer._generate_and_score_completions(batch)
    assert len(calls[1]) == 32 and calls[1][24:] == [batch[0]["prompt"]] * GROUP
    prompts = trainer.processing_class.batch_decode(output["prompt_ids"])
    assert prompts[GROUP : 2 * GROUP] == ["1"] * GROUP
    outcomes = trainer.group.outcomes.view(PROMPTS, GROUP)
    assert outcomes.sum(dim=1).tolist() == [RIGHT[name] for name in prompts[::GROUP]]
    assert trainer.spent.totals(trainer)["tokens_sampled"] == 32 + 32


BOTH = {"num_iterations": 2, "dynamic_sampling": 2, "epsilon_high": 0.28}


@pytest.mark.thorough
def test_a_killed_run_of_several_updates_and_drawing_again_ends_the_same(prompts, tmp_path):
    folders = [tmp_path / "killed", tmp_path / "whole"]
    process = subprocess.Popen(command(prompts, folders[0], "grpo", **BOTH), cwd=ROOT, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 300
    while not (reached := complete_checkpoints(folders[0])):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for folder in folders:
        done = subprocess.run(command(prompts, folder, "grpo", **BOTH), cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
    logs = [log_of(folder / "history.parquet") for folder in folders]
    assert all(step % 2 == 0 for step in reached) and logs[0]["step"].to_list() == [1, 2, 3, 4, 5, 6]
    assert logs[0].drop(cs.starts_with("seconds")).equals(logs[1].drop(cs.starts_with("seconds")))
    weights = [folder / "model" / "model.safetensors" for folder in folders]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert logs[0]["groups_redrawn"].max() > 0 and logs[0]["logp_difference"].max() < 1e-3
    assert logs[0]["tokens_sampled"].is_sorted() and (logs[0]["grad_norm"] > 0).all()


@pytest.mark.slow
def test_two_processes_draw_again_at_one_engine(prompts, tmp_path):
    """Completions of a wrong prompt would differ in their log-probabilities, which stops the run."""
    again = {"dynamic_sampling": 2, "decoding": Decoding(temperature=0.5, max_tokens=100)}
    _, _, *options = command(prompts, tmp_path, "grpo", micro_batch_size=8, **again)
    options[options.index("--engine") + 1] = ENGINE.model_copy(update={"tensor_parallel_size": 2}).model_dump_json()
    log = two_processes(tmp_path, *options)
    assert log["step"].to_list() == [1, 2, 3] and log["logp_difference"].max() < 1e-3
    assert log["groups_redrawn"].max() > 0


def test_engines_that_need_a_gpu_are_handed_to_trl_and_refused_without_one(told, tmp_path, monkeypatch):
    server = {"vllm_mode": "server", "vllm_server_host": "node7", "vllm_server_port": 8001, "vllm_group_port": 51217}
    arguments = told("grpo", RL(**QUICK, **server))
    assert {name: getattr(arguments, name) for name in server} == server
    assert told("grpo", RL(**QUICK, vllm_enable_sleep_mode=True)).vllm_enable_sleep_mode
    usual = told("grpo", RL(**QUICK))
    assert (usual.vllm_mode, usual.vllm_enable_sleep_mode, usual.num_iterations) == ("colocate", False, 1)
    assert (usual.epsilon, usual.epsilon_high, usual.top_k, usual.top_p, usual.min_p) == (0.2, None, 0, 1.0, None)
    monkeypatch.setattr(Train, "make", lambda self, *given: None)
    monkeypatch.setattr(accelerator, "on_gpu", lambda: False)
    files = {name: tmp_path / name for name in ("out", "history", "state")}
    for field in ({"vllm_enable_sleep_mode": True}, server):
        recipe = RL(**QUICK, **field)
        stage = Train(model="m", prompts=some_prompts(tmp_path, 64), method="grpo", recipe=recipe, **files)
        with pytest.raises(ValueError, match=rf"recipe\.{next(iter(field))}: it needs a GPU"):
            stage.cli_cmd()
        stage = stage.model_copy(update={"method": "mrt_rl"})
        with pytest.raises(ValueError, match=rf"recipe\.{next(iter(field))}: with the explicit variant, mu answers"):
            stage.cli_cmd()
    for name in ("mrt_rl", "grpo"):  # the frozen parent answers without an engine
        frozen = RL(**QUICK, **server, mu="parent", estimate="likelihood")
        assert not list(frozen.clashes(Train(model="m", prompts=".", method=name, recipe=frozen, **files).variant))
    monkeypatch.setattr(accelerator, "on_gpu", lambda: True)
    stage.model_copy(update={"method": "grpo"}).cli_cmd()


def test_a_plan_counts_each_update_and_all_rounds():
    tiny = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())

    def work(**recipe):
        changes = {"models": {"mrt_rl": {"method": "grpo", "rl": recipe}}} if recipe else {}
        config = load(laid_over(laid_over(tiny, {"models": {"mrt_rl": {"method": "grpo"}}}), changes))
        return Bill(config).training_work("mrt_rl", "toy_train")

    usual = work()
    assert work(num_iterations=3).trained == 3 * usual.trained
    assert work(num_iterations=3).generated == usual.generated == work(dynamic_sampling=2).generated / 3
    assert work(dynamic_sampling=2).trained == usual.trained


def test_the_recipes_of_the_page_are_what_trl_gets(told):
    page = (ROOT / "docs" / "rl.md").read_text()
    section = page[page.index("## Current practice") :]
    models = yaml.safe_load(re.search(r"```yaml\n(.*?)```", section, re.DOTALL)[1])["models"]
    recipes = {name: RL(**QUICK | model["rl"]) for name, model in models.items()}
    dapo, gspo = (told(models[name]["method"], recipe) for name, recipe in recipes.items())
    assert (dapo.num_iterations, dapo.epsilon, dapo.epsilon_high, dapo.loss_type) == (2, 0.2, 0.28, "dapo")
    assert recipes["dapo"].dynamic_sampling == 3 and recipes["dapo"].overlong_buffer == 100
    assert (gspo.importance_sampling_level, gspo.epsilon_high, gspo.loss_type) == ("sequence", 4e-4, "grpo")
    tiny = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    of_tiny = {name: model | {"problems": "toy_train"} for name, model in models.items()}
    assert load(laid_over(tiny, {"models": of_tiny})).models["dapo"].rl.dynamic_sampling == 3
    assert NEW - {"importance_sampling_level"} <= set(re.findall(r"`(\w+)`", section)) | {"vllm_mode"}


@pytest.mark.slow
def test_a_training_samples_with_nothing_of_a_models_generation_config(prompts, tmp_path):
    """Its first step has the completions of a model without one."""
    import json
    import shutil

    from conftest import TOY_BASE

    shutil.copytree(TOY_BASE, parent := tmp_path / "parent")
    usual = json.loads((parent / "generation_config.json").read_text())
    theirs = {"do_sample": True, "top_k": 1, "top_p": 0.1, "temperature": 0.01, "repetition_penalty": 2.0}
    (parent / "generation_config.json").write_text(json.dumps(usual | theirs))
    first = []
    for model in (TOY_BASE, parent):
        folder = tmp_path / f"from_{model.name}"
        python, *options = command(prompts, folder, "mrt_rl", epochs=1 / 3)
        options[options.index("--model") + 1] = str(model)
        done = subprocess.run([python, *options], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        first.append(log_of(folder / "history.parquet").drop(cs.starts_with("seconds")))
    assert first[0].equals(first[1])
