"""TRL's SFTTrainer on a tiny model: tokens of the loss, weights, the checkpoint, the log, resuming."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import polars as pl
import pytest
from conftest import ROOT, TOY_BASE, check_that_epochs_resume, without_pad_token
from hypothesis import given
from hypothesis import strategies as st

from mrt.core.digest import digest_of_files
from mrt.core.hub import tokenizer_of
from mrt.training.log import MakeLog, log_of, remarks
from mrt.training.one_card import LoRA
from mrt.training.sft import SFT, Train, arguments, bucketed_order, make_trainer, tokenize
from mrt.training.stage import KeptCheckpoints, last_complete_checkpoint, matches_digest

RECIPE = SFT(**{
    "learning_rate": 1e-3, "epochs": 1, "batch_size": 4, "micro_batch_size": 2, "max_length": 256, "bf16": False,
    "gradient_checkpointing": False, "save_steps": 2,
})  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TOY_BASE)


def examples(n, weight=1.0):
    question = "Some of the numbers 3, 4, 9 add up to 7. What is the sum of the smallest and the largest of them?"
    prompt = f"<|user|>{question}<|assistant|><think>\n"
    return [
        {"prompt": prompt, "completion": f"Try {i % 9} + 4 = {i % 9 + 4}.\n</think>\n\n\\boxed{{7}}", "weight": weight}
        for i in range(n)
    ]


def small_model():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return Qwen2ForCausalLM(Qwen2Config(**sizes, num_key_value_heads=2, vocab_size=610))


def of_lengths(lengths):
    """Rows of n tokens."""
    return [{"input_ids": [5] * n, "labels": [5] * n, "loss_weight": 1.0} for n in lengths]


@pytest.fixture
def trainer_of(tokenizer, tmp_path):
    """The trainer of rows by a recipe, on the toy base or another model."""

    def made(rows, recipe=RECIPE, model=None):
        from transformers import AutoModelForCausalLM

        model = model or AutoModelForCausalLM.from_pretrained(TOY_BASE, dtype="float32")
        return make_trainer(model, tokenizer, rows, recipe, arguments(recipe, tmp_path / "state"))

    return made


def write_set(path, rows):
    pl.DataFrame(rows).write_parquet(path)
    return path


def test_the_prompt_carries_no_loss_and_the_completion_ends(tokenizer):
    (row,), dropped = tokenize(tokenizer, examples(1), 256)
    trained = [token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label != -100]
    assert tokenizer.decode(trained) == examples(1)[0]["completion"] + "<eos>"
    assert tokenizer.decode(row["input_ids"][: -len(trained)]) == examples(1)[0]["prompt"]
    assert dropped == 0 and row["input_ids"].dtype == row["labels"].dtype == "int32"


def test_examples_that_are_too_long_are_dropped_and_counted(tokenizer):
    assert tokenize(tokenizer, examples(3), 20) == ([], 3)


def paths_in(folder):
    return {"out": folder / "m", "history": folder / "m.parquet", "state": folder / "state"}


def run(tmp_path, name, rows, recipe=RECIPE, model=TOY_BASE):
    stage = Train(
        model=str(model),
        set=write_set(tmp_path / f"{name}.set.parquet", rows),
        out=tmp_path / name,
        history=tmp_path / f"{name}.history.parquet",
        state=tmp_path / f"{name}.state",
        recipe=recipe,
    )
    stage.cli_cmd()
    return stage


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_training_lowers_the_loss_and_leaves_a_whole_checkpoint(tmp_path):
    stage = run(tmp_path, "a", examples(40))
    log = log_of(stage.history)
    assert log["step"].to_list() == list(range(1, 11))
    assert log["loss"][-1] < log["loss"][0] / 2
    names = {path.name for path in stage.out.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pkl"))]
    assert not stage.state.exists()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(stage.out)
    assert (
        AutoTokenizer.from_pretrained(stage.out).chat_template == AutoTokenizer.from_pretrained(TOY_BASE).chat_template
    )


def test_weights_scale_the_loss(tmp_path):
    """With all weights 1/2 the objective halves, and the nats a token stay; without `weighted` nothing changes."""
    first, nats = {}, {}
    for name, weight, weighted in (("one", 1.0, True), ("half", 0.5, True), ("ignored", 0.5, False)):
        recipe = RECIPE.model_copy(update={"weighted": weighted})
        stage = run(tmp_path, name, examples(4, weight), recipe)
        log = log_of(stage.history)
        nats[name], first[name] = log["loss"][0], log["weighted_loss"][0]
    assert first["half"] == pytest.approx(first["one"] / 2, rel=1e-3) and first["ignored"] is None
    assert nats["half"] == pytest.approx(nats["one"]) == pytest.approx(nats["ignored"]) == pytest.approx(first["one"])


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant_with_warmup"])
def test_the_first_step_learns_and_so_does_the_last(schedule, tmp_path, capsys):
    """Warm-up takes all of a training of one step; transformers' own schedules begin at a rate of 0."""
    recipe = RECIPE.model_copy(update={"schedule": schedule})
    stage = run(tmp_path, "one", examples(4), recipe)
    told = "4 examples, 4 a step, epochs: 1: 1 steps, the first 1 warm up"
    assert told in capsys.readouterr().out
    assert log_of(stage.history)["learning_rate"].to_list() == [RECIPE.learning_rate]
    before = weights(TOY_BASE)
    assert any(not before[name].float().equal(after.float()) for name, after in weights(stage.out).items())
    rates = log_of(run(tmp_path, "more", examples(12), recipe).history)["learning_rate"]
    assert rates[0] == RECIPE.learning_rate and rates.min() > 0 and rates.len() == 3


def test_all_examples_are_trained_on_and_a_smaller_last_step_is_told_of(tmp_path, capsys):
    stage = run(tmp_path, "a", examples(5), RECIPE.model_copy(update={"epochs": 2}))
    assert "2: 4 steps, the first 1 warm up; the last step of an epoch takes 1" in capsys.readouterr().out
    whole = sum(map(len, (row["input_ids"] for row in tokenize(tokenizer_of(TOY_BASE), examples(5), 256)[0])))
    assert log_of(stage.history)["num_tokens"][-1] == 2 * whole
    run(tmp_path, "b", examples(9), RECIPE.model_copy(update={"epochs": 0.5}))
    assert "2 steps, the first 1 warm up; 8 of the examples are trained on, 1 are left out" in capsys.readouterr().out


def test_a_training_without_a_gradient_says_so_and_one_that_is_not_a_number_stops(tmp_path, capsys):
    recipe = RECIPE.model_copy(update={"weighted": True})
    run(tmp_path, "zero", examples(4, 0.0), recipe)
    assert "no step had a gradient: what is left is the parent" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"step 1: the norm of the gradient is nan; lower learning_rate"):
        run(tmp_path, "nan", examples(4, float("nan")), recipe)
    assert not (tmp_path / "nan").exists()


def test_a_training_that_cannot_teach_says_so_in_its_log_and_beside_its_steps(tmp_path, capsys):
    few = RECIPE.model_copy(update={"batch_size": 256, "epochs": 2, "learning_rate": 1e-12})
    stage = run(tmp_path, "few", examples(3), few)
    said = capsys.readouterr().out
    assert "3 examples, all in each step (batch_size is 256), epochs: 2: 2 steps" in said
    assert "\nwarning: 2 steps on 3 examples: fewer than 10 hardly teach anything" in said
    MakeLog(history=stage.history, out=tmp_path / "log.parquet").cli_cmd()
    log = pl.read_parquet(tmp_path / "log.parquet")
    assert log["examples"].to_list() == [3, 3] and log["remark"][0] is None
    assert log["remark"][1].startswith("2 steps on 3 examples: ")
    level = run(tmp_path, "level", examples(24) * 2, RECIPE.model_copy(update={"epochs": 2, "learning_rate": 1e-12}))
    assert ("\nwarning: the loss did not fall" in capsys.readouterr().out) == bool(remarks(log_of(level.history)))
    taught = run(tmp_path, "taught", examples(24), RECIPE.model_copy(update={"epochs": 2}))
    assert "warning" not in capsys.readouterr().out and remarks(log_of(taught.history)) == []


def test_a_batch_larger_than_the_set_is_refused_where_a_setting_says_so(tmp_path):
    refusing = RECIPE.model_copy(update={"batch_size": 8, "small_set": "refuse"})
    with pytest.raises(ValueError, match=r"a step takes 8 examples, and there are 5; lower recipe\.batch_size"):
        run(tmp_path, "small", examples(5), refusing)
    assert not (tmp_path / "small").exists()


def checkpoint_of(tmp_path, name, **recipe):
    """The folder of the checkpoint of a training of eight examples."""
    paths = {"history": tmp_path / name, "out": tmp_path / f"{name}_model", "state": tmp_path / name}
    train = Train(model=str(TOY_BASE), set=tmp_path / "set", recipe=RECIPE.model_copy(update=recipe), **paths)
    (tmp_path / name).mkdir()
    train.train(examples(8), tmp_path / name, tmp_path / name / "made")
    return tmp_path / name / "made" / "checkpoint"


@pytest.mark.parametrize("lora", [None, LoRA(rank=4)], ids=["whole", "adapters"])
def test_weights_on_the_way_are_those_of_a_training_at_that_step(lora, tmp_path):
    """And the last are those of a training that keeps none."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    way = {"epochs": 2, "schedule": "constant_with_warmup", "lora": lora}
    plain, shorter = (
        checkpoint_of(tmp_path, "plain", **way),
        checkpoint_of(tmp_path, "shorter", **(way | {"epochs": 1.5})),
    )
    folder = checkpoint_of(tmp_path, "with", **way, evaluate_steps=[2, 3])
    last, whole, third, on_the_way = (
        load_file(place / "model.safetensors") for place in (folder, plain, shorter, folder / "checkpoint-3")
    )
    assert all((whole[name] == weight).all() for name, weight in last.items())
    assert all((on_the_way[name] == weight).all() for name, weight in third.items())
    assert any((on_the_way[name] != weight).any() for name, weight in last.items())
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]
    of_model = {file.name for file in folder.iterdir() if file.is_file()}
    assert {file.name for file in (folder / "checkpoint-2").iterdir()} == of_model
    AutoModelForCausalLM.from_pretrained(folder / "checkpoint-2")
    assert AutoTokenizer.from_pretrained(folder / "checkpoint-2").chat_template
    assert matches_digest(folder.parent)


def test_a_step_on_the_way_that_is_never_reached_stops_before_the_first(tmp_path):
    with pytest.raises(ValueError, match="evaluate_steps: 2, but the training has 2 steps, whose last gives the model"):
        checkpoint_of(tmp_path, "with", evaluate_steps=[2])


def test_sets_of_earlier_iterations_are_trained_on_too(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Train, "make", lambda self, rows, *decisive: seen.append(rows))
    first, second = examples(2), examples(5)[2:]
    files = {"set": write_set(tmp_path / "second.parquet", second), **paths_in(tmp_path)}
    Train(model=str(TOY_BASE), earlier=[write_set(tmp_path / "first.parquet", first)], **files).cli_cmd()
    assert seen == [first + second]


def test_an_empty_set_is_refused(tmp_path):
    empty = pl.DataFrame(schema={"prompt": pl.String, "completion": pl.String, "weight": pl.Float64})
    empty.write_parquet(tmp_path / "empty.parquet")
    with pytest.raises(ValueError, match="empty"):
        Train(model=str(TOY_BASE), set=tmp_path / "empty.parquet", **paths_in(tmp_path)).cli_cmd()


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_weights(tmp_path):
    whole = run(tmp_path, "whole", examples(160))
    data = tmp_path / "whole.set.parquet"
    out, history, state = tmp_path / "killed", tmp_path / "killed.parquet", tmp_path / "killed.state"
    stage = [
        *("mrt.training.sft", "--model", str(TOY_BASE), "--set", str(data), "--out", str(out)),
        *("--history", str(history), "--state", str(state), "--recipe", RECIPE.model_dump_json()),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", *stage],
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not list(state.glob("*/checkpoint-*/trainer_state.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not out.exists()
    kept = sorted(path.name for path in state.glob("*/checkpoint-*"))
    assert kept
    subprocess.run([sys.executable, "-m", "mrt.core.fork_server", *stage], cwd=ROOT, check=True, capture_output=True)
    assert log_of(history)["step"].to_list() == list(range(1, 41))
    for name, tensor in weights(whole.out).items():
        assert (weights(out)[name] - tensor).abs().max() < 1e-5


def test_an_unchanged_training_takes_the_cached_checkpoint(tmp_path, capsys):
    """Also when only the dates of its inputs changed; with another recipe it trains afresh, whatever state is there."""
    options = {
        "model": str(TOY_BASE),
        "state": tmp_path / "state",
        "cache": {"folder": tmp_path / "cache"},
        "history": tmp_path / "l",
    }
    data = write_set(tmp_path / "set.parquet", examples(8))
    Train(set=data, out=tmp_path / "a", recipe=RECIPE, **options).cli_cmd()
    write_set(data, examples(8))
    capsys.readouterr()
    Train(set=data, out=tmp_path / "b", recipe=RECIPE, **options).cli_cmd()
    assert "the cached checkpoint is taken" in capsys.readouterr().out
    assert (tmp_path / "b" / "model.safetensors").samefile(tmp_path / "a" / "model.safetensors")
    stale = tmp_path / "state" / "0123" / "checkpoint-2"
    stale.mkdir(parents=True)
    (stale / "trainer_state.json").write_text("{}")
    recipe = RECIPE.model_copy(update={"learning_rate": RECIPE.learning_rate / 2})
    Train(set=data, out=tmp_path / "c", recipe=recipe, **options).cli_cmd()
    assert "cached checkpoint" not in capsys.readouterr().out
    assert weights(tmp_path / "c")["lm_head.weight"].ne(weights(tmp_path / "a")["lm_head.weight"]).any()
    assert len(list((tmp_path / "cache").iterdir())) == 2 and not (tmp_path / "state").exists()
    shutil.rmtree(tmp_path / "a")  # Snakemake removes outputs before a job
    Train(set=data, out=tmp_path / "a", recipe=RECIPE, **options).cli_cmd()
    assert "cached checkpoint is taken" in capsys.readouterr().out, "going back trains nothing"
    assert (tmp_path / "a" / "model.safetensors").samefile(tmp_path / "b" / "model.safetensors")
    options["cache"] |= {"settings": 1}
    Train(set=data, out=tmp_path / "c", recipe=recipe, **options).cli_cmd()
    assert "cached checkpoint is taken" in capsys.readouterr().out
    assert len(list((tmp_path / "cache").iterdir())) == 1, "the present one alone"


def kept(folder, *sizes):
    """Kept checkpoints of n MiB, the least recently used first."""
    for i, size in enumerate(sizes):
        (folder / str(i) / "checkpoint").mkdir(parents=True)
        (folder / str(i) / "checkpoint" / "model.safetensors").write_bytes(bytes(size * 2**20))
        (folder / str(i) / "digest").write_text("")
        os.utime(folder / str(i), (i, i))


def remain(folder, present, **keep):
    KeptCheckpoints(folder=folder, **keep).forget(folder / present)
    return sorted(each.name for each in folder.iterdir())


def test_the_least_recently_used_checkpoints_go_first(tmp_path):
    kept(tmp_path, *[1] * 7)
    assert remain(tmp_path, "2") == ["2", "3", "4", "5", "6"]  # five, and 2 was taken again
    assert remain(tmp_path, "3", settings=3) == ["2", "3", "6"]
    assert remain(tmp_path, "2", gib=1.5 / 1024) == ["2", "3"]
    assert remain(tmp_path, "3", gib=0) == ["3"]


def test_what_a_killed_job_left_of_a_checkpoint_is_not_kept(tmp_path):
    kept(tmp_path, 1, 1, 1)
    (tmp_path / "1" / "digest").unlink()
    (tmp_path / "0").rename(tmp_path / ".0.part")
    assert remain(tmp_path, "2") == ["2"]


def test_a_damaged_kept_checkpoint_is_not_taken(tmp_path, capsys):
    made = tmp_path / "made"
    (made / "checkpoint").mkdir(parents=True)
    (made / "checkpoint" / "model.safetensors").write_bytes(b"whole")
    assert not matches_digest(made)
    (made / "digest").write_text(digest_of_files([made / "checkpoint"]))
    assert matches_digest(made)
    (made / "checkpoint" / "model.safetensors").write_bytes(b"half")
    assert not matches_digest(made)


def test_incomplete_checkpoints_are_not_resumed_from(tmp_path):
    for step, state in ((2, "{}"), (4, '{"epo')):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    (tmp_path / "checkpoint-6").mkdir()
    assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=700), st.integers(1, 40), st.integers(0, 5))
def test_batches_have_similar_lengths_and_come_in_random_order(lengths, batch, seed):
    order = bucketed_order(lengths, batch, seed)
    assert sorted(order) == list(range(len(lengths)))
    assert order == bucketed_order(lengths, batch, seed)


def test_short_examples_do_not_come_last():
    """Sorted by length, the last tenth of an epoch would hold the shortest tenth of the examples."""
    lengths = list(range(1000))
    order = bucketed_order(lengths, 10, 0)
    spread = [max(part) - min(part) for part in (order[i : i + 10] for i in range(0, 1000, 10))]
    assert sum(spread) / len(spread) < 40  # of 1000: little padding
    last = [lengths[i] for i in order[-200:]]
    assert 300 < sum(last) / len(last) < 700


def test_the_trainer_takes_our_order_and_another_one_each_epoch(trainer_of):
    """TRL and accelerate must go on asking our sampler: the override is of a private method."""
    lengths = range(1, 31)
    trainer = trainer_of(of_lengths(lengths))
    loader = trainer.get_train_dataloader()
    for epoch in (0, 1):
        trainer.state.epoch = float(epoch)
        seen = [int(n) for batch in loader for n in batch["attention_mask"].sum(1)]
        assert seen == [lengths[i] for i in bucketed_order(lengths, RECIPE.micro_batch_size, RECIPE.seed + epoch)]


def test_the_order_of_an_epoch_follows_from_its_number(trainer_of):
    check_that_epochs_resume(trainer_of(of_lengths(range(1, 41))), 40, 4)


def test_a_training_of_half_an_epoch_that_resumes_after_its_last_step_is_over(trainer_of, tmp_path):
    """Killed after its last checkpoint; transformers would make one step more."""
    steps = []
    for _ in range(2):
        trainer = trainer_of(of_lengths(range(1, 25)), RECIPE.model_copy(update={"epochs": 0.5}))
        trainer.train(resume_from_checkpoint=last_complete_checkpoint(tmp_path / "state"))
        steps.append([entry.get("step") for entry in trainer.state.log_history if "loss" in entry])
    assert steps == [[1, 2, 3]] * 2


def test_a_trainer_reports_to_tensorboard_if_asked_and_says_what_is_missing(tmp_path, monkeypatch):
    stage = Train(model=str(TOY_BASE), set=tmp_path / "set", report_to=["tensorboard"], **paths_in(tmp_path))
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    assert stage.reporters() == ["tensorboard"]
    for name in ("trackio", "wandb"):
        missing = Train.model_validate(stage.model_dump(include=stage.model_fields_set) | {"report_to": [name]})
        with pytest.raises(ValueError, match=f"{name} is not installed in this environment"):
            missing.reporters()


LOGGED = """
import sys
from mrt.training.sft import Train
Train.model_validate_json(sys.argv[1]).cli_cmd()
"""


@pytest.mark.slow
def test_trackio_and_offline_wandb_have_the_log_of_a_training(extras, tmp_path):
    stage = Train(
        model=str(TOY_BASE), set=write_set(tmp_path / "set.parquet", examples(16)), recipe=RECIPE,
        report_to=["trackio", "wandb"], **paths_in(tmp_path),
    )  # fmt: skip
    where = {"PYTHONPATH": f"{extras}:{ROOT}", "WANDB_MODE": "offline", "TRACKIO_DIR": str(tmp_path / "trackio")}

    def run_with(*arguments):
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, env=os.environ | where, check=True, capture_output=True).stdout

    run_with("-c", LOGGED, stage.model_dump_json(exclude_unset=True))
    trackio = (extras / "bin" / "trackio", "list", "runs", "--project", "huggingface", "--json")
    (run,) = json.loads(run_with(*trackio))["runs"]
    metric = ("get", "metric", "--project", "huggingface", "--run", run, "--metric", "train/loss", "--json")
    losses = [step["value"] for step in json.loads(run_with(trackio[0], *metric))["values"]]
    assert losses == pytest.approx(log_of(stage.history)["loss"].drop_nulls().to_list(), rel=1e-3)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"train/loss" in file.read_bytes()


SPREAD = """
import json, os
from pathlib import Path
from mrt.core.cli import run
from mrt.training import sft

make = sft.make_trainer

def checked(model, *others):
    parameters = list(model.parameters())
    sizes = [sum(p.numel() for p in parameters), sum(p.ds_tensor.numel() for p in parameters)]
    sizes.append(sum(p.ds_numel for p in parameters))
    Path(__file__).with_name(f"loaded-{os.environ['RANK']}.json").write_text(json.dumps(sizes))
    return make(model, *others)

sft.make_trainer = checked
run(sft.Train)
"""


def torchrun(folder, script, *options, processes=2):
    """A training script on several processes under gloo. The printed lines of processes may be mixed.

    An operator of DeepSpeed that was being compiled when a process was killed left its lock: nothing waits for that.
    """
    lock = folder / "extensions" / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    (folder / "script.py").write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment |= {"TORCH_EXTENSIONS_DIR": str(lock.parents[1])}
    done = subprocess.run(
        [*command, "--", str(folder / "script.py"), *map(str, options)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]


@pytest.mark.slow
def test_zero_3_spreads_the_model_while_it_loads_and_trains_it_in_bf16_with_checkpointing(tmp_path):
    recipe = RECIPE.model_copy(update={"bf16": True, "gradient_checkpointing": True, "warmup_ratio": 0.0})
    torchrun(
        tmp_path, SPREAD, "--model", TOY_BASE, "--set", write_set(tmp_path / "set.parquet", examples(4)),
        "--out", tmp_path / "out", "--history", tmp_path / "history.parquet", "--state", tmp_path / "state",
        "--recipe", recipe.model_dump_json(), "--deepspeed", ROOT / "mrt" / "training" / "zero3.json",
    )  # fmt: skip
    loaded = [json.loads((tmp_path / f"loaded-{rank}.json").read_text()) for rank in (0, 1)]
    before, after = weights(TOY_BASE), weights(tmp_path / "out")
    whole = sum(tensor.numel() for tensor in before.values())
    for at_hand, own, told in loaded:
        assert at_hand == 0 and told == whole and abs(own - whole / 2) < 0.01 * whole
    log = log_of(tmp_path / "history.parquet")
    alone = log_of(run(tmp_path, "alone", examples(4)).history)  # in float32
    assert log["step"].to_list() == [1] and log["parameters"].to_list() == [whole]
    assert log["loss"][0] == pytest.approx(alone["loss"][0], rel=0.02)
    assert {name: t.shape for name, t in before.items()} == {name: t.shape for name, t in after.items()}
    assert any(not before[name].float().equal(after[name].float()) for name in before)


RESUME = """
import os, sys
from pathlib import Path
from torch import distributed
from mrt.training.devices import join_processes
from mrt.training.stage import KeptCheckpoints, last_complete_checkpoint

join_processes(Path("zero3.json"), cpu=True)
taken = [str(last_complete_checkpoint(state)) for state in map(Path, sys.argv[1:])]
Path(__file__).with_name(f"taken-{os.environ['RANK']}").write_text("\\n".join(taken))
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.thorough
def test_processes_that_resume_agree_and_do_not_trip_over_each_other(tmp_path):
    """Each would remove the same files: with this number both work at the same time."""
    states = [tmp_path / f"state-{i}" for i in range(5)]
    for state in states:
        for step in (2, 4):
            (state / f"checkpoint-{step}").mkdir(parents=True)
        (state / "checkpoint-2" / "trainer_state.json").write_text("{}")
        for i in range(300):
            (state / "checkpoint-4" / f"shard-{i}").touch()
    torchrun(tmp_path, RESUME, *states)
    for rank in (0, 1):
        taken = (tmp_path / f"taken-{rank}").read_text().splitlines()
        assert taken == [str(state / "checkpoint-2") for state in states]
    assert [path.name for path in tmp_path.glob("state-*/*")] == ["checkpoint-2"] * 5


def test_padded_rows_need_no_mask(trainer_of):
    """Loss and gradient of a padded micro-batch are those of its rows alone, and attention gets no mask."""
    import torch

    recipe = RECIPE.model_copy(update={"batch_size": 2, "weighted": True})
    rows = [
        {"input_ids": list(range(5, 5 + n)), "labels": [-100, *range(6, 5 + n)], "loss_weight": weight}
        for n, weight in ((30, 1.0), (12, 0.5))
    ]
    trainer = trainer_of(rows, recipe)
    model, masks = trainer.model, []
    hook = model.model.layers[0].register_forward_pre_hook(
        lambda _, args, given: masks.append(given["attention_mask"]), with_kwargs=True
    )

    def learnt(*examples):
        model.zero_grad()
        batch = trainer.data_collator(list(examples))
        loss = trainer.compute_loss(model, batch, num_items_in_batch=torch.tensor(40))
        loss.backward()
        return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])

    (together, of_both), (one, of_one), (other, of_other) = learnt(*rows), learnt(rows[0]), learnt(rows[1])
    hook.remove()
    assert masks == [None] * 3
    assert together == pytest.approx(one + other, rel=1e-5)
    torch.testing.assert_close(of_both, of_one + of_other, rtol=1e-3, atol=1e-6)


def test_a_routers_loss_counts_tokens_by_the_mask(trainer_of):
    import torch
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 2, "num_local_experts": 2, "vocab_size": 610, "router_aux_loss_coef": 0.1}
    model, masks = MixtralForCausalLM(MixtralConfig(**sizes, output_router_logits=True)), []
    rows = of_lengths((9, 4))
    trainer = trainer_of(rows, RECIPE.model_copy(update={"batch_size": 2}), model)
    trainer.current_gradient_accumulation_steps = 1  # which training sets
    model.register_forward_pre_hook(lambda _, args, given: masks.append(given["attention_mask"]), with_kwargs=True)
    trainer.compute_loss(model, trainer.data_collator(rows), num_items_in_batch=torch.tensor(11))
    assert [mask.sum(dim=1).tolist() for mask in masks] == [[9, 4]]


def test_a_token_of_a_set_takes_the_memory_that_is_planned(tokenizer, trainer_of):
    """Ids and labels of rows, and of the trainer's own copy; its text comes on top."""
    from mrt.config.memory import SET_BYTES

    rows, _ = tokenize(tokenizer, examples(50), 256)
    tokens, of_rows = sum(len(row["input_ids"]) for row in rows), sum(row["input_ids"].nbytes * 2 for row in rows)
    trainer = trainer_of(rows, RECIPE.model_copy(update={"batch_size": 2}), small_model())
    of_text = sum(len(e["prompt"]) + len(e["completion"]) for e in examples(50))
    taken = (of_rows + trainer.train_dataset.data.nbytes + of_text) / tokens
    assert 0.8 * SET_BYTES < taken <= SET_BYTES


def test_a_tokenizer_without_a_pad_token_trains_and_is_left_as_it_is(tmp_path):
    unpadded = without_pad_token(tmp_path / "unpadded")
    rows = examples(2) + [{**row, "completion": row["completion"] * 2} for row in examples(2)]
    whole, stage = run(tmp_path, "a", rows), run(tmp_path, "b", rows, model=unpadded)
    assert log_of(stage.history)["loss"][0] == pytest.approx(log_of(whole.history)["loss"][0], rel=1e-4)
    for name in ("tokenizer_config.json", "config.json", "generation_config.json"):
        made, came = (json.loads((folder / name).read_text()) for folder in (stage.out, unpadded))
        for what in ("pad_token", "pad_token_id"):
            assert made.get(what) is None and came.get(what) is None


def test_a_set_of_too_long_examples_is_told(tmp_path):
    from mrt.core.artifacts import SET

    row = {"problem_id": "p", "sample": 0, "prefix": None, "prompt": "12 + 5 = " * 9, "completion": "17", "weight": 1.0}
    SET.write(pl.DataFrame([row], schema=SET.columns), tmp_path / "set.parquet")
    recipe = RECIPE.model_copy(update={"max_length": 8})
    stage = Train(model=str(TOY_BASE), set=tmp_path / "set.parquet", recipe=recipe, **paths_in(tmp_path))
    with pytest.raises(ValueError, match=r"set\.parquet: all examples are longer than recipe\.max_length; raise it"):
        stage.cli_cmd()
