"""The plan before the bill: its jobs are the workflow's, its sums add up, and work that is done is set against it."""

import re
from dataclasses import asdict
from pathlib import Path

import polars as pl
import pytest
import yaml
from architectures import QWEN_7B
from conftest import ROOT, TOY_BASE, python
from hypothesis import given
from hypothesis import strategies as st

from mrt.config.hardware import GPUS
from mrt.config.load import load
from mrt.core.settings import laid_over
from mrt.planning.bill import Bill, Planned, Reached, Work, longest_path, planned, seconds_of
from mrt.planning.dry_run import config_files_named, counted, described, dry_run
from mrt.planning.plan import Plan, short
from mrt.planning.why import Why, planned_jobs

PAPER = load(yaml.safe_load((ROOT / "config" / "paper.yaml").read_text()))
amounts = st.floats(0, 1e12)
works = st.builds(
    Work, generated=amounts, read=amounts, read_unshared=amounts, trained=amounts, context=st.floats(1, 32_768)
)


@given(works, st.sampled_from(sorted(GPUS)), st.sampled_from([1, 2, 4, 8]))
def test_work_takes_longer_on_less_and_twice_as_long_twice(work, name, gpus):
    hardware = GPUS[name]
    took = seconds_of(work, QWEN_7B, hardware, gpus, 512, Reached())
    slower = seconds_of(work, QWEN_7B, hardware, gpus, 512, Reached(prefill=0.25, decode=0.25, training=0.2))
    twice = Work(2 * work.generated, 2 * work.read, 0, 2 * work.trained, work.context)
    assert slower == pytest.approx(2 * took)
    assert seconds_of(twice, QWEN_7B, hardware, gpus, 512, Reached()) == pytest.approx(2 * took)
    assert seconds_of(work, QWEN_7B, hardware, 2 * gpus, 512, Reached()) <= took * 1.0001


def test_a_key_that_stands_twice_in_the_default_configuration_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mrt").symlink_to(ROOT / "mrt")  # the shipped toy base
    (tmp_path / "config.yaml").write_text((ROOT / "tests" / "tiny.yaml").read_text() + "seed: 1\nseed: 2\n")
    (tmp_path / "more.yaml").write_text("evaluation: {samples: 4}\n")
    for files in ([], [Path("more.yaml")]):
        with pytest.raises(ValueError, match=r"seed: stands twice in config\.yaml"):
            _ = Plan(configfile=files).config


def test_decoding_one_sequence_reads_the_weights_at_every_token():
    one = Work(generated=1000, context=1)
    took = seconds_of(one, QWEN_7B, GPUS["h100"], 1, 1, Reached.ideal())
    assert took == pytest.approx(1000 * 2 * QWEN_7B.parameters / GPUS["h100"].bandwidth, rel=1e-3)


def test_the_answers_of_the_meta_prover_by_hand():
    bill = Bill(PAPER)
    found = bill.work("force_answers", "base_7b", "numina_10k")  # 20 answers at 21 prefixes of a trace of 8,000 tokens
    assert found.generated == 10_000 * 21 * 20 * 400
    assert found.read == pytest.approx(10_000 * (150 + 8000 + 21 * 40))
    assert found.read_unshared == pytest.approx(10_000 * 21 * (150 + 4000 + 40))


def test_training_reads_each_kept_token_as_often_as_there_are_epochs():
    found = Bill(PAPER).work("train", "star_1.5b_1", "numina_10k")
    assert found == Work(0, 0, 0, 10_000 * 0.5 * 3 * (150 + 9000), 9150)


def test_sets_of_earlier_iterations_are_trained_on_too():
    one, two = (Bill(PAPER).work("train", f"mrt_1.5b_{i}", "numina_10k").trained for i in (1, 2))
    assert PAPER.models["mrt_1.5b_2"].accumulate and two == 2 * one > 0


def test_children_of_a_beam_are_sampled_from_too():
    raw = yaml.safe_load((ROOT / "config" / "backtracking.yaml").read_text())

    def work(**tree):
        return Bill(load(laid_over(raw, {"training": {"tree": tree}}))).work("search_tree", "base", "toy_train")

    beams, all_ = work(breadth=2, depth=3, rollouts=4), work(breadth=2, depth=3, rollouts=4, child_rollouts=5)
    assert all_.generated == 6 * beams.generated  # each of the 4 rollouts has a child with 5 rollouts
    assert all_.read == 5 * beams.read


def test_a_file_without_models_lies_over_the_default_one_as_in_the_snakefile(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    (tmp_path / "more.yaml").write_text("evaluation: {samples: 40}\n")
    config = Plan(configfile=[tmp_path / "more.yaml"]).config
    assert config.evaluation.samples == 40 and "mrt_2" in config.models


def test_rl_asks_mu_once_at_the_prefix_of_a_prompt():
    """Whatever the number of completions; with credit by episode at every boundary of each."""

    def drawn(variant):
        raw = yaml.safe_load((ROOT / "config" / "paper.yaml").read_text())
        name = next(name for name, own in raw["models"].items() if own.get("method") == "mrt_rl")
        raw["models"][name]["rl"] = (raw["models"][name].get("rl") or {}) | {"variant": variant}
        config = load(raw)
        plain = Bill(config).work("train_rl", name, config.models[name].problems)
        return plain.generated

    without = drawn("implicit")
    assert drawn("termination") == drawn("explicit") > without
    assert drawn("per_episode") - without > 4 * (drawn("explicit") - without)


def test_imported_rollouts_without_token_counts_are_guessed(tmp_path):
    raw = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text()) | {"results": str(tmp_path)}
    (tmp_path / "rollouts" / "base").mkdir(parents=True)
    rows = pl.DataFrame({"tokens": [None, None]}, schema={"tokens": pl.Int64})
    rows.write_parquet(tmp_path / "rollouts" / "base" / "toy_test.parquet")
    assert Bill(load(raw), look=True).lengths.rollout("base", "toy_test") == 200  # half of max_tokens


def test_the_longest_path_goes_through_the_lineage():
    def job(rule, model, problems, seconds):
        return Planned(rule, model, (problems,), 1, Work(), 1, seconds, seconds, 0)

    plans = [
        job("sample_rollouts", "base_7b", "numina_10k", 5),
        job("force_answers", "base_7b", "numina_10k", 100),
        job("train", "star_7b_1", "numina_10k", 1000),
        job("train", "mrt_7b_1", "numina_10k", 10),
        job("sample_rollouts", "mrt_7b_1", "numina_10k", 3),
        job("train", "mrt_7b_2", "numina_10k", 900),
    ]
    seconds, chain = longest_path(PAPER, plans)
    assert seconds == 5 + 100 + 10 + 3 + 900
    assert chain[0] == "sample rollouts base_7b" and chain[-1] == "train (SFT) mrt_7b_2"
    searched = [job("search_tree", "base_8b", "numina", 1000), job("train", "warmstart_3b", "numina", 10)]
    backtracking = load(yaml.safe_load((ROOT / "config" / "backtracking_paper.yaml").read_text()))
    assert longest_path(backtracking, searched) == (1010, ["search trees base_8b", "train (SFT) warmstart_3b"])


def test_a_job_of_a_model_of_unknown_size_has_a_day(tmp_path):
    for file in TOY_BASE.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text("{}")
    raw = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    raw["models"]["base"] = {"label": "Base", "path": str(tmp_path)}
    assert Bill(load(raw)).runtime("sample_rollouts", "base", "toy_test") == 24 * 60
    with pytest.raises(
        ValueError, match=r"models\.base, star_1, .*: .* does not say num_attention_heads, .*models\.NAME\.architecture"
    ):
        load(raw | {"cluster": {"gpu": "h100"}})


def test_targets_that_make_nothing_are_no_jobs():
    """As Snakemake prints them: `all` and a figure by its number have inputs alone."""
    target = "rule {}:\n    input: results/tiny/figures/regret.png\n    jobid: 0\n    reason: Input files updated\n\n"
    regret = (
        "rule regret:\n    input: a.parquet\n    output: b.pdf, b.png\n    jobid: 1\n    reason: Forced execution\n"
    )
    (job,) = planned_jobs(target.format("fig9") + regret + target.format("all"))
    assert (job.name, job.outputs) == ("regret", ["b.pdf", "b.png"])


@given(st.floats(0, 1e15))
def test_numbers_are_shortened_to_three_figures(number):
    written = short(number)
    value = float(written.rstrip("kMGT")) * {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.get(written[-1], 1)
    assert value == pytest.approx(number, rel=0.006, abs=1e-9)


def test_config_files_are_named_as_snakemake_takes_them():
    given = ["pass1", "--configfile", "a.yaml", "b.yaml", "--gpu", "l4", "--remaining"]
    assert config_files_named(given) == [
        "pass1", "--configfile", "a.yaml", "--configfile", "b.yaml", "--gpu", "l4", "--remaining",
    ]  # fmt: skip
    assert config_files_named(["--gpu=l4", "x"]) == ["--gpu=l4", "x"]


def test_configurations_are_merged_as_snakemake_does():
    assert laid_over({"a": {"b": 1, "c": [1]}, "d": 2}, {"a": {"c": [3]}}) == {"a": {"b": 1, "c": [3]}, "d": 2}


def rows(printed):
    """{stage: [cells]} of a printed plan."""
    table = printed.split("\n\n")[1].splitlines()
    return {cells[0]: cells[1:] for cells in (re.split(r" {2,}", line.strip()) for line in table[1:])}


def test_the_whole_paper_is_planned_and_added_up():
    printed = python("-m", "mrt", "plan", "--configfile", "config/paper.yaml")
    table = rows(printed)
    jobs = {stage: int(cells[0]) for stage, cells in table.items()}
    assert jobs["in all"] == sum(n for stage, n in jobs.items() if stage != "in all")
    assert jobs["train (SFT)"] == 8 and jobs["train (RL)"] == 5
    hours = {stage: float(cells[5]) for stage, cells in table.items()}
    total = sum(h for stage, h in hours.items() if stage != "in all")
    assert hours["in all"] == pytest.approx(total, abs=0.5 + 0.05 * len(hours))  # each is rounded
    assert hours["meta-prover"] > 10 and "longest path" in printed and "guessed" not in printed
    assert re.match(r"\d+ jobs, of which \d+ sample or train, on h100", printed)
    taken = re.findall(r"^weights.*: ([\d.]+) GiB on each of (\d+), (sampling|training) (.*)$", printed, re.MULTILINE)
    assert {name for *_, names in taken for name in names.split(", ")} == set(PAPER.models)
    assert all(0 < float(gib) < GPUS["h100"].memory for gib, *_ in taken) and len(taken) == 6


def test_both_recipes_of_the_authors_second_release_are_planned():
    printed = python("-m", "mrt", "plan", "--configfile", "config/paper.yaml", "config/authors_v01.yaml")
    assert rows(printed)["train (RL)"][0] == "3" and "guessed" not in printed


@pytest.mark.slow
def test_the_page_of_ready_experiments_says_what_the_plan_says():
    """GPU-hours by card, of which a card on which the experiment does not fit has none."""
    lines = (ROOT / "docs" / "experiments.md").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| GPU |"))
    header, *table = (
        [cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines[start:] if "|" in line
    )
    by_card = {card: hours for card, *hours in table if card in GPUS}
    assert len(by_card) == 6
    for place, files in enumerate(header[1:]):
        files = [Path("config", name) for name in files.split()]
        merged = {}
        for file in files:
            merged = laid_over(merged, yaml.safe_load((ROOT / file).read_text()))
        jobs = None
        for card, hours in by_card.items():
            own = laid_over(merged, {"cluster": {"gpu": card}})
            if not hours[place]:
                with pytest.raises(ValueError, match=f"on {card}: training it"):
                    load(own)
                continue
            jobs = jobs or counted(described(dry_run(files, [], "--forceall")))
            total = sum(each.gpu_seconds for each in planned(Bill(load(own)), jobs)) / 3600
            assert f"{total:.1f}" == hours[place], (files, card)


@pytest.mark.thorough
def test_a_finished_run_is_set_against_its_plan(finished):
    printed = python("-m", "mrt", "plan", folder=finished)
    cells = rows(printed)["in all"]
    actual, planned = map(float, re.search(r"([\d.]+) of ([\d.]+)", "  ".join(cells)).groups())
    assert actual > 0 and planned > 0
    remaining = python("-m", "mrt", "plan", "--remaining", folder=finished)
    assert remaining.startswith("0 jobs")


def test_the_rows_of_a_file_are_counted(tmp_path):
    (tmp_path / "p.jsonl").write_text("".join(f'{{"problem": "{i}?", "answer": "{i}"}}\n' for i in range(7)))
    raw = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    raw["problems"]["toy_test"] = {"file": str(tmp_path / "p.jsonl")}
    assert Bill(load(raw)).lengths.problems("toy_test") == 7
    raw["problems"]["toy_test"]["count"] = 3
    assert Bill(load(raw)).lengths.problems("toy_test") == 3


def test_one_engine_start_is_planned_for_all_evaluation_sets(tmp_path):
    """36 jobs, one for each dataset and training, become 16; trainings of SFT start no engine."""
    printed = python("-m", "mrt", "plan", "--configfile", "config/one_gpu.yaml")
    assert "14 engine starts" in printed and "of which 16 sample or train" in printed


def test_a_job_of_several_datasets_has_the_time_of_all():
    bill, sets = Bill(PAPER), ("aime2024", "math500")
    both, *each = (bill.plan("sample_rollouts", "base_7b", of, 1) for of in (sets, *sets))
    assert both.seconds + bill.start == pytest.approx(sum(plan.seconds for plan in each))
    assert both.work.generated == sum(plan.work.generated for plan in each)
    assert bill.runtime("sample_rollouts", "base_7b", sets) > bill.runtime("sample_rollouts", "base_7b", sets[0])


def test_what_nobody_said_is_guessed_and_told():
    config = PAPER.model_copy(update={"expected": PAPER.expected.model_copy(update={"problems": {}, "tokens": {}})})
    bill = Bill(config)
    bill.work("sample_rollouts", "mrt_7b_1", "aime2024")
    assert bill.lengths.guessed == {"expected.problems.aime2024: 100", "expected.tokens.base_7b: 8192"}


def test_calibration_changes_the_plan(tmp_path):
    from mrt.core.storage import write_table

    write_table(pl.DataFrame([{"prefill": 0.25, "decode": 0.25, "training": 0.2}]), tmp_path / "c.parquet")
    plain = asdict(Bill(PAPER).plan("force_answers", "base_7b", "numina_10k", 1))
    slow = Bill(PAPER, Reached(**pl.read_parquet(tmp_path / "c.parquet").row(0, named=True)))
    assert slow.plan("force_answers", "base_7b", "numina_10k", 1).gpu_seconds > 1.9 * plain["gpu_seconds"]


@pytest.mark.parametrize("tool", [Plan, Why])
def test_a_configuration_file_that_is_missing_or_broken_is_named(tool, tmp_path):
    stage = tool(configfile=[tmp_path / "mine.yaml"])
    with pytest.raises(ValueError, match=r"there is no configuration file .*mine\.yaml"):
        stage.cli_cmd()
    (tmp_path / "mine.yaml").write_text("a: 1\nmodels: [b\n")
    with pytest.raises(ValueError, match=r"mine\.yaml, line 3: not YAML"):
        stage.cli_cmd()
