"""Numbers of GPUs that jobs request."""

import json
import os
import re
import subprocess
import sys

import pytest
import yaml
from conftest import ROOT, TOY_BASE, checkout, snakemake

from mrt.config import lengths, lineage, sizing
from mrt.config.hardware import GPUS, Architecture, Card, UnknownSizes
from mrt.config.load import load


def test_the_cards_are_in_the_units_that_they_say():
    for name, gpu in GPUS.items():
        assert (
            name == name.lower() and 16 < gpu.memory < 200 and 5e13 < gpu.flops < 5e15 and 2e11 < gpu.bandwidth < 1e13
        )
        assert Card(gpu="x", gpu_memory=gpu.memory, gpu_flops=gpu.flops, gpu_bandwidth=gpu.bandwidth).hardware == gpu


def test_the_architecture_of_a_checkpoint_is_read():
    from safetensors import safe_open

    with safe_open(TOY_BASE / "model.safetensors", "pt") as weights:
        names = weights.keys()
        count = sum(weights.get_tensor(name).numel() for name in names)
    found = Architecture.read(TOY_BASE)
    assert (
        found.parameters == count
        and found.vocabulary > 100
        and found.context == 1024
        and found.heads * found.head_dim >= found.hidden
    )


def test_a_model_that_sees_images_has_its_sizes_below_and_an_unusual_one_is_asked_for_them(tmp_path):
    usual = json.loads((TOY_BASE / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "sees", "text_config": usual}))
    (tmp_path / "model.safetensors").symlink_to(TOY_BASE / "model.safetensors")
    assert Architecture.read(tmp_path) == Architecture.read(TOY_BASE)
    (tmp_path / "config.json").write_text(json.dumps({"n_head": 12, "vocab_size": 9}))
    with pytest.raises(UnknownSizes, match=r"does not say num_attention_heads.*models.NAME.architecture"):
        Architecture.read(tmp_path)


def test_each_weight_of_a_checkpoint_is_counted_once(tmp_path):
    """Mistral's folders hold all weights twice, and shards of an earlier download may lie beside the others."""
    names = ("config.json", "model-1.safetensors", "consolidated.safetensors")
    for name in names:
        (tmp_path / name).symlink_to(TOY_BASE / ("config.json" if name == "config.json" else "model.safetensors"))
    once = Architecture.read(TOY_BASE)
    assert Architecture.read(tmp_path) == once
    (tmp_path / "model.safetensors").symlink_to(TOY_BASE / "model.safetensors")
    assert Architecture.read(tmp_path) == once
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}}))
    assert Architecture.read(tmp_path) == once
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    with pytest.raises(UnknownSizes, match=r"lacks model-2\.safetensors, which its index names: complete the folder"):
        Architecture.read(tmp_path)


def test_weights_that_are_not_safetensors_are_not_counted(tmp_path):
    (tmp_path / "config.json").symlink_to(TOY_BASE / "config.json")
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(
        UnknownSizes, match=r"has no safetensors, .*: give the model its sizes, models\.NAME\.architecture"
    ):
        Architecture.read(tmp_path)


def experiment(**cluster):
    return load(yaml.safe_load((ROOT / "config.yaml").read_text()) | {"cluster": cluster})


def test_a_training_takes_a_node_or_as_many_as_it_is_told():
    assert (
        sizing.training_processes(experiment(), "mrt_1") == (1, 1) and sizing.sampling_gpus(experiment(), "mrt_1") == 0
    )
    assert sizing.training_processes(experiment(gpu="h100"), "mrt_1") == (1, 8)
    assert sizing.sampling_gpus(experiment(gpu="h100"), "mrt_1") == 1
    assert sizing.training_processes(experiment(gpu="h100", training_gpus=16), "mrt_1") == (2, 8)
    assert sizing.training_processes(experiment(gpu="h100", training_gpus=16, gpus_per_node=4), "mrt_1") == (4, 4)
    assert sizing.training_processes(experiment(training_nodes=2), "mrt_1") == (2, 1)


def test_a_training_with_adapters_or_another_optimizer_takes_one_gpu():
    """With any setting: it was never tried on several."""
    raw = yaml.safe_load((ROOT / "config.yaml").read_text())
    for less in ({"lora": {}}, {"optim": "adamw_bnb_8bit"}):
        for cluster in ({"gpu": "h100"}, {"gpu": "h100", "training_gpus": 16}, {"training_nodes": 2}):
            raw["models"]["mrt_1"]["recipe"] = less
            config = load(raw | {"cluster": cluster})
            assert sizing.training_processes(config, "mrt_1") == (1, 1)
            assert sizing.training_processes(config, "star_1") != (1, 1)
    raw["models"]["mrt_1"]["recipe"] = {"optim": "adamw_torch"}
    assert sizing.training_processes(load(raw | {"cluster": {"gpu": "h100"}}), "mrt_1") == (1, 8)


def test_a_7b_model_is_trained_on_one_card_with_adapters_alone():
    """Its SFT on 24 GB, its RL on 80 GB; without adapters the error says that these would fit."""
    raw = yaml.safe_load((ROOT / "config" / "paper.yaml").read_text())
    trained = {"parent": "base_7b", "problems": "numina_4k"}
    raw["models"] = {"base_7b": raw["models"]["base_7b"]} | {
        name: trained | {"label": name, "method": name} for name in ("star", "grpo")
    }
    raw["cluster"] = {"gpu": "h100", "training_gpus": 1}
    raw["evaluation"] = {"problems": ["aime2024"], "models": list(raw["models"]), "measures": ["accuracy"]}
    raw["expected"] = {}
    with pytest.raises(ValueError, match=r"does not fit on one GPU .* on one GPU `lora: \{\}` with `base: bfloat16`"):
        load(raw)
    for name in ("recipe", "rl"):
        raw["training"][name] |= {"lora": {}, "base": "bfloat16"}
    config = load(raw)
    assert {sizing.training_processes(config, name) for name in ("star", "grpo")} == {(1, 1)}
    assert lineage.weight_bytes(config, "star") == 2
    raw["cluster"] = {"gpu": "rtx4090", "gpus_per_node": 1}
    del raw["models"]["grpo"]
    raw["evaluation"]["models"].remove("grpo")
    raw["training"]["recipe"]["max_length"] = raw["training"]["decoding"]["max_tokens"] = 8192
    raw["evaluation"]["decoding"], raw["engine"] = {"max_tokens": 8192}, {"max_model_len": 16384}
    assert sizing.training_processes(load(raw), "star") == (1, 1)


def test_an_engine_that_rl_shares_divides_a_nodes_gpus():
    tiny = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    for name in ("recipe", "rl"):
        tiny["training"][name] |= {"batch_size": 48, "micro_batch_size": 8}
    tiny |= {"cluster": {"gpu": "h100", "training_gpus": 6}, "engine": {"tensor_parallel_size": 4}}
    with pytest.raises(ValueError, match=r"models\.mrt_rl: its engine, on 4 GPUs, does not divide the 6") as error:
        load(tiny)
    assert "1 mistake)" in str(error.value)  # SFT has no engine
    load(tiny | {"engine": {"tensor_parallel_size": 2}})


def test_a_training_on_so_many_nodes_takes_all_their_gpus():
    tiny = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    tiny["cluster"] = {"gpu": "h100", "gpus_per_node": 4, "training_nodes": 2}
    assert sizing.training_processes(load(tiny), "star_1") == (2, 4)


def test_a_hub_model_has_to_tell_its_sizes():
    raw = yaml.safe_load((ROOT / "config" / "paper.yaml").read_text())
    del raw["models"]["base_7b"]["architecture"]
    with pytest.raises(ValueError, match=r"models\.base_7b\.architecture: nothing tells how large .*hf download"):
        load(raw)


def test_the_example_of_the_readme_is_planned_before_its_model_is_downloaded(tmp_path):
    """Without a GPU nothing needs a hub model's sizes; `mrt plan` says how it gets them."""
    folder = checkout(tmp_path)
    (example,) = re.findall(r"```yaml\n(# mine.yaml.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (folder / "mine.yaml").write_text(example)
    (folder / "problems.jsonl").write_text('{"problem": "What is 2 + 3?", "answer": "5"}')
    planned = snakemake(folder, "-n", "--configfile", "mine.yaml").stdout
    assert re.search(r"sample_rollouts +1\b", planned)
    command = [sys.executable, "-m", "mrt", "plan", "--configfile", "mine.yaml"]
    environment = os.environ | {"HF_HOME": str(tmp_path / "empty")}
    told = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert told.returncode == 1 and "Traceback" not in told.stderr
    assert "models.smol.architecture: nothing tells how large HuggingFaceTB/SmolLM2-135M-Instruct is" in told.stderr
    assert "hf download HuggingFaceTB/SmolLM2-135M-Instruct" in told.stderr


def test_the_papers_models_on_the_papers_gpus():
    config = load(yaml.safe_load((ROOT / "config" / "paper.yaml").read_text()))
    assert [sizing.sampling_gpus(config, name) for name in ("base_1.5b", "mrt_7b_1")] == [1, 1]
    assert sizing.training_processes(config, "mrt_7b_1") == (1, 8)
    study = load(yaml.safe_load((ROOT / "config" / "paper_case_study.yaml").read_text()))
    assert sizing.sampling_gpus(study, "base_32b") == 2


def test_an_engine_takes_no_longer_texts_than_the_model():
    study = load(yaml.safe_load((ROOT / "config" / "paper_case_study.yaml").read_text()))
    assert {name: lengths.longest(study, name) for name in ("base_32b", "direct_32b", "direct_7b")} == {
        "base_32b": 14_400,
        "direct_32b": 14_400,
        "direct_7b": 4096,
    }
    assert lengths.longest(experiment(), "mrt_1") == 1024


def of_one_child(**child):
    """A configuration that trains one model; RL's texts fit into the engine, the parent's of `training` do not."""
    raw = yaml.safe_load((ROOT / "config.yaml").read_text())
    trained = {"label": "Child", "parent": "base", "problems": "toy_train"} | child
    raw["models"] = {name: raw["models"][name] for name in ("base", "direct")} | {"child": trained}
    raw["training"] = {"rl": {"decoding": {"max_tokens": 192}, "answer_tokens": 24}}
    raw["evaluation"] |= {"models": ["base", "child"], "measures": ["accuracy"], "budget_forcing": {}}
    return raw | {"engine": {"max_model_len": 1024}}


def too_long(raw):
    """The settings whose texts do not fit."""
    try:
        load(raw)
    except ValueError as error:
        return re.findall(r"^  (\S+): \d+ does not fit into engine", str(error), re.MULTILINE)
    return []


@pytest.mark.parametrize(
    ("child", "asked"),
    [
        ({"method": "grpo"}, []),
        ({"method": "mrt_rl", "rl": {"prefixes": 0}}, []),
        ({"method": "mrt_rl", "rl": {"max_prompt_length": 400}}, ["training.decoding"]),
        ({"method": "grpo", "rl": {"least_prefix": 1, "max_prompt_length": 400}}, ["training.decoding"]),
        ({"method": "star"}, ["training.decoding"]),
        ({"method": "mrt"}, ["training.decoding", "training.prover.decoding"]),
    ],
)
def test_texts_that_nothing_learns_from_need_no_room(child, asked):
    assert too_long(of_one_child(**child)) == [f"{path}.max_tokens" for path in asked]


@pytest.mark.parametrize(
    ("of_model", "shared", "path"),
    [
        ({"answer_tokens": 900}, {"answer_tokens": 24}, "models.child.rl.answer_tokens"),
        ({"decoding": {"max_tokens": 192}}, {"answer_tokens": 900}, "training.rl.answer_tokens"),
        ({"answer_tokens": 24}, {"decoding": {"max_tokens": 900}}, "training.rl.decoding.max_tokens"),
    ],
)
def test_a_text_that_does_not_fit_is_told_where_it_is_set(of_model, shared, path):
    raw = of_one_child(method="mrt_rl", rl={"prefixes": 0} | of_model)
    raw["training"]["rl"] |= shared
    assert too_long(raw) == [path]


def test_a_card_that_is_not_listed_is_asked_for_as_a_listed_one(tmp_path):
    """Jobs ask SLURM for GPUs, whichever way the card is given."""
    over = tmp_path / "over.yaml"
    numbers = {"gpu": "mine", "gpu_memory": 79.1, "gpu_flops": 989e12, "gpu_bandwidth": 3.35e12}
    over.write_text(yaml.safe_dump({"cluster": numbers}))
    done = snakemake(checkout(tmp_path), "-n", "--configfile", "config.yaml", over)
    asked = set(re.findall(r"^ +resources: .*?\b(gpu=\d+)", done.stdout + done.stderr, re.MULTILINE))
    assert {"gpu=1", "gpu=8"} <= asked
