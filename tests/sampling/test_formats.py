"""Models that differ in the tags of their thoughts alone think, answer, are judged and trained alike, to the digit."""

import json
import random
import shutil
import subprocess
import sys

import polars as pl
import pytest
from conftest import ROOT, TOY_BASE, slow_case, thorough_case

from mrt.analysis.progress import progress_table
from mrt.core import artifacts
from mrt.core.hub import ends_of, tokenizer_of
from mrt.episodes.cut import CutRollouts
from mrt.episodes.parameterization import OpenEnded, Template
from mrt.episodes.thinking import FAMILIES
from mrt.grading.grade import Grade
from mrt.sampling.budget_forcing import BudgetForcing, Force
from mrt.sampling.engine import Decoding, Engine, EngineSettings
from mrt.sampling.likelihood import Score
from mrt.sampling.pool import SharedEngine
from mrt.sampling.prompt import Prompt
from mrt.sampling.prover import Prove, ProverSettings
from mrt.sampling.rollouts import Sample
from mrt.toy.world import draw_problem
from mrt.traces.page import Folder, traces_of
from mrt.training.log import log_of
from mrt.training.prompts import MakePrompts
from mrt.training.rl import RL
from mrt.training.sets import MakeSet
from mrt.training.sft import SFT, Train, tokenize

USUAL = ("<think>", "</think>", "<eos>")
CHANNELS = FAMILIES[2]
OTHERS = {  # opening and closing tag, end; each is one token, as those of the toy base
    "THINK": ("[THINK]", "[/THINK]", "</s>"),
    "channels": (CHANNELS.opening, CHANNELS.closing, "<|return|>"),
    "given": ("((", "))", "<eos>"),
}
ENGINE = EngineSettings(max_model_len=1024, cpu_cache_gib=0.25)
FILES = {
    "problems": artifacts.PROBLEMS, "rollouts": artifacts.ROLLOUTS, "episodes": artifacts.EPISODES,
    "grades": artifacts.GRADES, "prover": artifacts.PROVER, "prover_grades": artifacts.ANSWER_GRADES,
    "progress": artifacts.PROGRESS, "forced": artifacts.FORCED, "thoughts": artifacts.EXTENSIONS,
    "prompts": artifacts.RL_PROMPTS, "set": artifacts.SET,
}  # fmt: skip
RECIPE = SFT(**{
    "learning_rate": 1e-3, "epochs": 2, "batch_size": 4, "micro_batch_size": 4, "max_length": 1024, "bf16": False,
    "gradient_checkpointing": False,
})  # fmt: skip
RL_RECIPE = RL(**{
    "learning_rate": 1e-4, "batch_size": 16, "micro_batch_size": 16, "num_generations": 4, "answer_tokens": 24,
    "bf16": False, "gradient_checkpointing": False, "variant": "per_episode", "answers": 2, "epochs": 0.5,
    "decoding": Decoding(temperature=1.0, max_tokens=150),
})  # fmt: skip
TRAIN_RL = """
import json, sys
from mrt.training import rl
for options in json.loads(sys.argv[1]):
    rl.Train(**options).carry_out()
"""


def in_tags(folder, tags):
    """The toy base, whose tags and end are others: special tokens of the same numbers, in its chat template too."""
    shutil.copytree(TOY_BASE, folder)
    tokenizer, settings = (json.loads((folder / f"tokenizer{name}.json").read_text()) for name in ("", "_config"))
    vocabulary = tokenizer["model"]["vocab"]
    for token in tokenizer["added_tokens"]:
        if token["content"] in USUAL:
            number, name = vocabulary.pop(token["content"], None), tags[USUAL.index(token["content"])]
            token |= {"content": name, "special": True}
            vocabulary |= {name: number} if number is not None else {}
    settings["eos_token"] = tags[2]
    for name, content in (("", tokenizer), ("_config", settings)):
        (folder / f"tokenizer{name}.json").write_text(json.dumps(content))
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace(USUAL[0], tags[0]))
    return folder


class Made:
    """All that is made of a model, in a results folder; the tokenizers' numbers are the same for all tags."""

    def __init__(self, folder, problems, tags):
        self.tags, self.folder = tags, folder
        self.model = TOY_BASE if tags == USUAL else in_tags(folder / "weights", tags)
        self.words = OpenEnded(template=Template(close=tags[1] + "\n\n"))
        found = tags[0] in (family.opening for family in FAMILIES)
        thinking = "auto" if found else {"open": tags[0] + "\n", "close": tags[1] + "\n\n"}
        self.prompt = Prompt(instruction="{problem}", thinking=thinking)
        self.files = {name: folder / kind.path.format(m="m", d="test") for name, kind in FILES.items()}
        for file in self.files.values():
            file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(problems, self.files["problems"])
        self.engine = Engine(str(self.model), ENGINE)

    def run(self, kind, **options):
        """A stage that samples, with the engine that all of them share; its files by their names."""
        stage = kind(model=str(self.model), names=("m", "test"), engine=ENGINE, **options)
        vars(stage)["sampler"] = SharedEngine(self.engine)
        stage.cli_cmd()

    def sample(self):
        files, decoding = self.files, Decoding(temperature=1.0, max_tokens=200)
        out = {"problems": files["problems"], "out": files["rollouts"]}
        self.run(Sample, samples=2, decoding=decoding, prompt=self.prompt, **out)
        CutRollouts(rollouts=files["rollouts"], out=files["episodes"]).cli_cmd()
        Grade(problems=files["problems"], answers=files["rollouts"], out=files["grades"], workers=1).cli_cmd()

    def prove(self, estimate):
        """J at each fourth prefix, by sampled answers or by likelihood."""
        files, decoding = self.files, Decoding(temperature=1.0, max_tokens=24)
        settings = ProverSettings(estimate=estimate, answers=4, traces=1, every=4, decoding=decoding)
        given = {name: files[name] for name in ("rollouts", "episodes")} | {"out": files["prover"]}
        given |= {"problems": files["problems"]} if estimate == "likelihood" else {}
        kind = Score if estimate == "likelihood" else Prove
        self.run(kind, prover=settings, parameterization=self.words, **given)
        Grade(problems=files["problems"], answers=files["prover"], out=files["prover_grades"], workers=1).cli_cmd()
        prover, grades = (FILES[name].read(files[name]) for name in ("prover", "prover_grades"))
        artifacts.PROGRESS.write(progress_table(prover, grades), files["progress"])

    def force(self):
        forcing = BudgetForcing(
            most=1, every=1, answers=1, traces=1, extension=Decoding(max_tokens=40), decoding=Decoding(max_tokens=24)
        )
        given = {name: self.files[name] for name in ("rollouts", "episodes")}
        given |= {"out": self.files["forced"], "out_thoughts": self.files["thoughts"]}
        self.run(Force, forcing=forcing, template=self.words.template, **given)

    def teach(self, method):
        """The training set of a method; its tokens, and those that carry the loss."""
        names = {"star": ("rollouts", "grades"), "mrt": ("rollouts", "grades", "episodes", "progress", "prover")}[
            method
        ]
        given = {name: self.files[name] for name in (*names, *(["prover_grades"] if method == "mrt" else []))}
        MakeSet(
            method=method, parameterization=self.words, out=self.files["set"], out_rules=self.folder / "rules", **given
        ).cli_cmd()
        rows, _ = tokenize(tokenizer_of(self.model), artifacts.SET.read(self.files["set"]).to_dicts(), 1024)
        return [(row["input_ids"].tolist(), row["labels"].tolist()) for row in rows]

    def ask(self):
        """RL's prompts, a part of which ends inside of a thought."""
        MakePrompts(
            model=str(self.model), problems=self.files["problems"], episodes=self.files["episodes"], prompt=self.prompt,
            parameterization=self.words, prefixes=0.5, forced=True, max_model_len=512, out=self.files["prompts"],
        ).cli_cmd()  # fmt: skip

    def usual_texts(self, text):
        """A text in the usual tags."""
        for name, usual in zip(self.tags, USUAL, strict=True):
            text = text.replace(name, usual)
        return text

    def table(self, name):
        """A table in the usual tags."""
        table = pl.read_parquet(self.files[name]).drop("thinking", strict=False)
        return table.with_columns(pl.col(pl.String).map_elements(self.usual_texts, return_dtype=pl.String))

    def page(self):
        """Texts of the page of traces, in the usual tags."""
        return json.loads(self.usual_texts(json.dumps(traces_of(Folder(self.folder), "m", "test"), ensure_ascii=False)))


@pytest.fixture(params=[slow_case("THINK"), thorough_case("channels"), thorough_case("given")])
def pair(request, toy_problems, tmp_path):
    """All that is made of the toy base and of the same in other tags."""
    return [Made(tmp_path / name, toy_problems, tags) for name, tags in (("a", USUAL), ("b", OTHERS[request.param]))]


def test_only_the_tags_differ(pair):
    """Samples, forced answers, grades, measures, trainings and pages; J by answers and by likelihood."""
    tokens, pages = [], []
    for made in pair:
        made.sample()
        made.prove("answers")
        made.force()
        made.ask()
        tokens.append([made.teach(method) for method in ("star", "mrt")])
        pages.append(made.page())
    usual, other = pair
    for name in FILES:
        assert other.table(name).equals(usual.table(name)), name
    assert usual.table("grades")["correct"].any() and usual.table("episodes")["closed"].any()
    assert 0 < usual.table("progress")["J"].mean() < 1 and (usual.table("prompts")["prefix"] > 0).any()
    assert tokens[0] == tokens[1] and all(tokens[0]) and pages[0] == pages[1]
    J = []
    for made in pair:
        made.prove("likelihood")
        J.append(made.table("progress"))
    assert J[0].equals(J[1]) and 0 < J[0]["J"].mean() < 1


def trained_by_rl(folder, makings):
    """Trainings by RL, one after another in a separate process: an engine takes its process over."""
    options = [
        {
            "model": str(made.model), "prompts": str(made.files["prompts"]), "method": "mrt_rl",
            "recipe": RL_RECIPE.model_dump(), "engine": ENGINE.model_dump(),
            "parameterization": made.words.model_dump(),
            "state": str(folder / f"{i}.state"), "history": str(folder / f"{i}.parquet"), "out": str(folder / f"{i}"),
        }
        for i, made in enumerate(makings)
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", TRAIN_RL, json.dumps(options)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [log_of(folder / f"{i}.parquet") for i in range(len(options))]


def weights(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


@pytest.mark.thorough
def test_only_the_tags_differ_between_trainings(pair, tmp_path):
    """By SFT and by RL with J at each episode: the same losses, rewards and weights."""
    models = []
    for i, made in enumerate(pair):
        made.sample()
        made.ask()
        made.teach("star")
        files = {"out": tmp_path / f"sft_{i}", "history": tmp_path / f"sft_{i}.parquet", "state": tmp_path / "state"}
        Train(model=str(made.model), set=made.files["set"], recipe=RECIPE, **files).cli_cmd()
        models.append((weights(files["out"]), log_of(files["history"]).select("loss", "grad_norm")))
    (usual, steps), (other, others) = models
    assert steps.equals(others) and steps.height > 2 and (steps["grad_norm"] > 0).all()
    assert all((other[name] == usual[name]).all() for name in usual)
    first, second = trained_by_rl(tmp_path, pair)
    timeless = [name for name in first.columns if not name.startswith("seconds")]
    assert first.select(timeless).equals(second.select(timeless)) and first["J_prefix"].null_count() == 0
    assert all((weights(tmp_path / "0")[name] == weights(tmp_path / "1")[name]).all() for name in usual)


HARMONY = """
{%- for m in messages %}
    {{- '<|start|>' + m.role + ('<|channel|>final' if m.role == 'assistant' else '') + '<|message|>' + m.content }}
    {{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{% endif %}"""


@pytest.mark.slow
def test_channels_of_several_tokens_are_learnt(toy_problems, tmp_path):
    """Headers as gpt-oss has them, each of several special tokens: taught by SFT, sampled, cut, judged, and by RL."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    parent, tokenizer = tmp_path / "parent", AutoTokenizer.from_pretrained(TOY_BASE)
    headers = [f"<|{name}|>" for name in ("start", "end", "message", "channel", "return")]
    tokenizer.add_tokens(headers, special_tokens=True)
    tokenizer.eos_token, tokenizer.chat_template = "<eos>", HARMONY
    model = AutoModelForCausalLM.from_pretrained(TOY_BASE, dtype="float32")
    model.resize_token_embeddings(len(tokenizer))
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|return|>")]
    model.save_pretrained(parent)
    tokenizer.save_pretrained(parent)
    prompt, rng, rows = Prompt(instruction="{problem}"), random.Random(3), []
    for i in range(320):
        problem = draw_problem(rng, 3)
        thought = f"Try {problem.answer}.\n\nIt is {problem.answer}.\n\nSo it is.\n\nWait, it is.\n"
        completion = thought + CHANNELS.close + f"\\boxed{{{problem.answer}}}"
        rows.append((f"p{i}", 0, None, prompt.render(tokenizer, problem.text), completion, 1.0))
    artifacts.SET.write(pl.DataFrame(rows, schema=artifacts.SET.columns, orient="row"), tmp_path / "set.parquet")
    files = {"out": tmp_path / "taught", "history": tmp_path / "taught.parquet", "state": tmp_path / "state"}
    recipe = RECIPE.model_copy(update={"learning_rate": 3e-3, "batch_size": 16, "micro_batch_size": 16, "epochs": 4})
    Train(model=str(parent), set=tmp_path / "set.parquet", recipe=recipe, **files).cli_cmd()
    taught = tokenizer_of(files["out"])
    assert taught.convert_ids_to_tokens(list(ends_of(taught))) == ["<|return|>", "<eos>"]  # the checkpoint keeps both
    made = Made(tmp_path / "made", toy_problems, USUAL)
    made.model, made.words = files["out"], OpenEnded()
    made.engine = Engine(str(made.model), ENGINE)
    made.sample()
    rollouts, episodes = (FILES[name].read(made.files[name]) for name in ("rollouts", "episodes"))
    ended = rollouts.filter(finish_reason="stop")
    assert ended.height > rollouts.height / 2 and rollouts["inside"].all()
    assert ended["text"].str.contains(CHANNELS.closing, literal=True).mean() > 0.5
    assert not ended["text"].str.contains("<|return|>", literal=True).any()
    assert episodes["closed"].mean() > 0.5
    made.ask()
    (log,) = trained_by_rl(tmp_path, [made])
    assert log["step"].to_list() == [1, 2] and log["J_prefix"].null_count() == 0 and log["truncated"].max() < 1
