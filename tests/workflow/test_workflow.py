"""The whole DAG, for real: the tiny experiment from problems to figures, and real traces where they are available."""

import _pydecimal
import ast
import inspect
import os
import re
import shutil
import time
from contextlib import nullcontext
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
import yaml
from conftest import ROOT, checkout, copy_of, fake_cards, needs_shared, planned, planned_jobs, slow_case, snakemake
from snakemake.exceptions import WorkflowError

from mrt.figures.figure import figures
from workflow import start
from workflow.sampling import SAMPLED

# Figures and tables of the tiny experiment, and their numbers in the paper
MADE = {
    name: entry
    for name, entry in figures().items()
    if not (entry.figure.needs or entry.figure.checkpoints)
    and entry.figure.measures[0] not in ("traces", "constructions")
}
FIGURES = {name: entry.targets for name, entry in MADE.items() if not entry.is_table}
TABLES = {name: entry.targets for name, entry in MADE.items() if entry.is_table}


def test_one_command_makes_tables_and_figures(finished):
    results = finished / "results" / "tiny"
    for figure in FIGURES:
        for suffix in ("pdf", "png", "parquet", "csv"):
            assert (results / "figures" / f"{figure}.{suffix}").stat().st_size > 100
    for name in TABLES:
        for suffix in ("md", "tex", "html", "parquet", "csv"):
            assert (results / "tables" / f"{name}.{suffix}").stat().st_size > 100
    page = (results / "tables" / "provenance.html").read_text()
    assert (
        "rollouts mrt_1/toy_test" in page and "mrt.sampling.rollouts" in page and "vllm" in page and "minimum_J" in page
    )
    report = (results / "index.html").read_text()
    assert all(entry.title in unescape(" ".join(report.split())) for entry in MADE.values())
    traces = (results / "traces.html").read_text()
    assert "Traces of tiny" in traces and 'id="chunk0"' in traces and "Content-Security-Policy" in traces
    table = (results / "tables" / "pass1.md").read_text()
    assert "| Base |" in table and "| MRT (STaR) |" in table.replace("**", "")
    for model in ("star_1", "mrt_1", "mrt_rl"):
        assert (results / "models" / model / "model.safetensors").exists()
        log = pl.read_parquet(results / "models" / f"{model}.log.parquet")
        assert log.height > 0 and log["loss"].is_finite().all()
    assert {file.suffix for file in (results / ".state").iterdir()} <= {".lock"}  # which may be held by others
    assert not list(results.rglob("*.part")) and not list(results.rglob("*.pkl"))


def test_artifacts_agree_with_each_other(finished):
    results = finished / "results" / "tiny"
    rollouts = pl.read_parquet(results / "rollouts" / "base" / "toy_train.parquet")
    episodes = pl.read_parquet(results / "episodes" / "base" / "toy_train.parquet")
    progress = pl.read_parquet(results / "progress" / "base" / "toy_train.parquet")
    thoughts = (
        episodes.sort("problem_id", "sample", "episode")
        .group_by("problem_id", "sample")
        .agg(pl.col("text").str.join(""))
    )
    joined = rollouts.join(thoughts, on=["problem_id", "sample"], validate="1:1")
    assert joined.height == rollouts.height == 80
    for text, thought in joined.select("text", "text_right").iter_rows():
        assert text.split("</think>")[0] == thought
    telescoped = (
        progress.sort("prefix")
        .group_by("problem_id", "sample")
        .agg((pl.col("progress").sum() - (pl.col("J").last() - pl.col("J").first())).abs().alias("error"))
    )
    assert telescoped["error"].max() < 1e-9
    for model in ("star_1", "mrt_1"):
        counts = pl.read_parquet(results / "sets" / f"{model}.rules.parquet")
        assert counts["kept"][-1] == pl.read_parquet(results / "sets" / f"{model}.parquet").height > 0


def test_a_finished_run_has_nothing_to_do_and_a_lost_figure_comes_back_alone(finished):
    assert planned(finished) == {}
    figure = finished / "results" / "tiny" / "figures" / "regret.png"
    before = figure.read_bytes()
    figure.unlink()
    target = figure.relative_to(finished)
    assert planned(finished, target) == {"regret": "1", "total": "1"}  # the page of provenance is not asked for
    snakemake(finished, target, "--cores", "1")
    assert figure.read_bytes() == before


@pytest.mark.thorough
def test_every_figure_and_table_is_a_target_that_leaves_the_other_chains_alone(finished, tmp_path):
    """By its name and by its numbers in the paper; made again, only it is."""
    folder = copy_of(finished, tmp_path / "elsewhere")
    names = (*FIGURES, *TABLES)
    for name in names:
        (folder / "results" / "tiny" / ("figures" if name in FIGURES else "tables") / f"{name}.csv").unlink()
    assert without_aliases(planned(folder, "regret")) == without_aliases(planned(folder, "fig9")) == {"regret": 1}
    assert without_aliases(planned(folder, "fig28")) == {"scaling": 1}
    targets = [target for name in names for target in (FIGURES | TABLES)[name] or [name]]
    assert without_aliases(planned(folder, *targets)) == dict.fromkeys(names, 1)
    snakemake(folder, *targets, "--cores", "2")
    for name in names:
        path = Path("results", "tiny", "figures" if name in FIGURES else "tables", f"{name}.csv")
        assert (folder / path).read_bytes() == (finished / path).read_bytes()


def without_aliases(plan):
    return {rule: int(n) for rule, n in plan.items() if rule != "total" and not re.match(r"(fig|table)\d", rule)}


@pytest.mark.parametrize(
    ("target", "chain"),
    [
        ("table1", {"gather_rollouts", "grade_rollouts", "measure_accuracy"}),
        slow_case("fig7", {"gather_rollouts", "grade_rollouts", "measure_maj"}),
        slow_case("fig23", {"gather_rollouts", "cut_episodes", "measure_episodes"}),
        ("fig29", {"gather_rollouts", "cut_episodes", "gather_forced", "grade_forced", "measure_budget_forcing"}),
        slow_case("fig15", set()),
    ],
)
def test_one_figure_from_nothing_takes_its_own_chain_alone(target, chain, tmp_path):
    """Even if the experiment measures only a part; the jobs on the evaluation set show it."""
    folder = checkout(tmp_path)
    config = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    config["evaluation"]["measures"] = ["accuracy"]
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    plan = planned_jobs(folder, target)
    on_test = {rule for rule, jobs in plan.items() if any("toy_test" in job for job in jobs)}
    assert on_test == {"build_dataset", *chain, *({"request"} if chain else ())}
    sampling = {rule for rule, jobs in plan.items() if any("_evaluation" in job for job in jobs)}
    samples = {sampled.gathers: sampled.samples for sampled in SAMPLED.values()}
    assert sampling == {samples[rule] for rule in chain if rule in samples}
    assert plan["train"] == ({"mrt_1"} if target == "fig29" else {"star_1", "mrt_1"})
    assert plan.get("train_rl") == (None if target in ("fig29", "fig15") else {"mrt_rl"})


@pytest.mark.slow
def test_figures_of_rl_come_with_a_log_and_say_so_without(finished, tmp_path):
    folder = copy_of(finished, tmp_path / "elsewhere")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    del config["models"]["mrt_rl"]
    config["evaluation"]["models"].remove("mrt_rl")
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    for path in (folder / "results" / "tiny" / "figures").glob("length.*"):
        path.unlink()
    done = snakemake(folder, "-n", "fig10", check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 1 and "a model that RL trained, or one with a training_log" in said
    assert "Traceback" not in said
    rows = "".join(f"{step},{0.3 + step / 1000},{900 - step}\n" for step in range(1, 101))
    (folder / "log.csv").write_text("step,reward,completion_tokens\n" + rows)
    config["models"]["elsewhere"] = {"label": "Elsewhere", "toy": "shipped", "training_log": "log.csv"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    snakemake(folder, "fig10", "fig11", "--cores", "1")
    for name in ("length", "reward"):
        assert pl.read_parquet(folder / "results" / "tiny" / "figures" / f"{name}.parquet").height == 100


@pytest.mark.thorough
def test_two_runs_are_equal_to_the_byte_up_to_training(finished, tmp_path):
    """The second with one core instead of two, so in another order, and elsewhere."""
    folder = checkout(tmp_path)
    shutil.copy(ROOT / "tests" / "tiny.yaml", folder / "config.yaml")
    targets = [f"results/tiny/sets/{model}.parquet" for model in ("star_1", "mrt_1")]
    snakemake(folder, *targets, "--cores", "1")
    made = [p.relative_to(folder) for p in (folder / "results").rglob("*.parquet") if ".cache" not in p.parts]
    assert len(made) >= 12
    for path in made:
        assert (folder / path).read_bytes() == (finished / path).read_bytes(), path


@pytest.mark.thorough
def test_another_checkout_takes_rollouts_from_the_shared_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SNAKEMAKE_OUTPUT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    target, logs = "results/tiny/rollouts/base/toy_test.parquet", []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        folder = checkout(tmp_path / name)
        shutil.copy(ROOT / "tests" / "tiny.yaml", folder / "config.yaml")
        snakemake(folder, target, "--cores", "1", "--cache", "sample_rollouts", "gather_rollouts")
        jobs = ("sample_rollouts/base/_evaluation/0.log", "gather_rollouts/base/toy_test.log")
        logs.append([(folder / "logs" / "tiny" / job).read_text() for job in jobs])
    (sampled, gathered), again = logs
    assert gathered.startswith("python -m mrt.sampling.rollouts --settings ")  # to run it by hand
    assert "48 to sample" in sampled and "48 rollouts" in gathered and again == ["", ""]  # the second ran no command
    assert (tmp_path / "one" / target).read_bytes() == (tmp_path / "two" / target).read_bytes()


@pytest.mark.slow
def test_replicates_are_trained_and_measured_beside_the_models_that_they_repeat(tmp_path):
    folder = checkout(tmp_path)
    configs = ["config/rl.yaml", "experiments/rl/seeds.yaml"]
    plan = planned_jobs(folder, "--configfile", "config.yaml", *configs)
    models = {"grpo", "grpo_flops", "length_penalty", "mrt_rl_explicit", "mrt_rl"}
    again = {f"{model}_seed{seed}" for model in models for seed in range(1, 5)}
    assert plan["train_rl"] == plan["rl_prompts"] == models | again
    assert plan["measure_accuracy"] >= {f"{model} toy_test" for model in again}
    measured = {"base", "direct", "star_1", "mrt_1"} | models  # the figures of votes show all runs of a model
    trained = measured - {"base", "direct"}
    runs = measured | {f"{model}_seed{seed}" for model in trained for seed in range(1, 5)}
    assert plan["measure_maj"] == {f"{model} toy_test" for model in runs}


@pytest.mark.slow
def test_rl_from_the_problem_on_needs_no_thoughts_of_its_parent(tmp_path):
    folder, configs = checkout(tmp_path), ("--configfile", "config.yaml", "config/rl.yaml")
    needed = {
        method: set(planned_jobs(folder, f"results/laptop_rl/prompts/{method}.parquet", *configs))
        for method in ("grpo", "length_penalty", "mrt_rl")
    }
    assert needed["grpo"] == needed["length_penalty"] == {"build_dataset", "check_contamination", "rl_prompts"}
    sampling = {"request", "sample_rollouts", "gather_rollouts"}
    assert needed["mrt_rl"] == needed["grpo"] | sampling | {"cut_episodes"}
    chosen = ("--config", "training={samples: 4, rl: {pass_rate: [0.25, 0.75]}}")
    by_pass_rate = set(planned_jobs(folder, "results/laptop_rl/prompts/grpo.parquet", *configs, *chosen))
    assert by_pass_rate == needed["grpo"] | sampling | {"grade_rollouts"}


@pytest.mark.slow
def test_plans_are_fast(finished, tmp_path):
    """Snakemake's own work for a finished run, 5,000 jobs and the whole paper, without that of printing each job.

    The limits are near twice the usual values: 1.4, 7 and 3.5.
    """
    nothing, work = with_work(lambda: planned(finished))
    assert nothing == {} and work < 3
    folder = checkout(tmp_path)
    config = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    sets = {f"test_{i}": {"toy": {"count": 10, "seed": i}, "split": "test"} for i in range(20)}
    config["problems"] = {"toy_train": {**config["problems"]["toy_train"], "disjoint_from": []}, **sets}
    star = config["models"]["star_1"]
    chain = {f"star_{i}": {**star, "label": f"S{i}", "parent": f"star_{i - 1}"} for i in range(2, 18)}
    config["models"] = {"base": config["models"]["base"], "star_1": star, **chain}
    config["evaluation"] |= {"problems": list(sets), "models": list(config["models"]), "direct": None}
    config["evaluation"]["budget_forcing"] |= {"models": None}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    jobs, work = with_work(lambda: planned(folder))
    assert int(jobs["total"]) > 5000 and work < 13
    paper = ("-n", "-q", "--profile", "slurm", "--configfile", "config/paper.yaml")
    assert with_work(lambda: snakemake(ROOT, *paper))[1] < 7


def with_work(call):
    """What `call` returns, and the CPU time of the processes it starts, in units of 30 parses of a large module.

    Parsed here, half before and half after it: slow machines and tests beside this one change both alike.
    """
    started, unit = sum(os.times()[2:4]), parsing_time()
    result = call()
    work = sum(os.times()[2:4]) - started
    return result, work / (unit + parsing_time())


def parsing_time():
    source, started = inspect.getsource(_pydecimal), time.process_time()
    for _ in range(15):
        list(ast.walk(ast.parse(source)))
    return time.process_time() - started


def test_the_report_has_the_figures(finished):
    snakemake(finished, "--report", "report.html")
    text = (finished / "report.html").read_text(errors="replace")
    assert "Normalized regret" in text and "regret.png" in text
    assert "0 Is it better" in text and "index_in_report.html" in text


def test_the_trial_with_gpus_has_them_for_sampling_and_training_alone(tmp_path):
    folder, asked = checkout(tmp_path), {}
    shutil.copy(ROOT / "tests" / "tiny.yaml", folder)
    done = snakemake(folder, "-n", "--configfile", "tiny.yaml", "config/gpu_trial.yaml")
    for rule, block in re.findall(r"^(?:local)?rule (\w+):\n((?: +.*\n)*)", done.stdout + done.stderr, re.MULTILINE):
        asked.setdefault(rule, set()).update(re.findall(r"\bgpu=(\d+)", block) or ["none"])
    with_gpu = {"sample_rollouts", "force_answers", "force_budget", "train", "train_rl"}
    assert {rule for rule, gpus in asked.items() if gpus != {"none"}} == with_gpu
    assert {gpus for rule in with_gpu for gpus in asked[rule]} == {"1"}


@pytest.mark.parametrize(
    ("given", "programs", "limit"),
    [({}, [], 3), ({"gpu": 2}, [], 2), ({}, ["sbatch"], None), ({"gpu": 1}, ["sbatch"], 1)],
)
def test_a_run_here_has_as_many_gpu_jobs_as_cards(monkeypatch, given, programs, limit):
    """Unless `--resources gpu=` says how many, or SLURM counts them."""
    monkeypatch.setattr(start.accelerator, "cards", lambda: ["0", "1", "2"])
    monkeypatch.setattr(start.shutil, "which", lambda name: name if name in programs else None)
    run = SimpleNamespace(global_resources=dict(given))
    start.limit_gpus(run)
    assert run.global_resources.get("gpu") == limit


@pytest.mark.parametrize(
    ("settings", "partitions", "wrong"),
    [
        ({}, {"batch": {}, "gpu": {"max_gpu": 8}}, None),
        ({}, {"elsewhere": {"cluster": "other"}}, None),
        ({"logdir": "/home/YOURS/logs"}, {"batch": {}}, "slurm-logdir: /home/YOURS/logs"),
        ({}, {"batch": {}, "YOURS": {}}, r"partitions\.yaml: partitions\.YOURS: {}"),
        ({}, {"batch": {"account": "YOURS"}}, r"partitions\.yaml: partitions\.batch\.account: YOURS"),
        ({}, {"batch": {}, "cpu": {}}, "this cluster has no partition cpu; it has batch, gpu"),
    ],
)
def test_what_was_not_adapted_to_the_cluster_is_named_before_any_job(
    settings, partitions, wrong, tmp_path, monkeypatch
):
    (tmp_path / "sinfo").write_text("#!/bin/sh\nprintf 'batch\\ngpu\\nbatch\\n'\n")
    (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "partitions.yaml").write_text(yaml.safe_dump({"partitions": partitions}))
    run = SimpleNamespace(
        executor_plugin=SimpleNamespace(name="slurm"),
        executor_settings=SimpleNamespace(partition_config=tmp_path / "partitions.yaml", **settings),
    )
    if wrong is None:
        start.refuse_foreign_settings(run)
    else:
        with pytest.raises(WorkflowError, match=wrong):
            start.refuse_foreign_settings(run)


def profile_with(**resources):
    """The SLURM profile, its placeholders replaced."""
    text = (ROOT / "slurm" / "config.yaml").read_text()
    for name, value in resources.items():
        text, replaced = re.subn(rf"# - {name}=YOURS.*", f"- {name}={value}", text)
        assert replaced == 1, name
    return text


def test_placeholders_of_the_profile_are_resources_of_all_jobs():
    names = re.findall(r"# - (\w+)=YOURS", (ROOT / "slurm" / "config.yaml").read_text())
    given = yaml.safe_load(profile_with(**dict.fromkeys(names, "YOURS")))["default-resources"]
    assert set(names) == {"slurm_account", "qos", "constraint"}
    assert {f"{name}=YOURS" for name in names} <= set(given)


def test_placeholders_stop_a_dry_run(tmp_path):
    """In a profile, on the command line and in the configuration, of which the prompts may have the word."""
    folder, tiny = checkout(tmp_path), yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    shutil.copytree(ROOT / "slurm", folder / "slurm")
    (folder / "slurm" / "config.yaml").write_text(profile_with(slurm_account="YOURS"))

    def refused(*options, **changes):
        (folder / "config.yaml").write_text(yaml.safe_dump(tiny | changes))
        done = snakemake(folder, "-n", "--profile", "slurm", *options, check=False)
        assert done.returncode
        return " ".join(done.stdout.split())

    changes = {"results": "/scratch/YOURS/tiny", "cluster": {"slurm_type": "YOURS"}}
    printed = refused(**changes)
    assert "configuration: cluster.slurm_type: YOURS; results: /scratch/YOURS/tiny is a placeholder" in printed
    printed = refused("--set-resources", "train:qos=YOURS", prompt={"instruction": "The answer is YOURS. {problem}"})
    left = "default-resources.slurm_account: YOURS; set-resources.train.qos: YOURS is a placeholder"
    assert f"profile (slurm/config.yaml) or command line: {left}" in printed


@pytest.mark.parametrize(
    ("value", "is_left"),
    [("YOURS", True), ("/scratch/YOURS_2/x", True), ("-A YOURS", True), ("HOURS", False), ("YOURSELF", False)],
)
def test_what_is_a_placeholder(value, is_left):
    settings = {"a": [{"b": value}, 1, None], "c": {}}
    assert start.placeholders(settings) == ([f"a.b: {value}"] if is_left else [])


def test_qos_of_all_jobs_and_of_one_rule_with_results_on_scratch(tmp_path):
    """Records and logs stay in the checkout."""
    folder, given = checkout(tmp_path), {}
    config = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text()) | {"results": "/scratch/me/tiny"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    shutil.copytree(ROOT / "slurm", folder / "slurm")
    (folder / "slurm" / "config.yaml").write_text(profile_with(qos="normal"))
    done = snakemake(folder, "-n", "--profile", "slurm", "--set-resources", "train:qos=long")
    for rule, block in re.findall(r"^rule (\w+):\n((?: +.*\n)*)", done.stdout + done.stderr, re.MULTILINE):
        given.setdefault(rule, set()).update(re.findall(r"\bqos=(\w+)", block) or ["none"])
        for place in ("output: /scratch/me/tiny/", "log: logs/tiny/") if rule != "all" else ():
            assert re.search(rf"^ +{place}", block, re.MULTILINE), block
    assert given.pop("train") == {"long"}
    assert {"sample_rollouts", "train_rl"} <= given.keys() and set(map(tuple, given.values())) == {("normal",)}


def a_run(executor, *jobs):
    """As much of a workflow as begins a run of these jobs."""
    return SimpleNamespace(
        executor_plugin=SimpleNamespace(name=executor),
        executor_settings=None,
        dag=SimpleNamespace(needrun_jobs=lambda: iter(jobs)),
        deployment_settings=SimpleNamespace(deployment_method=()),
    )


@pytest.mark.parametrize(("executor", "server"), [("local", "7"), ("cluster-generic", "off")])
def test_jobs_elsewhere_start_no_fork_server(executor, server, tmp_path, monkeypatch):
    """The owner, a process of this machine, is none of theirs: the server would outlive the job."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start, "_runs", [])
    monkeypatch.setattr(start.running, "begin", lambda results: None)
    for name, value in (("MRT_FORK_SERVER", "7"), ("MRT_PLANNED", ""), ("MRT_PLANNED_CONFIG", "")):
        monkeypatch.setenv(name, value)
    fingerprints = SimpleNamespace(write=lambda file: None)
    start.prepare(a_run(executor), SimpleNamespace(results=tmp_path, models={}), fingerprints, {})
    start.begin()
    assert os.environ["MRT_FORK_SERVER"] == server


@pytest.mark.slow
def test_another_executor_plugin_runs_the_jobs(extras, tmp_path, monkeypatch):
    """`cluster-generic`, whose command starts jobs on this machine instead of submitting them."""
    folder, target = checkout(tmp_path), Path("results/tiny/grades/base/toy_test.rollouts.parquet")
    shutil.copy(ROOT / "tests" / "tiny.yaml", folder / "config.yaml")
    monkeypatch.setenv("PYTHONPATH", str(extras))
    (folder / "submit").write_text('#!/bin/sh\necho "$1" >>submitted\nnohup "$1" >/dev/null 2>&1 &\necho $!\n')
    (folder / "submit").chmod(0o755)
    submit = ("--executor", "cluster-generic", "--cluster-generic-submit-cmd", "./submit")
    snakemake(folder, target, *submit, "--jobs", 2)
    jobs = (folder / "submitted").read_text()
    assert (folder / target).is_file() and "sample_rollouts" in jobs and "grade_rollouts" in jobs


@pytest.mark.parametrize(
    ("shell", "is_storage", "is_refused"),
    [("python -m mrt.x", True, True), ("python -m mrt.x", False, False), ("cp a b", True, False), (None, True, False)],
)
def test_storage_plugins_are_refused_for_our_jobs_alone(shell, is_storage, is_refused):
    output = [SimpleNamespace(is_storage=False), SimpleNamespace(is_storage=is_storage)]
    run = a_run("local", SimpleNamespace(rule=SimpleNamespace(shellcmd=shell), output=output))
    with pytest.raises(WorkflowError, match="one results folder") if is_refused else nullcontext():
        start.refuse_storage(run)


def test_shards_are_jobs_that_sample_and_one_job_gathers_them(tmp_path):
    folder = checkout(tmp_path)
    config = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text()) | {"cluster": {"shards": 2}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    target = "results/tiny/budget_forcing/base/toy_test.parquet"
    done = snakemake(folder, "-n", "-p", target, "results/tiny/prover/base/toy_train.parquet")
    said = done.stdout + done.stderr
    for kind in ("rollouts", "prover", "budget_forcing"):
        shards = re.findall(rf"mrt\.sampling\.pool .*/\.cache/{kind}/base\".*\"shard\": \"(\d/2)\"", said)
        assert set(shards) == {"0/2", "1/2"}
        assert re.search(rf"mrt\.sampling\.{kind} .*\"gather\": 2", said)


OPENING = "Ends:** they add up to \\boxed{"


@pytest.mark.slow
def test_a_set_by_likelihood_and_another_mu(finished, tmp_path):
    """The set of MRT (STaR) from probabilities of a mu of another name; completions of before are found again."""
    from mrt.core.artifacts import PROGRESS, PROVER, SET

    folder = copy_of(finished, tmp_path / "run")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["models"]["judge"] = {"label": "Judge", "toy": "shipped"}
    config["training"] |= {"mu": "judge"}
    config["training"]["prover"] |= {"estimate": "likelihood", "opening": OPENING}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    target = "results/tiny/sets/mrt_1.parquet"
    asking = {"request", "force_answers", "gather_answers"}
    assert planned_jobs(folder, target).keys() == asking | {"grade_answers", "measure_progress", "make_set"}
    assert snakemake(folder, "--cores", "2", target).returncode == 0
    results = folder / "results" / "tiny"
    answers = PROVER.read(results / "prover" / "base" / "toy_train.parquet")
    scored = answers.filter(finish_reason="scored")
    prefixes = answers.select("problem_id", "sample", "prefix").unique().height
    sampled = answers.height - scored.height
    assert scored.height == prefixes > sampled > 0 and sampled % 4 == 0
    J = PROGRESS.read(results / "progress" / "base" / "toy_train.parquet")
    assert J["J"].is_between(0, 1).all() and J["J"].n_unique() > prefixes / 2  # not fifths
    by_answers = PROGRESS.read(finished / "results" / "tiny" / "progress" / "base" / "toy_train.parquet")
    both = J.join(by_answers, on=["problem_id", "sample", "prefix"], suffix="_of_answers", validate="1:1")
    assert both.select(pl.corr("J", "J_of_answers")).item() > 0.8
    assert SET.read(folder / target).height > 0


def refused(folder, cluster, message, more=""):
    """A run that stops with this message before any job; returns the options of its configuration."""
    checkout(folder)
    (folder / "two.yaml").write_text(f"cluster: {cluster}\n{more}")
    files = ("--configfile", ROOT / "tests" / "tiny.yaml", "two.yaml")
    done = snakemake(folder, "--cores", 2, *files, check=False)
    assert done.returncode == 1 and message in done.stderr + done.stdout
    assert not list(folder.glob("results/**/*.parquet"))
    return files


@pytest.mark.slow
def test_a_training_on_several_nodes_stops_before_any_job_without_slurm(tmp_path):
    files = refused(tmp_path, "{training_nodes: 2}", "The training of mrt_1 takes 2 nodes.")
    assert snakemake(tmp_path, "--cores", 2, "results/tiny/problems/toy_test.parquet", *files).returncode == 0


def test_more_gpus_than_the_machine_has_stop_before_any_job(tmp_path, monkeypatch):
    (tmp_path / "machine").mkdir()
    fake_cards(tmp_path / "machine", monkeypatch, 1)
    refused(tmp_path, "{gpu: h100, training_gpus: 2}", "A training takes 2 GPUs, this machine has 1.")


def test_what_needs_a_gpu_stops_before_any_job_without_one(tmp_path):
    more = "models: {mrt_rl: {method: grpo, rl: {vllm_enable_sleep_mode: true}}}\n"
    refused(tmp_path, "{}", "models.mrt_rl.rl.vllm_enable_sleep_mode: it needs a GPU, and this machine has none", more)


def test_a_bad_config_stops_before_any_job(tmp_path):
    folder = checkout(tmp_path)
    bad = (ROOT / "tests" / "tiny.yaml").read_text().replace("parent: base, method: star", "parent: bsae, method: star")
    (folder / "bad.yaml").write_text(bad)
    done = snakemake(folder, "--cores", "1", "--configfile", "bad.yaml", check=False)
    assert done.returncode == 1
    assert "models.star_1.parent: there is no 'bsae'" in done.stderr
    assert "Traceback" not in done.stderr and not (folder / "results").exists()


@pytest.mark.slow
@needs_shared
def test_real_traces_go_through(tmp_path):
    (tmp_path / "project").mkdir()
    folder = checkout(tmp_path / "project")
    (tmp_path / "shared").symlink_to(ROOT.parent / "shared")
    snakemake(folder, "--cores", "2", "--configfile", "config/real_traces.yaml")
    results = folder / "results" / "real_traces"
    assert (results / "figures" / "episode_counts.png").exists()
    rollouts = [pl.read_parquet(path) for path in results.glob("rollouts/*/*.parquet") if path.suffixes == [".parquet"]]
    assert sum(table.height for table in rollouts) == 223
    table = pl.read_parquet(results / "tables" / "pass1.parquet").filter(pl.col("difficulty") == "all")
    accuracy = {(m, s): a for m, s, a in table.select("model", "dataset", "accuracy").iter_rows()}
    assert accuracy["qwq_32b", "aime2025"] > accuracy["r1_qwen_1_5b", "aime2025"]
    print(table.select("model", "dataset", "accuracy", "accuracy_low", "accuracy_high", "n"))
