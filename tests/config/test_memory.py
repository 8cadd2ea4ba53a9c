"""Memory of engines and trainings: the formulas against the tensors of TRL's steps, and messages on misfits."""

from collections import defaultdict
from contextlib import contextmanager

import pytest
import yaml
from architectures import QWEN_1_5B, QWEN_7B
from conftest import ROOT, TOY_BASE
from hypothesis import given
from hypothesis import strategies as st

from mrt.config import memory, sizing
from mrt.config.hardware import GIB, GPUS, Architecture
from mrt.config.load import load
from mrt.config.memory import Engine, Training, engine_fits, sampling_gpus, training_fits, training_gpus
from mrt.training import one_card
from mrt.training.devices import LENGTHS
from mrt.training.method import advantages_of
from mrt.training.one_card import BNB, OPTIMIZERS, USABLE, LoRA, adapters
from mrt.training.rl.trainer import make_trainer_class
from mrt.training.sft import SFT, arguments, make_trainer

architectures = st.builds(
    Architecture,
    parameters=st.integers(10**6, 10**11),
    layers=st.integers(1, 100),
    hidden=st.integers(64, 10_000),
    intermediate=st.integers(64, 40_000),
    heads=st.sampled_from([32, 64, 128]),
    kv_heads=st.sampled_from([1, 2, 4, 8, 16, 32]),
    head_dim=st.integers(16, 256),
    vocabulary=st.integers(100, 200_000),
    context=st.integers(1024, 131_072),
)
cards = st.sampled_from(sorted(GPUS.values()))
trainings = st.builds(
    *(Training, st.integers(1, 8), st.integers(1, 40_000), *4 * [st.booleans()]),
    rank=st.sampled_from([0, 16]),
    base=st.sampled_from([2, 4]),
    optim=st.sampled_from(USABLE),
)
engines = st.builds(Engine, st.integers(16, 131_072), st.integers(1, 512), st.floats(0.1, 0.95), st.just(2), st.none())


# ---- against TRL


def uncounted(function):
    """A function whose own tensors no dispatch mode sees."""
    from torch.utils._python_dispatch import _disable_current_modes

    def called(*arguments, **options):
        with _disable_current_modes():
            return function(*arguments, **options)

    return called


@pytest.fixture
def small_tiles(monkeypatch):
    """TRL's tile, small enough to see the rest; changes that a GPU's kernel makes in place are not counted."""
    from trl.kernels import chunked_logprob
    from trl.trainer import utils

    assert (chunked_logprob.TOKEN_CHUNK_SIZE, utils._CHUNKED_LOGPROB_CHUNK_SIZE) == memory.TILE
    for name in ("_forward_tile", "_backward_tile", "_addmm_fp32"):
        monkeypatch.setattr(chunked_logprob, name, uncounted(getattr(chunked_logprob, name)))
    monkeypatch.setattr(memory, "TILE", (128, 2048))
    monkeypatch.setattr(chunked_logprob, "TOKEN_CHUNK_SIZE", 128)
    monkeypatch.setattr(utils, "_CHUNKED_LOGPROB_CHUNK_SIZE", 2048)


def model_of(layers, hidden, intermediate, heads, kv_heads, vocabulary, dtype=None):
    """A model of this shape, and the architecture that its checkpoint would tell."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            max_position_embeddings=4096,
            tie_word_embeddings=False,
            dtype=dtype or torch.float32,
        )
    ).to(dtype or torch.float32)
    sizes = {"layers": layers, "hidden": hidden, "intermediate": intermediate, "heads": heads, "kv_heads": kv_heads}
    count = sum(p.numel() for p in model.parameters())
    other = {"head_dim": hidden // heads, "vocabulary": vocabulary, "context": 4096}
    return model, Architecture(parameters=count, **sizes, **other)


def most_bytes(trainer):
    """How many bytes of tensors there were at most at once while a trainer trained."""
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker, step = MemTracker(), trainer.training_step

    def anew(*arguments):
        tracker.reset_mod_stats()  # it takes modules to run once
        return step(*arguments)

    trainer.training_step = anew
    tracker.track_external(trainer.model)
    with tracker:
        trainer.train()
    (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    return snapshot["Total"]


@contextmanager
def live_bytes(model):
    """Bytes of the tensors beside the weights that are alive after each operation; MemTracker needs gradients."""
    from weakref import finalize

    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    alive, after, now = {p.untyped_storage()._cdata: 0 for p in model.parameters()}, [0], [0]

    def gone(storage):
        now[0] -= alive.pop(storage, 0)

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            made = function(*arguments, **(options or {}))
            for tensor in tree_leaves(made):
                storage = getattr(tensor, "untyped_storage", lambda: None)()
                if storage is not None and storage._cdata not in alive:
                    alive[storage._cdata] = storage.nbytes()
                    now[0] += storage.nbytes()
                    finalize(storage, gone, storage._cdata)
            after.append(now[0])
            return made

    with Counting():
        yield after


def most_bytes_of_adapters(trainer):
    """The same of a trainer of adapters, counted by hand."""
    weights = sum(weight.nbytes for weight in trainer.model.parameters())
    with one_card.training(trainer), live_bytes(trainer.model) as beside:
        trainer.train()
    return weights + max(beside)


SHAPES = {  # layers, hidden, intermediate, heads, kv_heads, vocabulary, tokens
    "wide words": (2, 128, 256, 4, 2, 20_000, 256),
    "long": (2, 128, 512, 4, 2, 500, 1536),
    "deep": (8, 128, 256, 4, 2, 500, 768),
    "wide layers": (2, 512, 1024, 8, 8, 2000, 128),
}


def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TOY_BASE, padding_side="left")


def sft_trainer(model, rows, length, recipe, folder):
    examples = [{"input_ids": [7] * length, "labels": [7] * length, "loss_weight": 1.0}] * 2 * rows
    settings = SFT(batch_size=2 * rows, micro_batch_size=rows, max_length=length, epochs=2, **recipe)
    return make_trainer(model, tokenizer(), examples, settings, arguments(settings, folder))


def of(shape, *values):
    """A case. Of the first shape it always runs, else only if all cases are requested, as counting is slow."""
    return pytest.param(shape, *values, marks=[] if shape == next(iter(SHAPES)) else pytest.mark.thorough)


HOW = [(True, True), (True, False), (False, True)]  # bf16, checkpointing: the paper's, all kept, float32


@pytest.mark.parametrize(("shape", "bf16", "checkpointing"), [of(shape, *how) for shape in SHAPES for how in HOW])
def test_sft_takes_what_is_counted(shape, bf16, checkpointing, small_tiles, tmp_path):
    *sizes, length = SHAPES[shape]
    model, architecture = model_of(*sizes)
    trainer = sft_trainer(model, 1, length, {"bf16": bf16, "gradient_checkpointing": checkpointing}, tmp_path)
    found = most_bytes(trainer)
    parts = memory.training_parts(architecture, Training(1, length, bf16, checkpointing), 1)
    taken = sum(parts.values())
    assert 1 <= taken / found <= 1.35, parts


LEAN = [  # base, bf16, checkpointing
    *(("bfloat16", True, True), (None, True, True), ("bfloat16", True, False), (None, True, False)),
    *((None, False, True), (None, False, False)),
]


@pytest.mark.parametrize(
    ("shape", "base", "bf16", "checkpointing"), [of(shape, *how) for shape in SHAPES for how in LEAN]
)
def test_adapters_take_what_is_counted(shape, base, bf16, checkpointing, small_tiles, tmp_path):
    import torch

    *sizes, length = SHAPES[shape]
    model, architecture = model_of(*sizes, dtype=torch.bfloat16 if base else None)
    recipe = {"lora": {"rank": 8}, "base": base, "bf16": bf16, "gradient_checkpointing": checkpointing}
    found = most_bytes_of_adapters(sft_trainer(model, 1, length, recipe, tmp_path))
    lean = {"rank": 8, "base": 2 if base else 4}
    parts = memory.training_parts(architecture, Training(1, length, bf16, checkpointing, **lean), 1)
    assert 1 <= sum(parts.values()) / found <= (1.35 if checkpointing else 1.45), parts


@pytest.mark.parametrize("rank", [0, 64])
@pytest.mark.parametrize("optim", [n for n in USABLE if OPTIMIZERS[n].needs in (None, BNB) and "paged_adema" not in n])
def test_an_optimizers_state_takes_what_is_counted(optim, rank, tmp_path):
    """With the weights and the gradients of those that are trained."""
    from torch.utils._pytree import tree_leaves

    if needs := OPTIMIZERS[optim].needs:
        pytest.importorskip(needs).optim.GlobalOptimManager.get_instance().initialize()  # of an earlier training
    *sizes, _ = SHAPES["wide layers"]
    model, architecture = model_of(*sizes)
    recipe = {"optim": optim, "lora": {"rank": rank} if rank else None, "bf16": False}
    trainer = sft_trainer(model, 1, 8, recipe, tmp_path)
    trainer.train()
    state = [tensor for tensor in tree_leaves(dict(trainer.optimizer.state)) if hasattr(tensor, "nbytes")]
    tables = {id(tensor): tensor.nbytes for tensor in state if tensor.numel() > 1}  # bitsandbytes shares some
    weights = sum(weight.nbytes * (2 if weight.requires_grad else 1) for weight in trainer.model.parameters())
    planned, _ = memory.state_bytes(architecture, Training(1, 8, rank=rank, optim=optim))
    assert 0.999 <= planned / (sum(tables.values()) + weights) <= 1.05


def rl_trainer(model, rows, length, folder, lora=None):
    """GRPOTrainer as mrt.training.rl configures it, with given completions: the engine has a separate share."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig

    class Trainer(make_trainer_class()):
        def _prepare_inputs(self, _):
            ids = torch.full((rows, length // 2), 7)
            mask, zeros = torch.ones_like(ids), torch.zeros(ids.shape)
            return {
                "prompt_ids": ids,
                "prompt_mask": mask,
                "completion_ids": ids,
                "completion_mask": mask,
                "advantages": torch.ones(rows),
                "old_per_token_logps": zeros,
                "num_items_in_batch": torch.tensor(float(ids.numel())),
            }

    config = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=rows,
        num_generations=2,
        generation_batch_size=2 * rows,
        gradient_accumulation_steps=2,
        max_steps=2,
        bf16=True,
        gradient_checkpointing=True,
        use_cpu=True,
        report_to=[],
        beta=0.0,
    )
    from mrt.episodes.parameterization import OpenEnded
    from mrt.training.rl import RL

    recipe = RL(batch_size=2 * rows, micro_batch_size=rows, num_generations=2)
    data = Dataset.from_list([{"prompt": "a", "answer": "7", "thinking": None}] * 16)
    ours = {
        "variant": advantages_of("grpo", "explicit"),
        "recipe": recipe,
        "task": None,
        "parameterization": OpenEnded(),
        "peft_config": adapters(model, lora),
    }
    return Trainer(**ours, model=model, args=config, train_dataset=data, processing_class=tokenizer())


@pytest.mark.parametrize("shape", map(of, SHAPES))
def test_rl_takes_what_is_counted(shape, small_tiles, tmp_path):
    """Of one row: more go through the model one by one, which MemTracker does not take."""
    *sizes, length = SHAPES[shape]
    rows = 1
    model, architecture = model_of(*sizes)
    found = most_bytes(rl_trainer(model, rows, length, tmp_path))
    parts = memory.training_parts(architecture, Training(rows, length, rl=True), 1)
    taken = sum(parts.values())
    assert 1 <= taken / found <= 1.35, parts


@pytest.mark.parametrize("shape", map(of, SHAPES))
def test_rl_of_adapters_takes_what_is_counted(shape, small_tiles, tmp_path):
    import torch

    *sizes, length = SHAPES[shape]
    model, architecture = model_of(*sizes, dtype=torch.bfloat16)
    found = most_bytes_of_adapters(rl_trainer(model, 1, length, tmp_path, LoRA(rank=8)))
    parts = memory.training_parts(architecture, Training(1, length, rl=True, rank=8, base=2), 1)
    assert 1 <= sum(parts.values()) / found <= 1.35, parts


@pytest.mark.parametrize("shape", map(of, SHAPES))
def test_rows_of_sft_that_are_padded_have_no_masks(shape, small_tiles, tmp_path):
    *sizes, length = SHAPES[shape]
    model, architecture = model_of(*sizes)
    trainer = sft_trainer(model, 2, length, {}, tmp_path)
    longest, other = trainer.train_dataset[0], {"input_ids": [7] * 9, "labels": [7] * 9, "loss_weight": 1.0}
    trainer.train_dataset = type(trainer.train_dataset).from_list([longest, other] * 2)
    found = most_bytes(trainer)
    parts = memory.training_parts(architecture, Training(2, length), 1)
    taken = sum(parts.values())
    assert 1 <= taken / found <= 1.5, parts


@pytest.mark.parametrize("shape", map(of, SHAPES))
def test_a_pass_of_the_frozen_mu_takes_what_is_counted(shape, monkeypatch):
    """A row of one text, whose last quarter is scored."""
    import torch

    from mrt.sampling.scoring import Scored
    from mrt.training.frozen import Frozen

    *sizes, length = SHAPES[shape]
    model, architecture = model_of(*sizes, dtype=torch.bfloat16)
    monkeypatch.setattr(memory, "ROW", length)
    frozen = Frozen(model, tokenizer(), "cpu")
    ids = [7 + i % 400 for i in range(length)]
    with live_bytes(model) as peak:
        frozen.log_probabilities([(ids[: -length // 4], Scored([], ids[-length // 4 :], "}"))])
    parts = memory.frozen_bytes(architecture, Training(1, length))
    assert 1 <= parts / max(peak) <= 2.5, (parts, max(peak))


@pytest.mark.parametrize("bf16", [True, False])
def test_each_layer_keeps_the_masks_of_padded_rows(bf16):
    """In each of RL's passes, without checkpointing: what autograd keeps, and a mask in bool of each row."""
    import torch

    layers, length, passes = 3, 40, LENGTHS
    model, architecture = model_of(layers, 32, 64, 4, 2, 50)
    found = {}

    def kept(tensor):
        if tensor.shape[-2:] == (length, length):
            found[tensor.data_ptr(), len(outputs)] = tensor.nbytes
        return tensor

    ids, mask, outputs = torch.full((2, length), 7), torch.ones(2, length, dtype=torch.long), []
    mask[0, :5] = 0
    with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor), torch.autocast("cpu", enabled=bf16):
        for _ in range(passes):
            outputs.append(model(input_ids=ids, attention_mask=mask).logits)
    training = Training(2 * passes, length, bf16, checkpointing=False, rl=True)
    in_bool = training.rows * length**2
    assert sum(found.values()) == memory.mask_bytes(architecture, training) - in_bool > 0


def test_rl_has_masks_of_the_rows_of_a_pass_and_sft_has_none():
    parts = [memory.training_parts(QWEN_1_5B, Training(rows, 1000, rl=True), 1) for rows in (4, 8)]
    four, eight = (part["kept for the backward pass"] for part in parts)
    assert eight - 2 * four == (8 + 2 * 2) * 1000**2

    def taken(rows, **options):
        return memory.mask_bytes(QWEN_1_5B, Training(rows, 1000, **options)) / 1000**2

    assert [taken(rows, rl=True) for rows in (1, 4, 5, 8, 16)] == [0, 0, 5 + 2 * 2, 8 + 2 * 2, 16 + 2 * 4]
    assert taken(8, rl=True, checkpointing=False) == 8 + 2 * 8 * 28 and taken(8, rl=True, bf16=False) == 8 + 4 * 2
    assert not any(taken(rows) for rows in (1, 2, 8))


# ---- laws and messages


@given(architectures, cards, engines)
def test_weights_and_as_much_cache_fit_on_the_fewest_gpus(architecture, gpu, engine):
    try:
        n = sampling_gpus(architecture, engine, gpu)
    except ValueError as error:
        assert "does not fit" in str(error) or "cannot be spread" in str(error)
        return
    assert engine_fits(architecture, engine, gpu, n)
    needed = 4 * architecture.parameters
    assert needed <= n * engine.share * gpu.memory * GIB or n == memory.NUMBERS[-1]


@given(architectures, cards, trainings, st.floats(0, 0.8), st.sampled_from([1, 4, 8]))
def test_training_fits_or_says_what_does(architecture, gpu, training, share, least):
    try:
        n = training_gpus(architecture, training, gpu, share, least)
    except ValueError as error:
        assert "does not fit on" in str(error)
        longest = memory.longest_length(architecture, training, gpu, share, least)
        if longest:
            assert f"1 x {longest:,} tokens" in str(error)
            assert training_fits(architecture, training._replace(rows=1, length=longest), gpu, share, least)
        return
    assert n >= least and training_fits(architecture, training, gpu, share, n)


@given(architectures, trainings, st.sampled_from([1, 2, 8, 64]))
def test_more_tokens_take_more_and_more_gpus_no_more(architecture, training, gpus):
    def taken(training, gpus):
        return sum(memory.training_parts(architecture, training, gpus).values())

    assert taken(training._replace(length=2 * training.length), gpus) >= taken(training, gpus)
    if gpus > 1:
        assert taken(training, 2 * gpus) <= taken(training, gpus)


def test_heads_that_gpus_do_not_divide():
    odd = QWEN_7B.model_copy(update={"heads": 7, "kv_heads": 7, "parameters": 70_000_000_000})
    with pytest.raises(ValueError, match=r"7 attention heads \(7 of keys\) cannot be spread over 4 GPUs"):
        sampling_gpus(odd, Engine(4096, 256, 0.9), GPUS["h100"])


def test_an_engine_takes_fewer_gpus_than_it_would_like_where_a_node_has_no_more():
    engine = Engine(8192, 256, 0.9)
    assert sampling_gpus(QWEN_7B, engine, GPUS["rtx4090"]) == 2
    assert sampling_gpus(QWEN_7B, engine, GPUS["rtx4090"], most=1) == 1
    with pytest.raises(ValueError, match=r"max_model_len 131,072 does not fit on one GPU of 23.6 GiB.*2 GPUs"):
        sampling_gpus(QWEN_7B, engine._replace(longest=131_072), GPUS["rtx4090"], most=1)


def test_parameters_are_16_bytes_however_they_are_spread():
    for gpus in (1, 2, 8):
        parts = memory.training_parts(QWEN_1_5B, Training(1, 4096), gpus)
        assert parts["weights, gradients and optimizer"] == 16 * QWEN_1_5B.parameters / gpus
    assert "DeepSpeed's buffers" not in memory.training_parts(QWEN_1_5B, Training(1, 4096), 1)
    assert not training_fits(QWEN_1_5B, Training(1, 256), GPUS["rtx4090"], 0.0, 1)


# ---- docs/cluster.md

SIZES = {
    "1.5B": QWEN_1_5B,
    "7B": QWEN_7B,
    "32B": Architecture(
        parameters=32_763_876_352,
        layers=64,
        hidden=5120,
        intermediate=27_648,
        heads=40,
        kv_heads=8,
        head_dim=128,
        vocabulary=152_064,
        context=131_072,
    ),
}


def documented():
    """The page's list of sizes and its table: how many GPUs the paper's settings need, of at most 8."""
    paper = load(yaml.safe_load((ROOT / "config" / "paper.yaml").read_text()))
    engine, sft, rl = (
        sizing.engine_size(paper, "base_1.5b"),
        sizing.training_size(paper, "mrt_1.5b_1"),
        sizing.training_size(paper, "mrt_rl_1.5b"),
    )
    share = sizing.rl_engine_size(paper, "mrt_rl_1.5b").share
    yield f"- sampling: texts of {engine.longest:,} tokens, the engine with {engine.share} of each GPU's memory"
    yield f"- SFT: micro-batches of one row of {sft.length:,} tokens"
    yield f"- RL: micro-batches of one row of {rl.length:,} tokens, the engine with {share} of each GPU's memory"
    assert sft.rows == rl.rows == 1

    def least(count, *arguments):
        try:
            return str(n) if (n := count(*arguments)) <= 8 else "-"
        except ValueError:
            return "-"

    heads = ["GPU", "GiB", "sample 1.5B", "7B", "32B", "SFT 1.5B", "7B", "RL 1.5B", "LoRA: SFT 7B", "RL 7B"]
    table = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    alike = defaultdict(list)  # names of GPUs, by the numbers of their row
    for name, gpu in GPUS.items():
        numbers = [least(sampling_gpus, size, engine, gpu, 8) for size in SIZES.values()]
        numbers += [least(training_gpus, SIZES[size], sft, gpu, 0.0) for size in ("1.5B", "7B")]
        numbers += [least(training_gpus, QWEN_1_5B, rl, gpu, share)]
        lean = [(memory.on_one_card(sft)._replace(length=8192), 0.0), (memory.on_one_card(rl), share)]
        numbers += [least(memory.check_training, QWEN_7B, training, gpu, of, 1) for training, of in lean]
        alike[tuple(numbers)].append(name)
    for numbers, names in alike.items():
        sizes = sorted({GPUS[name].memory for name in names})
        gib = " to ".join(f"{size:g}" for size in (sizes[0], *sizes[1:][-1:]))
        table.append(f"| {' | '.join((', '.join(names), gib, *numbers))} |")
    yield "\n".join(table)


def test_the_documented_table_is_what_fits():
    text = (ROOT / "docs" / "cluster.md").read_text()
    for part in documented():
        assert part in text, part
