"""Seconds of an RL step beside TRL's plain GRPOTrainer, for the same number of sampled tokens.

    python tests/benchmark_rl.py

Each trainer runs in a process of its own, in turn and three times, on the toy world with the same engine, prompts and
sizes: the machine's noise meets all alike. Compared are seconds a sampled token (forced answers are sampled too), the
median over all steps but each run's first.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import polars as pl

ROOT = Path(__file__).parent.parent
BASE = ROOT / "mrt" / "toy" / "weights"
KINDS = ("TRL's GRPOTrainer", "grpo", "length_penalty", "mrt_rl explicit", "mrt_rl implicit", "mrt_rl per_episode")
STEPS, COMPLETIONS, GROUP, REPEATS = 5, 64, 8, 3


def make_prompts(path):
    """Prompts of problems of the toy world."""
    from transformers import AutoTokenizer

    from mrt.artifacts import RL_PROMPTS
    from mrt.parameterization import Template
    from mrt.sampling import Prompt
    from mrt.toy.world import draw_problem

    tokenizer, rng, rows = AutoTokenizer.from_pretrained(BASE), random.Random(0), []
    for i in range(STEPS * COMPLETIONS // GROUP):
        problem = draw_problem(rng, 4)
        chat = Prompt(instruction="{problem}").render(tokenizer, problem.text)
        rows.append((f"p{i:03}", 0, 0, "", chat, chat + Template().force(""), str(problem.answer), True))
    pl.DataFrame(rows, schema=RL_PROMPTS.columns, orient="row").write_parquet(path)


def train(kind, prompts, folder):
    """Seconds and sampled tokens of every step but the first, as JSON on the last line."""
    from mrt.engine import Decoding, EngineSettings
    from mrt.grading import Grader
    from mrt.train import rl

    method, _, variant = kind.partition(" ")
    recipe = rl.RL(
        variant=variant if method == "mrt_rl" else "explicit", learning_rate=1e-4, batch_size=COMPLETIONS, group=GROUP,
        micro_batch_size=COMPLETIONS, answer_tokens=24, decoding=Decoding(temperature=1.0, max_tokens=192), bf16=False,
        gradient_checkpointing=False, save_steps=1000,
    )  # fmt: skip
    stage = rl.Train(
        model=str(BASE), prompts=prompts, method=method if variant != "GRPOTrainer" else "grpo", recipe=recipe,
        engine=EngineSettings(max_model_len=512), out=folder / "out", log=folder / "log", state=folder / "state",
    )  # fmt: skip
    examples = pl.read_parquet(prompts).to_dicts()
    with rl.cpu_vllm(stage.engine):
        if variant == "GRPOTrainer":
            from trl import GRPOTrainer

            trainer = GRPOTrainer(reward_funcs=rl.outcome_reward(Grader(1)), **stage.usual(examples, folder / "state"))
        else:
            ours = {"method": stage.method, "recipe": recipe, "grader": Grader(1)}
            ours["parameterization"] = stage.parameterization
            trainer = rl.make_trainer_class()(**ours, **stage.usual(examples, folder / "state"))
        trainer.train()
    steps = [entry for entry in trainer.state.log_history if "step_time" in entry]
    tokens = [COMPLETIONS * entry["completions/mean_length"] for entry in steps]
    forced = [entry.get("tokens_forced", 0) for entry in steps]
    tokens = [own + after - before for own, after, before in zip(tokens, forced, [0, *forced], strict=False)]
    print(json.dumps([(entry["step_time"], n) for entry, n in zip(steps[1:], tokens[1:], strict=True)]))


def main():
    """Print a row a trainer."""
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.parquet"
        make_prompts(prompts)
        found = {kind: [] for kind in KINDS}
        for repeat in range(REPEATS):
            for kind in KINDS:
                command = [sys.executable, __file__, kind, str(prompts), str(Path(folder) / f"{kind} {repeat}")]
                done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
                if done.returncode:
                    sys.exit(done.stderr)
                found[kind] += json.loads(done.stdout.splitlines()[-1])
    plain = median(seconds / tokens for seconds, tokens in found[KINDS[0]])
    print("| trainer | seconds a step | tokens a step | milliseconds a token | to TRL's |\n|---|---|---|---|---|")
    for kind, steps in found.items():
        each = median(seconds / tokens for seconds, tokens in steps)
        seconds, tokens = (median(column) for column in zip(*steps, strict=True))
        print(f"| {kind} | {seconds:.2f} | {tokens:,.0f} | {1000 * each:.3f} | {each / plain:.2f} |")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if len(sys.argv) > 1:
        train(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
