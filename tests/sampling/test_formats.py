"""Models that differ in the tags of their thoughts alone think, answer and are judged alike, to the digit."""

import json
import shutil

import polars as pl
import pytest
from conftest import TOY_BASE, slow_case

from mrt.episodes.cut import CutRollouts
from mrt.episodes.parameterization import Template
from mrt.grading.grade import Grade
from mrt.sampling.budget_forcing import BudgetForcing, Force
from mrt.sampling.engine import Decoding, EngineSettings
from mrt.sampling.prompt import Prompt
from mrt.sampling.prover import Prove, ProverSettings
from mrt.sampling.rollouts import Sample

USUAL = ("<think>", "</think>")


def in_tags(folder, opening, closing, special):
    """The toy base, whose tags are others: the same tokens by number, in tokenizer and chat template."""
    shutil.copytree(TOY_BASE, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for token in tokenizer["added_tokens"]:
        if token["content"] in USUAL:
            number, name = vocabulary.pop(token["content"], None), (opening, closing)[USUAL.index(token["content"])]
            token |= {"content": name, "special": special}
            vocabulary |= {name: number} if number is not None else {}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace(USUAL[0], opening))
    return folder


@pytest.mark.parametrize(
    ("opening", "closing", "special"),
    [slow_case("[THINK]", "[/THINK]", True), pytest.param("((", "))", True, marks=pytest.mark.thorough)],
)
def test_only_the_tags_differ(toy_problems, tmp_path, opening, closing, special):
    tables = {}
    for name, tags in (("usual", USUAL), ("other", (opening, closing))):
        out = tmp_path / name
        out.mkdir()
        model = str(TOY_BASE) if name == "usual" else str(in_tags(tmp_path / "weights", *tags, special))
        common = {"model": model, "names": ("base", "toy"), "engine": EngineSettings(max_model_len=1024)}
        thinking = "auto" if opening in ("[THINK]", USUAL[0]) else {"open": tags[0] + "\n", "close": tags[1] + "\n\n"}
        prompt, template = Prompt(instruction="{problem}", thinking=thinking), Template(close=tags[1] + "\n\n")
        files = {table: out / f"{table}.parquet" for table in ("rollouts", "episodes", "prover", "forced", "grades")}
        decoding = Decoding(temperature=1.0, max_tokens=200)
        Sample(
            problems=toy_problems, out=files["rollouts"], samples=2, decoding=decoding, prompt=prompt, **common
        ).cli_cmd()
        CutRollouts(rollouts=files["rollouts"], out=files["episodes"]).cli_cmd()
        Grade(problems=toy_problems, answers=files["rollouts"], out=files["grades"]).cli_cmd()
        traces = {table: files[table] for table in ("rollouts", "episodes")}
        settings = ProverSettings(answers=2, traces=1, every=4, decoding=Decoding(temperature=1.0, max_tokens=24))
        words = {"template": {"close": template.close}}
        Prove(
            out=files["prover"], prover=settings, parameterization={"kind": "open_ended", **words}, **traces, **common
        ).cli_cmd()
        forcing = BudgetForcing(
            most=1, every=1, answers=1, traces=1, extension=Decoding(max_tokens=40), decoding=Decoding(max_tokens=24)
        )
        forced = {"out": files["forced"], "out_thoughts": out / "thoughts.parquet", "forcing": forcing}
        Force(template=template, **forced, **traces, **common).cli_cmd()
        tables[name] = {table: pl.read_parquet(file).drop("thinking", strict=False) for table, file in files.items()}
    assert tables["usual"]["grades"]["correct"].any() and tables["usual"]["episodes"]["closed"].any()
    for table, usual in tables["usual"].items():
        texts = pl.col(pl.String).str.replace_all(opening, USUAL[0], literal=True)
        other = tables["other"][table].with_columns(texts.str.replace_all(closing, USUAL[1], literal=True))
        assert other.equals(usual), table
