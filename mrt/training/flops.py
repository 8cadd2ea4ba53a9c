"""FLOPs of a transformer's passes (Section 9 of the paper leaves matching methods by FLOPs open).

A token takes 2 FLOPs for each weight of the linear layers that it passes. It takes 4 x layers x heads x head size for
each token that it attends to. While sampling it attends to itself and all tokens before it. A training pass computes
all pairs of tokens of its padded rows, those that causality masks too, as torch's own counter has it. Norms,
activations and the optimizer's step are left out. Of a prompt that is read once (`mrt.training.prompt_cache`), the last
block's keys and values alone have a gradient. All of that block is counted, which is a little too much.

`tests/training/test_flops.py` compares these counts with `torch.utils.flop_counter`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mrt.training.devices import count
from mrt.training.one_card import PART

EXPERTS = ".experts."  # in the names of a mixture's weights: of all experts, or of one


def used_of(name: str, parameter: Any, config: Any) -> float:
    """Share of a parameter that multiplies each token: none of a vector; of a mixture's experts, the active ones."""
    shape = getattr(parameter, "ds_shape", parameter.shape)
    if EXPERTS not in name:
        return float(len(shape) == 2)
    if len(shape) < 2:
        return 0.0
    numbers = (getattr(config, each, None) for each in ("num_experts", "num_local_experts", "n_routed_experts"))
    experts = shape[0] if len(shape) == 3 else next(filter(None, numbers), None)
    active = getattr(config, "num_experts_per_tok", None)
    return active / experts if active and experts else 1.0


class Sizes(NamedTuple):
    """The sizes of a transformer that its FLOPs follow from; those of adapters count while these are trained alone."""

    block_weights: int  # of the linear layers of all blocks; of a mixture's experts, those that a token uses
    output_weights: int  # of the output layer
    attention_width: int  # layers x heads x head size
    last_weights: int  # of the last linear layer of each block: checkpointing does not run it again

    @classmethod
    def of(cls, model: Any) -> "Sizes":
        """Sizes of a Hugging Face model, whether it is sharded over processes (ZeRO-3) or not, or has adapters."""
        outer = [model.get_input_embeddings().weight, model.get_output_embeddings().weight]
        blocks = [(name, p) for name, p in model.named_parameters() if not any(p is weight for weight in outer)]
        adapters = sum(count(p) for name, p in blocks if PART in name)
        config = model.config.get_text_config()
        weights = sum(round(count(p) * used_of(name, p, config)) for name, p in blocks if PART not in name)
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        width = config.num_hidden_layers * config.num_attention_heads * head
        inner = config.intermediate_size
        if any(EXPERTS in name for name, _ in blocks):
            inner = getattr(config, "moe_intermediate_size", None) or inner
            inner *= getattr(config, "num_experts_per_tok", 1)
        last = config.num_hidden_layers * config.hidden_size * inner
        sizes = cls(weights, count(outer[1]), width, last)
        first = config.hidden_size * head * (config.num_attention_heads + 2 * config.num_key_value_heads)
        return Adapted.beside(sizes, adapters, first) if adapters else sizes

    def sampling(self, tokens: Any, pairs: Any, outputs: Any = 0) -> Any:
        """FLOPs of tokens that the engine reads or generates.

        Args:
            tokens: tokens processed.
            pairs: pairs of a token and one that it attends to; see `pairs`.
            outputs: tokens for which the output layer runs: those that are generated, or read and scored.
        """
        return 2.0 * (self.block_weights * tokens + self.output_weights * outputs) + 4.0 * self.attention_width * pairs

    def training(
        self, rows: int, length: int, outputs: int, before: int = 0, *, backward: bool, checkpointing: bool = False
    ) -> float:
        """FLOPs of a trainer's pass over padded rows.

        Args:
            rows, length: rows, and tokens of each, padding included.
            outputs: tokens whose probability is computed.
            before: tokens before each row whose keys and values are in a cache, padding included.
            backward: whether gradients are computed. That takes twice the forward pass; and TRL's output layer runs
                forward once more.
            checkpointing: gradient checkpointing: the blocks run forward once more, up to their last layer.
        """
        tokens = rows * length
        blocks = 2.0 * self.block_weights * tokens + 4.0 * self.attention_width * tokens * (before + length)
        output = 2.0 * self.output_weights * outputs
        if not backward:
            return blocks + output
        again = blocks - 2.0 * self.last_weights * tokens if checkpointing else 0.0
        return 3 * blocks + again + 4 * output


class Adapted(Sizes):
    """Sizes of a model of which adapters alone are trained (LoRA); the engine samples from the merged weights."""

    adapter_weights: int
    first_weights: int  # of queries, keys and values of the lowest block, whose inputs need no gradient

    @classmethod
    def beside(cls, sizes: Sizes, adapter_weights: int, first_weights: int) -> "Adapted":
        made = cls(*sizes)
        made.adapter_weights, made.first_weights = adapter_weights, first_weights
        return made

    def training(
        self, rows: int, length: int, outputs: int, before: int = 0, *, backward: bool, checkpointing: bool = False
    ) -> float:
        """As `Sizes.training`, without gradients of weights that stay as they are.

        With checkpointing, blocks run again to their end, and inputs of the lowest block get a gradient.
        """
        tokens = rows * length
        weights, adapters = 2.0 * self.block_weights * tokens, 2.0 * self.adapter_weights * tokens
        attention = 4.0 * self.attention_width * tokens * (before + length)
        output = 2.0 * self.output_weights * outputs
        forward = weights + adapters + attention
        if not backward:
            return forward + output
        more = forward if checkpointing else -2.0 * self.first_weights * tokens
        return forward + weights + 2 * (adapters + attention) + more + 3 * output


def pairs(start: Any, end: Any) -> Any:
    """Pairs (token, attended token) of the tokens from `start` to before `end` of a text: numbers or columns."""
    return (end * (end + 1) - start * (start + 1)) / 2


def distinct(texts: Sequence[list[int]]) -> tuple[int, float]:
    """(tokens, pairs) that an engine with a prefix cache computes for texts of token ids: shared prefixes once."""
    before: npt.NDArray[np.int64] = np.array([], dtype=np.int64)
    tokens, attended = 0, 0.0
    for text in (np.array(ids, dtype=np.int64) for ids in sorted(texts)):
        both = min(len(before), len(text))
        differ = np.flatnonzero(before[:both] != text[:both])
        shared = int(differ[0]) if differ.size else both
        tokens += len(text) - shared
        attended += pairs(shared, len(text))
        before = text
    return tokens, attended


class Counts:
    """Totals over the steps and processes of a training; a resumed one continues from the totals in its log."""

    def __init__(self, *names: str) -> None:
        self.since_log = dict.fromkeys(names, 0.0)

    def add(self, **more: float) -> None:
        """Count the work of this process since the last log entry."""
        for name, value in more.items():
            self.since_log[name] += value

    def logged(self, trainer: Any) -> dict[str, float]:
        """The last entry with totals in the log of a Hugging Face trainer; empty without one."""
        history = reversed(trainer.state.log_history)
        return next((entry for entry in history if set(self.since_log) <= set(entry)), {})

    def so_far(self, trainer: Any) -> dict[str, float]:
        """The totals of all processes of the trainer, each of which calls this."""
        import torch

        counts = torch.tensor(list(self.since_log.values()), dtype=torch.float64, device=trainer.accelerator.device)
        new = trainer.accelerator.reduce(counts, reduction="sum").tolist()
        before = self.logged(trainer)
        return {name: before.get(name, 0.0) + value for name, value in zip(self.since_log, new, strict=True)}

    def totals(self, trainer: Any) -> dict[str, float]:
        """The totals for a log entry, after which nothing is new; all processes call this."""
        totals = self.so_far(trainer)
        self.since_log = dict.fromkeys(self.since_log, 0.0)
        return totals
