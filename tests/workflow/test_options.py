"""The options that rules hand to stages: which of them decide a result, and which do not."""

import json
import shutil
from functools import reduce
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import yaml
from conftest import ROOT, TOY_BASE, checkout, planned_jobs, snakemake

from mrt.analysis.measure import measures
from mrt.config import lineage, measuring, roots, sizing
from mrt.config.load import load
from mrt.core.digest import slice_of
from mrt.core.settings import laid_over
from mrt.figures.figure import figures
from mrt.training.rl import Train as RLTrain
from mrt.training.sft import Train as SFTTrain
from workflow.options import Options
from workflow.paths import Paths
from workflow.resources import JobResources


def options_of(*files, **more):
    """Options of these configurations and further settings, laid over each other."""
    config = load(reduce(laid_over, [*(yaml.safe_load((ROOT / name).read_text()) for name in files), more]))
    paths = Paths(config)
    return Options(config, paths, JobResources(config))


def test_cost_knows_which_models_of_another_lineage_were_sampled_from(tmp_path):
    """The warmstart of the 3B learns from trees of the 8B (Appendix A.2); the others from their own models."""
    options = options_of("config/backtracking_paper.yaml")
    known = options.experiment
    of_8b = [roots.weights(known, "base_8b"), known.models["base_8b"].revision]
    assert json.loads(options.cost(SimpleNamespace(model="warmstart_3b")))["sampled_by"]["tree"] == of_8b
    assert options.cost(SimpleNamespace(model="warmstart_8b")) == "{}"
    judged = options_of(
        "config.yaml", models={"judge": {"label": "Judge", "path": str(TOY_BASE)}}, training={"mu": "judge"}
    )
    assert json.loads(judged.cost(SimpleNamespace(model="mrt_1"))) == {"sampled_by": {"prover": [str(TOY_BASE), None]}}
    assert judged.cost(SimpleNamespace(model="star_1")) == "{}"  # asks mu nothing

    cold = {"label": "Cold", "parent": "base", "method": "cold_start", "teacher": "r1", "problems": "toy_train"}
    file = tmp_path / "traces.jsonl"
    file.write_text('{"problem_id": "1", "text": "x"}\n')
    taught = options_of("config.yaml", models={"r1": {"label": "R1", "rollouts": {"file": str(file)}}, "cold": cold})
    assert taught.cost(SimpleNamespace(model="cold")) == "{}"  # unknown sampler


def test_an_engine_is_spread_over_gpus_that_nobody_described():
    """`engine.tensor_parallel_size` holds without `cluster.gpu` too."""
    options = options_of("config.yaml", engine={"tensor_parallel_size": 2})
    assert options.engine("base").tensor_parallel_size == 2
    with pytest.raises(ValueError, match="its engine, on 2 GPUs, does not divide the 1 of a node"):
        options_of("config.yaml", "config/rl.yaml", engine={"tensor_parallel_size": 2})


def test_what_leaves_the_weights_alone_trains_nothing_anew():
    """How often it is saved, and how much memory its engine takes, are in no setting that Snakemake compares."""
    w, found = SimpleNamespace(model="mrt_rl"), []
    for own in ({}, {"save_steps": 7, "gpu_memory_utilization": 0.4}):
        training = {"rl": own, "recipe": {"save_steps": 7} if own else {}}
        options = options_of("config.yaml", "config/rl.yaml", training=training)
        sft = SimpleNamespace(model="star_1")
        execution = json.loads(options.trained_by(with_engine=True)(w, 1))
        found.append((options.rl(w), options.sft(sft), execution["recipe"]))
    assert found[0][:2] == found[1][:2] and found[1][2] == {"save_steps": 7, "gpu_memory_utilization": 0.4}
    groups = {"settings": {"recipe": {"seed": 3}}, "execution": {"recipe": found[1][2], "state": "s"}}
    train = RLTrain(model="m", prompts="p", method="grpo", history="h", out="o", **groups)
    assert (train.recipe.seed, train.recipe.save_steps, train.recipe.gpu_memory_utilization) == (3, 7, 0.4)


def test_a_recipe_is_one_text_in_the_plan_and_in_the_key_of_what_is_kept():
    """And the stage has the values of the configuration, also of fields that it does not read by its key."""
    options = options_of("config.yaml", "config/rl.yaml", models={"mrt_rl": {"rl": {"variant": "per_episode"}}})
    paths = {"prompts": "p", "set": "s", "history": "h", "out": "o"}
    for name, stage in (("mrt_rl", RLTrain), ("mrt_1", SFTTrain)):
        w, by_rl = SimpleNamespace(model=name), stage is RLTrain
        settings = json.loads((options.rl if by_rl else options.sft)(w))
        execution = json.loads(options.trained_by(with_engine=by_rl)(w, 1))
        files = {field: path for field, path in paths.items() if field in stage.model_fields}
        train, recipe = stage(**files, settings=settings, execution=execution), lineage.recipe(options.experiment, name)
        unread = recipe.unread("mrt_rl") if by_rl else recipe.execution
        assert slice_of(train.recipe, unread) == json.dumps(settings["recipe"], sort_keys=True), name
        read = set(type(recipe).model_fields) - unread | recipe.execution
        assert train.recipe.model_dump(include=read) == recipe.model_dump(include=read), name
        assert "learning_rate" in settings["recipe"], name  # also a setting at its default


MRT_ONLY = [
    {"segmentation": {"markers": ["Hmm"]}},
    {"template": {"stop": "Stop."}},
    {"variant": "termination"},
    {"centred": False},
    {"prefixes": 0.5},
    {"answers": 3},
    {"answer_tokens": 9},
    {"estimate": "likelihood", "mu": "parent", "opening": "So \\boxed{"},
]


@pytest.mark.parametrize("edit", MRT_ONLY, ids=str)
def test_grpo_is_trained_anew_for_nothing_that_mrt_alone_reads(edit):
    methods = {"grpo": False, "length_penalty": False, "mrt_rl": True}
    changed = edit if {"segmentation", "template"} & set(edit) else {"models": {m: {"rl": edit} for m in methods}}
    before, after = (options_of("config.yaml", "config/rl.yaml", **more) for more in ({}, changed))
    for name, changes in methods.items():
        w = SimpleNamespace(model=name)
        told = [(o.rl(w), o.rl_prompts(w)) for o in (before, after)]
        assert (told[0] != told[1]) == changes, name
    sizes = [sizing.training_size(options.experiment, "grpo") for options in (before, after)]
    assert sizes[0] == sizes[1]  # no frozen mu is loaded


def test_grpo_from_prefixes_has_the_prompts_of_mrt_rl():
    """Equal options, of all runs, but for the texts that force answers, which GRPO does not read."""
    control = {"parent": "base", "method": "grpo_prefixes", "problems": "toy_train"}
    again = {"parent": "base", "problems": "toy_train", "seed": 4}
    replicates = {
        "mrt_rl_seed4": again | {"method": "mrt_rl", "replicate_of": "mrt_rl"},
        "control_seed4": again | {"method": "grpo_prefixes", "replicate_of": "control"},
    }
    options = options_of("config.yaml", "config/rl.yaml", models={"control": control} | replicates)
    for run in ("", "_seed4"):
        theirs, ours = (json.loads(options.rl_prompts(SimpleNamespace(model=m + run))) for m in ("mrt_rl", "control"))
        assert theirs.pop("forced") and theirs.pop("parameterization") and theirs["prefixes"] == 1
        assert ours == theirs
    recipes = [lineage.recipe(options.experiment, name) for name in ("mrt_rl_seed4", "control_seed4")]
    assert recipes[0].seed == recipes[1].seed == 4  # of the order of the prompts


def test_sets_of_whole_traces_are_made_anew_for_nothing_that_forces_answers():
    edit = {"template": {"stop": "Stop."}}
    star = SimpleNamespace(model="star_1")
    assert options_of("config.yaml").training_set(star) == options_of("config.yaml", **edit).training_set(star)
    by_suffix = options_of("config/backtracking.yaml").training_set(SimpleNamespace(model="star"))
    assert "Answer: " in by_suffix  # of attempts


UNREAD = [  # settings of MRT (RL) that others of its settings leave unread: the latter, and a change of the former
    ({}, {"prefixes": 0.25, "least_prefix": 1, "max_prompt_length": 900}),  # the prompts, which are read, have them
    ({}, {"opening": "So \\boxed{"}),
    ({"estimate": "likelihood"}, {"answers": 3, "answer_tokens": 9}),
    ({"variant": "termination"}, {"alpha": 9.0, "centred": False}),
    ({"variant": "implicit"}, {"alpha": 9.0, "centred": False, "answers": 3, "answer_tokens": 9}),
]


@pytest.mark.parametrize(("recipe", "edit"), UNREAD, ids=str)
def test_mrt_is_trained_anew_for_nothing_that_its_variant_leaves_unread(recipe, edit):
    told = []
    for own in (recipe, recipe | edit):
        options = options_of("config.yaml", "config/rl.yaml", models={"mrt_rl": {"rl": own}})
        told.append(options.rl(SimpleNamespace(model="mrt_rl")))
    assert told[0] == told[1]


def test_a_new_marker_trains_anew_what_credits_episodes():
    def told(variant, marker):
        models = {"mrt_rl": {"rl": {"variant": variant}}}
        options = options_of("config.yaml", "config/rl.yaml", segmentation={"markers": [marker]}, models=models)
        return options.rl(SimpleNamespace(model="mrt_rl"))

    assert told("explicit", "Wait") == told("explicit", "Hmm")
    assert told("per_episode", "Wait") != told("per_episode", "Hmm")


def test_a_task_is_in_the_options_of_what_judges_its_problem_set_and_of_nothing_else():
    task = {"name": "math", "by": "math_verify"}
    usual = options_of("config.yaml", "config/rl.yaml")
    evaluated, learnt = (
        options_of("config.yaml", "config/rl.yaml", problems={name: {"task": task}})
        for name in ("toy_test", "toy_train")
    )
    sets = [SimpleNamespace(model="base", dataset=name) for name in ("toy_test", "toy_train")]
    judged = [json.loads(o.grading(w)) for o in (usual, evaluated, learnt) for w in sets]
    assert judged == [{}, {}, {"task": task}, {}, {}, {"task": task}]
    trained = SimpleNamespace(model="mrt_rl")
    assert evaluated.rl(trained) == usual.rl(trained) and evaluated.rl_prompts(trained) == usual.rl_prompts(trained)
    assert json.loads(learnt.rl(trained)) == json.loads(usual.rl(trained)) | {"task": task}
    assert json.loads(learnt.rl_prompts(trained)) == json.loads(usual.rl_prompts(trained)) | {"rows": True}
    assert all(o.dataset(w) == usual.dataset(w) for o in (evaluated, learnt) for w in sets)
    assert all(o.rollouts(w) == usual.rollouts(w) for o in (evaluated, learnt) for w in sets)


def test_several_processes_are_sharded_as_deepspeeds_file_says():
    options = options_of("config/paper.yaml")
    assert json.loads(options.sharding(SimpleNamespace(model="mrt_1.5b_1")))["zero_optimization"]["stage"] == 3
    assert options_of("config.yaml").sharding(SimpleNamespace(model="mrt_1")) == ""


def test_what_gathers_asks_for_no_gpu_and_no_time_or_memory_to_sample():
    resources = options_of("config/paper.yaml").resources
    w = SimpleNamespace(model="base_7b", dataset="math500", get=lambda name: "math500")
    pool = SimpleNamespace(model="base_7b", pool="_evaluation", get=lambda name: "_evaluation")
    gathers, one = resources.gathering("sample_rollouts"), resources.sampling("sample_rollouts")
    assert [gathers["runtime"](w, attempt) for attempt in (1, 2)] == [60, 120] and one["runtime"](pool, 1) > 60
    assert gathers["mem_mb"](w, 1) < one["mem_mb"](pool, 1) and "gpu" not in gathers and one["gpu"](pool) > 0


def test_what_reads_answers_asks_for_memory_by_their_number():
    resources = options_of("config/paper.yaml").resources
    a_set, measures = SimpleNamespace(model="mrt_1.5b_1", get=lambda name: None), resources.bill
    tokens = measures.work("force_answers", "base_1.5b", "numina_10k").generated
    assert resources.reading("force_answers")(a_set, 1) == round(2000 + 12 * tokens / 2**20) > 20_000
    assert resources.reading("force_answers", least=0)(a_set, 2) == round(2 * 12 * tokens / 2**20)


def test_no_job_asks_for_more_time_than_a_partition_gives():
    asked = {}
    for most in (None, 1440):
        resources = options_of("config/paper.yaml", cluster={"max_runtime": most}).resources
        w = SimpleNamespace(model="base_7b", pool="numina_10k", get=lambda name: "numina_10k")
        asked[most] = [resources.sampling("force_answers")["runtime"](w, attempt) for attempt in (1, 2)]
    assert asked[None][1] == 2 * asked[None][0] > 1440 and max(asked[1440]) <= 1440


def test_without_versions_neither_fingerprints_nor_stages_look_at_them():
    """`track_versions: false`: a new vLLM then reruns nothing."""
    usual, without = options_of("config.yaml"), options_of("config.yaml", track_versions=False)
    w = SimpleNamespace(model="star_1", dataset="toy_train")
    told = json.loads(without.sft(w))
    assert told.pop("track_versions") == "false" and told == json.loads(usual.sft(w))
    assert '"track_versions": "false"' in without.rollouts(w)
    stages = ("sampling.rollouts", "training.sft")
    assert all(usual.code(stage) != without.code(stage) for stage in stages)
    given = {"model": "m", "prompts": "p", "method": "grpo", "history": "h", "out": "o", "state": "s"}
    assert not RLTrain(**given, settings={"track_versions": "false"}).track_versions


def test_the_axis_of_regret_and_a_base_made_anew_are_as_configured():
    changed = options_of("config.yaml", evaluation={"regret_tokens": "thought"}, models={"base": {"toy": "remade"}})
    for options, axis in ((changed, "thought"), (options_of("config.yaml"), "answer")):
        assert measuring.settings_of(options.experiment, measures()["regret"], "base")["axis"] == axis
    assert changed.of_weights("base")["model"] == "results/laptop/models/toy_base"
    assert changed.paths.checkpoint("base") and not options_of("config.yaml").paths.checkpoint("base")


@pytest.mark.slow
def test_every_figure_and_measure_is_grouped_on_a_cluster(tmp_path):
    """Else each is a separate job, which waits in the queue longer than it runs. Dry runs leave out grouped jobs."""
    grouped = dict(line.split("=") for line in yaml.safe_load((ROOT / "slurm" / "config.yaml").read_text())["groups"])
    assert [name for name, group in grouped.items() if group == "draw"] == ["figures"]
    folder = checkout(tmp_path)
    listed = [planned_jobs(folder, *groups).keys() for groups in ((), ("--groups", "figures=draw"))]
    assert listed[0] - listed[1] == {name for name in figures() if name in listed[0]} > {"regret", "pass1"}
    assert {"measure_progress", "measures"} <= grouped.keys()
    grouped_measures = listed[0] - planned_jobs(folder, "--groups", "measures=measure").keys()
    assert grouped_measures == {rule for rule in listed[0] if rule.startswith("measure_")} - {"measure_progress"}


@pytest.mark.slow
def test_a_job_on_a_cluster_has_the_configuration_of_the_plan(tmp_path, monkeypatch):
    """Snakemake hands its jobs the name of the file, which may have been edited since."""
    folder = checkout(tmp_path)
    shutil.copy(ROOT / "tests" / "tiny.yaml", folder / "config.yaml")
    planned = yaml.safe_load((folder / "config.yaml").read_text())
    planned["evaluation"]["samples"] = 5
    (folder / "planned.json").write_text(json.dumps(planned, default=str))
    monkeypatch.setenv("MRT_PLANNED_CONFIG", str(folder / "planned.json"))
    monkeypatch.setenv("MRT_RUN", f"1 {folder}/.running")  # as a run leaves it to its jobs
    target = "gather_rollouts:model=base,dataset=toy_test"
    job = snakemake(folder, "-n", "-p", "--mode", "remote", "--force", "--target-jobs", target).stdout
    assert '"samples": 5' in job
    monkeypatch.delenv("MRT_RUN")
    by_hand = snakemake(folder, "-n", "-p", "--force", f"{planned['results']}/rollouts/base/toy_test.parquet").stdout
    assert '"samples": 4' in by_hand


def test_a_plan_holds_the_claims_of_a_table(tmp_path):
    """The table may be edited, and the edit undone, before a job on a cluster reads it."""
    folder = checkout(tmp_path)
    config = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text()) | {"claims": "claims.tsv"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    claim = {"section": "8", "says": "x", "value": "accuracy", "model": "mrt_1", "than": "base", "expect": "more"}
    claim |= {"redraw": "table1"}
    (folder / "claims.tsv").write_text("\n".join("\t".join(row) for row in (claim, claim.values())))
    snakemake(folder, "--cores", 1, "results/tiny/problems/toy_test.parquet")
    (planned,) = (folder / ".snakemake" / "planned").glob("*.config.json")
    assert json.loads(planned.read_text())["claims"] == [claim]


@pytest.mark.skipif(bool(find_spec("wandb")), reason="W&B is installed")
def test_a_run_does_not_begin_if_its_trainings_log_to_what_is_not_installed(tmp_path):
    folder = checkout(tmp_path)
    config = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    config["training"]["report_to"] = ["wandb"]
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    done = snakemake(folder, "--cores", 1, "results/tiny/models/star_1", check=False)
    assert done.returncode == 1 and "training.report_to: wandb is not installed" in done.stderr
    assert not (folder / "results" / "tiny" / "problems").exists()
    snakemake(folder, "--cores", 1, "results/tiny/problems/toy_test.parquet")  # it trains nothing


@pytest.mark.skipif(bool(find_spec("grokadamw")), reason="that optimizer is installed")
def test_a_run_does_not_begin_if_its_trainings_need_an_optimizer_that_is_not_installed(tmp_path):
    folder = checkout(tmp_path)
    config = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    config["training"]["recipe"]["optim"] = "grokadamw"
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    done = snakemake(folder, "--cores", 1, "results/tiny/models/star_1", check=False)
    assert done.returncode == 1 and "models.star_1: optim: grokadamw is not installed" in done.stderr
    assert not (folder / "results" / "tiny" / "problems").exists()


def test_a_chat_template_that_cannot_write_a_prompt_stops_before_any_job(tmp_path):
    folder = checkout(tmp_path)
    shutil.copytree(TOY_BASE, folder / "own")
    (folder / "own" / "chat_template.jinja").write_text("{{ raise_exception('a system message comes first') }}")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["models"]["base"] = {"label": "Base", "path": "own"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    done = snakemake(folder, "pass1", "--cores", "2", check=False)
    assert done.returncode == 1 and "models.base: own: its chat template cannot write a message of" in done.stderr
    assert "a system message comes first" in done.stderr and not list((folder / "results").rglob("*.parquet"))
