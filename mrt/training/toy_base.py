"""Make the toy world's base models: a tokenizer, and a transformer of a million parameters, trained from scratch.

    python -m mrt.training.toy_base --out toy_base --history toy_base.history.parquet --state .state/toy_base

There are three: `--speaks thoughts` and `--speaks long_thoughts` (mrt.toy.world), and, for the other parameterization
of episodes, `--speaks attempts` (mrt.toy.attempts). With `--start` training goes on from a checkpoint.

The base is trained like any other model, by `mrt.training.sft`, on traces sampled from `mrt.toy.world`: it learns to
reason like those traces, with all their flaws. A share of the examples is cut after a random episode and answered
after the meta-prover's "Time is up." paragraph (Figure 22). So the base obeys this paragraph, which itself carries no
loss.
"""

import random
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import polars as pl
from pydantic import Field, field_validator

from mrt.core.cli import Stage, run
from mrt.core.settings import Settings
from mrt.core.storage import write_table
from mrt.episodes.parameterization import Backtracking, Template
from mrt.toy.attempts import solve
from mrt.toy.world import DIFFICULTIES, LONG, SHORT, Reasoner, answer_text, draw_problem, guess, think
from mrt.training.sft import SFT, Train

CUT_SHORT = 0.2
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>OPENING{% endif %}"
)
# of an answer, in the chat template
OPENING = {"thoughts": "<think>\\n", "long_thoughts": "<think>\\n", "attempts": ""}
RECIPE: dict[str, Any] = {
    "learning_rate": 3e-3,
    "epochs": 1,
    "batch_size": 24,
    "micro_batch_size": 24,
    "max_length": 1024,
    "bf16": False,
    "warmup_ratio": 0.01,
    "weight_decay": 0.01,
    "adam_beta2": 0.98,
    "gradient_checkpointing": False,
    "save_steps": 1000,
}
SPECIAL_TOKENS = ["<pad>", "<eos>", "<|user|>", "<|assistant|>", "<think>", "</think>"]


class Architecture(Settings):
    """Size of the base reasoner (Qwen3 architecture, untied embeddings)."""

    width: int = Field(128, ge=32, multiple_of=32, description="Hidden size; heads are 32 wide.")
    layers: int = Field(4, ge=1, description="Transformer layers.")
    context: int = Field(1024, ge=64, description="Longest sequence in tokens.")


def draw_example(rng: random.Random, template: Template, reasoner: Reasoner = SHORT) -> dict[str, Any]:
    """One trace as a training example: prompt, completion, weight."""
    problem = draw_problem(rng, rng.choice(reasoner.difficulties))
    episodes, answers = think(rng, problem, reasoner)
    prompt = f"<|user|>{problem.text}<|assistant|><think>\n"
    if rng.random() < CUT_SHORT:
        kept = rng.randrange(len(episodes))
        answer = guess(rng, problem, answers[kept - 1] if kept else None)
        forced = template.force("\n\n".join(episodes[:kept]))
        return {
            "prompt": prompt + forced,
            "completion": answer_text(answer),
            "weight": 1.0,
        }
    thought = "\n\n".join(episodes) + "\n"
    answer = guess(rng, problem, answers[-1])
    completion = thought + template.closing() + template.header + answer_text(answer)
    return {"prompt": prompt, "completion": completion, "weight": 1.0}


def draw_attempt(rng: random.Random, words: Backtracking) -> dict[str, Any]:
    """One solution in numbered steps as a training example: prompt, completion, weight."""
    problem = draw_problem(rng, rng.choice(DIFFICULTIES))
    completion = solve(rng, problem, words)
    return {"prompt": f"<|user|>{problem.text}<|assistant|>", "completion": completion, "weight": 1.0}


def drawer(speaks: str, rng: random.Random) -> Callable[[], dict[str, Any]]:
    """A function that draws the next training example of a base that writes this."""
    if speaks == "attempts":
        return partial(draw_attempt, rng, Backtracking())
    return partial(draw_example, rng, Template(), LONG if speaks == "long_thoughts" else SHORT)


def make_tokenizer(texts: Iterable[str], context: int, opening: str) -> Any:
    """A BPE whose tokens never cross a number, a line break or a blank line: numbers and phrases are single tokens.

    The Qwen3 architecture loads it unchanged; Qwen2's would rebuild it and drop all white space.
    """
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r"\d+|\n\n|\n|[^\d\n]+"), "isolated")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        min_frequency=20,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS[:4]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces = (piece for text in texts for part in text.split("<think>") for piece in part.split("</think>"))
    tokenizer.train_from_iterator(pieces, trainer)
    # Not special: a decoder that skips special tokens must keep the marks between thought and answer.
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in SPECIAL_TOKENS[4:]])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<eos>",
        pad_token="<pad>",
        chat_template=CHAT_TEMPLATE.replace("OPENING", opening),
        model_max_length=context,
    )


def make_model(tokenizer: Any, architecture: Architecture, seed: int) -> Any:
    """A Qwen3 causal language model with random weights (untied: vLLM on a CPU mishandles reloaded tied ones)."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    heads = architecture.width // 32
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=architecture.width,
        intermediate_size=3 * architecture.width,
        num_hidden_layers=architecture.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=32,
        max_position_embeddings=architecture.context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


class MakeBase(Stage):
    """Make the toy base reasoner from nothing: draw traces, train the tokenizer, train the model."""

    speaks: Literal["thoughts", "long_thoughts", "attempts"] = Field(
        "thoughts", description="Kind of text that it learns to write."
    )
    start: Path | None = Field(
        None, description="Checkpoint to train further, with its tokenizer; by default a new one of random weights."
    )
    out: Path = Field(description="Folder of the checkpoint.")
    history: Path = Field(description="The trainer's log (Parquet).")
    state: Path = Field(description="Folder of working files and the trainer's state; removed after success.")
    traces: int = Field(220_000, ge=100, description="Traces to learn from, each seen once.")
    seed: int = Field(0, ge=0, description="Seed of the traces and of the initial weights.")
    architecture: Architecture = Field(default_factory=Architecture, description="Size of the model.")
    recipe: SFT = Field(SFT(**RECIPE), description="Training hyperparameters; those not given are RECIPE's.")

    @field_validator("recipe", mode="before")
    @classmethod
    def _over_the_recipe(cls, given: Any) -> Any:
        return RECIPE | given if isinstance(given, dict) else given

    def cli_cmd(self) -> None:
        draw = drawer(self.speaks, random.Random(self.seed))
        examples = pl.DataFrame([draw() for _ in range(self.traces)])
        examples_file = self.state / "traces.parquet"
        write_table(examples, examples_file)
        Train(
            model=str(self.start or self.new(examples)),
            set=examples_file,
            out=self.out,
            history=self.history,
            state=self.state / "trainer",
            recipe=self.recipe,
        ).cli_cmd()
        shutil.rmtree(self.state)

    def new(self, examples: pl.DataFrame) -> Path:
        """A checkpoint of random weights, with a tokenizer made from the first examples."""
        folder = self.state / "init"
        texts = examples.head(8000).select(pl.concat_str("prompt", "completion")).to_series()
        tokenizer = make_tokenizer(texts, self.architecture.context, OPENING[self.speaks])
        model = make_model(tokenizer, self.architecture, self.seed)
        print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder


if __name__ == "__main__":
    run(MakeBase)
