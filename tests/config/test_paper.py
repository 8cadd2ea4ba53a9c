"""The configs at the paper's scale: every number that the paper has, and how models and data are found."""

import csv
import json
import os
import re
import subprocess
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from conftest import ROOT, TOY_BASE, checkout, hub_cache, planned

from mrt.config import lineage, measuring
from mrt.config.load import load
from mrt.config.schema import Config
from mrt.core.artifacts import PROBLEMS
from mrt.core.digest import identity_of_model
from mrt.core.settings import laid_over

FILES = {name: ROOT / "config" / f"{name}.yaml" for name in ("paper", "paper_case_study", "backtracking_paper")}
RAW = {name: yaml.safe_load(path.read_text()) for name, path in FILES.items()}

# ---- the paper

MODELS = {  # Sections 5 and 8.1, Appendices B, D and E
    "paper": {
        "base_1.5b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        "base_7b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        "base_deepscaler": "agentica-org/DeepScaleR-1.5B-Preview",
    },
    "paper_case_study": {
        "base_32b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
        "direct_32b": "Qwen/Qwen2.5-32B-Instruct",
        "direct_7b": "Qwen/Qwen2.5-Math-7B-Instruct",
        "base_7b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        "base_deepscaler": "agentica-org/DeepScaleR-1.5B-Preview",
    },
    "backtracking_paper": {
        "base_8b": "meta-llama/Llama-3.1-8B-Instruct",
        "base_3b": "meta-llama/Llama-3.2-3B-Instruct",
    },
}
TRAINED = {  # model: (parent, method, problems); Section 8.1, Table 1
    "star_1.5b_1": ("base_1.5b", "star", "numina_10k"),
    "star_1.5b_2": ("star_1.5b_1", "star", "numina_10k"),
    "mrt_1.5b_1": ("base_1.5b", "mrt", "numina_10k"),
    "mrt_1.5b_2": ("mrt_1.5b_1", "mrt", "numina_10k"),
    "star_7b_1": ("base_7b", "star", "numina_10k"),
    "star_7b_2": ("star_7b_1", "star", "numina_10k"),
    "mrt_7b_1": ("base_7b", "mrt", "numina_10k"),
    "mrt_7b_2": ("mrt_7b_1", "mrt", "numina_10k"),
    "grpo_1.5b": ("base_1.5b", "grpo", "numina_4k"),
    "mrt_rl_1.5b": ("base_1.5b", "mrt_rl", "numina_4k"),
    "grpo_deepscaler": ("base_deepscaler", "grpo", "aime_1983_2023"),
    "length_penalty_deepscaler": ("base_deepscaler", "length_penalty", "aime_1983_2023"),
    "mrt_rl_deepscaler": ("base_deepscaler", "mrt_rl", "aime_1983_2023"),
}
TRAINED_TO_BACKTRACK = {  # Section 8.4, Appendix A
    "warmstart_8b": ("base_8b", "warmstart", "numina"),
    "rise_8b": ("base_8b", "rise", "numina"),
    "rejection_8b": ("base_8b", "rejection", "numina"),
    "star_8b": ("warmstart_8b", "star", "numina"),  # Figure 8 compares MRT with STaR
    "mrt_8b": ("warmstart_8b", "mrt", "numina"),
    "warmstart_3b": ("base_3b", "warmstart", "numina"),
    "grpo_3b": ("warmstart_3b", "grpo", "numina"),
    "mrt_rl_3b": ("warmstart_3b", "mrt_rl", "numina"),
}
TABLE_2 = {
    "learning_rate": 1.0e-6,
    "epochs": 3,
    "batch_size": 256,
    "gradient_checkpointing": True,
    "max_length": 16384,
    "bf16": True,
    "warmup_ratio": 0.1,
}
TABLE_4 = TABLE_2 | {"max_length": 4096}
TABLE_3 = {
    "learning_rate": 1.0e-6,
    "schedule": "cosine",
    "warmup_ratio": 0.1,
    "weight_decay": 0.01,
    "epochs": 1,
    "batch_size": 256,
    "num_generations": 4,
    "bf16": True,
    "max_prompt_length": 4096,
    "least_prefix": 0,
    "mu": "policy",  # Algorithm 2, line 9: the current policy
    "beta": 0.04,  # GRPO as published, and as TRL had it then
    "loss": "grpo",
}
TABLE_3_DECODING = {"temperature": 0.9, "max_tokens": 24576}
TABLE_5 = TABLE_3 | {"max_prompt_length": 1500, "least_prefix": 1}  # every prompt has the attempt z_0
TABLE_5_DECODING = {"temperature": 0.9, "max_tokens": 1024}
GPU_MEMORY = 0.8  # Tables 3 and 5
ALGORITHM_2 = {
    "variant": "explicit",
    "alpha": 1.0,  # the paper names none
    "centred": False,
    "prefixes": 1.0,
    "answers": None,
    "estimate": "answers",
}
ALGORITHM_1 = {  # line 5: one trace; Section 8.1: 20 answers
    "samples": 1,
    "mu": None,  # the parent, from whose traces a child learns
    "allocation": None,  # the answers are the same at every prefix
    "prover": {"answers": 20, "every": 1, "traces": None, "estimate": "answers"},
}
TRAINING = {"decoding": {"max_tokens": 16384}, "prover": {"decoding": {"max_tokens": 4096}}}  # Section 8.1; Appendix D
EVALUATION = {  # Sections 8.1, 8.2; Figures 7, 9
    "problems": ["aime2024", "aime2025", "amc2023", "minerva_math", "math500"],
    "samples": 20,
    "decoding": {"max_tokens": 16384},
    "k": list(range(1, 11)),
    "votes": [1, 2, 4, 8],
    "budgets": [4096, 8192, 12288, 16384],
    "budget_forcing": {  # Appendix F; Figures 9, 29
        "models": ["base_7b", "star_7b_2", "mrt_7b_2", "base_deepscaler", "grpo_deepscaler", "mrt_rl_deepscaler"],
        "most": 8,
        "every": 2,
        "markers": ("Wait", "Alternatively", "But hold on", "But wait"),
        "extension": {"max_tokens": 2048},
        "budgets": [20480, 24576, 28672, 32768],
    },
}
SEGMENTATION = {  # Appendix D, Figure 21
    "min_steps": 3,
    "markers": (
        "Wait",
        "But wait",
        "Alternatively",
        "Is there another way to think about this?",
        "But let me double-check",
        "But hold on",
    ),
}
CASE_STUDY = {  # Section 5, Appendix D; Figures 3, 24
    "problems": ["omni_math_40"],
    "models": ["base_32b"],
    "samples": 4,
    "decoding": {"temperature": 0.7, "max_tokens": 8192},
    "prover": {"answers": 8, "every": 5, "traces": None, "decoding": {"temperature": 0.7, "max_tokens": 4096}},
    "direct": {"model": "direct_32b", "samples": 32},
    "votes": [1, 2, 4, 8],
    "weighted_votes": True,
    "episode_groups": [(6, 10), (26, 30), (41, 45)],
}
SEARCH = {  # Section 8.4, Figure 8
    "problems": ["aime_1989_2023"],
    "linearized": {"window": 2048, "attempts": 10},
    "episodes": 3,
    "k": list(range(1, 11)),
}


def config(name: str) -> Config:
    return load(RAW[name], [FILES[name]])


def has(settings: Any, wanted: dict[str, Any]) -> bool:
    """Whether settings have all of these values, group by group."""
    for name, value in wanted.items():
        actual = getattr(settings, name)
        assert has(actual, value) if isinstance(value, dict) else actual == value, (
            f"{name}: {actual}, the paper has {value}"
        )
    return True


@pytest.mark.parametrize("name", FILES)
def test_the_models_are_the_papers(name):
    models = config(name).models
    assert {key: m.path for key, m in models.items() if m.revision} == MODELS[name]
    trained = {"paper": TRAINED, "backtracking_paper": TRAINED_TO_BACKTRACK}.get(name, {})
    assert {key: (m.parent, m.method, m.problems) for key, m in models.items() if m.parent} == trained
    made = {m.path for m in models.values() if m.path and not m.revision}
    assert made <= {f"results/paper/models/{key}" for key in TRAINED}


@pytest.mark.parametrize("name", FILES)
def test_all_that_is_of_the_hub_is_pinned(name):
    experiment = config(name)
    pins = {m.path: m.revision for m in experiment.models.values() if m.revision}
    pins |= {p.hub.path: p.hub.revision for p in experiment.problems.values()}
    assert len(pins) >= 4
    for path, revision in pins.items():
        assert re.fullmatch(r"[0-9a-f]{40}", revision), path


def test_the_same_set_is_the_same_everywhere():
    known = yaml.safe_load((ROOT / "config" / "benchmarks.yaml").read_text())["problems"]
    known |= {f"numina_{count}": known["numina"] for count in ("10k", "4k")}
    known["aime_1983_2023"] = known["aime_1989_2023"]
    for name, raw in RAW.items():
        for key, entry in raw["problems"].items():
            own = {"disjoint_from", "split", "count"} | ({"keep"} if key == "aime_1983_2023" else set())
            same = [{k: v for k, v in one.items() if k not in own} for one in (entry, known[key])]
            assert same[0] == same[1], f"{name}: {key}"
    weights = [(m["path"], m["revision"]) for raw in RAW.values() for m in raw["models"].values() if "revision" in m]
    assert len(dict(weights)) == len(set(weights))


def test_the_problem_sets_are_the_papers():
    paper, search = config("paper"), config("backtracking_paper")
    assert paper.problems["numina_10k"].count == 10_000 and paper.problems["numina_4k"].count == 4_000  # Section 8.1
    # "919 AIME problems from 1989-2023": the dataset has 919 of 1983-2023, and there are but 885 of 1989-2023
    assert paper.problems["aime_1983_2023"].keep == {"Year": (1983, 2023)}
    omni = paper.problems["omni_math_40"]  # Appendix D
    assert omni.per_difficulty * len(omni.difficulties) == 40 and omni.difficulties == [4, 4.5, 5, 5.5]
    assert search.problems["numina"].count == 20_000  # Section 8.4
    assert search.problems["aime_1989_2023"].keep == {"Year": (1989, 2023)}
    for experiment in (paper, search):
        for name, entry in experiment.problems.items():
            assert (entry.split == "train") == (name in {m.problems for m in experiment.models.values()})
            assert entry.split == "test" or set(experiment.evaluation.problems) <= set(entry.disjoint_from)


def test_star_has_the_values_of_table_2():
    experiment = config("paper")
    for name, (_, method, _) in TRAINED.items():
        if method in ("star", "mrt"):
            assert has(lineage.recipe(experiment, name), TABLE_2)
            weighted = method == "mrt"  # Appendix B.2
            assert lineage.recipe(experiment, name).weighted == weighted
            assert experiment.models[name].rules.weight == ("progress" if weighted else "none")
            assert has(experiment.models[name].rules, {"minimum_progress": 0, "minimum_J": 0})  # Algorithm 1, line 7
            assert experiment.models[name].accumulate == name.endswith("_2")  # Algorithm 1, lines 2 and 10
    assert has(experiment.training, TRAINING) and has(experiment.training, ALGORITHM_1)


def test_rl_has_the_values_of_table_3():
    experiment = config("paper")
    for name, (_, method, _) in TRAINED.items():
        if method not in ("star", "mrt"):
            assert has(lineage.recipe(experiment, name), TABLE_3 | {"decoding": TABLE_3_DECODING})
        if method == "mrt_rl":
            assert has(lineage.recipe(experiment, name), ALGORITHM_2)
    assert lineage.recipe(experiment, "length_penalty_deepscaler").alpha == 0.4  # the paper names none
    assert experiment.engine.gpu_memory_utilization == GPU_MEMORY


@pytest.mark.parametrize(("method", "scaled"), [("grpo", "group"), ("mrt_rl", "group"), ("length_penalty", "none")])
def test_trl_trains_on_deepscaler_as_grpo_was_published(method, scaled, told):
    """The length penalty's advantages alone are not scaled, so that its alpha does something."""
    args = told(method, lineage.recipe(config("paper"), f"{method}_deepscaler"))
    assert (args.beta, args.loss_type, args.scale_rewards) == (0.04, "grpo", scaled)


def test_evaluation_has_the_values_of_section_8_and_appendix_f():
    experiment = config("paper")
    assert has(experiment.evaluation, EVALUATION)
    assert set(experiment.evaluation.models) == {*MODELS["paper"], *TRAINED}
    assert measuring.forcing(experiment).answered() == [0, 2, 4, 6, 8]
    assert has(experiment.segmentation, SEGMENTATION)


def test_the_case_study_has_the_values_of_section_5_and_appendix_d():
    experiment = config("paper_case_study")
    assert has(experiment.evaluation, CASE_STUDY)
    assert {1, 2, 8, 16, 32} <= set(measuring.ks(experiment, "direct_32b"))  # Figure 24
    assert has(experiment.segmentation, SEGMENTATION)
    assert (
        measuring.samples(experiment, "base_32b", "omni_math_40") == 4
        and measuring.samples(experiment, "direct_32b", "omni_math_40") == 32
    )


def test_the_commands_of_the_case_study_are_right():
    """The files that its head comment lays over it."""
    over = re.findall(r"evaluation='(.*)'", FILES["paper_case_study"].read_text())
    aime, star = (load(laid_over(RAW["paper_case_study"], {"evaluation": yaml.safe_load(text)})) for text in over)
    expected = CASE_STUDY | {"problems": ["aime2024"], "prover": CASE_STUDY["prover"] | {"every": 3}}
    assert has(aime.evaluation, expected)
    models = {"models": ["base_7b", "star_7b", "mrt_7b"], "direct": {"model": "direct_7b", "samples": 32}}
    assert has(star.evaluation, CASE_STUDY | models)  # Figures 26 to 28


def test_backtracking_has_the_values_of_tables_4_and_5():
    experiment = config("backtracking_paper")
    for name, (_, method, _) in TRAINED_TO_BACKTRACK.items():
        if method in ("grpo", "mrt_rl"):
            assert has(lineage.recipe(experiment, name), TABLE_5 | {"decoding": TABLE_5_DECODING})
        else:
            assert has(lineage.recipe(experiment, name), TABLE_4)
    assert has(lineage.recipe(experiment, "mrt_rl_3b"), ALGORITHM_2)
    assert has(experiment.training, ALGORITHM_1)
    assert lineage.teacher(experiment, "warmstart_3b") == "base_8b"  # Appendix A.2
    assert (
        experiment.training.tree.child_rollouts == experiment.training.tree.rollouts == 4
    )  # real steps seldom coincide
    # Appendix B.3: the loss is weighted by information gain
    assert lineage.recipe(experiment, "mrt_8b").weighted and experiment.models["mrt_8b"].rules.weight == "progress"
    assert experiment.engine.gpu_memory_utilization == GPU_MEMORY
    assert has(experiment.evaluation, SEARCH)


@pytest.mark.parametrize(
    ("name", "jobs"),
    [
        # 16 models on 5 sets, and 8 pairs of a parent and a training set
        ("paper", {"train": 8, "train_rl": 5, "gather_rollouts": 88, "gather_forced": 30, "build_dataset": 9}),
        ("paper", {"sample_rollouts": 4 * (16 + 8)}),  # in 4 shards
        ("paper_case_study", {"gather_rollouts": 2, "gather_answers": 1, "scaling": 1}),
    ],
)
def test_the_configs_are_planned_without_a_network(tmp_path, name, jobs):
    experiment = planned(checkout(tmp_path), "--configfile", f"config/{name}.yaml")
    assert {job: int(experiment.get(job, 0)) for job in jobs} == jobs


# ---- where models and data are loaded from


def offline(home: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Python, with this cache and no network."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


def written(rows: list[dict[str, Any]], path: Path) -> Path:
    if path.suffix == ".parquet":
        pl.DataFrame(rows).write_parquet(path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return path


AIME = [
    {
        "ID": f"{y}-I-1",
        "Year": y,
        "Problem Number": 1,
        "Question": f"Find ${y}$.",
        "Answer": f"{y % 1000:03}",
        "Part": "I",
    }
    for y in range(1980, 2026)
]
AIME_2024 = [{"ID": f"2024-I-{i}", "Problem": f"Find ${i}$.", "Solution": "So.", "Answer": i} for i in range(1, 4)]
NUMINA = [
    {
        "source": "aops",
        "problem": f"Find ${i}$.",
        "solution": rf"It is $\boxed{{{i}}}$.",
        "messages": [{"content": f"Find ${i}$.", "role": "user"}],
    }
    for i in range(6)
]


@pytest.mark.parametrize(
    ("name", "files", "answers"),
    [  # as the repositories have them
        ("aime_1983_2023", {"AIME_Dataset_1983_2024.csv": AIME}, [str(y % 1000) for y in range(1983, 2024)]),
        ("aime2024", {"aime_2024_problems.jsonl": AIME_2024}, ["1", "2", "3"]),
        (
            "numina_4k",
            {f"data/train-0000{i}-of-00002.parquet": NUMINA[3 * i : 3 * i + 3] for i in range(2)}
            | {"data/test-00000-of-00001.parquet": NUMINA[:1]},
            [str(i) for i in range(6)],
        ),
    ],
)
def test_problem_sets_come_out_of_the_hubs_cache(tmp_path, name, files, answers):
    entry = RAW["paper"]["problems"][name]
    contents = {file: written(rows, tmp_path / file.replace("/", "-")) for file, rows in files.items()}
    hub_cache(tmp_path / "home", "dataset", entry["hub"]["path"], entry["hub"]["revision"], contents)
    small = entry | {"disjoint_from": []}
    small = small | ({"count": len(answers)} if "count" in entry else {})
    out = tmp_path / f"{name}.parquet"
    made = offline(
        tmp_path / "home", "-m", "mrt.problems.build", "--name", name, "--set", json.dumps(small), "--out", str(out)
    )
    assert made.returncode == 0, made.stderr
    table = PROBLEMS.read(out)
    assert [str(int(answer)) for answer in table["answer"]] == answers
    assert table["source"][0] == "aops" or entry["hub"]["revision"] in table["source"][0]


def test_a_problem_set_is_of_its_pinned_revision_or_there_is_none(tmp_path):
    entry = RAW["paper"]["problems"]["aime2025"]
    rows = {"test.jsonl": written([{"problem": "1 + 1?", "answer": "2"}], tmp_path / "test.jsonl")}
    hub_cache(tmp_path / "home", "dataset", entry["hub"]["path"], "f" * 40, rows)
    out = tmp_path / "out.parquet"
    made = offline(
        tmp_path / "home",
        "-m",
        "mrt.problems.build",
        "--name",
        "aime2025",
        "--set",
        json.dumps(entry),
        "--out",
        str(out),
    )
    assert made.returncode == 1 and entry["hub"]["revision"] in made.stderr and not out.exists()


LOAD = """
import sys
from transformers import AutoConfig, AutoTokenizer
from mrt.sampling.engine import Engine, EngineSettings
from mrt.sampling.prompt import Prompt

path, revision = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(path, revision=revision)
print(AutoConfig.from_pretrained(path, revision=revision).model_type, len(tokenizer))
engine = Engine(path, EngineSettings(), revision)
print(len(engine.encode(["12 + 5"])[0]), Prompt(instruction="{problem}").render(engine.tokenizer, "x").count("<think>"))
try:
    AutoTokenizer.from_pretrained(path, revision="0" * 40)
except OSError:
    print("no other")
"""


def test_models_come_out_of_the_hubs_cache(tmp_path):
    model = RAW["paper"]["models"]["base_1.5b"]
    path, revision = model["path"], model["revision"]
    files = {file.name: file for file in TOY_BASE.iterdir() if file.name != "README.md"}
    hub_cache(tmp_path, "model", path, revision, files)
    experiment = offline(tmp_path, "-c", LOAD, path, revision)
    assert experiment.returncode == 0, experiment.stderr
    kind, tokens, encoded, thoughts, *other = experiment.stdout.split()
    assert kind == json.loads((TOY_BASE / "config.json").read_text())["model_type"]
    assert int(tokens) > 10 and int(encoded) > 1 and thoughts == "1"
    assert other == ["no", "other"]  # of another revision nothing is there
    assert identity_of_model(path, revision) == f"{path}@{revision}"


def test_a_prompt_that_begins_with_the_parents_attempt_costs_its_rollouts():
    """Of GRPO as of MRT (RL) in backtracking search; of thoughts GRPO begins at the problem."""
    from types import SimpleNamespace

    from workflow.paths import Paths

    for files, charged in (("config/backtracking.yaml",), True), (("config.yaml", "config/rl.yaml"), False):
        config = load(reduce(laid_over, (yaml.safe_load((ROOT / name).read_text()) for name in files)))
        read = Paths(config).if_learnt("rollouts")
        assert bool(read(SimpleNamespace(model="grpo"))) == charged
        assert read(SimpleNamespace(model="mrt_rl"))
