"""mrt.trl: rows of a plain dataset become those of the trainer; a wrong one is an error; the trainer trains."""

import json
import pickle
import subprocess
import sys
from dataclasses import fields
from types import SimpleNamespace

import pytest
from conftest import ROOT, TOY_BASE

from mrt.episodes.parameterization import Template
from mrt.episodes.thinking import THINK, Thinking
from mrt.grading.task import Task, task_of
from mrt.tasks.exact import Exact
from mrt.trl import chat_of, rows_of

PROBLEM = "Some of the numbers 3, 5, 8 add up to 11. What is the sum of the smallest and the largest of them?"
MESSAGES = [{"role": "user", "content": PROBLEM}]
CHAT = f"<|user|>{PROBLEM}<|assistant|><think>\n"
MAGISTRAL = Thinking(open="[THINK]", close="[/THINK]")


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TOY_BASE)


def rows(tokenizer, *given, task=None, **options):
    args = {"thinking": "auto", "template": None, "chat_template_kwargs": None, "estimate": "answers"} | options
    return rows_of(given, tokenizer, SimpleNamespace(**args), task if isinstance(task, Task) else task_of(task))


def test_rows_of_messages_and_of_texts_are_those_of_the_workflow(tokenizer):
    force = Template().force
    prefix = "Try 3 + 5 = 8.\n\n"
    first, second, third = rows(
        tokenizer,
        {"prompt": MESSAGES, "answer": 11, "source": "x"},
        {"prompt": CHAT, "answer": "11", "prefix_text": prefix},
        {"prompt": CHAT, "answer": "11", "prefix_text": f"{prefix}</think>\n\nSo"},
    )
    shared = {"inside": True, "thinking": THINK.cell(), "answer": "11"}
    assert first | shared | {"prompt": CHAT, "prefix_text": "", "forced": CHAT + force("")} == first
    assert json.loads(first["row"]) == {"id": "0", "answer": "11", "source": "x"}
    assert second | shared | {"prompt": CHAT + prefix, "forced": CHAT + force(prefix)} == second
    assert third["inside"] is False and third["prompt"].endswith("So")


def test_a_thought_is_open_where_the_prompt_ends_in_one(tokenizer):
    plain = f"<|user|>{PROBLEM}<|assistant|>"
    (row,) = rows(tokenizer, {"prompt": plain, "answer": "11"})
    assert row["inside"] is False and row["forced"].startswith(plain + "<think>\nTime is up.")
    for text in (plain + "[THINK]", f"[INST]{PROBLEM}[/INST][THINK]"):
        bare = SimpleNamespace(chat_template=None)
        (row,) = rows(bare, {"prompt": text, "answer": "11"})
        assert row["inside"] and row["thinking"] == MAGISTRAL.cell() and "[/THINK]" in row["forced"]
    (row,) = rows(tokenizer, {"prompt": plain, "answer": "11"}, thinking="none")
    assert row["thinking"] is None
    (row,) = rows(tokenizer, {"prompt": "Is <think> a tag?", "answer": "11", "inside": False}, thinking="auto")
    assert row["inside"] is False


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": MESSAGES}, "no answer; its columns are prompt"),
        ({"answer": "11", "question": "x"}, "no prompt; its columns are answer, question"),
        ({"prompt": CHAT, "answer": None}, "no answer"),
        ({"prompt": [*MESSAGES, {"role": "assistant", "content": "Try"}], "answer": "1"}, "prefix_text"),
        ({"prompt": "What does <think> mean?", "answer": "1"}, "add a column `inside`"),
        ({"prompt": f"<|user|>{PROBLEM}<|assistant|><think>\n\n</think>\n\n", "answer": "1"}, "closes the thought"),
        ({"prompt": f"<|user|>{PROBLEM}<|assistant|>[THINK]", "answer": "1"}, r"opens a thought with '\[THINK\]'"),
        ({"prompt": MESSAGES, "answer": "1", "inside": True}, "`inside` is for prompts that are texts"),
    ],
)
def test_a_row_that_cannot_be_read_is_an_error_that_names_it(row, message, tokenizer):
    with pytest.raises(ValueError, match=f"row 1 of the dataset: .*{message}"):
        rows(tokenizer, {"prompt": CHAT, "answer": "11"}, row)


def test_what_a_task_reads_is_looked_for_before_training(tokenizer):
    row = {"prompt": CHAT, "answer": "A", "options": ["11", "12"]}
    with pytest.raises(ValueError, match="row 0 of the dataset: the task Choice reads 'texts'"):
        rows(tokenizer, row, task="choice")
    (read,) = rows(tokenizer, row | {"texts": ["11", "12"]}, task="choice")
    assert json.loads(read["row"])["texts"] == ["11", "12"]
    with pytest.raises(ValueError, match="row 0 of the dataset: the task Code reads 'cases', as `posed"):
        rows(tokenizer, {"prompt": CHAT, "answer": "11", "tests": ["assert f() == 11"]}, task="code")
    near = type("Near", (Exact,), {"columns": ("tolerance",)})()
    with pytest.raises(ValueError, match="no tolerance"):
        rows(tokenizer, {"prompt": CHAT, "answer": "A"}, task=near)
    with pytest.raises(ValueError, match="no rows"):
        rows(tokenizer)


def test_a_template_that_closes_thoughts_or_drops_the_message_is_an_error(tokenizer):
    closing = SimpleNamespace(apply_chat_template=lambda messages, **_: CHAT + "</think>\n\n")
    with pytest.raises(ValueError, match=r"closes the thought itself: .*enable_thinking"):
        chat_of(MESSAGES, closing, THINK, {})
    dropping = SimpleNamespace(apply_chat_template=lambda messages, **_: "<|assistant|>")
    with pytest.raises(ValueError, match="drops the last message"):
        chat_of(MESSAGES, dropping, THINK, {})


def test_the_configuration_is_trls_and_ours(tmp_path):
    from trl import GRPOConfig, TrlParser

    from mrt.training.rl import RL
    from mrt.trl import MRTConfig, __all__

    assert issubclass(MRTConfig, GRPOConfig) and {"MRTConfig", "MRTTrainer"} <= {*__all__}
    folder, small = str(tmp_path), {"per_device_train_batch_size": 8}
    args = MRTConfig(folder, alpha=2.0, segmentation='{"by": "steps"}', **small)
    assert (args.alpha, args.segmentation, args.use_vllm) == (2.0, {"by": "steps"}, True)
    assert args.vllm_importance_sampling_mode == "token_truncate" and not (args.use_cpu and args.bf16)
    assert pickle.loads(pickle.dumps(args)).to_dict() == args.to_dict()  # as a checkpoint saves it
    ours = {each.name: each for each in fields(MRTConfig)}
    for name in {*RL.model_fields} & {*ours} - {each.name for each in fields(GRPOConfig)}:
        assert ours[name].default == RL.model_fields[name].default and ours[name].metadata["help"] in MRTConfig.__doc__
    words = ["--output_dir", folder, "--variant", "per_episode", "--thinking", '{"open": "<r>", "close": "</r>"}']
    (parsed,) = TrlParser(MRTConfig).parse_args_and_config([*words, "--centred", "--estimate", "likelihood"])
    assert (parsed.variant, parsed.centred, parsed.estimate) == ("per_episode", True, "likelihood")
    assert parsed.thinking == {"open": "<r>", "close": "</r>"}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"top_p": 0.9}, "top_p has to be 1.0, not 0.9: .* biases the gradient"),
        ({"top_k": 20}, "top_k has to be 0"),
        ({"use_vllm": False}, "use_vllm has to be True"),
        ({"vllm_mode": "server"}, "vllm_mode has to be 'colocate'"),
        ({"variant": "per_epsiode"}, "per_episode"),
        ({"temperature": 0.0}, "nothing to compare"),
        ({"estimate": "likelihood", "variant": "implicit"}, "the implicit variant asks mu nothing"),
        ({"mu": "parent"}, "mu: parent needs estimate: likelihood"),
        ({"opening": "so"}, "opening"),
    ],
)
def test_a_setting_that_cannot_be_used_is_an_error(setting, message, tmp_path):
    from mrt.trl import MRTConfig

    with pytest.raises(ValueError, match=message):
        MRTConfig(str(tmp_path), **setting)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"variant": "shortened", "alpha": 2.0}, "alpha: 2 is above 1"),
        ({"variant": "early_exits"}, "loss_type: dapo: each exit counts"),
        ({"variant": "early_exits", "loss_type": "grpo"}, "it needs a train_dataset"),
    ],
)
def test_a_variant_refuses_what_would_make_it_another(setting, message, tmp_path):
    from mrt.trl import MRTConfig, MRTTrainer

    with pytest.raises(ValueError, match=message):
        MRTTrainer(str(TOY_BASE), MRTConfig(str(tmp_path), **setting))


TRAIN = """
import json, sys
from datasets import Dataset
from mrt.trl import Group, MRTConfig, MRTTrainer, variant

folder, toy = sys.argv[1:]
rows = [json.loads(line) for line in open("docs/examples/sums.jsonl")][:4]
prefix = "Try 3 + 5 = 8.\\n\\n8 is less than 11.\\n\\nNo answer so far.\\n\\n"
rows = [{**row, "prefix_text": prefix * (i % 2)} for i, row in enumerate(rows)]
groups = []

@variant(asks="boundaries")
def mine(group: Group, alpha: float):
    groups.append([len(group.outcomes), group.J.tolist(), sum(len(ends) for ends, _ in group.boundaries)])
    return alpha * (group.outcomes - group.J)

args = MRTConfig(
    folder, estimate="likelihood", mu="parent", opening="Ends:** they add up to \\\\boxed{",
    learning_rate=1e-3, alpha=2.0,
    per_device_train_batch_size=8, num_generations=4, max_completion_length=96, max_steps=3, warmup_steps=2,
    logging_steps=1, gradient_checkpointing=False, report_to="none", save_strategy="no", segmentation={"min_steps": 2},
    per_device_eval_batch_size=8,
)
trainer = MRTTrainer(toy, args, Dataset.from_list(rows), eval_dataset=Dataset.from_list(rows[:2]), variant=mine)
trainer.train()
trainer.save_model()
measured = trainer.evaluate()
print("LOG", json.dumps([trainer.state.log_history, groups, measured]))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(folder, log, groups that a variant of the script got, measures) of a training in a separate process."""
    folder = tmp_path_factory.mktemp("trained")
    command = [sys.executable, "-c", TRAIN, str(folder), str(TOY_BASE)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("LOG "))
    return folder, *json.loads(line.removeprefix("LOG "))


@pytest.mark.slow
def test_a_plain_script_trains_with_a_variant_of_its_own(trained):
    from safetensors.torch import load_file

    folder, log, groups, measured = trained
    steps = [entry for entry in log if "grad_norm" in entry]
    assert [entry["step"] for entry in steps] == [1, 2, 3] and len(groups) == 6  # two groups a step
    assert all(count == 4 and len({*J}) == 1 and 0 <= J[0] <= 1 for count, J, _ in groups)
    assert sum(ends for *_, ends in groups) > 0
    differences = [entry["sampling/sampling_logp_difference/mean"] for entry in steps]
    assert max(differences) < 1e-3  # the engine has the weights of the trainer
    assert [entry["learning_rate"] for entry in steps] == pytest.approx([5e-4, 1e-3, 5e-4])
    assert any("eval_reward" in entry for entry in log) and "eval_loss" in measured and "J_prefix" in steps[0]
    before, after = (load_file(path / "model.safetensors") for path in (TOY_BASE, folder))
    assert any((before[name].float() != after[name].float()).any() for name in before)
