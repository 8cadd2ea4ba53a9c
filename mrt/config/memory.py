"""What fits on a GPU: the memory that an engine and a training need, and the fewest GPUs that provide it.

Training, from the sources of TRL 1.16, DeepSpeed 0.19 and transformers 5.17. Each GPU holds, for P parameters on n
GPUs (V: vocabulary size, H: hidden size):

| part | one GPU, bf16 | ZeRO-3 (n > 1), bf16 | float32 |
|---|---|---|---|
| state: 16 P / n bytes | weights 4, gradients 4, Adam 8 | weights 2, gradients 2, float32 copy 4, Adam 8 | as one GPU |
| kept per layer and token with checkpointing | its input: 4 x hidden | 2 x hidden | 4 x hidden |
| the largest of these steps, which run one at a time: | | | |
| - a forward pass | 2 P: autocast keeps casts of the weights; `FORWARD` | - | - |
| - the head's backward pass | 4 V H, the tile | 8 V H, the tile | 4 V H, the tile |
| - a layer, recomputed, and its gradients | `LAYER` | `LAYER` | `LAYER` |
| - the optimizer's step | fused: nothing | 4 P / n: gradients in float32 | - |
| DeepSpeed's buffers | - | gathered weights, and twice the gradients to reduce | the same |

Under ZeRO-3 DeepSpeed casts the model itself and there is no autocast (accelerate/accelerator.py). The residual stream
between layers then has 16 bits. With autocast alone it has 32, like the embedding that it starts from.

SFT and RL compute the loss in the same way, with `add_fused_lm_head` (trl/trainer/utils.py), which sft_trainer.py and
grpo_trainer.py call. It never builds all logits: a tile of 4096 tokens x 32768 vocabulary entries
(trl/kernels/chunked_logprob.py) is computed, reduced in place, and recomputed in the backward pass. That pass
accumulates the head's gradient in float32 and, under ZeRO-3, gathers the head (2 V H) and casts the gradient (2 V H).
RL differs from SFT: its sequences are a prompt, perhaps a prefix of a thought, and a completion. Its engine takes a
share of each GPU. With `beta` there is a reference model too. Rows that pass through the model together are padded, in
RL on the left, which takes masks of T x T (`mask_bytes`). RL makes 4 passes (mrt/training/rl/trainer.py), each of a
quarter of the rows, so that up to 4 rows need none. SFT pads on the right, where causal attention needs no mask. Masks
of layers with windows, and of models with a router's loss, are not counted. The other parts count all rows as one pass,
in RL too.

With adapters (`lora`, mrt/training/one_card.py; on one GPU) the weights beside them take 4 bytes, or 2 with
`base: bfloat16`, and the table's state is that of the adapters. There are no gradients of weights and no kept casts of
them; of weights in bfloat16 no casts at all, and the residual stream has 16 bits. Other optimizers have other states
(`state_bytes`).

Tests compare this with the tensors of TRL's own steps (tests/config/test_memory.py).
"""

import json
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

from mrt.config.hardware import GIB, GPUS, Architecture, Hardware
from mrt.training.devices import LENGTHS
from mrt.training.frozen import CHUNK, ROW
from mrt.training.launch import ZERO_3
from mrt.training.one_card import BNB, DEFAULT, EIGHT, OPTIMIZERS, SHARDED, LoRA

USABLE = 0.95  # of a GPU's memory: CUDA's context, NCCL and fragmentation take the rest
TILE = 4096, 32768  # tokens, vocabulary: TOKEN_CHUNK_SIZE and _CHUNKED_LOGPROB_CHUNK_SIZE of TRL
LINEAR = 7  # linear layers of a block
SET_BYTES = 22  # of main memory, a token of a training set (`host_bytes`)
NUMBERS = [2**i for i in range(13)]  # of GPUs


class PerToken(NamedTuple):
    """Bytes a token, as factors of hidden, intermediate, queries (heads x head_dim) and keys (kv_heads x head_dim)."""

    hidden: float
    intermediate: float = 0.0
    queries: float = 0.0
    keys: float = 0.0

    def of(self, a: Architecture) -> float:
        queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
        return self.hidden * a.hidden + self.intermediate * a.intermediate + self.queries * queries + self.keys * keys


# A layer of a Llama or Qwen model, measured with MemTracker. KEPT: the activations kept for its backward pass, with
# gradient checkpointing (its input) and without. LAYER: its other memory while it is recomputed and runs backward.
KEPT = {
    ("autocast", True): PerToken(4),
    ("bf16", True): PerToken(2),
    ("float32", True): PerToken(4),
    ("autocast", False): PerToken(27, 8.5, 5, 4),
    ("bf16", False): PerToken(17, 8, 4.1, 4),
    ("float32", False): PerToken(24, 16, 8, 8),
}
LAYER = {
    "autocast": PerToken(34, 12, 4, 6),
    "bf16": PerToken(29, 10, 1, 10),
    "float32": PerToken(25, 24, 9, 9),
}
BACKWARD = PerToken(24, 3, 5, 5)  # of a layer whose activations were kept
FORWARD = PerToken(10.5, 4.5, 12.5, 9.5)  # of a layer's forward pass with autocast
ADAPTED = 2 * 2 * LINEAR  # bytes a token and rank: what adapters make of it, in bfloat16, and its gradient
HEAD = {"autocast": 18.5, "bf16": 14.5, "float32": 16.5}  # bytes x hidden a token: the last norm and its gradients


class Training(NamedTuple):
    """The size of a training on a GPU: rows of a micro-batch, length of the longest in tokens, and options."""

    rows: int
    length: int
    bf16: bool = True
    checkpointing: bool = True
    reference: bool = False  # the reference model of RL with `beta`
    frozen: bool = False  # the frozen mu of RL with `mu: parent`; not sharded
    rl: bool = False
    rank: int = 0  # of adapters on all linear layers, which alone are trained; 0: all weights are
    base: int = 4  # bytes of a weight beside adapters
    optim: str = DEFAULT

    @property
    def alone(self) -> bool:
        """Whether it is for one GPU (mrt/training/one_card.py)."""
        return self.rank > 0 or self.optim not in SHARDED


@cache
def zero_3() -> dict[str, float]:
    """DeepSpeed's sizes in elements, not bytes: from mrt/training/zero3.json, else its defaults (zero/config.py)."""
    configured = json.loads(ZERO_3.read_text())["zero_optimization"]
    names = {
        "reduce_bucket_size": 5e8,
        "stage3_prefetch_bucket_size": 5e7,
        "stage3_max_live_parameters": 1e9,
        "sub_group_size": 1e9,
    }
    return {name: float(configured.get(name, default)) for name, default in names.items()}


def training_parts(a: Architecture, training: Training, gpus: int) -> dict[str, float]:
    """Peak bytes of a training on each of its GPUs, by part; an upper bound."""
    zero, sizes, tokens = gpus > 1, zero_3(), training.rows * training.length
    adapted = training.rank > 0
    how = "float32" if not training.bf16 else "bf16" if zero or training.base == 2 else "autocast"
    width = 2 if how == "bf16" else 4
    head = a.vocabulary * a.hidden
    state, step = state_bytes(a, training)
    tile = min(tokens, TILE[0]) * TILE[1] * (2 if training.bf16 else 4)
    casts = 2 * (a.parameters - head)
    kept = a.layers * tokens * KEPT[how, training.checkpointing].of(a)
    kept += casts if how == "autocast" and not training.checkpointing else 0
    kept += tokens * (16 * a.head_dim + 64)  # rotary embeddings; ids, labels, positions
    kept += tokens * a.layers * ADAPTED * training.rank if not training.checkpointing else 0
    one = a.parameters / a.layers if how == "autocast" else 0  # upper bound of the weights of a layer, copied by casts
    matrix = 0 if adapted else width * a.intermediate * a.hidden  # a gradient before it is accumulated
    of_head = 0 if adapted else (8 if zero else 4) * head
    layer = (LAYER[how] if training.checkpointing else BACKWARD).of(a) + ADAPTED * training.rank
    largest = max(
        tile + of_head + tokens * HEAD[how] * a.hidden + (4 * TILE[1] * a.hidden if one else 0),
        tokens * layer + 2 * one + matrix,
        (2 * one if adapted else casts) + max(tile, tokens * FORWARD.of(a)) if how == "autocast" else 0,
        frozen_bytes(a, training) if training.frozen else 0,
        (4 * min(a.parameters / gpus, sizes["sub_group_size"]) if zero else step) - kept,
    )
    live = min(a.parameters, sizes["stage3_max_live_parameters"] + sizes["stage3_prefetch_bucket_size"])
    parts = {
        "weights, gradients and optimizer": state / gpus,
        "reference model": width * a.parameters / gpus if training.reference else 0,
        "frozen mu": (2 if training.bf16 else 4) * a.parameters if training.frozen else 0,
        "kept for the backward pass": kept + mask_bytes(a, training),
        "largest step of it": largest,
        "DeepSpeed's buffers": width * (live + 2 * sizes["reduce_bucket_size"]) if zero else 0,
    }
    return {name: size for name, size in parts.items() if size}


def of_rank_one(a: Architecture) -> int:
    """Parameters of adapters of rank 1 on all linear layers of all blocks: as many as these have rows and columns."""
    queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
    return a.layers * (7 * a.hidden + 2 * queries + 2 * keys + 3 * a.intermediate)


def state_bytes(a: Architecture, training: Training) -> tuple[float, float]:
    """Bytes of weights, of gradients of those that are trained and of the optimizer; and those that its step adds.

    bitsandbytes keeps the state of embeddings in 32 bits, however many the others have (transformers' Trainer says so).
    Adafactor's state has a number for each row and column; its step works on one matrix.
    """
    optimizer, rank, words = OPTIMIZERS[training.optim], training.rank, a.vocabulary * a.hidden
    trained = rank * of_rank_one(a) if rank else a.parameters
    state = (optimizer.state or 0.0) * trained
    if optimizer.state is None:
        state = 4.0 * (of_rank_one(a) + (2 * LINEAR * rank * a.layers if rank else 2 * (a.vocabulary + a.hidden)))
    elif optimizer.needs == BNB and "8bit" in training.optim and not rank:
        state += (4 / EIGHT - 1) * optimizer.state * words
    step = optimizer.step * trained if optimizer.state is not None else 12 * (rank * a.intermediate or words)
    return (training.base * a.parameters if rank else 0) + 8 * trained + state, step


def frozen_bytes(a: Architecture, training: Training) -> float:
    """Bytes of a pass of the frozen mu over a row (mrt/training/frozen.py): its mask, its logits and a layer.

    The mask exists in bool, twice while it is filled, and in the model's type. Logits are of the tokens of answers, a
    quarter of a row of `ROW` tokens at most; a longer row has one text and its answer alone. Of `CHUNK` tokens at once
    there are a copy of the logits, another in float32, and log-probabilities.
    """
    width, row = 2 if training.bf16 else 4, max(ROW, training.length)
    logits = a.vocabulary * (width * ROW / 4 + (width + 8) * CHUNK)
    return (2 + width) * row**2 + max(logits, row * FORWARD.of(a)) + row * 4 * a.hidden


def mask_bytes(a: Architecture, training: Training) -> int:
    """Bytes of the masks of rows of RL that are padded, because they pass through the model together.

    Each row has one in bool until its backward pass. Attention converts it to its own precision in every layer: with
    checkpointing while a layer of a pass is recomputed, else all of these are kept.
    """
    together = -(-training.rows // LENGTHS)
    if together == 1 or not training.rl:
        return 0
    converted = together if training.checkpointing else training.rows * a.layers
    return (training.rows + (2 if training.bf16 else 4) * converted) * training.length**2


class Engine(NamedTuple):
    """The size of an engine: `max_model_len`, concurrent sequences, and its share of each GPU's memory."""

    longest: int
    sequences: int
    share: float
    width: int = 2  # bytes of a weight and of a number in the cache
    batched: int | None = None  # tokens of a step; else vLLM's choice


def engine_parts(a: Architecture, engine: Engine, hardware: Hardware, gpus: int) -> dict[str, float]:
    """Minimum bytes of an engine on each of its GPUs: weights, the cache of one sequence, and the overhead of vLLM.

    vLLM does not start if its share cannot hold a sequence of `max_model_len` (vllm/v1/core/kv_cache_utils.py). To
    measure its overhead, it runs a step of the maximum number of tokens and samples for all sequences. The maximum is
    16,384 on GPUs of 70 GB and more, else 8,192 (vllm/engine/arg_utils.py); TRL sets 4,096. CUDA and its graphs take
    about 1 GiB.
    """
    batched = engine.batched or (16_384 if hardware.memory >= 70 else 8_192)
    step = batched * (6 * a.hidden + 6 * a.intermediate / gpus) + 3 * 4 * engine.sequences * a.vocabulary
    return {
        "weights": engine.width * a.parameters / gpus,
        "cache of one sequence": engine.width / 2 * a.cache_bytes * engine.longest / min(gpus, a.kv_heads),
        "a step of vLLM, its graphs and CUDA": step + GIB,
    }


def breakdown(parts: dict[str, float]) -> str:
    """Parts in GiB, and their sum."""
    return ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items()) + f": {total(parts):.1f} GiB"


def total(parts: dict[str, float]) -> float:
    """Sum of the parts, in GiB."""
    return sum(parts.values()) / GIB


def engine_fits(a: Architecture, engine: Engine, hardware: Hardware, gpus: int) -> bool:
    return total(engine_parts(a, engine, hardware, gpus)) <= engine.share * hardware.memory


def divides(a: Architecture, gpus: int) -> bool:
    """Whether the attention heads can be spread over that many GPUs."""
    return a.heads % gpus == 0 and (a.kv_heads % gpus == 0 or gpus % a.kv_heads == 0)


def sampling_gpus(a: Architecture, engine: Engine, hardware: Hardware, most: int = NUMBERS[-1]) -> int:
    """Number of GPUs of one engine: the fewest that hold the weights and as much again for the cache.

    If these are more than `most`, the fewest that hold the weights and one sequence. Raises ValueError if even these
    are too many, or do not divide the attention heads.
    """
    sufficient = [n for n in NUMBERS if n <= most and engine_fits(a, engine, hardware, n)]
    ample = [n for n in sufficient if 2 * engine.width * a.parameters <= n * engine.share * hardware.memory * GIB]
    if fitting := [n for n in ample or sufficient if divides(a, n)]:
        return fitting[0]
    if sufficient:
        raise ValueError(
            f"{a.heads} attention heads ({a.kv_heads} of keys) cannot be spread over {(ample or sufficient)[0]} GPUs"
        )
    return check_engine(a, engine, hardware, max(n for n in NUMBERS if n <= most))


def check_engine(
    a: Architecture,
    engine: Engine,
    hardware: Hardware,
    gpus: int,
    what: str = "sampling from it",
    most: int = NUMBERS[-1],
) -> int:
    """Return the number of GPUs. Raises ValueError, which says what would fit, if the engine does not fit on them.

    `most` is the largest number of GPUs that may be named as one that fits.
    """
    if engine_fits(a, engine, hardware, gpus):
        return gpus
    parts = engine_parts(a, engine, hardware, gpus)
    room, (weights, cache, overhead) = engine.share * hardware.memory, (size / GIB for size in parts.values())
    longest = int((room - weights - overhead) / cache * engine.longest) if room > weights + overhead else 0
    fits = [f"engine.max_model_len {rounded(longest)}"] if rounded(longest) else []
    numbers = [n for n in NUMBERS if gpus < n <= most]
    if more := next((n for n in numbers if engine_fits(a, engine, hardware, n) and divides(a, n)), None):
        fits.append(f"{more} GPUs")
    if card := smallest_card(lambda gpu: engine_fits(a, engine, gpu, gpus), hardware):
        fits.append(card)
    raise ValueError(
        f"{what} with engine.max_model_len {engine.longest:,} does not fit on {counted(gpus)} of {hardware.memory:g}"
        f" GiB, of which the engine has {room:.1f} ({engine.share:g}): {breakdown(parts)}. {fitting(fits)}"
    )


def room_for_training(hardware: Hardware, engine_share: float) -> float:
    """GiB of a GPU that a training may take, beside the share of RL's engine."""
    return (USABLE - engine_share) * hardware.memory


def training_fits(a: Architecture, training: Training, hardware: Hardware, share: float, gpus: int) -> bool:
    return total(training_parts(a, training, gpus)) <= room_for_training(hardware, share)


def training_gpus(a: Architecture, training: Training, hardware: Hardware, share: float, least: int = 1) -> int:
    """Number of GPUs of a training: `least` if it fits on these, else the next power of two that it fits on.

    Raises ValueError, which says what would fit, if it fits on no number of them.
    """
    for n in sorted({least, *(n for n in NUMBERS if n > least)}):
        if training_fits(a, training, hardware, share, n):
            return n
    return check_training(a, training, hardware, share, least)


def check_training(a: Architecture, training: Training, hardware: Hardware, share: float, gpus: int) -> int:
    """Return the number of GPUs. Raises ValueError, which says what would fit, if the training does not fit on them."""
    if training_fits(a, training, hardware, share, gpus):
        return gpus
    parts = training_parts(a, training, gpus)
    if share:
        parts = {**parts, f"the engine's share of {share:g}": share * hardware.memory * GIB}
    fits = []
    if length := longest_length(a, training, hardware, share, gpus):
        fits.append(f"on as many GPUs a micro-batch of 1 x {length:,} tokens (micro_batch_size x length)")
    numbers = [n for n in NUMBERS if n > gpus and not training.alone]
    if more := next((n for n in numbers if training_fits(a, training, hardware, share, n)), None):
        fits.append(f"{more} GPUs")
    if card := smallest_card(lambda gpu: training_fits(a, training, gpu, share, gpus), hardware):
        fits.append(card)
    if not training.checkpointing:
        fits.append("perhaps gradient_checkpointing")
    if not training.rank and training.bf16 and training_fits(a, on_one_card(training), hardware, share, 1):
        fits.append("on one GPU `lora: {}` with `base: bfloat16` (docs/your_own.md)")
    raise ValueError(
        f"training it with a micro-batch of {training.rows} x {training.length:,} tokens does not fit on"
        f" {counted(gpus)} of {hardware.memory:g} GiB, of which {USABLE * hardware.memory:.1f} can be used:"
        f" {breakdown(parts)}. {fitting(fits)}"
    )


def on_one_card(training: Training) -> Training:
    """The training, with adapters beside weights in bfloat16: the parent is then the reference too."""
    return training._replace(rank=LoRA().rank, base=2, reference=False, optim=DEFAULT)


def longest_length(a: Architecture, training: Training, hardware: Hardware, share: float, gpus: int) -> int:
    """Tokens of the longest row that fits alone in a micro-batch, rounded down; 0 if none fits."""
    low, high = 0, training.rows * training.length
    while low < high:
        middle = (low + high + 1) // 2
        if training_fits(a, training._replace(rows=1, length=middle), hardware, share, gpus):
            low = middle
        else:
            high = middle - 1
    return rounded(low)


def rounded(tokens: int) -> int:
    """Tokens, rounded down to a multiple of 256."""
    return tokens // 256 * 256


def smallest_card(fits: Callable[[Hardware], bool], than: Hardware) -> str | None:
    """The listed GPU with the least memory, above that of `than`, for which `fits` is true; None if there is none."""
    larger = sorted((gpu.memory, name) for name, gpu in GPUS.items() if gpu.memory > than.memory)
    return next((f"GPUs such as {name} ({memory:g} GiB)" for memory, name in larger if fits(GPUS[name])), None)


def counted(gpus: int) -> str:
    return "one GPU" if gpus == 1 else f"{gpus} GPUs"


def fitting(fits: Iterable[str]) -> str:
    """A sentence that lists what would fit."""
    listed = "; or ".join(fits)
    return f"What fits: {listed}." if listed else "It fits on no number of GPUs that is listed."


def host_bytes(a: Architecture, nodes: int, processes: int, tokens: float = 0.0, rank: int = 0) -> float:
    """Bytes of main memory that a training needs on each node, with `processes` processes on it.

    Each process holds all of an SFT's `tokens`, those of the training set: 8 bytes of ids and labels, as much again
    while they are made, and 6 of text.

    Each process loads CUDA, torch, TRL and perhaps vLLM (4 GiB). Under ZeRO-3 no process holds the model. Its file is
    memory-mapped, read by the first process and shared in the page cache (transformers/integrations/deepspeed.py). This
    takes at most 4 bytes a parameter. To save, the first process gathers it in 16 bits. A resumed training reads
    weights and optimizer back, 12 bytes a parameter over all processes. A single process also loads 4 bytes and resumes
    12. With adapters of a `rank` it resumes these; they are merged in main memory, into at most 4 bytes a parameter.
    """
    resumed = 12 / nodes * (rank * of_rank_one(a) if rank else a.parameters)
    return (4 * GIB + SET_BYTES * tokens) * processes + 4 * a.parameters + resumed
