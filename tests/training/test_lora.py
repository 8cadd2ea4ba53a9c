"""Training on one card: adapters and what becomes of them, weights in bfloat16, other optimizers; on the toy base."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import polars as pl
import pytest
import yaml
from conftest import ROOT, TOY_BASE

from mrt.config import lineage
from mrt.config.load import load as load_config
from mrt.core.digest import slice_of
from mrt.core.settings import laid_over
from mrt.sampling.engine import Decoding, EngineSettings
from mrt.training import one_card
from mrt.training.devices import padded_left
from mrt.training.flops import Sizes
from mrt.training.log import log_of
from mrt.training.one_card import OPTIMIZERS, PART, USABLE, LoRA, check, load, merge, merged, training
from mrt.training.prompt_cache import PromptCache
from mrt.training.rl import RL
from mrt.training.rl.engine import DOUBTFUL
from mrt.training.sft import SFT, Train, arguments, make_trainer, tokenize
from mrt.training.stage import last_complete_checkpoint

SMALL = {
    "lora": {"rank": 4, "alpha": 8}, "learning_rate": 5e-3, "epochs": 1, "batch_size": 4, "micro_batch_size": 2,
    "max_length": 256, "bf16": False, "gradient_checkpointing": False, "save_steps": 2,
}  # fmt: skip
IN_BFLOAT16 = {"base": "bfloat16", "bf16": True, "gradient_checkpointing": True}
PROMPT = "<|user|>Some of the numbers 3, 4, 9 add up to 7. What is the sum of the smallest and the largest of them?"


def examples(count):
    texts = [f"Try {i % 9} + 4 = {i % 9 + 4}.\n</think>\n\n\\boxed{{7}}" for i in range(count)]
    return [{"prompt": f"{PROMPT}<|assistant|><think>\n", "completion": text, "weight": 1.0} for text in texts]


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TOY_BASE)


@pytest.fixture(scope="module")
def in_float32(tmp_path_factory):
    """The toy base as a checkpoint in float32."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("float32") / "base"
    shutil.copytree(TOY_BASE, folder)
    AutoModelForCausalLM.from_pretrained(TOY_BASE, dtype="float32").save_pretrained(folder)
    return folder


@pytest.fixture
def trainer_of(tokenizer, tmp_path):
    """A trainer by a recipe."""

    def made(recipe, parent=TOY_BASE, count=24):
        rows, _ = tokenize(tokenizer, examples(count), 256)
        return make_trainer(load(parent, recipe), tokenizer, rows, recipe, arguments(recipe, tmp_path / "state"))

    return made


def random_adapters(model):
    """Adapters that change something: untrained ones add nothing."""
    import torch

    draw = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if PART in name:
            weight.data = 0.1 * torch.randn(weight.shape, generator=draw)
    return model


@pytest.fixture
def adapted():
    """The toy base with adapters, in the dtype that a recipe says."""
    from peft import get_peft_model

    def made(**recipe):
        recipe = SFT(**SMALL | recipe)
        model = load(TOY_BASE, recipe)
        return random_adapters(get_peft_model(model, one_card.adapters(model, recipe.lora)))

    return made


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def logits(model, tokenizer):
    """Of a text that the base knows: of tokens in disorder float32 itself is off by 1e-4."""
    import torch

    (example,) = examples(1)
    with torch.no_grad():
        return model.eval()(**tokenizer(example["prompt"] + example["completion"], return_tensors="pt")).logits


# ---- settings


@pytest.mark.parametrize("kind", [SFT, RL])
def test_what_is_off_is_in_no_key(kind):
    off = json.loads(slice_of(kind()))
    assert not {"lora", "base", "optim"} & off.keys()
    given = json.loads(slice_of(kind(lora={}, base="bfloat16", optim="adafactor")))
    assert {name: given.pop(name) for name in given.keys() - off.keys()} == {
        "lora": {"rank": 16, "alpha": 32.0, "dropout": 0.0, "targets": "all-linear"},
        "base": "bfloat16",
        "optim": "adafactor",
    }
    assert given == off


def test_optimizers_are_those_of_transformers():
    from transformers.training_args import OptimizerNames, TrainingArguments

    assert set(OPTIMIZERS) == {each.value for each in OptimizerNames}
    assert TrainingArguments(output_dir="x", use_cpu=True, report_to=[]).optim == one_card.DEFAULT


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"base": "bfloat16"}, "base: without lora all weights are trained, and in bfloat16"),
        ({"lora": {}, "base": "bfloat16", "bf16": False}, "base: .*leave bf16 at true"),
    ],
)
def test_contradictions_are_told(recipe, message):
    with pytest.raises(ValueError, match=message):
        check(SFT(**recipe))


@pytest.mark.parametrize(("recipe", "package"), [({"lora": {}}, "peft"), ({"optim": "adamw_8bit"}, "bitsandbytes")])
def test_a_package_that_is_not_installed_is_told_where_it_is_needed_alone(recipe, package, monkeypatch, tmp_path):
    monkeypatch.setattr(one_card, "find_spec", lambda name: None)
    check(SFT())
    with pytest.raises(ValueError, match=f"{next(iter(recipe))}: {package} is not installed .*; pip install {package}"):
        check(SFT(**recipe))
    paths = {"out": tmp_path / "m", "history": tmp_path / "h", "state": tmp_path / "state"}
    with pytest.raises(ValueError, match=f"{package} is not installed"):
        Train(model=str(TOY_BASE), set=tmp_path / "set", recipe=SFT(**recipe), **paths).make([])


def test_what_was_not_tried_on_several_processes_is_refused_there():
    for recipe in ({"lora": {}}, {"optim": "adafactor"}):
        with pytest.raises(ValueError, match=rf"{next(iter(recipe))}: it was never tried on several processes"):
            check(SFT(**recipe), sharded=True)
    check(SFT(optim="adamw_torch"), sharded=True)


def test_an_optimizer_that_pages_by_cuda_alone_is_refused_on_a_cpu(monkeypatch):
    monkeypatch.setattr(one_card, "find_spec", lambda name: True)
    with pytest.raises(ValueError, match=r"optim: the pages of paged_ademamix_8bit .* use ademamix_8bit"):
        check(SFT(optim="paged_ademamix_8bit"), cpu=True)
    check(SFT(optim="paged_ademamix_8bit"))


def test_a_target_that_the_model_has_not_is_told():
    model = load(TOY_BASE, SFT())
    with pytest.raises(ValueError, match=r"no linear layer 'q_prj'; did you mean 'q_proj'\?"):
        one_card.adapters(model, LoRA(targets=["v_proj", "q_prj"]))


# ---- adapters, and what becomes of them


def test_the_merged_model_has_the_logits_of_the_adapters(trainer_of, tokenizer, in_float32, tmp_path):
    from transformers import AutoModelForCausalLM

    trainer = trainer_of(SFT(**SMALL), in_float32)
    trainer.train()
    parent = AutoModelForCausalLM.from_pretrained(in_float32, dtype="float32")
    before, untrained = logits(trainer.model, tokenizer), logits(parent, tokenizer)
    merge(trainer, in_float32)
    trainer.save_model(str(tmp_path / "child"))
    child = AutoModelForCausalLM.from_pretrained(tmp_path / "child")
    assert child.dtype == trainer.model.dtype and str(child.dtype) == "torch.float32"
    assert (logits(child, tokenizer) - before).abs().max() < 1e-4 < 0.1 < (before - untrained).abs().max()


@pytest.mark.parametrize("more", [{}, IN_BFLOAT16], ids=["float32", "bfloat16"])
def test_a_child_is_an_ordinary_checkpoint_in_its_parents_dtype(more, tmp_path, capsys):
    pl.DataFrame(examples(40)).write_parquet(tmp_path / "set.parquet")
    files = {"out": tmp_path / "m", "history": tmp_path / "m.parquet", "state": tmp_path / "state"}
    Train(model=str(TOY_BASE), set=tmp_path / "set.parquet", recipe=SFT(**SMALL | more), **files).cli_cmd()
    assert "LoRA: adapters of 28 layers, " in capsys.readouterr().out
    child, parent = weights(files["out"]), weights(TOY_BASE)
    assert {name: (w.shape, w.dtype) for name, w in child.items()} == {n: (w.shape, w.dtype) for n, w in parent.items()}
    changed = {name for name, weight in child.items() if not weight.equal(parent[name])}
    assert changed and all(name.endswith("proj.weight") for name in changed)
    names = {path.name for path in files["out"].iterdir()}
    assert not [name for name in names if "adapter" in name or name.endswith((".bin", ".md"))]
    log = log_of(files["history"])
    assert log["loss"][-1] < 0.7 * log["loss"][0] and not files["state"].exists()
    assert log["parameters"].unique().to_list() == [sum(w.numel() for w in parent.values())]
    assert json.loads((files["out"] / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_base_is_held_in_bfloat16_and_adapters_in_float32(trainer_of):
    trainer = trainer_of(SFT(**SMALL | IN_BFLOAT16))
    kinds = {(PART in name, str(w.dtype), w.requires_grad) for name, w in trainer.model.named_parameters()}
    assert kinds == {(False, "torch.bfloat16", False), (True, "torch.float32", True)}


def test_layers_that_are_not_named_stay_as_they_are(trainer_of):
    trainer = trainer_of(SFT(**SMALL | {"lora": {"rank": 4, "targets": ["q_proj", "up_proj"]}}))
    trainer.train()
    merge(trainer, TOY_BASE)
    parent = weights(TOY_BASE)
    changed = {name.split(".")[-2] for name, w in trainer.model.state_dict().items() if not w.equal(parent[name])}
    assert changed == {"q_proj", "up_proj"}


@pytest.mark.parametrize("more", [{}, IN_BFLOAT16], ids=["float32", "bfloat16"])
def test_the_engine_gets_merged_weights_and_the_trainers_stay_as_they_are(more, adapted):
    """peft's own merging and unmerging leaves rounding in the weights, at each step of RL."""
    model = adapted(**more)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    handed = {name: weight.clone() for name, weight in merged(model)}
    assert all(weight.equal(before[name]) for name, weight in model.named_parameters())
    assert handed.keys() == load(TOY_BASE, SFT()).state_dict().keys()
    model.merge_adapter()
    model.unmerge_adapter()
    moved = sum(not weight.equal(before[name]) for name, weight in model.named_parameters())
    assert moved > 0
    for name, weight in model.merge_and_unload().named_parameters():
        rounding = 0.01 if weight.dtype != handed[name].dtype else 1e-6
        assert (handed[name] - weight.float()).abs().max() <= rounding * weight.abs().max(), name


def interrupted(trainer, step):
    """Have a trainer end in an error after n steps."""
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == step:
                raise InterruptedError

    trainer.add_callback(Stop())
    return trainer


@pytest.mark.parametrize("more", [{"lora": {"rank": 4, "dropout": 0.1}}, IN_BFLOAT16], ids=["dropout", "bfloat16"])
def test_a_training_that_is_interrupted_ends_with_the_same_weights(more, trainer_of, tmp_path):
    recipe, state = SFT(**SMALL | more), tmp_path / "state"
    made = []
    for step in (99, 3):
        shutil.rmtree(state, ignore_errors=True)
        trainer = interrupted(trainer_of(recipe), step)
        try:
            with training(trainer):
                trainer.train()
        except InterruptedError:
            assert {path.name for path in state.glob("checkpoint-2/*.safetensors")} == {"adapter_model.safetensors"}
            trainer = trainer_of(recipe)
            with training(trainer):
                trainer.train(resume_from_checkpoint=last_complete_checkpoint(state))
        assert trainer.state.global_step == 6
        merge(trainer, TOY_BASE)
        made.append(trainer.model.state_dict())
    assert all(weight.equal(made[1][name]) for name, weight in made[0].items())


def test_prompts_are_read_once_with_adapters_too(adapted):
    import torch

    model, draw = adapted(), torch.Generator().manual_seed(0)
    prompts = [torch.randint(5, 600, (n,), generator=draw) for n in (7, 30)]
    rows = [(prompts[i], torch.randint(5, 600, (n,), generator=draw)) for i, n in [(0, 4), (1, 9), (0, 6)]]
    grads = []
    for cached in (False, True):
        model.zero_grad()
        cache = PromptCache(model, [prompt[:-1] for prompt, _ in rows], Sizes.of(model), 2) if cached else None
        total = 0.0
        for i, (prompt, completion) in enumerate(rows):
            if cache:
                ids, mask = padded_left([torch.cat([prompt[-1:], completion])])
                predicted = cache.behind(torch.tensor([i]))(ids, mask).logits[0, :-1]
            else:
                predicted = model(torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1]
            total = total + predicted.log_softmax(-1).gather(1, completion[:, None]).pow(2).sum()
        total.backward()
        grads.append({name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None})
    assert grads[0] and all(PART in name for name in grads[0])
    for name, grad in grads[0].items():
        assert (grads[1][name] - grad).abs().max() < 1e-4 * grad.abs().max(), name


@pytest.mark.parametrize("checkpointing", [False, True])
def test_fine_tuning_with_adapters_counts_what_torch_counts(checkpointing, tokenizer, tmp_path):
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoModelForCausalLM

    recipe = SFT(**SMALL | {"gradient_checkpointing": checkpointing, "lora": {"rank": 16}})
    rows = [{"input_ids": list(range(5, 65 + 20 * i)), "loss_weight": 1.0} for i in range(8)]
    rows = [row | {"labels": [-100] * 30 + row["input_ids"][30:]} for row in rows]
    model = AutoModelForCausalLM.from_pretrained(TOY_BASE, dtype="float32", attn_implementation="eager")
    whole = Sizes.of(model)
    trainer = make_trainer(model, tokenizer, rows, recipe, arguments(recipe, tmp_path))
    with FlopCounterMode(display=False) as counter:
        trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry][-1]
    assert logged["flops"] == pytest.approx(counter.get_total_flops(), rel=0.03)
    assert Sizes.of(trainer.model) == whole  # of sampling, which is from merged weights


# ---- optimizers


@pytest.mark.parametrize("optim", ["adafactor", "adamw_bnb_8bit", "paged_adamw_8bit"])
@pytest.mark.parametrize("lora", [None, {"rank": 64}], ids=["whole", "lora"])
def test_an_optimizer_trains(optim, lora, trainer_of):
    """bitsandbytes has kernels for CPUs; its paged optimizers are not paged there."""
    if needs := OPTIMIZERS[optim].needs:
        pytest.importorskip(needs)
    trainer = trainer_of(SFT(**SMALL | {"optim": optim, "lora": lora, "learning_rate": 1e-3, "epochs": 3}))
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert sum(losses[-6:]) < 0.8 * sum(losses[:6])
    assert optim in USABLE and type(trainer.optimizer.optimizer).__name__.lower() in optim.replace("_", "")


# ---- examples of the page, with the real engine

PAGE = (ROOT / "docs" / "your_own.md").read_text()
BLOCKS = re.findall(r"```yaml\n(# (?:small|one_card)\.yaml.*?)```", PAGE, re.DOTALL)
SHOWN = laid_over(*map(yaml.safe_load, BLOCKS))  # the second lies over the first
EACH = """
import json, sys
from mrt.training import rl, sft
for stage, options in json.loads(sys.argv[1]):
    {"sft": sft, "rl": rl}[stage].Train(**options).carry_out()
"""


SHORT = {
    "batch_size": 16, "micro_batch_size": 16, "num_generations": 4, "answer_tokens": 24, "epochs": 2 / 3,
    "save_steps": 1, "decoding": Decoding(temperature=1.0, max_tokens=100),
}  # fmt: skip
WAYS = {  # RL of the child: as shown, by likelihood under the frozen parent, with less memory
    "grpo": {},
    "mrt_rl": {"variant": "per_episode", "estimate": "likelihood", "mu": "parent", "beta": 0.0},
    "lean": IN_BFLOAT16 | {"optim": "adafactor"},
}


def job(stage, folder, name, recipe, parent, **more):
    """A training stage and its options."""
    paths = {kind: str(folder / f"{name}.{kind}") for kind in ("state", "history", "out")}
    return stage, {"recipe": recipe.model_dump(), "model": str(parent), **paths, **more}


def job_of_rl(folder, name, parent, prompts):
    """Two steps of the page's RL, in one of `WAYS`."""
    recipe = lineage.rl_recipe(load_config(SHOWN), "grpo").model_copy(update=SHORT | WAYS[name])
    engine = EngineSettings(max_model_len=512, cpu_cache_gib=0.1).model_dump()
    more = {"method": "mrt_rl" if name == "mrt_rl" else "grpo", "prompts": str(prompts), "engine": engine}
    return job("rl", folder, name, recipe, parent, **more)


def command(*jobs):
    """A command that does trainings one after another, in a separate process: an engine takes it over."""
    return [sys.executable, "-c", EACH, json.dumps(jobs)]


@pytest.fixture(scope="module")
def trained(prompts, tmp_path_factory):
    """Folder of the page's trainings, and of RL of its child in other ways."""
    folder = tmp_path_factory.mktemp("one_card")
    pl.DataFrame(examples(48)).write_parquet(folder / "set.parquet")
    recipe = lineage.recipe(load_config(SHOWN), "star")
    sft = job("sft", folder, "star", recipe, TOY_BASE, set=str(folder / "set.parquet"))
    jobs = [sft, *(job_of_rl(folder, name, folder / "star.out", prompts) for name in WAYS)]
    done = subprocess.run(command(*jobs), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def test_the_page_trains_adapters(trained):
    log = log_of(trained / "star.history")
    assert log["loss"][-1] < 0.7 * log["loss"][0]


@pytest.mark.parametrize("name", WAYS)
def test_rl_hands_the_engine_the_merged_weights(name, trained):
    """After a step the engine samples with the new weights: the trainer's log-probabilities are the engine's."""
    log = log_of(trained / f"{name}.history")
    assert log["step"].to_list() == [1, 2] and (log["grad_norm"] > 0).all()
    assert log["logp_difference"].max() < (DOUBTFUL if name == "lean" else 1e-3)
    child, parent = weights(trained / f"{name}.out"), weights(trained / "star.out")
    assert any(not weight.equal(parent[key]) for key, weight in child.items())
    assert {key: w.dtype for key, w in child.items()} == {key: w.dtype for key, w in parent.items()}


def test_the_reference_of_rl_is_the_model_without_its_adapters(trained):
    """At first the policy is the parent, from which the divergence then grows."""
    first, second = log_of(trained / "grpo.history")["kl"]
    assert abs(first) < 1e-6 < second


@pytest.mark.thorough
def test_rl_that_is_killed_ends_with_the_same_weights(trained, prompts, tmp_path):
    """From the checkpoint of its first step: the engine's weights are merged again at each step."""
    again = command(job_of_rl(tmp_path, "grpo", trained / "star.out", prompts))
    process = subprocess.Popen(again, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 300
    while not list(tmp_path.glob("grpo.state/*/checkpoint-1/trainer_state.json")):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    subprocess.run(again, cwd=ROOT, check=True, capture_output=True)
    undisturbed = weights(trained / "grpo.out")
    assert all(weight.equal(undisturbed[name]) for name, weight in weights(tmp_path / "grpo.out").items())
