"""Jobs that an edit makes run again: the table of docs/operations.md, by line, on a finished run of the whole DAG."""

import os

import polars as pl
import pytest
import yaml
from conftest import copy_of, figures_reading, planned_jobs, slow_case, snakemake

from mrt.figures.figure import figures
from workflow.sampling import SAMPLED

BY_SAMPLES = {sampled.samples: (kind, sampled.gathers) for kind, sampled in SAMPLED.items()}
TABLES = [name for name, entry in figures().items() if entry.is_table]

RESULTS = figures_reading("accuracy", "maj", "prefixes", "early_exit", "episodes", "progress")
REGRETS, FORCED = figures_reading("regret", "episode_regret"), figures_reading("budget_forcing")
RUNS = figures_reading("cost")  # what training took and brought
OF_SFT, OF_RL = figures_reading("sft_log"), figures_reading("rl_log")
OF_LOGS = OF_SFT + OF_RL
MODELS = ("base", "star_1", "mrt_1", "mrt_rl")
TRAINED = ("star_1", "mrt_1", "mrt_rl")
EXTENDED = ("base", "mrt_1")  # by budget forcing
DIRECT = {rule: {"direct toy_test"} for rule in ("sample_rollouts", "grade_rollouts", "measure_maj")}


def on(dataset, models=MODELS):
    """The jobs of models on a dataset."""
    return set().union(*(pairs(model, dataset) for model in models))


def measured(*models):
    """Jobs of the measurements of models on the evaluation set, and of all figures of them."""
    jobs = {
        rule: on("toy_test", models)
        for rule in (
            *("measure_accuracy", "measure_maj", "measure_prefixes", "measure_regret", "measure_episodes"),
            *("measure_progress", "grade_rollouts", "grade_answers", "cut_episodes", "force_answers"),
            *("sample_rollouts", "measure_episode_regret", "measure_early_exit"),
        )
    }
    forced = [model for model in models if model in EXTENDED]
    if forced:
        jobs |= {rule: on("toy_test", forced) for rule in FORCING}
    return jobs | drawn(*RESULTS, *RUNS, *REGRETS, *(FORCED if forced else ()), "traces")


FORCING = ("force_budget", "grade_forced", "measure_budget_forcing")


def drawn(*names):
    """Figures and tables, and the report and the page of provenance, which tell of them all."""
    return {name: {""} for name in (*names, "index", "provenance")}


def pairs(model, *sets):
    return {" ".join(sorted((model, name))) for name in sets}


def with_all_jobs(plan):
    """A plan whose sampled tables, named by the rule that samples them, become all jobs that make these."""
    full = {rule: jobs for rule, jobs in plan.items() if rule not in BY_SAMPLES}
    for rule in plan.keys() & BY_SAMPLES.keys():
        kind, gathers = BY_SAMPLES[rule]
        full[gathers] = plan[rule]
        full.setdefault("request", set()).update(" ".join(sorted((kind, *job.split()))) for job in plan[rule])
        pooled = [job.replace("toy_test", "_evaluation").replace("harder", "_evaluation").split() for job in plan[rule]]
        full[rule] = {" ".join(sorted((*names, "0"))) for names in pooled}
    return full


def merge(*plans):
    return {rule: set().union(*(plan.get(rule, set()) for plan in plans)) for plan in plans for rule in plan}


def without(plan, *rules):
    return {rule: jobs for rule, jobs in plan.items() if rule not in rules}


def trained(*models):
    """Jobs of models that are trained again, and of all that descends from them."""
    by_rl = {model for model in models if model == "mrt_rl"}
    by_sft = set(models) - by_rl
    jobs = merge(measured(*models), {rule: set(models) for rule in ("add_up_cost", "tabulate_log")})
    if by_sft:
        jobs |= {"train": by_sft} | drawn(*OF_SFT)
    return jobs | ({"train_rl": by_rl} | drawn(*OF_RL) if by_rl else {})


ON_TRAINING = {
    "grade_rollouts": pairs("base", "toy_train"),
    "cut_episodes": pairs("base", "toy_train"),
    "force_answers": pairs("base", "toy_train"),
    "grade_answers": pairs("base", "toy_train"),
    "measure_progress": pairs("base", "toy_train"),
    "make_set": {"star_1", "mrt_1"},
}
FROM_GRADES = merge(
    without(ON_TRAINING, "cut_episodes", "force_answers"),
    trained("star_1", "mrt_1", "mrt_rl"),
    measured("base"),
    without(DIRECT, "sample_rollouts"),
)
BASE_TEST_SAMPLING = ("sample_rollouts", "cut_episodes", "force_answers", "force_budget")


def less_base(plan, *rules):
    """The plan without the base's jobs of these rules."""
    return {
        rule: kept
        for rule, jobs in plan.items()
        if (kept := {j for j in jobs if not (rule in rules and "base" in j.split())})
    }


def edit(path, old, new):
    def apply(folder):
        file = folder / path
        content = file.read_text()
        assert content.count(old) >= 1, f"{path} has no {old!r}"
        file.write_text(content.replace(old, new, 1))

    return apply


def append(path, text):
    return lambda folder: (folder / path).write_text((folder / path).read_text() + text)


def setting(path, value):
    def apply(folder):
        file = folder / "config.yaml"
        config = yaml.safe_load(file.read_text())
        at = config
        *parents, last = path.split(".")
        for part in parents:
            at = at.setdefault(part, {})
        at[last] = value
        file.write_text(yaml.safe_dump(config, sort_keys=False))

    return apply


def touch_all(folder):
    for path in [*(folder / "mrt").rglob("*"), *(folder / "workflow").rglob("*"), folder / "Snakefile"]:
        os.utime(path)


def new_helper(folder):
    (folder / "mrt" / "helper.py").write_text("SIDES = 4\n")
    edit("mrt/analysis/regret.py", "import polars as pl\n", "import polars as pl\n\nfrom mrt.helper import SIDES\n")(
        folder
    )
    edit("mrt/analysis/regret.py", "majorities.shape[1] != 4", "majorities.shape[1] != SIDES")(folder)


def moved(folder):
    """Move a function that the trainers use to a separate module."""
    old, new = folder / "mrt" / "training" / "devices.py", folder / "mrt" / "training" / "rows.py"
    text = old.read_text()
    start, end = text.index("def batches("), text.index("def join_processes(")
    new.write_text("import os\n\n\n" + text[start:end])
    old.write_text(text[:start] + text[end:])
    for user in ("sft", "rl/stage"):
        edit(f"mrt/training/{user}.py", "import batches, ", "import ")(folder)
        edit(
            f"mrt/training/{user}.py",
            "from mrt.training.stage",
            "from mrt.training.rows import batches\nfrom mrt.training.stage",
        )(folder)


def reordered(folder):
    """Put the engine's last function first."""
    file = folder / "mrt" / "sampling" / "engine.py"
    text = file.read_text()
    start = text.rindex("\n\n\ndef ")
    first = text.index("\n\n\n")
    file.write_text(text[:first] + text[start:].rstrip() + text[first:start] + "\n")


def several(*edits):
    return lambda folder: [apply(folder) for apply in edits]


MEASURES = (
    *("measure_accuracy", "measure_maj", "measure_prefixes", "measure_regret", "measure_episode_regret"),
    *("measure_episodes", "measure_early_exit"),
)
TOKENIZED = merge(
    ON_TRAINING,
    {"sample_rollouts": pairs("base", "toy_train"), "rl_prompts": {"mrt_rl"}},
    measured(*MODELS),
    trained(*TRAINED),
    DIRECT,
)
EVERYTHING = drawn(*RESULTS, *RUNS, *REGRETS, *FORCED, *OF_LOGS, "traces")
NOTHING: dict[str, set[str]] = {}

GRADER = ("mrt/grading/equality.py", "> 1e-5 * size", "> 1e-4 * size")
UNUSED = "\n\ndef nobody_calls(this):\n    return this\n"
DECIDE_NOTHING = {
    "a comment in a deep module": append("mrt/core/storage.py", "\n# a remark\n"),
    "a docstring": edit("mrt/analysis/votes.py", '"""', '"""Reworded. '),
    "formatting": edit(
        "mrt/episodes/parameterization.py", "        return []\n", "        return (\n            []\n        )\n"
    ),
    "the description of an option": edit("mrt/sampling/stage.py", "Rollouts (Parquet).", "The rollouts."),
    "the bounds of a setting": edit("mrt/training/sft.py", "gt=0, le=1000", "gt=0, le=2000"),
    "touch of every source": touch_all,
    "a constant that nobody reads": append("mrt/grading/grade.py", "\nSPARE = 1\n"),
    "a new task": lambda folder: (folder / "mrt/tasks/new.py").write_text("from mrt.tasks.math import Math as New\n"),
    **{
        f"a function that nobody calls, in {name}": append(f"mrt/{name}.py", UNUSED)
        for name in (
            *(
                "core/cli",
                "core/storage",
                "core/artifacts",
                "training/log",
                "toy/world",
                "sampling/engine",
                "training/rl/stage",
            ),
            *("training/stage", "sampling/stage", "grading/equality", "config/schema"),
        )
    },
    "the text of an error of the command line": edit("mrt/core/cli.py", "option(s) are not right", "options are wrong"),
    "the text of a trainer's error": edit("mrt/training/sft.py", "the training set is empty", "the set is empty"),
    "the text of the engine's error": edit(
        "mrt/training/rl/stage.py", "; lower batch_size", "; take a smaller batch_size"
    ),
    "what a trainer prints": edit("mrt/training/sft.py", "dropped as longer than", "left out as longer than"),
    "a progress bar's unit": edit("mrt/sampling/engine.py", 'unit=" requests"', 'unit=" prompts"'),
    "a constant of the toy base's thoughts": edit("mrt/toy/world.py", "0.025, 0.3, 0.2)", "0.025, 0.3, 0.3)"),
    "the order of functions": reordered,
    "a function's module": moved,
    "an annotation": edit(
        "mrt/training/sft.py", "lengths: Sequence[int], batch: int", "lengths: list[int], batch: int"
    ),
    "a new stage": lambda folder: (folder / "mrt" / "count.py").write_text("from mrt.core.cli import Stage, run\n"),
    "a new helper of figures": append("mrt/figures/style.py", UNUSED),
    "a new option of the engine's, off": edit(
        "mrt/sampling/engine.py",
        "    logprobs: bool",
        "    min_tokens: int | None = Field(None, ge=0)\n    logprobs: bool",
    ),
    "a new option of a trainer's, off": edit(
        "mrt/training/sft.py",
        "    weighted: bool",
        "    packing: bool = Field(False, description='New.')\n    weighted: bool",
    ),
    "a new option of a stage's, off": edit(
        "mrt/sampling/rollouts.py", "    samples: int", "    quick: bool = False\n    samples: int"
    ),
}


def test_edits_that_decide_no_result_plan_nothing(finished, tmp_path):
    """All of them at once: were one of them to plan a job, this would."""
    folder = copy_of(finished, tmp_path / "elsewhere")
    for apply in DECIDE_NOTHING.values():
        apply(folder)
    assert planned_jobs(folder) == planned_jobs(folder, "--cores", "7") == NOTHING


EDITS = {
    "how a training resumes": (
        edit("mrt/training/stage.py", "global_step >= self.state.max_steps", "global_step > self.state.max_steps"),
        trained(*TRAINED),
    ),
    "how tokenizers are read": (
        edit("mrt/core/hub.py", "TokenizerFast.from_pretrained(folder)", "TokenizerFast.from_pretrained(str(folder))"),
        TOKENIZED,
    ),
    "the style of the page of traces": (append("mrt/traces/page.css", "main { color: black; }\n"), {"traces": {""}}),
    "the script of the page of traces": (edit("mrt/traces/page.js", "LONG = 3000", "LONG = 4000"), {"traces": {""}}),
    "a library of the page of traces": (append("mrt/traces/vendor/uPlot.min.css", "a {}\n"), {"traces": {""}}),
    "the code of the page of traces": (edit("mrt/traces/page.py", "NORMAL = 1.96", "NORMAL = 1.64"), {"traces": {""}}),
    "the size of the page of traces": (setting("traces.megabytes", 5), without(drawn("traces"), "index")),
    "a figure's module": (edit("mrt/figures/regret.py", 'xlabel="token budget', 'xlabel="budget'), drawn("regret")),
    "the style of all figures": (
        edit("mrt/figures/style.py", "COLUMN_WIDTH = 3.4", "COLUMN_WIDTH = 3.5"),
        without(EVERYTHING, *TABLES, "traces"),
    ),
    "a figure's caption, section and places in the paper": (  # which the report has
        several(
            edit("mrt/figures/regret.py", "lower is better", "less is better"),
            edit("mrt/figures/regret.py", "FIGURE = Figure(REGRET", "FIGURE = Figure('5 Else'"),
            edit("mrt/figures/regret.py", '"fig9", ', '"fig99", '),
        ),
        {"index": {""}},
    ),
    "the style of the report": (append("mrt/figures/report.css", "h1 { color: black; }\n"), {"index": {""}}),
    "a label": (setting("models.base.label", "The base"), without(EVERYTHING, *OF_LOGS)),
    "a new helper that a measurement imports": (
        new_helper,
        {"measure_episode_regret": on("toy_test"), **drawn("episode_regret")},
    ),
    "a column of the training logs": (
        edit("mrt/training/log.py", '"loss": "loss",\n', '"loss": "loss",\n    "entropy_again": "entropy",\n'),
        {"tabulate_log": set(TRAINED), "add_up_cost": set(TRAINED)} | drawn(*OF_LOGS, *RUNS, "overview", "findings"),
    ),
    "a constant of the SFT trainer's": (
        edit("mrt/training/sft.py", "width = 50 * batch", "width = 60 * batch"),
        trained("star_1", "mrt_1"),
    ),
    "a constant of the RL trainer's": (
        edit("mrt/training/devices.py", "LENGTHS = 4", "LENGTHS = 5"),
        trained("mrt_rl"),
    ),
    "the budgets": (
        setting("evaluation.budgets", [64, 96]),
        {"measure_regret": on("toy_test"), **drawn(*figures_reading("regret"), *RUNS)},
    ),
    "the grader": (edit(*GRADER), less_base(FROM_GRADES, *BASE_TEST_SAMPLING, "measure_episodes")),
    "the markers": (  # STaR's set does not know of episodes
        setting("segmentation.markers", ["Wait"]),
        merge(
            without(ON_TRAINING, "grade_rollouts", "make_set"),
            {"make_set": {"mrt_1"}},
            trained("mrt_1", "mrt_rl"),
            {"rl_prompts": {"mrt_rl"}},
            without(measured("base", "star_1"), "sample_rollouts", "grade_rollouts", "measure_accuracy", "measure_maj"),
            {"provenance": {""}},
        ),
    ),
    "a filter rule": (setting("models.mrt_1.rules.minimum_J", 0.25), merge({"make_set": {"mrt_1"}}, trained("mrt_1"))),
    "one model's learning rate": (
        several(
            setting(
                "models.star_1.recipe",
                {
                    "learning_rate": 1.0e-4,
                    "epochs": 1,
                    "batch_size": 16,
                    "micro_batch_size": 16,
                    "max_length": 1024,
                    "bf16": False,
                    "gradient_checkpointing": False,
                },
            )
        ),
        trained("star_1"),
    ),
    "answers a prefix, in training": (
        setting("training.prover.answers", 6),
        merge(
            without(ON_TRAINING, "grade_rollouts", "cut_episodes", "make_set"),
            {"make_set": {"mrt_1"}},
            trained("mrt_1"),
        ),
    ),
    "samples, in evaluation": (setting("evaluation.samples", 6), measured(*MODELS)),
    "engine memory, threads": (
        several(setting("engine.max_num_seqs", 64), setting("engine_threads", 2), setting("training_threads", 2)),
        without(drawn(), "index"),
    ),
    "another iteration": (
        several(
            setting(
                "models.star_2", {"label": "STaR 2", "parent": "star_1", "method": "star", "problems": "toy_train"}
            ),
            setting("evaluation.models", [*MODELS, "star_2"]),
        ),
        merge(
            {"sample_rollouts": pairs("star_1", "toy_train"), "grade_rollouts": pairs("star_1", "toy_train")},
            {"make_set": {"star_2"}},
            trained("star_2"),
        ),
    ),
    "another benchmark": (
        several(
            setting("problems.harder", {"toy": {"count": 6, "seed": 9, "difficulties": [6]}, "split": "test"}),
            setting("evaluation.problems", ["toy_test", "harder"]),
        ),
        {
            **{rule: on("harder") for rule in (*MEASURES, "measure_progress", "cut_episodes", "force_answers")},
            **{rule: on("harder") | pairs("direct", "harder") for rule in DIRECT},
            **{rule: on("harder", EXTENDED) for rule in FORCING},
            "grade_answers": on("harder"),
            **without(EVERYTHING, *OF_LOGS),
            "build_dataset": {"harder"},
            "check_contamination": {"toy_train"},
        },
    ),
}


FIRST = (  # in the first tier
    *("how tokenizers are read", "a figure's module", "a label", "a constant of the SFT trainer's", "the grader"),
    *("the markers", "a filter rule", "one model's learning rate", "samples, in evaluation"),
)


@pytest.mark.parametrize("name", [name if name in FIRST else slow_case(name) for name in EDITS])
def test_an_edit_makes_run_again_what_it_invalidates(name, finished, tmp_path):
    """The copy itself is one of the edits: a clone elsewhere with the results copied."""
    apply, expected = EDITS[name]
    folder = copy_of(finished, tmp_path / "elsewhere")
    apply(folder)
    assert planned_jobs(folder) == with_all_jobs(expected)


@pytest.mark.slow
def test_a_dataset_that_is_not_evaluated_any_more_samples_nothing(finished, tmp_path):
    """Snakemake compares the sets of requests, so that the jobs of their models run. They find all tables made."""
    folder = copy_of(finished, tmp_path / "elsewhere")
    EDITS["another benchmark"][0](folder)
    snakemake(folder, "results/tiny/rollouts/base/harder.parquet", "--cores", "1")
    assert log(folder, "sample_rollouts", "base", "_evaluation", "0").count("its table is made") == 1
    before = (folder / "results/tiny/rollouts/base/toy_test.parquet").stat().st_mtime_ns
    setting("evaluation.problems", ["toy_test"])(folder)
    targets = [f"results/tiny/rollouts/{model}/toy_test.parquet" for model in MODELS]
    assert planned_jobs(folder, *targets) == {"sample_rollouts": {"0 _evaluation base"}}
    snakemake(folder, *targets, "--cores", "1")
    said = log(folder, "sample_rollouts", "base", "_evaluation", "0")
    assert said.count("its table is made") == 1 and "to sample" not in said
    assert (folder / "results/tiny/rollouts/base/toy_test.parquet").stat().st_mtime_ns == before


def test_settings_that_change_along_with_a_new_dataset_are_seen(finished, tmp_path):
    """Snakemake does not look at the settings of jobs before an `ancient` file that is about to be made."""
    folder = copy_of(finished, tmp_path / "elsewhere")
    EDITS["another benchmark"][0](folder)
    setting("evaluation.samples", 6)(folder)
    targets = [f"results/tiny/rollouts/base/{name}.parquet" for name in ("toy_test", "harder")]
    plan = planned_jobs(folder, *targets)
    assert plan["gather_rollouts"] == pairs("base", "toy_test", "harder")
    assert plan["sample_rollouts"] == {"0 _evaluation base"}


def log(folder, rule, *wildcards):
    return (folder / "logs" / "tiny" / rule / "/".join(wildcards)).with_suffix(".log").read_text()


@pytest.mark.slow
def test_a_new_grader_that_leaves_a_set_the_same_trains_and_samples_nothing(finished, tmp_path):
    folder = copy_of(finished, tmp_path / "elsewhere")
    edit(*GRADER)(folder)
    snakemake(folder, "results/tiny/rollouts/star_1/toy_test.parquet", "--cores", "2")
    assert "answers, " in log(folder, "grade_rollouts", "base", "toy_train")
    assert "the cached checkpoint is taken" in log(folder, "train", "star_1")
    assert "48 completions cached, 0 to sample" in log(folder, "sample_rollouts", "star_1", "_evaluation", "0")


@pytest.mark.slow
def test_more_samples_and_more_problems_draw_only_the_new_ones(finished, tmp_path):
    folder = copy_of(finished, tmp_path / "elsewhere")
    path = "results/tiny/rollouts/base/toy_test.parquet"
    setting("evaluation.samples", 6)(folder)
    setting("problems.toy_test.toy.count", 14)(folder)
    snakemake(folder, path, "--cores", "1")
    assert "48 completions cached, 36 to sample" in log(folder, "sample_rollouts", "base", "_evaluation", "0")
    before, after = pl.read_parquet(finished / path), pl.read_parquet(folder / path)
    assert after.height == 84 and after.join(before, on=before.columns, how="semi", nulls_equal=True).height == 48


@pytest.mark.slow
def test_a_threshold_there_and_back_trains_once_and_one_more_model_changes_no_other(finished, tmp_path):
    """With allocated answers, which the filters of all models decide."""
    folder = copy_of(finished, tmp_path / "elsewhere")
    made = {"set": "results/tiny/sets/mrt_1.parquet", "weights": "results/tiny/models/mrt_1/model.safetensors"}

    def run(*more):
        snakemake(folder, "results/tiny/models/mrt_1", *more, "--cores", "2")
        return {what: (folder / path).read_bytes() for what, path in made.items()}, log(folder, "train", "mrt_1")

    setting("training.allocation", {})(folder)
    first, _ = run()
    setting("models.mrt_1.rules", {"minimum_J": 0.75})(folder)
    other, printed = run()
    assert first["set"] != other["set"] and first["weights"] != other["weights"] and "trained before" not in printed
    setting("models.mrt_1.rules", {"minimum_J": 0.5})(folder)
    again, printed = run()
    assert again == first and "trained before" in printed
    further = {"label": "MRT, 0.9", "parent": "base", "method": "mrt", "problems": "toy_train"}
    setting("models.mrt_9", further | {"rules": {"minimum_J": 0.9}})(folder)
    beside, printed = run("results/tiny/sets/mrt_9.parquet")
    assert beside == first and "trained before" in printed
    filters = pl.read_parquet(folder / "results/tiny/prover/base/toy_train.parquet")["allocated"]
    assert filters.list.len().max() == 2 and filters.explode().n_unique() == 2
