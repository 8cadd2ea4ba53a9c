"""FLOPs, against torch's own counter on the toy base: sampling, mu, forward and backward passes."""

import json
import subprocess
import sys
from functools import cache

import polars as pl
import pytest
from conftest import ROOT, TOY_BASE
from hypothesis import given
from hypothesis import strategies as st

from mrt.core.artifacts import PROVER, ROLLOUTS, TREE
from mrt.sampling.engine import Decoding, EngineSettings
from mrt.training.cost import of_prover, of_rollouts, of_tree
from mrt.training.flops import Sizes, distinct, pairs
from mrt.training.method import advantages_of
from mrt.training.rl import RL


@pytest.fixture(scope="module")
def model():
    """The toy base, with attention that torch's counter sees."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(TOY_BASE, dtype="float32", attn_implementation="eager")


def counted(run):
    """FLOPs that torch counts in a call."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter:
        run()
    return counter.get_total_flops()


def test_a_pass_over_padded_rows(model):
    import torch

    ids = torch.randint(2, 600, (3, 200))
    sizes = Sizes.of(model)
    assert counted(lambda: model(ids)) == pytest.approx(sizes.training(3, 200, 600, backward=False), rel=0.001)

    def backward():
        model(ids).logits.sum().backward()

    # torch's loss runs the output layer three times, TRL's four times
    assert counted(backward) == pytest.approx(
        sizes.training(3, 200, 600, backward=True) - 2 * sizes.output_weights * 600, rel=0.01
    )


def test_a_token_of_a_mixture_counts_the_experts_that_it_uses():
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 256, "moe_intermediate_size": 32}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    config = Qwen3MoeConfig(**sizes, num_experts=8, num_experts_per_tok=2, attn_implementation="eager")
    config._experts_implementation = "eager"  # which torch's counter sees
    mixture, ids = Qwen3MoeForCausalLM(config), torch.randint(0, 100, (3, 20))
    by_torch = counted(lambda: mixture(ids, use_cache=False))
    assert by_torch == pytest.approx(Sizes.of(mixture).training(3, 20, 60, backward=False), rel=0.001)


@cache
def one_by_one(model):
    """Torch's count in a pass of one token, by the number of tokens before it, which are in the cache."""
    import torch
    from transformers import DynamicCache

    known, counts = DynamicCache(config=model.config), []
    with torch.no_grad():
        for token in range(5, 5 + 400):
            ids = torch.tensor([[token]])
            counts.append(counted(lambda ids=ids: model.model(ids, past_key_values=known, use_cache=True)))
    return counts


def step_by_step(model, before, tokens):
    """Torch's count in `tokens`, one at a time after those in the cache; only numbers of tokens count."""
    end = len(before) + len(tokens)
    assert end <= len(one_by_one(model))
    return sum(one_by_one(model)[len(before) : end])


def test_sampled_tokens_attend_to_those_before_them(model):
    sizes, text = Sizes.of(model), list(range(5, 165))
    assert step_by_step(model, [], text) == pytest.approx(sizes.sampling(160, pairs(0, 160)), rel=0.01)
    assert step_by_step(model, text, text) == pytest.approx(sizes.sampling(160, pairs(160, 320)), rel=0.01)


def replayed(model, calls):
    """Torch's count for an engine with a perfect prefix cache that samples these [(prompt, its completions)].

    A prompt without completions was scored: there are logits of all its tokens.
    """
    import torch

    known, found, output = set(), 0, counted(lambda: model.lm_head(torch.zeros(1, 1, model.config.hidden_size)))
    for asked in calls:
        for prompt, completions in asked:
            at = next((i for i in range(len(prompt)) if tuple(prompt[: i + 1]) not in known), len(prompt))
            found += step_by_step(model, prompt[:at], prompt[at:])
            found += 0 if completions else output * (len(prompt) - at)  # all that is read is scored
            known |= {tuple(prompt[: i + 1]) for i in range(at, len(prompt))}
        for prompt, completions in asked:
            for completion in completions:
                found += step_by_step(model, prompt, completion) + output * len(completion)
                known |= {tuple((prompt + completion)[: i + 1]) for i in range(len(prompt + completion))}
    return found


tokens = st.lists(st.integers(0, 2), max_size=6)


@given(st.lists(tokens, max_size=6))
def test_shared_prefixes_are_computed_once(texts):
    prefixes = {tuple(text[:end]) for text in texts for end in range(1, len(text) + 1)}
    assert distinct(texts) == (len(prefixes), sum(map(len, prefixes)))


def test_forced_answers_read_a_trace_once():
    rows = [  # two traces of a problem: a chat prompt of 10 tokens, prefixes of 20 j, 7 that force, answers of 5
        ("p", sample, j, i, "text", 5, 10, 20 * j, 10 + 20 * j + 7, "stop", None)
        for sample in range(2)
        for j in range(3)
        for i in range(4)
    ]
    found = of_prover(pl.DataFrame(rows, schema=PROVER.columns, orient="row"))
    texts = [[0] * 10 + [5 + sample] * (20 * j) + [8] * 7 for sample in range(2) for j in range(3)]
    assert found.generated == 2 * 3 * 4 * 5
    read, attended = distinct(texts)
    assert found.read == 10 + 2 * 40 + 6 * 7 and read == found.read - 7  # at the empty prefix both traces are one text
    attended += pairs(10, 17)
    behind = sum(4 * pairs(17 + 20 * j, 22 + 20 * j) for j in range(3)) * 2
    assert found.pairs == attended + behind


def test_rollouts_and_trees_count_their_prompts_once():
    rows = [("p", s, "q", "t", 100 + s, 30, "stop", None, True, None) for s in range(3)]
    rows += [("imported", 0, "", "t", None, None, "unknown", None, False, None)]
    found = of_rollouts(pl.DataFrame(rows, schema=ROLLOUTS.columns, orient="row"))
    assert found[:2] == (303, 30)
    assert found.pairs == pairs(0, 30) + sum(pairs(30, 130 + s) for s in range(3))
    nodes = [("p", 0, None, 0, "", 0.5, 2, 1, 2, 80, 30, False), ("p", 1, 0, 1, "s", 0.5, 2, 1, 0, 0, None, False)]
    nodes += [("p", 2, 0, 1, "t", 0.5, 2, 1, 1, 25, 45, False)]
    found = of_tree(pl.DataFrame(nodes, schema=TREE.columns, orient="row"))
    assert found[:2] == (105, 30) and found.pairs == pairs(0, 30) + 2 * pairs(30, 70) + pairs(45, 70)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_fine_tuning_counts_what_torch_counts(checkpointing, model, tmp_path):
    from copy import deepcopy

    from transformers import AutoTokenizer

    from mrt.training.sft import SFT, arguments, make_trainer

    recipe = SFT(
        epochs=1, batch_size=4, micro_batch_size=2, max_length=256, bf16=False, gradient_checkpointing=checkpointing
    )
    rows = []
    for i in range(8):
        ids = list(range(5, 65 + 20 * i))
        rows.append({"input_ids": ids, "labels": [-100] * 30 + ids[30:], "loss_weight": 1.0})
    own, tokenizer = deepcopy(model), AutoTokenizer.from_pretrained(TOY_BASE)
    trainer = make_trainer(own, tokenizer, rows, recipe, arguments(recipe, tmp_path))
    seen = counted(trainer.train)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry][-1]
    assert logged["flops"] == pytest.approx(seen, rel=0.03)
    assert logged["trained_tokens"] == sum(len(row["input_ids"]) for row in rows)


WATCHED = """
import json, sys
from pathlib import Path
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer
from mrt.training import frozen, prompt_cache, rl
from mrt.training.rl import stage, trainer

found = {}
load = AutoModelForCausalLM.from_pretrained
AutoModelForCausalLM.from_pretrained = lambda *a, **o: load(*a, **o, attn_implementation="eager")
make = trainer.make_trainer_class

def watched(call):
    def counted(*arguments, **options):
        with FlopCounterMode(display=False) as counter:
            result = call(*arguments, **options)
        found["passes"] += counter.get_total_flops()
        return result
    return counted

def made():
    kind = make()

    class Watched(kind):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.accelerator.backward = watched(self.accelerator.backward)
            generate = self.vllm_generation.llm.generate
            def noted(prompts, *arguments, **options):
                outputs = generate(prompts, *arguments, **options)
                scores = getattr(options["sampling_params"], "prompt_logprobs", None) is not None  # samples nothing
                drawn = [[] if scores else [list(o.token_ids) for o in output.outputs] for output in outputs]
                found["calls"].append([(list(o.prompt_token_ids), own) for o, own in zip(outputs, drawn)])
                return outputs
            self.vllm_generation.llm.generate = noted

    return Watched

frozen.Frozen.log_probabilities = watched(frozen.Frozen.log_probabilities)
prompt_cache.PromptCache.__init__ = watched(prompt_cache.PromptCache.__init__)
base = GRPOTrainer
base._get_per_token_logps_and_entropies = watched(base._get_per_token_logps_and_entropies)
stage.make_trainer_class = made
for options, out in json.loads(sys.argv[1]):
    found.update(passes=0, calls=[])
    rl.Train(**options).carry_out()
    Path(out).write_text(json.dumps(found))
"""
METHODS = [
    *(("mrt_rl", each) for each in ("explicit", "implicit", "termination")),
    ("grpo", ""),
    ("length_penalty", ""),
]
METHODS += [(name, "") for name in ("grpo_prefixes", "vineppo", "s_grpo", "brpo")]
WAYS = [
    ("mrt_rl", "per_episode", *way)
    for way in [("answers", "policy"), ("likelihood", "policy"), ("likelihood", "parent")]
]
WAYS += [(*method, "answers", "policy") for method in METHODS]


@pytest.fixture(scope="module")
def steps(prompts, tmp_path_factory):
    """One step of RL each way: what torch counted in passes, the engine's calls, and the log."""
    asked, folders = [], {way: tmp_path_factory.mktemp("-".join(way)) for way in WAYS}
    for (method, variant, estimate, mu), folder in folders.items():
        recipe = RL(
            variant=variant or "explicit", estimate=estimate, mu=mu, answers=2, batch_size=12, micro_batch_size=6,
            num_generations=4, answer_tokens=24, epochs=0.25, bf16=False, gradient_checkpointing=False,
            decoding=Decoding(temperature=1.0, max_tokens=100), loss="grpo" if method == "s_grpo" else "dapo",
        )  # fmt: skip
        options = {
            "model": str(TOY_BASE), "prompts": str(prompts), "method": method, "recipe": recipe.model_dump(),
            "engine": EngineSettings(max_model_len=512, cpu_cache_gib=0.1).model_dump(),
            "state": str(folder / "state"), "history": str(folder / "history.parquet"), "out": str(folder / "model"),
        }  # fmt: skip
        asked.append((options, str(folder / "found.json")))
    done = subprocess.run([sys.executable, "-c", WATCHED, json.dumps(asked)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    read = {way: json.loads((folder / "found.json").read_text()) for way, folder in folders.items()}
    logs = {way: pl.read_parquet(folder / "history.parquet") for way, folder in folders.items()}
    return {way: (found["passes"], found["calls"], logs[way].drop_nulls("reward")) for way, found in read.items()}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_rl_counts_what_torch_counts(way, model, steps):
    """Completions, J or V wherever the method needs it, two forward passes, one back.

    Passes are counted as they run. The engine's work is that of the same tokens, read and generated by transformers.
    """
    passes, calls, history = steps[way]
    # Prompts that are read once have no gradient in the last block but that of its keys and values; it is counted
    # whole. Half of the implicit variant's rows are hardly more than a prompt, and the toy has four blocks.
    within = 0.05 if "implicit" in way else 0.03
    assert history["flops"][-1] == pytest.approx(passes + replayed(model, calls), rel=within)
    assert history["tokens_sampled"][-1] + history["tokens_forced"][-1] == sum(
        len(completion) for call in calls for _, own in call for completion in own
    )
    variant = advantages_of(*way[:2])
    samples = variant.asks == "continuations" or (variant.asks_mu and way[2] == "answers")
    assert (history["tokens_forced"][-1] > 0) == samples
    if variant.forces_at_prompts:
        assert history["J_prefix"].is_between(0, 1).all()


@pytest.mark.slow
def test_at_first_the_policy_is_the_parent(steps):
    """Nothing was learnt before the first step, so that J is the same, by the engine and by forward passes."""
    of_policy, of_parent = (
        steps["mrt_rl", "per_episode", "likelihood", mu][2]["J_prefix"][0] for mu in ("policy", "parent")
    )
    assert of_policy == pytest.approx(of_parent, abs=1e-4)
