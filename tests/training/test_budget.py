"""A training that a budget of FLOPs ends: when, at which rates, resumed or not, and the cost of the lineage."""

import os
import signal
import subprocess
import time
from contextlib import suppress

import polars as pl
import polars.selectors as cs
import pytest
from conftest import ROOT, TOY_BASE
from hypothesis import given
from hypothesis import strategies as st
from test_rl import GROUP, PROMPTS, command, complete_checkpoints, two_token_trainer
from test_sft import examples, of_lengths, small_model, torchrun, write_set

from mrt.core.artifacts import COST, ROLLOUTS
from mrt.core.digest import canonical
from mrt.core.settings import overlaid
from mrt.training.budget import Budget, budget_of
from mrt.training.cost import Cost, of_rollouts, sizes_of
from mrt.training.log import log_of
from mrt.training.rl import RL
from mrt.training.schedule import rate, warm
from mrt.training.sft import SFT, Train, arguments, make_trainer
from mrt.training.stage import last_complete_checkpoint

KINDS = ("linear", "cosine", "constant_with_warmup")
QUICK = {
    "learning_rate": 1e-2, "batch_size": 4, "micro_batch_size": 2, "max_length": 64, "bf16": False,
    "gradient_checkpointing": False, "save_steps": 3,
}  # fmt: skip


def spent_by(budget, costs):
    """FLOPs by the end of each step of a training whose steps cost these."""
    totals = [0.0]
    for done, cost in enumerate(costs, start=1):
        totals.append(totals[-1] + cost)
        if budget.is_over(done, totals[-1]):
            return totals[1:]
    raise AssertionError("more steps than costs")


@given(st.lists(st.floats(1, 3), min_size=1, max_size=200), st.floats(0, 1e3), st.integers(1, 4))
def test_a_training_ends_within_half_a_batch_of_its_budget(costs, before, iterations):
    """In the mean of its batches on one side; on the other as far as its last batch costs more."""
    budget = Budget(before + sum(costs) + 1e-3, before, iterations)
    spent = spent_by(budget, [*costs, *[2.0] * 500])
    done = len(spent)
    assert done % iterations == 0
    mean, last = spent[-1] / done * iterations, spent[-1] - ([0.0] * iterations + spent)[done - 1]
    half = mean / 2
    assert budget.left - half <= spent[-1] + 1e-6
    if done > iterations:
        earlier = spent[-1 - iterations]
        assert spent[-1] < budget.left + last - earlier / (done - iterations) * iterations / 2 + 1e-6


@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=100), st.floats(0.1, 100), st.floats(0, 1, exclude_max=True),
    st.sampled_from(KINDS),
)  # fmt: skip
def test_every_step_of_a_budget_learns(costs, left, ratio, kind):
    budget = Budget(left, 0.0)
    spent = spent_by(budget, [*costs, *[0.1] * 2000])
    rates = [budget.rate(step, total, ratio, kind) for step, total in enumerate(spent, start=1)]
    assert min(rates) > 0 and max(rates) <= 1


@given(st.integers(1, 300), st.integers(0, 99), st.sampled_from(KINDS), st.floats(1, 1e15))
def test_steps_that_cost_the_same_have_the_rates_of_so_many_steps(steps, percent, kind, cost):
    ratio, budget = percent / 100, Budget(steps * cost, 0.0)
    assert len(spent_by(budget, [cost] * (steps + 1))) == steps
    rates = [budget.rate(step, cost * step, ratio, kind) for step in range(1, steps + 1)]
    usual = [rate(step, steps, warm(steps, ratio), kind) for step in range(1, steps + 1)]
    assert rates == pytest.approx(usual, rel=1e-6, abs=1e-9)


def test_a_budget_that_is_off_is_in_no_key():
    for recipe in (SFT(), RL(), SFT(epochs=2)):
        assert "flops" not in canonical(recipe) and canonical(recipe)["epochs"] == recipe.epochs
    with_budget = canonical(RL(flops=1e15))
    assert (with_budget["flops"], with_budget["epochs"]) == (1e15, None)
    assert RL.model_validate(with_budget) == RL(flops=1e15)


def test_passes_and_a_budget_are_two_ends_of_which_the_nearer_counts():
    for recipe in (SFT, RL):
        with pytest.raises(ValueError, match="flops and epochs both end the training; leave one out"):
            recipe(flops=1e15, epochs=2)
        with pytest.raises(ValueError, match="epochs: null leaves nothing that ends the training; set flops"):
            recipe(epochs=None)
        passes, budget = recipe(epochs=2, batch_size=8), recipe(flops=1e15, epochs=None)
        for below, above, ends in (
            (passes, budget, (None, 1e15)),
            (budget, passes, (2, None)),
            (passes, recipe(batch_size=4), (2, None)),
            (budget, recipe(batch_size=4), (None, 1e15)),
        ):
            made = overlaid(below, above)
            assert (made.epochs, made.flops) == ends


def table(folder, *flops):
    """A table of the cost before a training."""
    rows = [("parent", phase, 0, 0, 0, value) for phase, value in zip(("rollouts", "prover"), flops, strict=False)]
    COST.write(pl.DataFrame(rows, schema=COST.columns, orient="row"), folder / "before.parquet")
    return folder / "before.parquet"


def test_a_budget_that_the_data_have_spent_is_refused_with_what_took_it(tmp_path):
    assert budget_of(SFT(), None) is None
    with pytest.raises(ValueError, match="flops: it counts data and ancestors too; give --spent"):
        budget_of(SFT(flops=1e9), None)
    with pytest.raises(ValueError, match="with flops nobody knows beforehand which steps a training has"):
        budget_of(SFT(flops=1e9, evaluate_steps=[3]), table(tmp_path))
    said = (
        r"1\.1e\+09 FLOPs are spent before the training, of 1e\+09 \(parent's rollouts 7e\+08; parent's prover 4e\+08\)"
    )
    with pytest.raises(ValueError, match=said):
        budget_of(SFT(flops=1e9), table(tmp_path, 7e8, 4e8))
    assert budget_of(RL(flops=2e9, num_iterations=2), table(tmp_path, 7e8, 4e8)) == Budget(2e9, 1.1e9, 2)
    assert budget_of(SFT(flops=2e9), table(tmp_path)).before == 0


def test_what_was_spent_before_is_part_of_the_key(tmp_path):
    files = {"set": tmp_path / "s", "out": tmp_path / "o", "history": tmp_path / "h", "state": tmp_path / "t"}

    def key(recipe, spent=None):
        return Train(model=str(TOY_BASE), recipe=recipe, spent=spent, **files).key("data")

    usual = key(SFT())
    keys = [key(SFT(flops=1e9), table(tmp_path, before)) for before in (1e8, 2e8, 1e8)]
    assert keys[0] == keys[2] != keys[1] and usual == key(SFT(), table(tmp_path, 1e8))


def test_what_is_taken_before_is_what_is_added_up_behind(tmp_path):
    rollouts = pl.DataFrame(
        [("p", s, "q", "t", 100, 30, "stop", -1.0, True, None) for s in range(2)], schema=ROLLOUTS.columns, orient="row"
    )
    rollouts.write_parquet(tmp_path / "rollouts.parquet")
    sizes = sizes_of(str(TOY_BASE))
    log = {"step": [1], "num_tokens": [5], "flops": [1.0]} | {name: [n] for name, n in sizes._asdict().items()}
    pl.DataFrame(log).write_parquet(tmp_path / "log.parquet")
    options = {"model": "m", "rollouts": tmp_path / "rollouts.parquet", "parent": table(tmp_path, 7e8)}
    Cost(weights=(str(TOY_BASE), None), out=tmp_path / "first.parquet", **options).cli_cmd()
    Cost(log=tmp_path / "log.parquet", out=tmp_path / "whole.parquet", **options).cli_cmd()
    first, whole = COST.read(tmp_path / "first.parquet"), COST.read(tmp_path / "whole.parquet")
    assert first["flops"].to_list() == [7e8, of_rollouts(rollouts).flops(sizes)]
    assert whole.head(2).equals(first) and whole.height == 3
    with pytest.raises(ValueError, match="give --log, or before the training --weights"):
        Cost(out=tmp_path / "none.parquet", **options).cli_cmd()


# ---- trainers ----


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TOY_BASE)


@pytest.fixture
def trained(tokenizer, tmp_path):
    """The trainer of a small model on rows of these lengths, once it was trained; perhaps interrupted on the way."""

    def train(lengths, budget=None, interrupted=None, **recipe):
        import torch
        from transformers import TrainerCallback

        class Interrupting(TrainerCallback):
            def on_step_end(self, _, state, control, **others):
                if state.global_step == interrupted:
                    raise InterruptedError

        state = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        state.mkdir()
        settings = SFT(**QUICK | ({"flops": budget.whole} if budget else {}) | recipe)
        for _ in range(1 + (interrupted is not None)):
            torch.manual_seed(0)
            args = arguments(settings, state)
            trainer = make_trainer(small_model(), tokenizer, of_lengths(lengths), settings, args, budget)
            if interrupted and not list(state.iterdir()):
                trainer.add_callback(Interrupting())
            with suppress(InterruptedError):
                trainer.train(resume_from_checkpoint=last_complete_checkpoint(state))
        return trainer

    return train


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("schedule", KINDS)
def test_fine_tuning_on_steps_that_cost_the_same_is_that_of_so_many_steps(schedule, trained):
    usual = trained([20] * 20, epochs=2.4, warmup_ratio=0.2, schedule=schedule)
    budget = Budget(1e6 + logged(usual, "flops")[-1], 1e6)
    ended = trained([20] * 20, budget, warmup_ratio=0.2, schedule=schedule)
    assert ended.state.global_step == usual.state.global_step == 12
    for name in ("learning_rate", "loss", "epoch"):
        assert logged(ended, name) == pytest.approx(logged(usual, name), rel=1e-4)
    assert logged(ended, "flops") == logged(usual, "flops")


def test_fine_tuning_that_is_interrupted_ends_at_the_same_step_with_the_same_weights(trained):
    """In the middle, and after its last step, which has a checkpoint."""
    lengths = list(range(4, 44))
    budget = Budget(*(lambda left: (1e6 + left, 1e6))(logged(trained(lengths, epochs=1.3), "flops")[-1] * 0.97))
    whole = trained(lengths, budget, save_steps=1)
    steps = whole.state.global_step
    assert abs(logged(whole, "flops")[-1] / budget.left - 1) < 0.6 / steps and steps > 10
    assert len(set(logged(whole, "learning_rate"))) == steps and min(logged(whole, "learning_rate")) > 0
    for interrupted in (5, steps):
        again = trained(lengths, budget, interrupted, save_steps=1)
        for name in ("step", "learning_rate", "loss", "flops"):
            assert logged(again, name) == logged(whole, name)
        theirs = whole.model.state_dict()
        assert all(weight.equal(theirs[name]) for name, weight in again.model.state_dict().items())


def test_a_budget_for_less_than_half_a_step_is_refused_and_for_few_steps_told_of(trained, capsys):
    each = logged(trained([20] * 8), "flops")[0]
    with pytest.raises(ValueError, match=r"flops: the first step takes .* FLOPs, and the data left .* raise flops"):
        trained([20] * 8, Budget(1e9 + each / 3, 1e9))
    ended = trained([20] * 8, Budget(1e9 + 4.2 * each, 1e9))
    assert ended.state.global_step == 4
    assert "warning: 4 steps on what this budget of FLOPs leaves: fewer than 10" in capsys.readouterr().out


def test_rl_ends_behind_the_last_update_with_a_batch(tmp_path, monkeypatch):
    recipe = RL(flops=1e9, num_iterations=3, batch_size=GROUP * PROMPTS, num_generations=GROUP)
    trainer, rows, _ = two_token_trainer(tmp_path, recipe, 0.4, 0.5, monkeypatch, "grpo")
    trainer.args.max_steps, trainer.args.logging_steps = recipe.steps(len(rows)), 1
    trainer.budget = Budget(1e9, 1e9 - 1e7, 3)
    trainer.train()
    spent, steps = logged(trainer, "flops"), trainer.state.global_step
    assert steps % 3 == 0 and steps > 6
    assert abs(spent[-1] - 1e7) <= 0.51 * spent[-1] / steps * 3
    assert min(logged(trainer, "learning_rate")) > 0


@pytest.mark.slow
def test_rl_that_is_killed_ends_at_the_same_step_with_the_same_weights(prompts, tmp_path):
    """Several updates a batch, replaced groups, prefixes and forced answers; the cost is that of the budget."""
    spent = table(tmp_path, 2e9)
    again = {"num_iterations": 2, "dynamic_sampling": 2, "variant": "explicit", "flops": 9e10}
    folders = [tmp_path / "killed", tmp_path / "whole"]

    def of(folder):
        return [*command(prompts, folder, "mrt_rl", **again), "--spent", str(spent)]

    process = subprocess.Popen(of(folders[0]), cwd=ROOT, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 300
    while not complete_checkpoints(folders[0]):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for folder in folders:
        done = subprocess.run(of(folder), cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
    logs = [log_of(folder / "history.parquet") for folder in folders]
    assert logs[0].drop(cs.starts_with("seconds")).equals(logs[1].drop(cs.starts_with("seconds")))
    weights = [folder / "model" / "model.safetensors" for folder in folders]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    steps, taken = logs[0].height, logs[0]["flops"][-1]
    assert steps % 2 == 0 and steps > 4 and abs(2e9 + taken - 9e10) < 0.75 * taken / steps * 2


@pytest.mark.thorough
def test_two_processes_share_a_budget(tmp_path):
    """ZeRO-3 takes a step within the backward pass: its rate is set before. Losses differ by rounding alone."""
    recipe = SFT(**QUICK | {"learning_rate": 1e-3, "max_length": 256, "save_steps": 99, "flops": 1e10})
    files = {"model": TOY_BASE, "set": write_set(tmp_path / "set.parquet", examples(24)), "spent": table(tmp_path, 5e8)}
    logs = []
    for processes, sharded in ((1, []), (2, ["--deepspeed", ROOT / "mrt" / "training" / "zero3.json"])):
        (folder := tmp_path / str(processes)).mkdir()
        paths = files | {name: folder / name for name in ("out", "history", "state")}
        options = [word for name, path in paths.items() for word in (f"--{name}", path)]
        script = "from mrt.core.cli import run\nfrom mrt.training import sft\nrun(sft.Train)\n"
        torchrun(folder, script, *options, "--recipe", recipe.model_dump_json(), *sharded, processes=processes)
        logs.append(log_of(folder / "history"))
    for name in ("step", "flops", "learning_rate"):
        assert logs[0][name].to_list() == logs[1][name].to_list()
    assert logs[0]["loss"].to_list() == pytest.approx(logs[1]["loss"].to_list(), rel=1e-3)
    assert logs[0].height > 8 and abs(5e8 + logs[0]["flops"][-1] - 1e10) < 0.55 * logs[0]["flops"][0]
