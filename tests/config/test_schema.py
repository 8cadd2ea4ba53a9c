import json
import re
import shutil
from copy import deepcopy
from functools import reduce
from types import SimpleNamespace

import pytest
import yaml
from conftest import ROOT, TOY_BASE

from mrt.config import lineage, measuring
from mrt.config.load import load
from mrt.config.schema import Config
from mrt.core.settings import laid_over

LAPTOP = yaml.safe_load((ROOT / "config.yaml").read_text())


def change(path, value):
    config = deepcopy(LAPTOP)
    *parents, last = path.split(".")
    at = config
    for key in parents:
        at = at[key]
    at[last] = value
    return config


DIRECT = {"model": "direct", "samples": 16, "k": [1, 2, 4, 8, 16]}
BACKTRACKING = yaml.safe_load((ROOT / "config" / "backtracking.yaml").read_text())
RL = laid_over(LAPTOP, yaml.safe_load((ROOT / "config" / "rl.yaml").read_text()))


# Commands in the first lines of configurations.
COMMANDS = {
    names
    for path in [*(ROOT / "config").glob("*.yaml"), *(ROOT / "experiments").glob("*/*.yaml")]
    for names in re.findall(r"^#   snakemake .*--configfile ((?:[\w/]+\.yaml ?)+)", path.read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("names", ["config.yaml", *sorted(COMMANDS)], ids=str.strip)
def test_the_configs_are_valid(names):
    texts = [(ROOT / name).read_text() for name in names.split()]
    if missing := [path for text in texts for path in re.findall(r"\.\./[\w./]+", text) if not (ROOT / path).exists()]:
        pytest.skip(f"not beside this checkout: {missing[0]}")
    load(reduce(laid_over, map(yaml.safe_load, texts)))


def test_every_config_says_what_runs_it():
    said = {name for names in COMMANDS for name in names.split()}
    files = [*(ROOT / "config").glob("*.yaml"), *(ROOT / "experiments").glob("*/*.yaml")]
    files = [path for path in files if not path.is_symlink()]  # config.yaml, for snakedeploy
    assert said >= {str(path.relative_to(ROOT)) for path in files} - {"config/benchmarks.yaml"}


def test_a_replicate_is_its_original_with_another_seed():
    again = {"again": {"replicate_of": "mrt_rl", "seed": 7}}
    config = load(laid_over(RL, {"models": again}))
    assert (
        config.models["again"].method == "mrt_rl"
        and measuring.style(config, "again")["label"] == "MRT (RL), by episode, seed 7"
    )
    assert lineage.recipe(config, "again") == lineage.recipe(config, "mrt_rl").model_copy(update={"seed": 7})
    assert "again" in measuring.measured_runs(config) and "again" not in config.evaluation.models
    for wrong, message in (
        ({"replicate_of": "mrt_rl"}, "models.again.seed: a replicate needs a seed"),
        ({"replicate_of": "mrt_rl", "seed": 0}, "models.again.seed: 0 is the seed of mrt_rl too"),
        ({"replicate_of": "mrtrl", "seed": 1}, "models.again.replicate_of: there is no 'mrtrl'; did you mean 'mrt_rl'"),
    ):
        with pytest.raises(ValueError, match=message):
            load(laid_over(RL, {"models": {"again": wrong}}))


def test_each_run_of_a_model_descends_from_the_same_run_of_its_parent():
    config = load(laid_over(RL, {"training": {"runs": 3}}))
    assert lineage.runs(config, "mrt_2") == ["mrt_2", "mrt_2_seed1", "mrt_2_seed2"]
    several = load(laid_over(RL, {"training": {"runs": 2}, "evaluation": {"k": [1, 3]}}))
    assert (
        measuring.ks(several, "grpo_seed1") == measuring.ks(several, "grpo") == [1, 3]
    )  # measured alike, or their curves do not match
    assert list(lineage.ancestry(config, "mrt_2_seed2")) == ["mrt_2_seed2", "mrt_1_seed2", "base_seed2"]
    assert lineage.recipe(config, "grpo_seed1") == lineage.recipe(config, "grpo").model_copy(update={"seed": 1})
    assert config.models["base_seed1"].toy == "shipped" and config.models["base_seed1"].replicate_of is None
    assert "direct_seed1" not in config.models and "base_seed1" not in measuring.measured_runs(config)
    assert load(laid_over(RL, {"training": {"runs": 1}})) == load(RL)


def test_each_run_goes_on_from_the_checkpoint_of_its_own_run():
    star = {"recipe": {"evaluate_steps": [5]}}
    further = {"method": "star", "problems": "toy_train"}
    models = {
        "star_1": star,
        "mid": {"label": "m", "checkpoint_of": "star_1", "step": 5},
        "by_name": further | {"label": "x", "parent": "star_1_step5"},
        "given": further | {"label": "y", "parent": "mid"},
        "taught": further | {"label": "z", "parent": "base", "method": "cold_start", "teacher": "mid"},
    }
    config = load(laid_over(LAPTOP, {"models": models, "training": {"runs": 3}}))
    for seed in (1, 2):
        run = {name: config.models[f"{name}_seed{seed}"] for name in models}
        assert run["by_name"].parent == f"star_1_seed{seed}_step5"
        assert run["given"].parent == run["taught"].teacher == f"mid_seed{seed}"
        assert (run["mid"].checkpoint_of, run["mid"].step) == (f"star_1_seed{seed}", 5)
        assert lineage.root(config, f"given_seed{seed}") == f"base_seed{seed}"
    assert lineage.runs(config, "mid") == ["mid", "mid_seed1", "mid_seed2"]


def test_checkpoints_on_the_way_are_models_of_their_trainings_lineage():
    some = {"models": {"mrt_1": {"recipe": {"evaluate_steps": [5, 10]}}}, "training": {"runs": 2}}
    config, plain = load(laid_over(LAPTOP, some)), load(LAPTOP)
    kept = ["mrt_1_step5", "mrt_1_step10"]
    of_runs = [*kept, "mrt_1_seed1_step5", "mrt_1_seed1_step10"]
    assert sorted(measuring.measured_checkpoints(config)) == sorted(of_runs)
    assert lineage.runs(config, "mrt_1_step5") == ["mrt_1_step5", "mrt_1_seed1_step5"]
    assert list(lineage.ancestry(config, "mrt_1_step10")) == ["mrt_1_step10", "mrt_1", "base"]
    assert {*of_runs}.isdisjoint(measuring.measured_runs(config)) and {*of_runs}.isdisjoint(lineage.trained(config))
    assert lineage.prompt_of(config, "mrt_1_step5") == lineage.prompt_of(config, "mrt_1")
    assert measuring.ks(config, "mrt_1_step5") == measuring.ks(config, "mrt_1")
    style = measuring.style(config, "mrt_1_step5")
    assert (style["checkpoint_of"], style["step"], style["label"]) == ("mrt_1", 5, "MRT (STaR), step 5")
    assert style["ancestors"] == ["base"]
    alike = ("method", "colour", "marker", "line", "iteration")
    assert [style[part] for part in alike] == [measuring.style(config, "mrt_1")[part] for part in alike]
    for name in plain.models:  # and no other model looks different
        assert measuring.style(config, name) == measuring.style(plain, name)
    shared = load(
        laid_over(
            RL, {"training": {"rl": {"evaluate_steps": [1]}}, "models": {"grpo": {"rl": {"evaluate_steps": None}}}}
        )
    )
    assert "mrt_rl_step1" in shared.models and {"grpo_step1", "mrt_1_step1"}.isdisjoint(shared.models)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mrt_1": {"recipe": {"evaluate_steps": [10, 5]}}}, "evaluate_steps: from the smallest to the largest"),
        ({"mrt_1": {"recipe": {"evaluate_steps": []}}}, "evaluate_steps: .*at least 1 item"),
        (
            {"mrt_1": {"recipe": {"evaluate_steps": [9_999]}}},
            "models.mrt_1: evaluate_steps: 9999 is not before its last",
        ),
        (
            {"mrt_1": {"recipe": {"evaluate_steps": [5]}}, "mrt_1_step5": {"toy": "shipped"}},
            "models.mrt_1_step5: `evaluate_steps` calls a checkpoint of mrt_1 so",
        ),
        (
            {"early": {"checkpoint_of": "mrt_1", "step": 5}},
            "models.early.step: .* 'mrt_1' keeps none; set evaluate_steps",
        ),
        ({"early": {"checkpoint_of": "base", "step": 5}}, "models.early.checkpoint_of: 'base' is not trained here"),
        ({"early": {"checkpoint_of": "mrt_1"}}, "both of checkpoint_of and step"),
    ],
)
def test_a_checkpoint_that_no_training_keeps_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        load(laid_over(LAPTOP, {"models": changed}))


def test_a_copy_of_a_base_has_no_training_log(tmp_path):
    """The log is of one training, whose line Figures 10 and 11 would draw twice."""
    (tmp_path / "log.csv").write_text("step,reward,completion_tokens\n1,0.5,80\n")
    logged = {"training": {"runs": 2}, "models": {"base": {"training_log": str(tmp_path / "log.csv")}}}
    models = load(laid_over(RL, logged)).models
    assert models["base"].training_log and models["base_seed1"].training_log is None


def test_a_second_iteration_may_add_to_the_first_ones_set():
    from workflow.paths import Paths

    third = {"parent": "mrt_2", "method": "mrt", "problems": "toy_train", "accumulate": True}
    config = load(laid_over(LAPTOP, {"models": {"mrt_2": {"accumulate": True}, "mrt_3": third}}))
    of = {
        name: Paths(config).earlier_sets(SimpleNamespace(model=name)) for name in ("mrt_1", "mrt_2", "mrt_3", "star_2")
    }
    assert of == {
        "mrt_1": [],
        "mrt_2": ["results/laptop/sets/mrt_1.parquet"],
        "mrt_3": ["results/laptop/sets/mrt_1.parquet", "results/laptop/sets/mrt_2.parquet"],
        "star_2": [],
    }
    for name, message in (
        ("mrt_1", "models.mrt_1.accumulate: 'base' has no training set of method mrt to add to"),
        ("direct", r"models.direct.accumulate: .*it is for a model of method mrt or star"),
    ):
        with pytest.raises(ValueError, match=message):
            load(laid_over(LAPTOP, {"models": {name: {"accumulate": True}}}))


def test_a_claim_is_about_models_that_are_measured():
    claim = {"section": "8", "says": "x", "value": "tokens", "model": "mrt_1", "than": "base", "expect": "less"}
    found = load(laid_over(LAPTOP, {"claims": [claim | {"redraw": "table1"}]}))
    assert found.claims[0].gains_over is None
    with pytest.raises(ValueError, match=r"claims.0.than: there is no 'bas'; did you mean 'base'"):
        load(laid_over(LAPTOP, {"claims": [claim | {"redraw": "table1", "than": "bas"}]}))


HEADER = "section\tsays\tmodel\tthan\tvalue\tthan_value\tepisodes\texpect\tmargin\tredraw"
ROW = (
    '5, Figure 3\tthe end is "better", by far\tbase\tbase\tanswer at the end\tanswer halfway\t[2, 5]\tsame\t0.02\tfig3'
)
PLAIN = "8\tfewer tokens\tmrt_1\tbase\ttokens\t\t\tless\t\ttable1"


def of_table(text, folder, encoding="utf-8"):
    (folder / "claims.tsv").write_bytes(text.encode(encoding))
    return load(laid_over(LAPTOP, {"claims": "claims.tsv"})).claims


@pytest.mark.parametrize(("end", "encoding"), [("\n", "utf-8"), ("\r\n", "utf-8-sig")], ids=["plain", "spreadsheet"])
def test_a_table_of_claims_is_the_list_of_them(tmp_path, monkeypatch, end, encoding):
    """Empty cells are defaults; numbers are numbers. A spreadsheet writes a byte order mark and other line ends."""
    monkeypatch.chdir(tmp_path)
    end_of = {"section": "5, Figure 3", "says": 'the end is "better", by far', "model": "base", "than": "base"}
    end_of |= {"value": "answer at the end", "than_value": "answer halfway", "episodes": [2, 5]}
    end_of |= {"expect": "same", "margin": 0.02, "redraw": "fig3"}
    plain = {"section": "8", "says": "fewer tokens", "value": "tokens", "model": "mrt_1", "than": "base"}
    given = load(laid_over(LAPTOP, {"claims": [end_of, plain | {"expect": "less", "redraw": "table1"}]})).claims
    made = of_table(end.join([HEADER, ROW, "", PLAIN, ""]), tmp_path, encoding)
    assert made == given and [claim.model_fields_set for claim in made] == [claim.model_fields_set for claim in given]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, r"claims: there is no file claims\.tsv in /"),
        ("", r"claims: claims\.tsv, line 1: columns are missing: section, says, value, model, expect, redraw"),
        (f"{HEADER}\tmodle\n{ROW}\tx", r"claims: claims\.tsv, line 1: there is no column 'modle', but claim, section"),
        (f"{HEADER}\tsays\n{ROW}\tx", r"claims: claims\.tsv, line 1: the column 'says' stands twice"),
        (f"{HEADER}\n{PLAIN}\tx", r"claims: claims\.tsv, line 2: 11 cells under 10 columns"),
        (f"{HEADER}\n{ROW}\n\n{PLAIN}".replace("mrt_1", "mrt"), r"  claims\.tsv, line 4, model: there is no 'mrt'"),
        (f"{HEADER}\n{ROW.replace('0.02', 'a bit')}", r"  claims\.tsv, line 2, margin: .*number.*'a bit'"),
        (f"{HEADER}\n{ROW.replace('[2, 5]', '2-5')}", r"  claims\.tsv, line 2, episodes: .*'2-5'"),
        (f"{HEADER}\n{ROW.replace('the end', 'an end')}".replace("answer at", "at"), r"claims\.tsv, line 2, value: "),
        (f"{HEADER}\n{ROW}\n{PLAIN.replace('tokens', 'regret at 100', 2)}", r"line 3, value: 'regret at 100' is not"),
        (f'{HEADER}\n"{ROW}', r"claims: claims\.tsv: "),
    ],
)
def test_a_mistake_in_a_table_of_claims_names_its_line(tmp_path, monkeypatch, text, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=said):
        if text is None:
            load(laid_over(LAPTOP, {"claims": "claims.tsv"}))
        of_table(text, tmp_path)


def test_the_claims_have_the_papers_rule_and_all_answers():
    """Any progress above 0 and weighted by it, from 20 answers at every prefix; with the command's configs."""
    (named,) = re.findall(r"--configfile (.*)", (ROOT / "experiments" / "star" / "config.yaml").read_text())
    config = load(reduce(laid_over, (yaml.safe_load((ROOT / name).read_text()) for name in named.split())))
    paper = load(yaml.safe_load((ROOT / "config" / "paper.yaml").read_text()))
    rules = config.models["mrt_paper"].rules
    assert (rules.weight, rules.minimum_J, rules.minimum_progress) == ("progress", 0, 0)
    assert rules == paper.models["mrt_1.5b_1"].rules and "mrt_paper" in config.evaluation.models
    assert lineage.recipe(config, "mrt_paper").weighted and not lineage.recipe(config, "mrt_1").weighted
    assert measuring.filters(load(RL), "base", "toy_train") and not measuring.filters(config, "base", "toy_train")
    prover = config.training.prover
    assert config.training.allocation is None and (prover.answers, prover.every, prover.traces) == (20, 1, None)


def test_backtracking_begins_rl_behind_an_attempt_and_measures_three_episodes():
    from workflow.options import Options
    from workflow.paths import Paths
    from workflow.resources import JobResources

    config = load(BACKTRACKING)
    options = Options(config, Paths(config), JobResources(config))
    prompts = {m: json.loads(options.rl_prompts(SimpleNamespace(model=m))) for m in ("grpo", "mrt_rl")}
    assert {m: told["least_prefix"] for m, told in prompts.items()} == {"grpo": 1, "mrt_rl": 1}
    sampled = [SimpleNamespace(model="mrt", dataset=name) for name in ("toy_train", "toy_test")]
    assert [json.loads(options.rollouts(w)).get("episodes") for w in sampled] == [None, 3]
    star, mrt = config.models["star"], config.models["mrt"]  # which differ in progress alone
    assert star.parent == mrt.parent == "warmstart" and star.problems == mrt.problems
    assert lineage.recipe(config, "star") == lineage.recipe(config, "mrt") and {"star", "mrt"} <= set(
        config.evaluation.models
    )


def test_another_models_trees_may_teach_to_backtrack():
    teacher = {"label": "Teacher", "toy": "shipped"}
    config = load(laid_over(BACKTRACKING, {"models": {"large": teacher, "warmstart": {"teacher": "large"}}}))
    assert lineage.teacher(config, "warmstart") == "large" and lineage.teacher(config, "rise") == "base"
    with pytest.raises(ValueError, match=r"models.warmstart.teacher: there is no 'larg'; did you mean 'large'"):
        load(laid_over(BACKTRACKING, {"models": {"large": teacher, "warmstart": {"teacher": "larg"}}}))


def test_weighted_votes_need_log_probabilities():
    with pytest.raises(ValueError, match="weighted_votes weighs by log-probabilities"):
        load(change("evaluation.weighted_votes", True))


def test_a_model_sets_only_the_hyperparameters_that_differ():
    config = load(laid_over(RL, {"models": {"mrt_rl": {"rl": {"answers": 3}}, "mrt_1": {"recipe": {"epochs": 7}}}}))
    assert lineage.recipe(config, "mrt_rl") == lineage.recipe(config, "grpo").model_copy(
        update={"answers": 3, "variant": "per_episode", "alpha": 2.0, "centred": True}
    )
    assert lineage.recipe(config, "mrt_1") == config.training.recipe.model_copy(update={"epochs": 7})
    longer = lineage.recipe(
        load(laid_over(RL, {"models": {"mrt_rl": {"rl": {"decoding": {"max_tokens": 300}}}}})), "mrt_rl"
    )
    assert longer.decoding == lineage.recipe(config, "grpo").decoding.model_copy(update={"max_tokens": 300})
    with pytest.raises(ValueError, match=r"models.grpo.rl.batch_size: 100 completions are not whole groups of 8"):
        load(laid_over(RL, {"models": {"grpo": {"rl": {"batch_size": 100}}}}))


AT_0 = {"temperature": 0}
BY_LIKELIHOOD = {"allocation": None, "prover": {"estimate": "likelihood", "decoding": AT_0}}
SEVERAL_AT_0 = {  # settings that sample several completions of a request at temperature 0, and messages
    "direct": (
        LAPTOP,
        {"evaluation": {"samples": 1, "k": [1], "decoding": AT_0}},
        "evaluation.decoding.temperature: at 0 all 80 completions .* set evaluation.direct.samples to 1, or raise it",
    ),
    "budget forcing": (
        LAPTOP,
        {"evaluation": {"budget_forcing": {"decoding": AT_0}}},
        "evaluation.budget_forcing.decoding.temperature: at 0 all 4 completions .* evaluation.budget_forcing.answers",
    ),
    "examples of MRT (STaR)": (
        LAPTOP,
        {"training": BY_LIKELIHOOD},
        r"training.prover.decoding.temperature: at 0 all 4 answers from which MRT \(STaR\) chooses .* raise it",
    ),
    "solution trees": (
        BACKTRACKING,
        {"training": {"tree": {"decoding": AT_0}}},
        "training.tree.decoding.temperature: at 0 all 4 completions .* set training.tree.rollouts to 1",
    ),
    "their children": (
        BACKTRACKING,
        {"training": {"tree": {"rollouts": 1, "child_rollouts": 3, "decoding": AT_0}}},
        "training.tree.decoding.temperature: at 0 all 3 completions .* set training.tree.child_rollouts to 1",
    ),
    "attempts in a row": (
        BACKTRACKING,
        {"evaluation": {"linearized": {"samples": 2, "decoding": AT_0}}},
        "evaluation.linearized.decoding.temperature: at 0 all 2 completions .* set evaluation.linearized.samples to 1",
    ),
    "thoughts to learn from": (
        LAPTOP,
        {"training": {"samples": 2, "decoding": AT_0}},
        "training.decoding.temperature: at 0 all 2 completions .* set training.samples to 1, or raise it",
    ),
}


@pytest.mark.parametrize("stage", SEVERAL_AT_0)
def test_several_completions_are_not_drawn_at_temperature_0(stage):
    config, change, message = SEVERAL_AT_0[stage]
    with pytest.raises(ValueError, match=message) as error:
        load(laid_over(config, change))
    assert "1 mistake)" in str(error.value)


def test_a_stage_that_does_not_run_may_have_temperature_0():
    _, change, _ = SEVERAL_AT_0["budget forcing"]
    load(laid_over(LAPTOP, laid_over(change, {"evaluation": {"measures": ["accuracy", "maj"]}})))
    load(laid_over(BACKTRACKING, change))  # no thought is extended
    _, change, _ = SEVERAL_AT_0["solution trees"]
    load(laid_over(LAPTOP, change))
    _, change, _ = SEVERAL_AT_0["direct"]
    load(laid_over(LAPTOP, laid_over(change, {"evaluation": {"direct": {"samples": 1, "k": [1]}}})))
    by_star = {name: LAPTOP["models"][name.replace("mrt", "star")] | {"label": name} for name in ("mrt_1", "mrt_2")}
    without = LAPTOP | {"models": LAPTOP["models"] | by_star}
    load(laid_over(without, {"training": BY_LIKELIHOOD}))  # nothing learns from mu's answers
    by_rl = {name: {"method": "grpo", "parent": "base"} for name in ("star_1", "star_2", "mrt_1", "mrt_2")}
    greedy = {
        "samples": 2,
        "decoding": AT_0,
        "prover": {"decoding": AT_0},
        "rl": {"prefixes": 0.0, "decoding": {"max_tokens": 400}},
    }
    load(laid_over(without, {"models": by_rl, "training": greedy}))  # RL samples its own thoughts


def test_a_trained_model_is_asked_as_its_parent_was():
    own = {"instruction": "Solve {problem}"}
    models = {
        "mine": {"toy": "shipped", "label": "Mine", "prompt": own},
        "child": {"parent": "mine", "method": "star", "problems": "toy_train"},
        "grandchild": {"parent": "child", "method": "mrt", "problems": "toy_train"},
        "other": {"parent": "mine", "method": "star", "problems": "toy_train", "prompt": {"open_thought": ""}},
        "taught": {"parent": "mine", "method": "cold_start", "teacher": "base", "problems": "toy_train"},
    }
    config = load(laid_over(LAPTOP, {"models": models}))
    asked = {
        name: (lineage.prompt_of(config, name).instruction, lineage.prompt_of(config, name).open_thought)
        for name in models
    }
    assert asked["mine"] == asked["child"] == asked["grandchild"] == ("Solve {problem}", None)
    assert asked["other"] == ("{problem}", "")  # a setting that a model's prompt leaves out is the shared one
    assert asked["taught"] == ("{problem}", None)  # a cold start teaches another prompt


def test_imported_completions_spare_no_sampled_model_a_check(tmp_path):
    (tmp_path / "traces.jsonl").write_text('{"problem_id": "p", "text": "x"}\n')
    models = {"theirs": {"rollouts": {"file": str(tmp_path / "traces.jsonl")}}}
    both = {"models": ["base", "theirs"], "k": [1, 64], "measures": ["accuracy"], "budget_forcing": {"models": None}}
    with pytest.raises(ValueError, match=r"evaluation\.k: 64 is more than the 8 samples"):
        load(laid_over(LAPTOP, {"models": models, "evaluation": both}))
    with pytest.raises(ValueError, match=r"evaluation\.budgets: 4096 is beyond decoding\.max_tokens, 400"):
        load(laid_over(LAPTOP, {"models": models, "evaluation": {"budgets": [64, 4096]}}))
    load(laid_over(LAPTOP, {"models": models, "evaluation": both | {"models": ["theirs"]}}))


def test_iterations_are_counted_along_the_lineage():
    config = load(LAPTOP)
    assert [measuring.style(config, m)["iteration"] for m in ("base", "star_1", "mrt_2")] == [0, 1, 2]
    assert [measuring.style(config, m)["method"] for m in ("base", "star_1", "mrt_2")] == ["base", "star", "mrt"]


def test_the_direct_baseline_has_its_own_samples_and_prompt():
    config = load(change("evaluation.direct", DIRECT))
    assert measuring.samples(config, "direct", "toy_test") == 16 and measuring.samples(config, "base", "toy_test") == 8
    assert measuring.samples(config, "base", "toy_train") == 1
    assert measuring.ks(config, "direct") == [1, 2, 4, 8, 16] and measuring.ks(config, "base") == [1, 2, 4, 8]
    from mrt.episodes.parameterization import Template

    assert config.models["direct"].prompt.open_thought == "<think>\n" + Template().force("")


def test_thoughts_are_extended_no_more_than_the_meta_prover_scores():
    assert measuring.extended(load(LAPTOP)) == ["base", "star_2", "mrt_2"]
    two = laid_over(LAPTOP, {"evaluation": {"prover": {"traces": 2}, "budget_forcing": {"traces": None}}})
    assert measuring.forcing(load(two)).traces == 2
    assert measuring.extended(load(change("evaluation.budget_forcing.models", None))) == LAPTOP["evaluation"]["models"]


def test_regret_is_not_extrapolated_beside_another_meta_prover():
    assert measuring.extrapolated_budgets(load(LAPTOP), "mrt_2")
    judged = load(change("evaluation.mu", "base"))
    assert measuring.extended(judged) and measuring.extrapolated_budgets(judged, "mrt_2") is None
    of_J = {"measures": ["accuracy", "regret", "budget_forcing"], "prover": {"estimate": "likelihood"}}
    scored = load(laid_over(LAPTOP, {"evaluation": of_J}))
    assert measuring.extended(scored) and measuring.extrapolated_budgets(scored, "mrt_2") is None


def test_evaluation_sets_have_their_own_settings():
    config = load(LAPTOP)
    assert measuring.sampling_on(config, "toy_test").samples == config.evaluation.samples
    assert measuring.sampling_on(config, "toy_train").samples == config.training.samples


def test_the_direct_baseline_counts_the_stop_phrase_in_its_prompt():
    """As many tokens as its prompt has more than that of a thought."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "mrt" / "toy" / "weights")
    for file in ("config.yaml", "tests/tiny.yaml"):
        config = load(yaml.safe_load((ROOT / file).read_text()))
        prompts = [config.models[name].prompt or config.prompt for name in ("direct", "base")]
        told, usual = (prompt.render(tokenizer, "x") for prompt in prompts)
        more = len(tokenizer.encode(told)) - len(tokenizer.encode(usual))
        assert (
            measuring.inserted_tokens(config, "direct") == more > 0
            and measuring.inserted_tokens(config, "base") is None
        )


@pytest.mark.parametrize(
    ("ends", "thinking", "close", "wrong"),
    [
        ("{% if x %}[THINK]{% endif %}", "auto", "[/THINK]", None),
        ("{% if x %}[THINK]{% endif %}", "auto", None, None),
        ("{% if x %}[THINK]{% endif %}", "auto", "</think>\n\n", r"is the model's, '\[/THINK\]'\)"),
        ("<think>", "auto", "</think>\n\n", None),
        ("<think>", "auto", "[/THINK]", r"is the model's, '</think>\\n\\n'\)"),
        ("", "auto", "[/THINK]", r"is the model's, '</think>\\n\\n'\)"),  # the prompt opens the thought
        ("<think>", {"open": "((", "close": "))"}, "))", None),
        ("<think>", {"open": "((", "close": "))"}, "</think>\n\n", r"is the model's, '\)\)'\)"),
        (None, "auto", "[/THINK]", None),  # unknown before the run
        (None, "auto", "))", r"is the model's, '</think>\\n\\n' or '\[/THINK\]' or '<\|end\|>"),
    ],
)
def test_a_cold_start_closes_thoughts_as_its_model_does(tmp_path, ends, thinking, close, wrong):
    weights = "some/hub-model"
    if ends is not None:
        shutil.copytree(TOY_BASE, tmp_path / "weights")
        weights = str(tmp_path / "weights")
        (tmp_path / "weights" / "chat_template.jinja").write_text("{{ messages[0].content }}:" + ends)
    start = {"parent": "theirs", "method": "cold_start", "problems": "toy_train", "teacher": "base"}
    changes = {
        "models": {"theirs": {"path": weights}, "cold": start | {"prompt": {"thinking": thinking}}},
        "template": {"close": close} if close else {},
    }
    if wrong:
        with pytest.raises(ValueError, match=r"models\.cold\.cold_start\.answer: .*" + wrong):
            load(laid_over(LAPTOP, changes))
    else:
        load(laid_over(LAPTOP, changes))


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (
            {"base": {"prompt": {"thinking": "none", "open_thought": "<think>\n"}}},
            r"open_thought leaves a thought open",
        ),
        (
            {"theirs": {"rollouts": {"file": "x.jsonl", "begins": "inside", "thinking": "none"}}},
            "leave out one of them",
        ),
    ],
)
def test_a_model_without_thoughts_has_none_open(models, message):
    with pytest.raises(ValueError, match=message):
        load(laid_over(LAPTOP, {"models": models}))


def test_a_config_is_data_and_what_is_worked_out_from_it_goes_one_way():
    """Modules of mrt/config import only those that docs/architecture.md lists before them."""
    assert not [name for name in vars(Config) if not name.startswith(("_", "model_"))]  # no methods, no properties
    page = (ROOT / "docs" / "architecture.md").read_text()
    listed = re.search(r"(`lineage`.*?) derive values", page, re.DOTALL)
    order = ["hardware", "memory", "sections", "schema", *re.findall(r"`(\w+)`", listed[1]), "checks", "load"]
    for place, module in enumerate(order):
        folder = ROOT / "mrt" / "config"
        for file in [*folder.glob(f"{module}.py"), *folder.glob(f"{module}/*.py")]:
            text = file.read_text()
            used = set(re.findall(r"^from mrt\.config\.(\w+)", text, re.MULTILINE)) - {module}
            for names in re.findall(r"^from mrt\.config import (.*)", text, re.MULTILINE):
                used |= set(names.split(", "))
            assert used <= set(order[:place]), file
