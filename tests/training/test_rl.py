"""RL: rewards, advantages, the gradient in closed form, and the real trainer with the real engine."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest
from conftest import ROOT, TOY_BASE, batches_of, check_that_epochs_resume, slow_case, thorough_case, without_pad_token
from hypothesis import given
from hypothesis import strategies as st

from mrt.core.artifacts import RL_PROMPTS
from mrt.episodes.parameterization import OpenEnded
from mrt.grading.task import Task, task_of
from mrt.methods.length_penalty import length_penalized
from mrt.methods.mrt_rl import episode_advantages
from mrt.sampling.engine import Decoding, EngineSettings
from mrt.training.log import RL_COLUMNS, log_of
from mrt.training.method import advantages_of, variants
from mrt.training.rl import RL, Train, meta_prover
from mrt.training.rl import trainer as rl_trainer
from mrt.training.rl.engine import DOUBTFUL, STALE, StaleEngine, check_fresh, cpu_vllm
from mrt.training.rl.trainer import make_trainer_class, outcome_reward, overlong_penalties
from mrt.training.schedule import carried_steps_of
from mrt.training.variant import Group, values_of, variant


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 500)), min_size=1, max_size=8), st.floats(0, 1))
def test_a_length_penalty_is_paid_by_right_answers_only(group, alpha):
    outcomes, lengths = zip(*group, strict=True)
    rewards = length_penalized(outcomes, lengths, alpha)
    assert np.all(rewards[~np.array(outcomes)] == 0) and np.all((rewards >= 0) & (rewards <= 1))
    for i, j in np.ndindex(len(group), len(group)):
        if outcomes[i] and outcomes[j] and lengths[i] < lengths[j]:
            assert rewards[i] >= rewards[j]


def test_a_length_penalty_by_hand():
    half = length_penalized([0.5, 1, 0], [20, 20, 20], 0.4)  # partial credit
    assert half.tolist() == pytest.approx([0.4, 0.8, 0])
    rewards = length_penalized([1, 1, 0, 0], [10, 30, 5, 900], 0.4)  # mean 20, standard deviation 10
    assert rewards == pytest.approx([1 - 0.4 / (1 + np.e), 1 - 0.4 / (1 + 1 / np.e), 0, 0], abs=1e-4)


def some_group(outcomes, J, boundaries):
    """A group of completions of ten tokens, each with another penalty."""
    import torch

    count = len(outcomes)
    r, penalties = torch.tensor(outcomes, dtype=torch.float32), -torch.arange(count) / (2 * count)
    return Group(r, penalties, torch.full((count,), 10), torch.full((count,), J), boundaries, torch.zeros(count) > 0)


@pytest.mark.parametrize("name", variants())
@given(outcomes=st.lists(st.booleans(), min_size=2, max_size=6), J=st.floats(0, 1), data=st.data())
def test_a_variant_depends_on_no_order_and_is_finite(name, outcomes, J, data):
    """Permuting the completions permutes the values; each reads the settings that its parameters name alone."""
    episode = st.lists(st.tuples(st.integers(1, 9), st.floats(0, 1)), max_size=3)
    boundaries = [tuple(zip(*sorted(data.draw(episode)), strict=True)) or ((), ()) for _ in outcomes]
    chosen, group = variants()[name], some_group(outcomes, J, boundaries)
    order = data.draw(st.permutations(range(len(outcomes))))
    permuted = Group(*(v[order] for v in (group.outcomes, group.penalties, group.lengths, group.J)),
                     [boundaries[i] for i in order], group.stopped[order])  # fmt: skip
    recipe, parameters = RL().values(), signature(chosen.function).parameters
    defaults = {each: 1.0 if of.default is of.empty else of.default for each, of in parameters.items()}
    settings = {each: recipe.get(each, defaults[each]) for each in chosen.parameters}
    values = values_of(chosen, group, settings)
    assert values.isfinite().all() and values_of(chosen, permuted, settings).allclose(values[order], atol=1e-6)
    assert len(values) == len(outcomes) and values.dim() in ((1, 2) if chosen.asks_along else (1,))


def test_values_that_are_none_of_a_group_are_an_error():
    group = some_group([True, False], 0.5, [((), ())] * 2)
    for function, message in (
        (lambda group: group.rewards[:1], r"shape \[1\]; it has to be \[2\] or \[2, tokens\]"),
        (lambda group: group.rewards / 0, "infinite or NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            values_of(variant()(function), group, {})
    with pytest.raises(ValueError, match="asks mu at prefix gives advantages, not rewards"):
        variant(asks="prefix", gives="rewards")


@given(st.floats(0, 1), st.lists(st.tuples(st.floats(0, 1), st.integers(1, 9)), max_size=5), st.integers(1, 9))
def test_the_progress_of_the_episodes_adds_up_to_that_of_the_whole(alpha, episodes, answer):
    J = [0.25, *(j for j, _ in episodes)]
    ends = np.cumsum([n for _, n in episodes]).tolist()
    tokens = (ends[-1] if ends else 0) + answer
    found = episode_advantages(1.0, J, ends, tokens, alpha)
    one_each = [found[end - 1] - 1.0 for end in ends] + [found[-1] - 1.0]
    assert sum(one_each) == pytest.approx(alpha * (1.0 - 0.25))
    assert len(found) == tokens


def test_each_token_is_credited_with_the_progress_of_its_own_episode():
    """What follows the last boundary, an episode and the answer, is credited with the outcome less J there."""
    import torch
    from transformers import AutoTokenizer

    tokenizer, words = AutoTokenizer.from_pretrained(TOY_BASE), OpenEnded()
    episodes = [
        "Try 1 + 2 = 3.\n\n3 is less than 9.\n\nNo answer so far.\n\n",
        "Wait, try 4 + 5 = 9.\n\n9 is exactly 9.\n\nThe answer so far is 4 + 5 = 9.\n\n",
        "But wait, try 2 + 5 = 7.\n\n7 is less than 9.\n\nThe answer so far is 4 + 5 = 9.\n\n",
        "Wait, try 1 + 5 = 6.\n\n6 is less than 9.\n\nThe answer so far is 4 + 5 = 9.\n",
    ]
    answer = "</think>\n\n**Step-by-Step Explanation and Answer:**\n\n1. **Ends:** they add up to \\boxed{9}."
    chat, (first, *rest) = "<|user|>x<|assistant|><think>\n", episodes
    asked = []

    def accuracy_at(prompts, problems):
        asked.extend((prompt, row["answer"]) for prompt, row in zip(prompts, problems, strict=True))
        return [0.5, 0.75]

    fake = SimpleNamespace(
        kept={},
        processing_class=tokenizer,
        parameterization=words,
        split=None,
        recipe=RL(),
        variant=variants()["per_episode"],
        mu=SimpleNamespace(accuracy_at=accuracy_at),
    )
    trainer_class = make_trainer_class()
    fake.tokens_of, fake.places = (partial(getattr(trainer_class, name), fake) for name in ("tokens_of", "places"))
    prompt, own = (tokenizer.encode(text, add_special_tokens=False) for text in (chat + first, "".join(rest) + answer))
    output = {"prompt_ids": torch.tensor([prompt]), "completion_ids": torch.tensor([[*own, 0]])}
    output["prompt_mask"] = torch.ones(1, len(prompt), dtype=torch.int64)
    output["completion_mask"] = torch.tensor([[1] * len(own) + [0]])
    inputs = [{"prompt": chat + first, "prefix_text": first, "answer": "9", "inside": True, "thinking": None}]
    boundaries = trainer_class.boundaries(fake, inputs, output)
    group = Group(torch.ones(1), torch.zeros(1), torch.tensor([len(own)]), torch.tensor([0.125]), boundaries)
    (found,) = variants()["per_episode"](group, alpha=2.0, centred=False)
    assert asked == [(chat + words.force("".join(episodes[:n])), "9") for n in (2, 3)]
    at = np.cumsum([0] + [len(tokenizer.decode([token])) for token in own])[:-1]  # where each token's text begins
    ends = np.cumsum([len(episode) for episode in rest[:-1]])
    progress = np.array([0.5 - 0.125, 0.75 - 0.5, 1.0 - 0.75])[np.searchsorted(ends, at, side="right")]
    assert found.tolist() == pytest.approx((1.0 + 2.0 * progress).tolist())


def rewards(completions, tokenizer=None, thinking=None, ids=None, **columns):
    """The outcomes of completions, as TRL requests them."""
    count = len(completions)
    given = {"thinking": [thinking] * count, "completion_ids": ids or [[]] * count, **columns}
    return outcome_reward(task_of(), tokenizer)(completions, **given)


def test_a_completion_is_graded_with_the_prefix_that_it_goes_on_from():
    attempt, revision = "Answer: \\boxed{4}", "\n\nWait\n\nAnswer: \\boxed{5}"
    found = rewards(["", revision, revision], answer=["4", "4", "5"], inside=[False] * 3, prefix_text=[attempt] * 3)
    assert found == [1, 0, 1]
    assert rewards(["4", "4 </think> 4"], answer=["4"] * 2, inside=[True] * 2, prefix_text=["4, "] * 2) == [0, 1]
    forced = ["4.** It is \\boxed{4}\n</think>\n\n"] * 2  # mu closes the thought once more
    assert rewards(forced, answer=["4"] * 2, inside=[None, False], prefix_text=[""] * 2) == [1, 0]


def test_tags_that_are_special_tokens_are_seen_by_the_reward():
    """TRL hands over completions without special tokens, in which a thought would be an answer."""
    from transformers import AutoTokenizer

    from mrt.episodes.thinking import FAMILIES

    tokenizer, tags = AutoTokenizer.from_pretrained(TOY_BASE), FAMILIES[1]
    tokenizer.add_special_tokens({"additional_special_tokens": [tags.opening, tags.closing]})
    texts = ["so \\boxed{4}, but", "so \\boxed{5}" + tags.close + "\\boxed{4}"]
    ids = [[*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id] for text in texts]
    plain = tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert tags.closing not in plain[1]
    found = rewards(plain, tokenizer, tags.cell(), ids, answer=["4"] * 2, inside=[True] * 2, prefix_text=[""] * 2)
    assert found == [0, 1]


def test_an_engine_with_other_weights_is_noticed():
    import torch

    own = torch.zeros(2, 3)
    output = {"old_per_token_logps": own, "completion_mask": torch.tensor([[1, 1, 0], [1, 0, 0]])}
    for far in (1e-3, 0.9 * STALE):
        assert check_fresh(output | {"sampling_per_token_logps": own + far}) == pytest.approx(far)
    check_fresh(output | {"sampling_per_token_logps": torch.tensor([[0, 0, 9.0], [0, 9.0, 9.0]])})  # masked
    with pytest.raises(StaleEngine, match=r"differ by 0\.500 nats a token"):
        check_fresh(output | {"sampling_per_token_logps": own + 0.5})
    with pytest.raises(StaleEngine):
        check_fresh(output | {"sampling_per_token_logps": own - 1.1 * STALE})
    with pytest.raises(StaleEngine):
        check_fresh(output)


class ByText(Task):
    """A task whose completions are answers."""

    def answer(self, part, problem):
        return part

    def right(self, answers, problems):
        return [text == row["answer"] for text, row in zip(answers, problems, strict=True)]

    def golds(self, problem):
        return [problem["answer"]]


GROUP, PROMPTS = 8, 4
LONGEST = 40


@given(st.lists(st.integers(1, LONGEST), min_size=1, max_size=9), st.integers(1, LONGEST))
def test_a_long_completion_loses_up_to_one_linearly(lengths, buffer):
    """DAPO's Equation 13: nothing up to L_max - L_cache, -1 at L_max."""
    found = overlong_penalties(lengths, LONGEST, buffer)
    assert found == pytest.approx([min(0, LONGEST - buffer - n) / buffer for n in lengths])
    assert all(-1 <= lost <= 0 for lost in found)
    assert overlong_penalties(lengths, LONGEST, None) == [0.0] * len(lengths)


def two_token_trainer(tmp_path, recipe, theta, J, monkeypatch, method="mrt_rl"):
    """MRTTrainer on a policy that says "1" with probability sigmoid(theta), else "2", whatever came before."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from trl import GRPOConfig

    tokenizer = AutoTokenizer.from_pretrained(TOY_BASE, padding_side="left")
    one, two = (tokenizer(text, add_special_tokens=False)["input_ids"][0] for text in ("1", "2"))

    size = {"hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=False, **size))
    layer = model.model.layers[0]
    with torch.no_grad():  # the hidden state is 1 everywhere, so that the head's rows are the logits
        model.model.embed_tokens.weight.fill_(1.0)
        for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
            weight.zero_()
        model.lm_head.weight.fill_(-1e4)
        model.lm_head.weight[[one, two]] = 0.0
        model.lm_head.weight[one, 0] = theta
    head = model.lm_head.weight

    rng = np.random.default_rng(0)

    def rollout(prompts, trainer):
        p = 1 / (1 + np.exp(-theta))
        ids = [[one if rng.random() < p else two] for _ in prompts]
        return {"prompt_ids": [[two]] * len(prompts), "completion_ids": ids, "logprobs": None}

    monkeypatch.setattr(rl_trainer, "check_fresh", lambda output: 0.0)  # nothing is sampled by an engine here

    def accuracy_at(forced, gold):
        of = {prompt: rng.binomial(GROUP, J) / GROUP for prompt in dict.fromkeys(forced)}
        return [of[prompt] for prompt in forced]

    args = GRPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=GROUP * PROMPTS, num_generations=GROUP,
        max_completion_length=1, use_cpu=True, bf16=False, report_to="none", gradient_checkpointing=False,
        loss_type=recipe.loss, save_strategy="no", disable_tqdm=True, **recipe.for_trl(),
    )  # fmt: skip
    row = {"answer": "1", "inside": False, "prefix_text": "", "thinking": None}
    rows = [{"prompt": f"{i}", "forced": f"f{i}", **row} for i in range(PROMPTS)]
    trainer = make_trainer_class()(
        variant=advantages_of(method, recipe.variant), recipe=recipe, task=ByText(), model=model,
        parameterization=OpenEnded(), args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
        rollout_func=rollout,
    )  # fmt: skip
    trainer.mu.accuracy_at = accuracy_at
    return trainer, rows, lambda: -head.grad[one, 0].item()


def gradients(trainer, rows, ascent, repeats):
    """The trainer's gradient of theta, of many generation batches; and their advantages."""
    found, advantages = [], []
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1  # set by the training loop, which is left out here
    for _ in range(repeats):
        batch = [dict(row) for row in rows for _ in range(GROUP)]
        output = trainer._generate_and_score_completions(batch)
        advantages.append(output["advantages"].numpy())
        trainer.model.zero_grad()
        trainer._compute_loss(trainer.model, output).backward()
        found.append(ascent())
    return np.array(found), np.array(advantages)


@pytest.mark.parametrize(
    ("alpha", "centred"), [thorough_case(0.0, False), (1.0, False), thorough_case(2.5, False), thorough_case(1.0, True)]
)
def test_the_gradient_of_the_explicit_objective_is_that_of_equation_3(alpha, centred, tmp_path, monkeypatch):
    """E[r] + alpha E[r - J(prefix)] has the derivative (1 + alpha) p (1 - p) by theta, with p = sigmoid(theta).

    So does the mean of the trainer's own gradient, within its standard error; without progress it is p (1 - p). And J
    of the prefix reaches every single gradient: advantages are r + alpha (r - J), not their distance from the mean.
    With a centred outcome its part is (1 - 1/G) as large, as the group's mean has the completion's own outcome in it.
    """
    theta, J = 0.4, 0.5
    trainer, rows, ascent = two_token_trainer(tmp_path, RL(alpha=alpha, centred=centred), theta, J, monkeypatch)
    p = 1 / (1 + np.exp(-theta))
    found, advantages = gradients(trainer, rows, ascent, 400)
    error = found.std(ddof=1) / np.sqrt(found.size)
    assert error < 0.03 * (1 + alpha)
    outcome = 1 - centred / GROUP
    assert abs(found.mean() - (outcome + alpha) * p * (1 - p)) < 3.5 * error
    if alpha:
        assert abs(found.mean() - outcome * p * (1 - p)) > 10 * error  # removing the progress term would be seen
        assert len(np.unique(advantages.round(6))) > 6  # two outcomes and many values of J
        means = advantages.reshape(-1, PROMPTS, GROUP).mean(axis=2)
        assert np.abs(means).min() < 1 and means.std() > 0.05  # not centred in the group


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo"])
def test_the_loss_decides_whether_j_is_a_baseline(loss, tmp_path, monkeypatch):
    """A completion of "1" ends at once, another has a second token; half of them are right, whatever their length.

    The expected outcome has no derivative by theta then. `loss: grpo` adds c dE[1 / length], c the mean advantage:
    without progress c is 1/2, and E[1 / length] is (1 + p) / 2.
    """
    theta, rng = 0.4, np.random.default_rng(1)
    trainer, rows, ascent = two_token_trainer(tmp_path, RL(alpha=0.0, loss=loss), theta, 0.0, monkeypatch)
    one, two = (trainer.processing_class(text, add_special_tokens=False)["input_ids"][0] for text in ("1", "2"))
    p = 1 / (1 + np.exp(-theta))

    def rollout(prompts, trainer):
        pairs = np.where(rng.random((len(prompts), 2)) < p, one, two).tolist()
        ids = [tokens[:1] if tokens[0] == one else tokens for tokens in pairs]
        return {"prompt_ids": [[two]] * len(prompts), "completion_ids": ids, "logprobs": None}

    monkeypatch.setattr(ByText, "right", lambda self, answers, problems: rng.integers(0, 2, len(answers)).tolist())
    trainer.rollout_func = rollout
    each, _ = gradients(trainer, rows, ascent, 400)
    error = each.std(ddof=1) / np.sqrt(each.size)
    shorter = p * (1 - p) / 4
    assert abs(each.mean() - (shorter if loss == "grpo" else 0)) < 3.5 * error < shorter / 2


@pytest.mark.parametrize("epochs", [1, 2.4])
def test_every_problem_is_trained_on_from_the_first_step_on(epochs, tmp_path, monkeypatch):
    """5 problems at 4 a step: TRL alone leaves one out in each epoch, and learns nothing in its first step."""
    from datasets import Dataset

    trainer, rows, _ = two_token_trainer(tmp_path, RL(), 0.4, 0.5, monkeypatch)
    rows = [*rows, rows[0] | {"prompt": "4", "forced": "f4"}]
    trainer.train_dataset = Dataset.from_list(rows)
    trainer.args.max_steps = carried_steps_of(len(rows), PROMPTS, epochs)
    drawn, sampled, heads = trainer.rollout_func, [], []

    def rollout(prompts, own):
        sampled.extend(prompts[::GROUP])
        heads.append(trainer.model.lm_head.weight.detach().clone())
        return drawn(prompts, own)

    monkeypatch.setattr(trainer, "rollout_func", rollout)
    trainer.train()
    assert len(sampled) == PROMPTS * {1: 2, 2.4: 3}[epochs]
    assert set(Counter(sampled[:5]).values()) == {1} and len(set(sampled)) == 5
    counts = Counter(sampled).values()
    assert max(counts) - min(counts) <= 1
    assert not heads[0].equal(heads[1]) and not heads[-1].equal(trainer.model.lm_head.weight)


def test_a_step_and_what_it_leaves_are_told_of(prompts, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Train, "make", lambda self, examples, *decisive: None)
    paths = {name: tmp_path / name for name in ("out", "history", "state")}
    for count, epochs, told in (
        (6, 1, "6 problems, 4 a step, epochs: 1: 2 steps, the first 1 warm up; 2 of the problems fill the last step"),
        (9, 0.5, "2 steps, the first 1 warm up; 8 of the problems are trained on, 1 are left out"),
        (8, 1, "2 steps, the first 1 warm up\n"),
    ):
        recipe = RL(**QUICK, epochs=epochs)
        Train(model="m", prompts=some_prompts(tmp_path, count), method="grpo", recipe=recipe, **paths).cli_cmd()
        assert told in capsys.readouterr().out


def cut_or_ended(trainer, monkeypatch, cut):
    """Have every `cut`-th completion be cut: it does not end in the end token."""
    drawn, end = trainer.rollout_func, trainer.processing_class.eos_token_id

    def rollout(prompts, own):
        made = drawn(prompts, own)
        ids = [ids if i % cut == 0 else [*ids, end] for i, ids in enumerate(made["completion_ids"])]
        return made | {"completion_ids": ids}

    monkeypatch.setattr(trainer, "rollout_func", rollout)


def test_nothing_is_learnt_from_a_truncated_completion_that_is_masked(told, tmp_path, monkeypatch):
    assert told("grpo", RL(**QUICK, mask_truncated=True)).mask_truncated_completions
    assert not told("grpo", RL(**QUICK)).mask_truncated_completions
    for name in ("explicit", "per_episode"):
        trainer, rows, ascent = two_token_trainer(tmp_path, RL(variant=name), 0.4, 0.5, monkeypatch)
        trainer.mask_truncated_completions = True
        assert not gradients(trainer, rows, ascent, 3)[0].any()  # all are cut
        cut_or_ended(trainer, monkeypatch, 2)
        batch = [dict(row) for row in rows for _ in range(GROUP)]
        assert trainer.spent.totals(trainer)["tokens_sampled"] == 3 * len(rows) * GROUP  # which counts again from here
        output = trainer._generate_and_score_completions(batch)
        assert trainer.spent.totals(trainer)["tokens_sampled"] == 1.5 * len(batch)  # cut ones were sampled too
        assert output["completion_mask"].sum(dim=1).tolist() == [0, 2] * (len(batch) // 2)
        found = []
        for factor in (1, 100):
            output["advantages"][::2] *= factor
            trainer.model.zero_grad()
            trainer._compute_loss(trainer.model, output).backward()
            found.append(ascent())
        assert found[0] == found[1] != 0
        output["advantages"][1::2] *= 100
        trainer.model.zero_grad()
        trainer._compute_loss(trainer.model, output).backward()
        assert ascent() != found[0]


def outcome_less_group(outcomes):
    return outcomes - np.repeat(outcomes.reshape(-1, GROUP).mean(axis=1), GROUP)


@pytest.mark.parametrize("overlong", [False, True])
@pytest.mark.parametrize(
    ("recipe", "advantages"),  # of outcomes, where J of the prefix is 0.25
    [
        ({"variant": "explicit", "alpha": 2.0}, lambda r: r + 2.0 * (r - 0.25)),
        ({"variant": "termination", "alpha": 7.0}, lambda r: r - 0.25),
        ({"variant": "per_episode", "alpha": 2.0}, lambda r: r + 2.0 * (r - 0.25)),
        ({"variant": "per_episode", "alpha": 2.0, "centred": True}, lambda r: outcome_less_group(r) + 2.0 * (r - 0.25)),
    ],
    ids=["explicit", "termination", "per_episode", "centred"],
)
def test_advantages_are_those_of_the_variant(recipe, advantages, overlong, tmp_path, monkeypatch):
    """An overlong completion loses reward and no progress: one of two tokens is at the limit, one of one is not."""
    limit = {"overlong_buffer": 1, "decoding": Decoding(max_tokens=2)} if overlong else {}
    trainer, rows, _ = two_token_trainer(tmp_path, RL(**recipe | limit), 0.4, 0.5, monkeypatch)
    monkeypatch.setattr(trainer.mu, "accuracy_at", lambda forced, gold: [0.25] * len(forced))
    if overlong:
        cut_or_ended(trainer, monkeypatch, 2)
    trainer.model.train()
    output = trainer._generate_and_score_completions([dict(row) for row in rows for _ in range(GROUP)])
    outcomes, values = trainer.group.outcomes.numpy(), output["advantages"].numpy()
    assert set(outcomes.tolist()) == {0.0, 1.0}
    lost = np.tile([0.0, -1.0], len(outcomes) // 2) if overlong else 0.0
    if overlong and recipe.get("centred"):
        lost = outcome_less_group(lost)
    assert (values[:, 0] if values.ndim == 2 else values) == pytest.approx(advantages(outcomes) + lost, abs=1e-6)


def test_groups_are_compared_by_what_length_leaves_of_the_outcome(tmp_path, monkeypatch):
    recipe = RL(overlong_buffer=10, decoding=Decoding(max_tokens=20))
    trainer, _, _ = two_token_trainer(tmp_path, recipe, 0.4, 0.5, monkeypatch, "grpo")
    row = {"answer": "1", "inside": False, "prefix_text": "", "thinking": None}
    texts, lengths = ["1", "1", "2", "2"] * 2, [10, 15, 5, 20] * 2
    found = trainer._calculate_rewards([row] * 8, ["x"] * 8, texts, [[1] * n for n in lengths])
    assert found[:, 0].tolist() == pytest.approx([1, 0.5, 0, -1] * 2)
    assert trainer.group.outcomes.tolist() == [1, 1, 0, 0] * 2


@pytest.mark.slow
def test_a_J_by_likelihood_leaves_the_gradient_as_it_is_and_less_noisy(tmp_path, monkeypatch):
    """J is a baseline of the explicit objective, whatever it is made of; without sampling it adds no noise."""
    theta, alpha, spread = 0.4, 2.5, {}
    p = 1 / (1 + np.exp(-theta))
    for estimate in ("answers", "likelihood"):
        recipe = RL(alpha=alpha, estimate=estimate)
        trainer, rows, ascent = two_token_trainer(tmp_path, recipe, theta, p, monkeypatch)
        if estimate == "likelihood":
            del trainer.mu.accuracy_at
            trainer.mu.engine = SimpleNamespace(tensor_parallel_size=1)
            trainer.mu.by_likelihood = lambda gold_of, share: dict.fromkeys(gold_of, p)
        found, advantages = gradients(trainer, rows, ascent, 300)
        error = found.std(ddof=1) / np.sqrt(found.size)
        assert abs(found.mean() - (1 + alpha) * p * (1 - p)) < 3.5 * error
        spread[estimate] = advantages.std()
    assert np.unique(advantages.round(5)).tolist() == pytest.approx([-alpha * p, 1 + alpha * (1 - p)], abs=1e-4)
    assert spread["likelihood"] < spread["answers"]


def test_the_trainer_reads_off_what_the_sampling_engine_reads_off(tmp_path, monkeypatch):
    """J at two prompts, one whose answer has several spellings; without prompts nothing is queried."""
    from mrt.grading.spellings import spellings
    from mrt.sampling.engine import Engine, Request
    from mrt.sampling.likelihood import probability

    recipe = RL(estimate="likelihood", opening="Ends:** they add up to \\boxed{")
    trainer, _, _ = two_token_trainer(tmp_path, recipe, 0.4, 0.5, monkeypatch)
    engine = Engine(str(TOY_BASE), ENGINE)
    trainer.mu.engine, trainer.mu.task = SimpleNamespace(llm=engine.llm), task_of()
    chat = "<|user|>Some of the numbers 5, 19, 3 add up to 8. What is the sum of the smallest and the largest of them?"
    chat += "<|assistant|><think>\n"
    force = trainer.parameterization.force
    solved = "Try 5 + 3 = 8.\n\n8 is exactly 8.\n\nThe answer so far is 5 + 3 = 8.\n\n"
    gold_of = {chat + force(solved): "8", chat + force(""): "1234"}
    found = trainer.mu.by_likelihood({prompt: {"answer": gold} for prompt, gold in gold_of.items()}, 1)
    for prompt, gold in gold_of.items():
        asked = [
            Request(prompt, 1, 0, Decoding(), scored=spelling, opening=recipe.opening) for spelling in spellings(gold)
        ]
        assert found[prompt] == pytest.approx(sum(probability(c) for (c,) in engine.generate(asked)), rel=1e-4)
    assert found.keys() == gold_of.keys() and trainer.mu.by_likelihood({}, 1) == {}
    assert max(found.values()) > 0.9


def test_where_the_context_is_full_J_is_0_and_nothing_is_asked(tmp_path, monkeypatch):
    """vLLM would end the run: with per_episode, a boundary may lie that far in a completion."""
    trainer, _, _ = two_token_trainer(tmp_path, RL(answers=2), 0.4, 0.5, monkeypatch)
    asked = []

    def generate(prompts, sampling_params, **_):
        asked.extend(len(prompt["prompt_token_ids"]) for prompt in prompts)
        one = SimpleNamespace(text="1", token_ids=[5], finish_reason="stop")
        return [SimpleNamespace(outputs=[one, one]) for _ in prompts]

    llm = SimpleNamespace(generate=generate, model_config=SimpleNamespace(max_model_len=20))
    trainer.mu.engine = SimpleNamespace(llm=llm, tensor_parallel_size=1)
    monkeypatch.setattr(meta_prover, "text_of", lambda tokenizer, drawn, *_: drawn.text)
    problem_of = {prompt: {"answer": "1"} for prompt in ("1 " * 30, "1 2")}
    assert trainer.mu.by_answers(problem_of, 1) == {"1 " * 30: 0.0, "1 2": 1.0}
    assert len(asked) == 1 and asked[0] < 20
    read = []
    monkeypatch.setattr(trainer.mu, "read", lambda texts, cached: read.extend(texts) or [])
    assert trainer.mu.by_likelihood({"1 " * 30: {"answer": "1"}}, 1) == {"1 " * 30: 0.0} and not read
    assert trainer.mu.by_answers({"1 " * 30: {"answer": "1"}}, 1) == {"1 " * 30: 0.0}


def test_a_prompt_begins_with_one_special_token_only(tmp_path, monkeypatch):
    """The chat template's: the engine of rollouts adds none (R1-Distill's and Llama 3's tokenizers would)."""
    from tokenizers.processors import TemplateProcessing

    trainer, _, _ = two_token_trainer(tmp_path, RL(), 0.4, 0.5, monkeypatch)
    tokenizer = trainer.processing_class
    begin = tokenizer.eos_token, tokenizer.eos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{begin[0]} $A", special_tokens=[begin])
    prompt = f"{begin[0]}1"
    assert tokenizer(prompt)["input_ids"][:2] == [begin[1]] * 2
    drawn = [[1]], [[[0.0]]]
    trainer.vllm_generation = SimpleNamespace(generate=lambda **options: (options["prompts"], *drawn, None))
    ((first, *others),) = trainer.rollout([prompt], trainer)["prompt_ids"]
    assert first == begin[1] not in others


def test_the_order_of_an_epoch_follows_from_its_number(tmp_path, monkeypatch):
    from trl import GRPOTrainer

    trainer, _, _ = two_token_trainer(tmp_path, RL(), 0.4, 0.5, monkeypatch)
    trainer.train_dataset = list(range(40))
    check_that_epochs_resume(trainer, 40, GROUP)
    theirs, ours = GRPOTrainer._get_train_sampler(trainer), batches_of(trainer, 40, GROUP, epoch=0.0)
    assert [i for batch in ours for i in batch] == list(theirs)  # TRL's first epoch is ours


def some_prompts(folder, count):
    """A file of n prompts."""
    row = dict.fromkeys(RL_PROMPTS.columns, "x") | {"sample": 0, "prefix": 0, "inside": False}
    rows = [row | {"problem_id": f"{i}"} for i in range(count)]
    RL_PROMPTS.write(pl.DataFrame(rows, schema=RL_PROMPTS.columns), folder / "prompts.parquet")
    return folder / "prompts.parquet"


def test_too_few_prompts_for_a_step_are_told_of(tmp_path):
    """TRL would make an epoch of no step of them."""
    paths = {name: tmp_path / name for name in ("out", "history", "state")}
    stage = Train(model="m", prompts=some_prompts(tmp_path, 1), method="grpo", recipe=RL(**QUICK), **paths)
    with pytest.raises(ValueError, match=r"a step takes 4 prompts, and there are 1; lower batch_size"):
        stage.cli_cmd()


def test_trl_is_told_what_the_recipe_says(told):
    """What decides the objective, and that every problem is trained on."""
    for epochs, steps in ((1, 4), (0.3, 2), (1e-9, 1), (1.25, 5)):
        assert told("grpo", RL(**QUICK, epochs=epochs)).max_steps == steps  # of 4 problems, of 16
    # where all of a group are right, r (1 - alpha s) has a deviation of alpha times that of s: alpha would cancel
    scaled = {method: told(method, RL(**QUICK)).scale_rewards for method in ("grpo", "mrt_rl", "length_penalty")}
    assert scaled == {"grpo": "group", "mrt_rl": "group", "length_penalty": "none"}
    # GRPO as published has a divergence to the parent and means over each completion; our default is TRL's present
    usual, published = (told("grpo", RL(**QUICK | more)) for more in ({}, {"beta": 0.04, "loss": "grpo"}))
    assert (usual.beta, usual.loss_type, published.beta, published.loss_type) == (0.0, "dapo", 0.04, "grpo")
    # the product over a completion of thousands of tokens, TRL's default, is nearly 0 in bfloat16
    assert usual.vllm_importance_sampling_mode == "token_truncate"


ENGINE = EngineSettings(max_model_len=512, cpu_cache_gib=0.1)
QUICK = {
    "learning_rate": 1e-4, "batch_size": 16, "micro_batch_size": 16, "num_generations": 4, "answer_tokens": 24,
    "bf16": False, "gradient_checkpointing": False, "save_steps": 1,
    "decoding": Decoding(temperature=1.0, max_tokens=100),
}  # fmt: skip


def command(prompts, folder, method, *start, **recipe):
    """A training run in a separate process: an engine takes its process over."""
    settings = RL(**QUICK | recipe)
    return [
        *(sys.executable, "-m", *start, "mrt.training.rl", "--model", str(TOY_BASE), "--prompts", str(prompts)),
        *("--method", method, "--recipe", settings.model_dump_json(), "--engine", ENGINE.model_dump_json()),
        *(
            "--state",
            str(folder / "state"),
            "--history",
            str(folder / "history.parquet"),
            "--out",
            str(folder / "model"),
        ),
    ]


def trained(prompts, folder, method, *options):
    forked = command(prompts, folder, method, "mrt.core.fork_server")
    done = subprocess.run([*forked, *options], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return log_of(folder / "history.parquet")


EACH = """
import json, sys
from mrt.training import rl
for options in json.loads(sys.argv[1]):
    rl.Train(**options).carry_out()
"""
RIVALS = [("grpo", "explicit"), ("mrt_rl", "implicit")]
MORE_RIVALS = [("mrt_rl", "per_episode")]
MORE_RIVALS += [(name, "explicit") for name in ("length_penalty", "grpo_prefixes", "vineppo", "s_grpo", "brpo")]


@pytest.fixture(scope="module")
def explicit(prompts, tmp_path_factory):
    """Folder of an undisturbed training of MRT (RL), explicit."""
    folder = tmp_path_factory.mktemp("explicit")
    trained(prompts, folder, "mrt_rl", "--report_to", "tensorboard")
    return folder


@pytest.mark.slow
def test_a_training_shows_itself_in_tensorboard_too(explicit):
    (events,) = (explicit / "history.tensorboard").glob("events*")
    assert b"train/J_prefix" in events.read_bytes() and b"train/tokens_forced" in events.read_bytes()


def options_of(prompts, folder, **other):
    """Options of a short training whose results are in this folder."""
    files = {"state": str(folder / "state"), "history": str(folder / "history.parquet"), "out": str(folder / "model")}
    return {"model": str(TOY_BASE), "prompts": str(prompts), "engine": ENGINE.model_dump(), **files, **other}


def train_one_after_another(options):
    done = subprocess.run([sys.executable, "-c", EACH, json.dumps(options)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def recipe_of(method, variant):
    loss = "grpo" if method == "s_grpo" else "dapo"
    return RL(**QUICK, variant=variant, answers=2, loss=loss)


def ways_of(prompts, folders):
    """Options of a training of each method and variant; its results are in its folder."""
    return [
        options_of(prompts, folder, method=method, recipe=recipe_of(method, variant).model_dump())
        for (method, variant), folder in folders.items()
    ]


@pytest.fixture(scope="module")
def rivals(prompts, tmp_path_factory):
    """Folders of trainings by other methods, one after another in one process."""
    folders = {way: tmp_path_factory.mktemp("-".join(way)) for way in RIVALS}
    options = ways_of(prompts, folders)
    unpadded, masked = map(tmp_path_factory.mktemp, ("unpadded", "masked"))
    folders |= {"unpadded": unpadded, "masked": masked}
    one = RL(**QUICK | {"epochs": 1 / 3}).model_dump()
    parent = str(without_pad_token(unpadded / "parent"))
    options.append(options_of(prompts, unpadded, method="grpo", model=parent, recipe=one))
    cut = {"decoding": Decoding(temperature=0.7, max_tokens=60), "mask_truncated": True, "overlong_buffer": 20}
    of_cut = RL(**QUICK | cut | {"variant": "per_episode", "answers": 2}).model_dump()
    options.append(options_of(prompts, masked, method="mrt_rl", recipe=of_cut))
    train_one_after_another(options)
    return folders


@pytest.fixture(scope="module")
def more_rivals(prompts, tmp_path_factory):
    folders = {way: tmp_path_factory.mktemp("-".join(way)) for way in MORE_RIVALS}
    train_one_after_another(ways_of(prompts, folders))
    return folders


@pytest.mark.slow
@pytest.mark.parametrize(("method", "variant"), [("grpo", "explicit"), ("mrt_rl", "explicit"), ("mrt_rl", "implicit")])
def test_lengths_and_rewards_are_of_whole_traces(method, variant, explicit, rivals, prompts):
    """From the problem on, prefix included, without stopped completions, so that curves of methods are comparable."""
    folder = {("mrt_rl", "explicit"): explicit, **rivals}[method, variant]
    history = pl.read_parquet(folder / "history.parquet").drop_nulls("reward")
    log = log_of(folder / "history.parquet")
    assert log["completion_tokens"].to_list() == history["trace_tokens"].to_list()
    added = (history["trace_tokens"] - history["completions/mean_length"]).to_list()
    assert sum(added) > 5  # a third of the prompts have a prefix of two episodes
    if variant == "implicit":  # half of each group reads the stop phrase, and answers in a few tokens
        assert min(added) > 10 and (history["outcome"] != history["reward"]).any()
    else:
        assert log["reward"].to_list() == pytest.approx(history["reward"].to_list())


@pytest.mark.parametrize(
    ("method", "variant", "fixture"),
    [
        ("mrt_rl", "explicit", "explicit"),
        *(slow_case(*way, "rivals") for way in RIVALS),
        *(thorough_case(*way, "more_rivals") for way in MORE_RIVALS),
    ],
)
def test_each_method_trains_with_the_real_engine(method, variant, fixture, request):
    trained_folders = request.getfixturevalue(fixture)
    folder = trained_folders if fixture == "explicit" else trained_folders[method, variant]
    log = log_of(folder / "history.parquet")
    assert log.columns == list(RL_COLUMNS) and log["step"].to_list() == [1, 2, 3]
    assert log["logp_difference"].max() < 1e-3  # float32: the engine samples from the trainer's weights
    assert log["tokens_sampled"].is_sorted() and log["tokens_sampled"][-1] > 16 * 3 * 10
    chosen = advantages_of(method, variant)
    assert (log["tokens_forced"][-1] > 0) == (chosen.asks_mu or chosen.asks == "continuations")
    assert log["J_prefix"].null_count() == (0 if chosen.forces_at_prompts else 3)
    phases = log.select(cs.starts_with("seconds_")).fill_null(0)
    assert (phases.sum_horizontal() < log["seconds"]).all() and (log["seconds_sampling"] > 0).all()
    assert (log["flops"] > 0).all() and (log["num_tokens"] > log["tokens_sampled"]).all()
    assert (folder / "model" / "model.safetensors").exists() and not (folder / "state").exists()
    assert not list(folder.rglob("*.bin")) and not list(folder.rglob("*.pt"))


@pytest.mark.slow
def test_a_training_with_its_own_temperature_masks_what_is_cut_and_punishes_what_is_long(rivals):
    """The trainer's probabilities are those at the temperature of sampling; counts are of all completions."""
    history = pl.read_parquet(rivals["masked"] / "history.parquet").drop_nulls("reward")
    log = log_of(rivals["masked"] / "history.parquet")
    assert log["logp_difference"].max() < 1e-3 and log["step"].to_list() == [1, 2, 3]
    assert 0 < log["truncated"].min() < 1 and (log["shaped_reward"] < log["reward"]).all()
    drawn = (history["completions/mean_length"] * 16).cum_sum()
    assert log["tokens_sampled"].to_list() == pytest.approx(drawn.to_list())
    assert (log["grad_norm"] > 0).all()


@pytest.mark.slow
def test_a_tokenizer_without_a_pad_token_trains_and_is_left_as_it_is(rivals):
    made, parent = rivals["unpadded"] / "model", rivals["unpadded"] / "parent"
    log, padded = (log_of(rivals[which] / "history.parquet") for which in ("unpadded", ("grpo", "explicit")))
    same = ["reward", "completion_tokens", "truncated", "loss"]
    assert log.select(same).row(0) == pytest.approx(padded.select(same).row(0))
    for name in ("tokenizer_config.json", "config.json", "generation_config.json"):
        for folder in (made, parent):
            found = json.loads((folder / name).read_text())
            assert found.get("pad_token") is None and found.get("pad_token_id") is None


SABOTAGE = """
import sys
from contextlib import contextmanager
from mrt.core.cli import run
from mrt.training.rl import stage

real = stage.cpu_vllm

@contextmanager
def without_hand_over(*settings):
    from trl.generation.vllm_generation import VLLMGeneration
    with real(*settings):
        VLLMGeneration.sync_weights = lambda self: None
        yield

stage.cpu_vllm = without_hand_over
run(stage.Train)
"""


def test_table_3_is_the_default_recipe():
    recipe = RL()
    table = {
        "learning_rate": 1.0e-6, "schedule": "cosine", "warmup_ratio": 0.1, "weight_decay": 0.01, "epochs": 1,
        "batch_size": 256, "num_generations": 4, "bf16": True, "variant": "explicit", "centred": False, "prefixes": 1.0,
    }  # fmt: skip
    assert {name: getattr(recipe, name) for name in table} == table
    assert recipe.decoding.temperature == 0.9 and recipe.decoding.max_tokens == 24576
    stage = json.loads((ROOT / "mrt" / "training" / "zero3.json").read_text())["zero_optimization"]["stage"]
    assert stage == 3


def test_trls_engine_gets_the_settings_of_ours(monkeypatch):
    from trl.generation import vllm_generation

    monkeypatch.setattr(vllm_generation, "LLM", lambda **options: options)
    settings = EngineSettings(dtype="bfloat16", block_size=64, max_num_seqs=7)
    with cpu_vllm(settings):
        found = vllm_generation.LLM(model="m", max_num_seqs=None, max_model_len=None, max_num_batched_tokens=4096)
    assert {"model": "m", "dtype": "bfloat16", "block_size": 64, "max_num_seqs": 7}.items() <= found.items()


def test_jobs_that_start_at_the_same_time_do_not_meet_at_one_port(monkeypatch):
    found = []
    for port in ("", "", "4321"):  # torchrun gives one
        monkeypatch.setenv("MASTER_PORT", port)
        if not port:
            monkeypatch.delenv("MASTER_PORT")
        with cpu_vllm(EngineSettings()):
            found.append(os.environ["MASTER_PORT"])
    assert len(set(found)) == 3 and "29500" not in found and found[2] == "4321"


def test_an_engine_that_is_far_from_the_trainer_is_told_of_once(tmp_path, monkeypatch, capsys):
    trainer, rows, ascent = two_token_trainer(tmp_path, RL(), 0.4, 0.5, monkeypatch)
    gradients(trainer, rows, ascent, 2)
    told = "differ from the trainer's by more than 0.05 nats a token"
    assert told not in capsys.readouterr().out
    monkeypatch.setattr(rl_trainer, "check_fresh", lambda output: 1.2 * DOUBTFUL)
    gradients(trainer, rows, ascent, 3)
    assert capsys.readouterr().out.count(told) == 1


@pytest.mark.thorough
def test_an_engine_that_is_not_handed_the_weights_stops_the_run(prompts, tmp_path):
    python, _, _, *options = command(prompts, tmp_path, "grpo", learning_rate=0.02)
    done = subprocess.run([python, "-c", SABOTAGE, *options], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr[-4000:]
    assert "the engine samples from other weights than the trainer has" in done.stderr
    assert not (tmp_path / "model").exists()


def complete_checkpoints(folder: Path) -> list[int]:
    """The steps of the checkpoints that were written to their end; the trainer may be writing another one."""
    reached = []
    for path in folder.glob("state/*/checkpoint-*/trainer_state.json"):
        with contextlib.suppress(json.JSONDecodeError):
            reached.append(json.loads(path.read_text())["global_step"])
    return reached


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_last_checkpoint_and_ends_the_same(prompts, explicit, tmp_path):
    process = subprocess.Popen(command(prompts, tmp_path, "mrt_rl"), cwd=ROOT, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 300
    while not (reached := complete_checkpoints(tmp_path)):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    log = trained(prompts, tmp_path, "mrt_rl")
    assert 1 <= max(reached) <= 3 and log["step"].to_list() == [1, 2, 3]
    undisturbed = log_of(explicit / "history.parquet")
    assert log.drop(cs.starts_with("seconds")).equals(undisturbed.drop(cs.starts_with("seconds")))
    weights = [folder / "model" / "model.safetensors" for folder in (tmp_path, explicit)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def two_processes(folder, *options):
    """The log of a training on two processes under ZeRO-3, which did change the weights."""
    from safetensors.torch import load_file

    launch = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", "2", "-m", "--", *options]
    launch += ["--deepspeed", str(ROOT / "mrt" / "training" / "zero3.json")]
    done = subprocess.run(launch, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-6000:]
    before, after = (load_file(of / "model.safetensors") for of in (TOY_BASE, folder / "model"))
    assert {k: v.shape for k, v in before.items()} == {k: v.shape for k, v in after.items()}
    assert any(not before[name].float().equal(after[name].float()) for name in before)
    return log_of(folder / "history.parquet")


@pytest.mark.thorough
def test_two_processes_that_share_an_engine_draw_what_one_draws(prompts, explicit, tmp_path):
    """With the engine spread over both (tensor parallelism), they request the same as one process with all prompts."""
    _, _, *options = command(prompts, tmp_path, "mrt_rl", micro_batch_size=8)
    options[options.index("--engine") + 1] = ENGINE.model_copy(update={"tensor_parallel_size": 2}).model_dump_json()
    log, alone = two_processes(tmp_path, *options), log_of(explicit / "history.parquet")
    assert log["step"].to_list() == [1, 2, 3] and log["logp_difference"].max() < 1e-3
    same = ["reward", "J_prefix", "progress", "tokens_sampled", "tokens_forced"]
    assert log.select(same).row(0) == pytest.approx(alone.select(same).row(0))


@pytest.mark.thorough
def test_two_processes_train_in_bf16_with_checkpointing(prompts, tmp_path):
    """A step under ZeRO-3, each process with an engine, which samples in float32 from weights in bf16."""
    one = {"bf16": True, "gradient_checkpointing": True, "epochs": 1 / 3, "warmup_ratio": 0, "learning_rate": 1e-3}
    _, _, *options = command(prompts, tmp_path, "mrt_rl", micro_batch_size=8, **one)
    log = two_processes(tmp_path, *options)
    assert log["step"].to_list() == [1] and 1e-4 < log["logp_difference"][0] < DOUBTFUL
    assert log["importance_ratio"][0] == pytest.approx(1, abs=0.02)
    assert log["tokens_forced"][0] > 0 and log["grad_norm"][0] > 0


def test_what_the_engine_samples_decides_the_kept_checkpoint(tmp_path, monkeypatch):
    """Its precision and longest text; not its memory."""
    found, prompts = [], some_prompts(tmp_path, 64)
    monkeypatch.setattr(Train, "make", lambda self, examples, *decisive: found.append(decisive))
    for engine in ({}, {"dtype": "bfloat16"}, {"max_model_len": 512}, {"cpu_cache_gib": 2.0}):
        paths = {name: tmp_path / name for name in ("out", "history", "state")}
        Train(model="m", prompts=prompts, method="grpo", engine=EngineSettings(**engine), **paths).cli_cmd()
    recipe = RL(save_steps=7, gpu_memory_utilization=0.5)
    Train(model="m", prompts=prompts, method="grpo", recipe=recipe, **paths).cli_cmd()
    assert len(set(found[:3])) == 3 and found[3] == found[4] == found[0]


def test_half_of_each_group_is_told_to_stop_and_graded_by_its_answer_alone(tmp_path, monkeypatch):
    from mrt.episodes.thinking import answer_parts

    trainer, rows, _ = two_token_trainer(tmp_path, RL(variant="implicit"), 0.4, 0.5, monkeypatch)
    trainer.mu.engine = SimpleNamespace(llm=SimpleNamespace(model_config=SimpleNamespace(max_model_len=99)))
    graded, sampled, drawn = [], [], trainer.rollout_func

    def parts(texts, inside, thinking):
        graded.extend(zip(texts, inside, strict=True))
        return answer_parts(texts, inside, thinking)

    monkeypatch.setattr(rl_trainer, "answer_parts", parts)
    monkeypatch.setattr(trainer, "rollout_func", lambda prompts, own: sampled.extend(prompts) or drawn(prompts, own))
    trainer.model.train()
    rows = [row | {"inside": True, "prefix_text": "9"} for row in rows]
    trainer._generate_and_score_completions([dict(row) for row in rows for _ in range(GROUP)])
    for i in range(PROMPTS):
        own, half = slice(i * GROUP, (i + 1) * GROUP), GROUP // 2
        assert [text[:-1] for text, _ in graded[own]] == ["9"] * half + [""] * half
        assert [inside for _, inside in graded[own]] == [True] * half + [False] * half
        assert sampled[own] == [f"{i}"] * half + [f"f{i}"] * half


def test_a_length_penalty_shapes_the_rewards_and_not_the_outcomes(tmp_path, monkeypatch):
    trainer, _, _ = two_token_trainer(tmp_path, RL(alpha=0.4), 0.4, 0.5, monkeypatch, "length_penalty")
    row = {"answer": "1", "inside": False, "prefix_text": "", "thinking": None}
    texts, lengths = ["1", "1", "2", "2"] * 2, [10, 30, 5, 900, 30, 10, 5, 900]
    ids = [[1] * n for n in lengths]
    found = trainer._calculate_rewards([row] * 8, ["x"] * 8, texts, ids)
    assert found[:, 0].tolist() == pytest.approx(length_penalized([1, 1, 0, 0] * 2, lengths, 0.4).tolist())
    assert found[0, 0] > found[1, 0] and trainer.group.outcomes.tolist() == [1, 1, 0, 0] * 2


def test_J_by_answers_is_the_share_of_right_ones_of_each_prompt(tmp_path, monkeypatch):
    """Answers keep the tags of a thought that are special tokens."""
    trainer, _, _ = two_token_trainer(tmp_path, RL(answers=3), 0.4, 0.5, monkeypatch)
    said = iter((["1", "1", "2"], ["1", "1", "2"]))

    def generate(prompts, sampling_params, **_):
        assert sampling_params.n == 3 and sampling_params.temperature == trainer.recipe.decoding.temperature
        assert not sampling_params.skip_special_tokens and not sampling_params.spaces_between_special_tokens
        return [SimpleNamespace(outputs=[SimpleNamespace(text=t, token_ids=[5]) for t in next(said)]) for _ in prompts]

    def text_of(tokenizer, drawn, stop, before, kept):
        assert kept == {7: "[/THINK]"}
        return drawn.text

    llm = SimpleNamespace(generate=generate, model_config=SimpleNamespace(max_model_len=20))
    trainer.mu.engine = SimpleNamespace(llm=llm, tensor_parallel_size=1)
    trainer.mu.kept = {7: "[/THINK]"}
    monkeypatch.setattr(meta_prover, "text_of", text_of)
    problem_of = {"1 1": {"answer": "1"}, "1 2": {"answer": "2"}}
    assert trainer.mu.by_answers(problem_of, 1) == pytest.approx({"1 1": 2 / 3, "1 2": 1 / 3})
