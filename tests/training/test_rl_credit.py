"""VinePPO, S-GRPO and BRPO: each against its formula, samples of its trainer, and settings that decide its result."""

import json
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from conftest import ROOT, TOY_BASE
from hypothesis import given
from hypothesis import strategies as st
from test_rl import GROUP, QUICK, two_token_trainer

from mrt.config import lineage
from mrt.config.load import load
from mrt.core.settings import laid_over
from mrt.episodes.parameterization import Backtracking, OpenEnded, Segmentation
from mrt.methods.brpo import brpo, budget_advantages, budget_relative
from mrt.methods.grpo import grpo
from mrt.methods.grpo_prefixes import grpo_prefixes
from mrt.methods.s_grpo import decayed, early_exits, exit_advantages, s_grpo
from mrt.methods.vineppo import step_values, vineppo
from mrt.planning.bill import Bill
from mrt.sampling.engine import Decoding
from mrt.training.method import methods
from mrt.training.rl import RL
from mrt.training.rl.meta_prover import MetaProver
from mrt.training.rl.trainer import make_trainer_class
from mrt.training.variant import Group, values_of, variant
from workflow.options import Options
from workflow.paths import Paths
from workflow.resources import JobResources

shares = st.floats(0, 1)


def group_of(outcomes, boundaries, lengths, J=None, penalties=None):
    import torch

    lost = torch.tensor(penalties) if penalties else torch.zeros(len(outcomes))
    start = None if J is None else torch.full((len(outcomes),), J)
    return Group(torch.tensor(outcomes), lost, torch.tensor(lengths), start, boundaries)


def completion(most=6):
    """J or V at the ends of some parts of a completion, and the tokens of all its parts."""
    sizes = st.integers(1, most).flatmap(lambda n: st.lists(st.integers(1, 9), min_size=n, max_size=n))
    return sizes.flatmap(
        lambda tokens: st.tuples(st.lists(shares, min_size=len(tokens) - 1, max_size=len(tokens) - 1), st.just(tokens))
    )


def test_the_control_has_the_reward_of_grpo_and_the_prompts_of_mrt():
    assert grpo_prefixes.advantages is grpo.advantages and grpo_prefixes.prefixes and not grpo.prefixes
    assert [methods()[name] for name in ("vineppo", "s_grpo", "brpo")] == [vineppo, s_grpo, brpo]


def test_vineppo_by_hand():
    group = group_of([1.0, 0.0], [((2, 3), (0.5, 0.25)), ((), ())], [5, 2], J=0.125, penalties=[0.0, -0.5])
    credit = values_of(step_values, group, {}).tolist()
    assert credit[0] == [0.375, 0.375, -0.25, 0.75, 0.75]
    assert credit[1][:2] == [-0.625, -0.625]  # what length costs is paid by each token


@given(shares, st.booleans(), completion())
def test_the_steps_of_vineppo_add_up_to_the_outcome_less_its_value_before(V, right, parts):
    along, tokens = parts
    ends = np.cumsum(tokens).tolist()
    (credit,) = values_of(step_values, group_of([float(right)], [(ends[:-1], along)], ends[-1:], J=V), {}).tolist()
    assert sum(credit[end - 1] for end in ends) == pytest.approx(right - V, abs=1e-5)
    assert sum(value / n for value, n in zip(credit, np.repeat(tokens, tokens), strict=True)) == pytest.approx(
        right - V, abs=1e-5
    )


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_the_reward_of_a_right_exit_halves_with_each_right_one_before(right):
    count, expected = 0, []
    for each in right:
        count += each
        expected.append(0.5 ** (count - 1) if each else 0.0)
    assert decayed(right).tolist() == expected


@given(st.lists(shares, min_size=1, max_size=5))
def test_of_probabilities_it_is_the_expected_reward(J):
    each = product((0, 1), repeat=len(J))
    chances = [(np.prod([p if r else 1 - p for p, r in zip(J, right, strict=True)]), right) for right in each]
    assert decayed(J) == pytest.approx(sum(chance * decayed(right) for chance, right in chances))


def test_s_grpo_by_hand():
    """Exits of 2, 5 and 10 tokens: wrong, right, right. Rewards 0, 1, 1/2; their mean is 1/2."""
    group = group_of([1.0, 0.0], [((2, 5), (0.0, 1.0)), ((2,), (0.0,))], [10, 4])
    credit = values_of(early_exits, group, {}).tolist()
    of_exits = [-0.5 / 2, 0.5 / 5, 0.0]  # A_i / |o_i|
    weights = [sum(of_exits[t:]) * 10 / 3 for t in range(3)]
    assert credit[0] == pytest.approx([weights[0]] * 2 + [weights[1]] * 3 + [weights[2]] * 5)
    assert weights[0] < 0 < weights[1] and credit[1] == [0.0] * 10  # no exit is right


@given(completion(), st.booleans(), st.floats(-1, 0))
def test_s_grpo_is_the_mean_over_exits_of_the_means_over_their_tokens(parts, right, lost):
    """For log-probabilities of any value; the loss divides by the tokens of the completion."""
    along, tokens = parts
    ends = np.cumsum(tokens)
    rewards = decayed([*along, float(right)])
    rewards[-1] += lost
    group = group_of([float(right)], [(ends[:-1].tolist(), along)], [int(ends[-1])], penalties=[lost])
    (credit,) = values_of(early_exits, group, {}).double().numpy()
    logps = np.random.default_rng(0).normal(size=ends[-1])
    gains = rewards - rewards.mean()
    paper = np.mean([gain * logps[:end].mean() for gain, end in zip(gains, ends, strict=True)])
    assert (credit * logps).mean() == pytest.approx(paper, abs=1e-5)
    assert credit.mean() == pytest.approx(0, abs=1e-5)
    assert not exit_advantages([0.25] * len(ends), ends.tolist()).any()


def by_definition(J, s):
    """BRPO's advantage after s budgets, of the first completion: sums over budgets one by one."""
    m = len(J[0])
    returns = [sum(row[k] / m for k in range(s, m)) for row in J]
    discounts = [0.5 ** (s - 1 - k) for k in range(s)]
    earlier = sum(d * j for d, j in zip(discounts, J[0], strict=False)) / sum(discounts) if s else 0.0
    baseline = s / m * earlier * (m - s) / m + (m - s) / m * np.mean(returns)
    return returns[0] - baseline


@given(st.integers(1, 5).flatmap(lambda m: st.lists(st.lists(shares, min_size=m, max_size=m), min_size=2, max_size=4)))
def test_brpo_is_the_return_less_both_baselines(J):
    credit = budget_advantages(J)
    for i in range(len(J)):
        of_i = [J[i], *J[:i], *J[i + 1 :]]
        assert credit[i] == pytest.approx([by_definition(of_i, s) for s in range(len(J[0]))])


def test_brpo_by_hand():
    """J at 4 and 8 tokens, budgets of 12 too. The first thought ends before 8 tokens; its completion is right."""
    group = group_of([1.0, 0.0], [((4,), (0.5,)), ((4, 8), (0.0, 1.0))], [7, 10])
    credit = values_of(budget_relative, group, {"budgets": 3}).tolist()
    first, second = budget_advantages([[0.5, 1.0, 1.0], [0.0, 1.0, 0.0]]).tolist()
    assert credit[0][:7] == pytest.approx([first[0]] * 4 + [first[1]] * 3)
    assert credit[1] == pytest.approx([second[0]] * 4 + [second[1]] * 4 + [second[2]] * 2)
    assert first[:2] == pytest.approx([2.5 / 3 - (2.5 + 1) / 6, 2 / 3 - (0.5 * 2 / 9 + 2 / 3 * (2 + 1) / 6)])


@given(shares, st.integers(1, 6), st.integers(2, 4))
def test_where_all_rewards_are_alike_brpo_has_no_advantage(reward, budgets, size):
    assert budget_advantages(np.full((size, budgets), reward)) == pytest.approx(0, abs=1e-12)


@given(st.lists(st.booleans(), min_size=2, max_size=6))
def test_with_one_budget_brpo_subtracts_the_groups_mean(outcomes):
    rewards = np.array(outcomes, dtype=float)
    group = group_of(rewards.tolist(), [((), ())] * len(rewards), [3] * len(rewards))
    credit = values_of(budget_relative, group, {"budgets": 1}).numpy()
    assert credit == pytest.approx(np.repeat((rewards - rewards.mean())[:, None], 3, axis=1), abs=1e-6)


def test_what_is_asked_inside_completions_gives_advantages():
    for asks in ("continuations", "budgets"):
        with pytest.raises(ValueError, match=f"asks mu at {asks} gives advantages, not rewards"):
            variant(asks=asks, gives="rewards")
    with pytest.raises(ValueError, match="'ends' is none of nothing, stop, prefix, boundaries, continuations, budgets"):
        variant(asks="ends")


# ---- requests of the trainer ----

PREFIX = "Try 4 + 2 = 6.\n\n6 is less than 9.\n\nThe answer so far is 6.\n\n"
REST = "Wait, try 4 + 5 = 9.\n\n9 is exactly 9.\n\nThe answer so far is 4 + 5 = 9.\n"
ANSWER = "</think>\n\n**Step-by-Step Explanation and Answer:**\n\n1. **Ends:** they add up to \\boxed{9}."
CHAT = "<|user|>x<|assistant|><think>\n"


def places(text, budgets, longest, masked=False, before=PREFIX, variant=budget_relative, most=None):
    """(the text that each token adds, the variant's places, texts there) of a completion that continues `before`."""
    import torch
    from transformers import AutoTokenizer

    from mrt.sampling.tokens import end_of, pieces

    tokenizer = AutoTokenizer.from_pretrained(TOY_BASE)
    prompt, ids = (tokenizer.encode(part, add_special_tokens=False) for part in (CHAT + before, text))
    recipe = RL(budgets=budgets, decoding=Decoding(max_tokens=longest), max_episodes=most)
    words = recipe.cutting(OpenEnded(segmentation=Segmentation(min_steps=1)))
    trainer = object.__new__(make_trainer_class())
    vars(trainer).update(
        {"kept": {}, "processing_class": tokenizer, "parameterization": words, "split": None},
        variant=variant, recipe=recipe,
    )  # fmt: skip
    output = {"prompt_ids": torch.tensor([prompt]), "completion_ids": torch.tensor([ids])}
    output |= {"prompt_mask": torch.ones(1, len(prompt)), "completion_mask": torch.full((1, len(ids)), 1 - masked)}
    inputs = [{"prompt": CHAT + before, "prefix_text": before, "inside": True, "thinking": None, "answer": "9"}]
    ((ends, texts),) = trainer.places(inputs, output)
    return list(pieces(tokenizer, end_of(tokenizer, prompt), ids)), ends, texts


@pytest.mark.parametrize("budgets", [1, 4, 9])
def test_a_thought_is_cut_at_the_budgets_that_it_reaches(budgets):
    longest = 60
    each, ends, texts = places(REST + ANSWER, budgets, longest)
    of_thought = next(n for n in range(len(each)) if len("".join(each[:n])) >= len(REST))
    assert ends == [b for b in (longest * k // budgets for k in range(1, budgets + 1)) if b < of_thought]
    assert texts == [PREFIX + "".join(each[:end]) for end in ends]


def test_an_unfinished_thought_is_cut_at_its_end_too():
    tokens = len(places(REST, 1, 100)[0])
    _, ends, texts = places(REST, 3, tokens)
    assert ends == [tokens // 3, tokens * 2 // 3, tokens] and texts[-1] == PREFIX + REST
    assert places(REST, 3, tokens * 3)[1] == [tokens]  # it stays below the others, which count with its outcome
    assert places(REST, 3, tokens, masked=True)[1:] == ([], [])


@pytest.mark.parametrize("before", ["", "".join(f"Wait, {i}.\n\n" for i in range(7))])
def test_the_most_episodes_are_those_of_a_completion_not_of_its_prefix(before):
    thought = "".join(f"Wait, {i}.\n\n" for i in range(9))
    _, ends, texts = places(thought, 1, 200, before=before, variant=step_values)
    assert len(ends) == 8 and texts[0] == before + "Wait, 0.\n\n"
    for most in (0, 5, 20):
        assert places(thought, 1, 200, before=before, variant=step_values, most=most)[1:] == (ends[:most], texts[:most])


def test_values_are_mean_outcomes_of_continuations_from_each_state(tmp_path, monkeypatch):
    """Each state is sampled once; a continuation has the tokens that are left; it is graded with the text before it."""
    recipe = RL(answers=3, estimate="likelihood", mu="parent", decoding=Decoding(temperature=0.7, max_tokens=9))
    trainer, rows, _ = two_token_trainer(tmp_path, recipe, 0.4, 0.5, monkeypatch, "vineppo")
    one, two = (trainer.processing_class(text, add_special_tokens=False)["input_ids"][0] for text in ("1", "2"))
    requests = []

    def generate(prompts, sampling_params, **_):
        for prompt, parameters in zip(prompts, sampling_params, strict=True):
            requests.append((prompt["prompt_token_ids"], parameters.n, parameters.temperature, parameters.max_tokens))
        says = {1: [[one], [one], [one, two]], 2: [[], [one], [two]]}  # after the prompt; after its first token
        return [
            SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids) for ids in says[len(prompt["prompt_token_ids"])]])
            for prompt in prompts
        ]

    llm = SimpleNamespace(generate=generate, model_config=SimpleNamespace(max_model_len=20))
    trainer.mu.engine = SimpleNamespace(llm=llm, tensor_parallel_size=1)
    monkeypatch.setattr(trainer, "places", lambda inputs, output: [([1], [""])] * len(inputs))
    drawn = [[one, two] if i % 2 else [one] for i in range(GROUP)]

    def rollout(prompts, trainer):
        return {
            "prompt_ids": [[two]] * len(prompts),
            "completion_ids": drawn * (len(prompts) // GROUP),
            "logprobs": None,
        }

    monkeypatch.setattr(trainer, "rollout_func", rollout)
    trainer.model.train()
    output = trainer._generate_and_score_completions([dict(row) for row in rows for _ in range(GROUP)])
    assert requests == [([two], 3, 0.7, 9), ([two, one], 3, 0.7, 8)]
    V0, V1 = 2 / 3, 1 / 3  # of 1, 1, 12; of 1, 11, 12
    assert trainer.group.J.tolist() == pytest.approx([V0] * len(trainer.group.J))
    assert trainer.group.boundaries == [([1], [pytest.approx(V1)])] * len(trainer.group.J)
    whole, ended = output["advantages"][1].tolist(), output["advantages"][0].tolist()
    assert whole == pytest.approx([V1 - V0, 0 - V1]) and ended[0] == pytest.approx(V1 - V0)
    totals = trainer.spent.totals(trainer)
    assert totals["tokens_forced"] == 4 + 2
    assert "J_prefix" not in trainer.notes  # V of the policy is no J of mu


def test_where_the_context_is_full_nothing_continues():
    requests = []

    def generate(prompts, sampling_params, **_):
        requests.extend(len(prompt["prompt_token_ids"]) for prompt in prompts)
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[7])] * 2) for _ in prompts]

    llm = SimpleNamespace(generate=generate, model_config=SimpleNamespace(max_model_len=4))
    engine = SimpleNamespace(llm=llm, tensor_parallel_size=1)
    sizes = SimpleNamespace(sampling=lambda *counts: 0.0)
    spent = SimpleNamespace(add=lambda **more: None)
    mu = MetaProver(RL(), 2, None, OpenEnded(), None, {}, engine, None, sizes, spent)
    assert mu.continuations([[1, 2], [1, 2, 3, 4]], [5, 3]) == [[[7], [7]], []] and requests == [2]


def test_requests_of_one_call_keep_their_own_limits(tmp_path, monkeypatch):
    from vllm import SamplingParams

    trainer, _, _ = two_token_trainer(tmp_path, RL(), 0.4, 0.5, monkeypatch)
    trainer.vllm_generation = SimpleNamespace(tensor_parallel_size=1)
    generate = trainer.seeded(lambda prompts, sampling_params, **_: sampling_params)
    each = generate(["x", "y"], [SamplingParams(max_tokens=n) for n in (3, 5)])
    shared = generate(["x", "y"], SamplingParams(max_tokens=4))
    assert [p.max_tokens for p in (*each, *shared)] == [3, 5, 4, 4] and len({p.seed for p in (*each, *shared)}) == 4


# ---- settings that decide a result, and its cost ----


def experiment(**changes):
    """The toy experiment with a model of each method, and changes of it."""
    raw = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    new = {name: {"parent": "base", "method": name, "problems": "toy_train"} for name in METHODS}
    new["s_grpo"]["rl"] = {"loss": "grpo"}
    return load(laid_over(laid_over(raw, {"models": new}), changes))


METHODS = ("grpo", "grpo_prefixes", "vineppo", "s_grpo", "brpo")
READERS = [  # a change of `training.rl`, or of a section, and the methods whose training it decides
    ({"segmentation": {"min_steps": 2}}, {"vineppo", "s_grpo"}),
    ({"template": {"stop": "Stop."}}, {"s_grpo", "brpo"}),
    ({"answers": 3}, {"vineppo", "s_grpo", "brpo"}),
    ({"answer_tokens": 9}, {"s_grpo", "brpo"}),
    ({"estimate": "likelihood", "variant": "per_episode"}, {"s_grpo", "brpo"}),
    ({"budgets": 3}, {"brpo"}),
    ({"max_episodes": 5}, {"vineppo", "s_grpo"}),
    ({"alpha": 0.5, "centred": True}, set()),
]


@pytest.mark.parametrize(("edit", "readers"), READERS, ids=map(str, range(len(READERS))))
def test_a_setting_trains_again_those_that_read_it(edit, readers):
    changes = edit if {"segmentation", "template"} & set(edit) else {"training": {"rl": edit}}
    credit = {}
    for config in (experiment(), experiment(**changes)):
        paths = Paths(config)
        options = Options(config, paths, JobResources(config))
        for name in METHODS:
            w = SimpleNamespace(model=name)
            credit.setdefault(name, []).append((options.rl(w), options.rl_prompts(w)))
    assert {name for name, (before, after) in credit.items() if before[0] != after[0]} == readers
    at_prompts = {"s_grpo"} if "template" in edit else set()
    assert {name for name, (before, after) in credit.items() if before[1] != after[1]} == at_prompts


@pytest.mark.parametrize(
    ("method", "rl", "message"),
    [
        ("s_grpo", {"loss": "dapo"}, r"rl\.loss: with the early_exits variant, dapo: each exit counts"),
        ("length_penalty", {"alpha": 2.0}, r"rl\.alpha: with the shortened variant, 2 is above 1"),
        ("brpo", {"mask_truncated": True}, r"rl\.mask_truncated: with the budget_relative variant, budgets within"),
        ("mrt_rl", {"variant": "implicit", "batch_size": 9, "num_generations": 3}, r"rl\.num_generations: .* 3 is odd"),
    ],
)
def test_a_method_refuses_what_would_make_it_another(method, rl, message):
    with pytest.raises(ValueError, match=message):
        experiment(models={method: {"parent": "base", "method": method, "problems": "toy_train", "rl": rl}})


def test_the_authors_method_of_the_card_is_a_configuration():
    """Credit by episode with alpha 1, from the problem on, by 4 answers at the ends of at most 6 episodes."""
    online = {"variant": "per_episode", "alpha": 1, "prefixes": 0, "answers": 4, "max_episodes": 5}
    model = {"parent": "base", "method": "mrt_rl", "problems": "toy_train", "rl": online}
    config = experiment(models={"mrt_online": model})
    assert lineage.sources(config, "mrt_online") == ()  # no thoughts of the parent
    assert lineage.recipe(config, "mrt_online").max_episodes == 5  # cuts
    words = OpenEnded(segmentation=Segmentation(min_steps=1, max_episodes=2))
    assert RL().cutting(words) is words
    assert RL(max_episodes=5).cutting(words).segmentation == Segmentation(min_steps=1)
    for other in (Backtracking(), OpenEnded(segmentation=Segmentation(by="my_cut.py:cut"))):
        with pytest.raises(ValueError, match="max_episodes: neither attempts nor a function of yours"):
            RL(max_episodes=5).cutting(other)
    assert "max_episodes" not in json.loads(RL().model_dump_json(exclude_none=True))


def test_a_plan_counts_continuations_and_budgets():
    def generated(name, **rl):
        return Bill(experiment(models={name: {"rl": rl}})).training_work(name, "toy_train").generated

    plain = generated("grpo")
    assert plain == generated("grpo_prefixes")
    assert generated("brpo", budgets=8, answers=2) - plain == 4 * (generated("brpo", budgets=2, answers=2) - plain) > 0
    assert generated("vineppo", answers=4) - plain == 4 * (generated("vineppo", answers=1) - plain)
    assert generated("vineppo", answers=1) - plain > plain  # a rest of a completion at the end of each episode


def test_what_needs_the_engine_or_has_no_place_is_refused():
    for field in ({"vllm_enable_sleep_mode": True}, {"vllm_mode": "server"}):
        recipe = RL(**QUICK, **field, estimate="likelihood", mu="parent")
        assert [name for name, _ in recipe.clashes(step_values)] == list(field)
        assert not list(recipe.clashes(budget_relative))  # the frozen parent answers
    one_ratio = RL(num_iterations=2, importance_sampling_level="sequence", loss="grpo")
    for each in (step_values, early_exits, budget_relative):
        assert [name for name, _ in one_ratio.clashes(each)] == ["importance_sampling_level"]
    few = RL(budgets=9, decoding=Decoding(max_tokens=8))
    assert [name for name, _ in few.clashes(budget_relative)] == ["budgets"] and not list(few.clashes(step_values))
