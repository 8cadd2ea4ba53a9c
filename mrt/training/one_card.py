"""Training on one card: low-rank adapters in place of weights, a base in bfloat16, optimizers with a small state.

LoRA (arXiv 2106.09685) leaves each weight W of a linear layer as it is and trains B A, of rank r, beside it:
W x + alpha / r B A x. B begins at 0, so that the first step has the parent's probabilities. When training ends, the
products are added to the weights: a child is an ordinary checkpoint, in the dtype that its parent has on disk.

RL hands the engine the sums W + alpha / r B A, one by one; the weights W stay as they are. peft's way adds to the
weights and subtracts again. That leaves rounding in them at every step, and in bfloat16 much of it.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, field_validator

from mrt.core.settings import Settings, suggestion

PART = ".lora_"  # in the names of adapters' own weights
NOT_LINEAR = ("lm_head", "embed_tokens")  # layers of words, which may share a weight


class Optimizer(NamedTuple):
    """An optimizer of transformers."""

    state: float | None  # bytes of its state a trained parameter; None: those of rows and columns alone
    step: float = 0.0  # bytes a trained parameter that a step takes for a while
    needs: str | None = None  # a package
    refused: str | None = None  # why it cannot be used


EIGHT = 1 + 4 / 256  # bytes of a state of 8 bits, with the scale of each block of 256
BNB = "bitsandbytes"
TARGETS = "it needs the names of its layers (optim_target_modules), for which there is no setting"
AVERAGED = "its weights count only once they are averaged, which happens after a checkpoint is written"
OTHER_MACHINE = "it is for another kind of machine"
OPTIMIZERS = {  # by transformers' names
    "adamw_torch": Optimizer(8, 4),
    "adamw_torch_fused": Optimizer(8),
    "adamw_torch_xla": Optimizer(8, refused=OTHER_MACHINE),
    "adamw_torch_npu_fused": Optimizer(8, refused=OTHER_MACHINE),
    "adafactor": Optimizer(None),
    "adamw_anyprecision": Optimizer(8, refused="it needs torchdistx, which is no longer made"),
    "adamw_torch_4bit": Optimizer(EIGHT, 4, "torchao"),
    "adamw_torch_8bit": Optimizer(2 * EIGHT, 4, "torchao"),
    "ademamix": Optimizer(12, needs=BNB),
    "sgd": Optimizer(0, 4),
    "adagrad": Optimizer(4, 12),
    "adamw_bnb_8bit": Optimizer(2 * EIGHT, needs=BNB),
    "adamw_8bit": Optimizer(2 * EIGHT, needs=BNB),
    "ademamix_8bit": Optimizer(3 * EIGHT, needs=BNB),
    "lion_8bit": Optimizer(EIGHT, needs=BNB),
    "lion_32bit": Optimizer(4, needs=BNB),
    "paged_adamw_32bit": Optimizer(8, needs=BNB),
    "paged_adamw_8bit": Optimizer(2 * EIGHT, needs=BNB),
    "paged_ademamix_32bit": Optimizer(12, needs=BNB),
    "paged_ademamix_8bit": Optimizer(3 * EIGHT, needs=BNB),
    "paged_lion_32bit": Optimizer(4, needs=BNB),
    "paged_lion_8bit": Optimizer(EIGHT, needs=BNB),
    "rmsprop": Optimizer(4, 8),
    "rmsprop_bnb": Optimizer(4, needs=BNB),
    "rmsprop_bnb_8bit": Optimizer(EIGHT, needs=BNB),
    "rmsprop_bnb_32bit": Optimizer(4, needs=BNB),
    **dict.fromkeys(
        (
            *("galore_adamw", "galore_adamw_8bit", "galore_adafactor", "galore_adamw_layerwise"),
            *("galore_adamw_8bit_layerwise", "galore_adafactor_layerwise", "apollo_adamw", "apollo_adamw_layerwise"),
        ),
        Optimizer(8, refused=TARGETS),
    ),
    **dict.fromkeys(("lomo", "adalomo"), Optimizer(0, refused="it takes gradients without accumulating them")),
    "grokadamw": Optimizer(12, 8, "grokadamw"),
    **dict.fromkeys(
        ("schedule_free_radam", "schedule_free_adamw", "schedule_free_sgd"), Optimizer(8, refused=AVERAGED)
    ),
    "stable_adamw": Optimizer(8, 8, "optimi"),
}
USABLE = [name for name, each in OPTIMIZERS.items() if not each.refused]
DEFAULT = "adamw_torch_fused"  # transformers'
OPTIM_SCHEMA: Any = {"anyOf": [{"enum": USABLE, "type": "string"}, {"type": "null"}]}
SHARDED = ("adamw_torch", DEFAULT)  # that are tried with ZeRO-3


class LoRA(Settings):
    """Low-rank adapters (LoRA), which are trained in place of the weights and added to them when training ends."""

    rank: int = Field(16, ge=1, le=4096, description="Rank r of an adapter.")
    alpha: float = Field(32.0, gt=0, description="An adapter's output is scaled by alpha / rank.")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="Dropout of the adapters' inputs; 0 in RL, as the engine samples without dropout."
    )
    targets: Literal["all-linear"] | list[str] = Field(
        "all-linear",
        min_length=1,
        description="Layers with an adapter: all linear ones but the output layer, or those of these names, such"
        " as `[q_proj, v_proj]`.",
    )

    @field_validator("targets")
    @classmethod
    def _linear(cls, targets: str | list[str]) -> str | list[str]:
        if words := [name for name in NOT_LINEAR if name in targets and isinstance(targets, list)]:
            raise ValueError(
                f"{words[0]} takes no adapter: probabilities are worked out from the output layer's weight alone, and"
                " where embeddings share it, an adapter of one would be added to both"
            )
        return targets


class OneCard(Settings):
    """Settings by which a training takes less memory; all are off."""

    lora: LoRA | None = Field(
        None, description="Train low-rank adapters instead of the weights, on one GPU; `{}` for its defaults."
    )
    base: Literal["bfloat16"] | None = Field(
        None,
        description="With `lora`: the frozen weights are held in bfloat16 (2 bytes each), by default in float32."
        " Adapters are always in float32.",
    )
    optim: str | None = Field(
        None,
        description="The optimizer, by its name in transformers (`TrainingArguments.optim`), such as `adamw_bnb_8bit`;"
        f" by default {DEFAULT}. Others than AdamW of torch train on one GPU.",
        json_schema_extra=OPTIM_SCHEMA,
    )

    @field_validator("optim")
    @classmethod
    def _usable(cls, optim: str | None) -> str | None:
        if optim is not None and optim not in USABLE:
            known = OPTIMIZERS.get(optim)
            raise ValueError(known.refused if known else f"there is no {optim!r}{suggestion(optim, USABLE)}")
        return optim

    @property
    def alone(self) -> str | None:
        """The setting for which a training has to be one process on one GPU, if there is one."""
        return "lora" if self.lora else "optim" if self.optim not in (None, *SHARDED) else None


def contradictions(recipe: Any) -> Iterator[tuple[str, str]]:
    """(setting, mistake) of a recipe, once the settings of a model lie over the shared ones."""
    if recipe.base and not recipe.lora:
        yield (
            "base",
            "without lora all weights are trained, and in bfloat16, which has 8 bits, most steps of a usual learning"
            " rate round to nothing; add lora, or leave base out (`optim: adamw_bnb_8bit` saves 6 bytes a parameter)",
        )
    if recipe.base and not recipe.bf16:
        yield "base", "weights in bfloat16 are computed with in bfloat16; leave bf16 at true"


def check(recipe: Any, *, sharded: bool = False, cpu: bool = False) -> None:
    """Raise ValueError if a recipe contradicts itself, lacks a package, or is not for several processes or a CPU."""
    for name, wrong in contradictions(recipe):
        raise ValueError(f"{name}: {wrong}")
    needs = {"lora": "peft" if recipe.lora else None, "optim": OPTIMIZERS[recipe.optim or DEFAULT].needs}
    for name, package in needs.items():
        if package and not find_spec(package):
            raise ValueError(f"{name}: {package} is not installed in this environment; pip install {package}")
    if cpu and (recipe.optim or "").startswith("paged_ademamix"):
        raise ValueError(f"optim: the pages of {recipe.optim} are CUDA's; on a CPU use {recipe.optim[6:]}")
    if recipe.alone and sharded:
        raise ValueError(
            f"{recipe.alone}: it was never tried on several processes, which share weights and optimizer (ZeRO-3);"
            f" train on one GPU, or leave {recipe.alone} out"
        )


def load(folder: Path, recipe: OneCard) -> Any:
    """The model to train from a checkpoint folder: in float32, or as `base` says."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16 if recipe.base else torch.float32)


def adapters(model: Any, lora: LoRA | None) -> Any:
    """peft's configuration of the adapters of a model; None without `lora`.

    Raises ValueError if one of its targets is no linear layer of the model.
    """
    if lora is None:
        return None
    import torch
    from peft import LoraConfig

    output = model.get_output_embeddings()
    linear = [name for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not output]
    names = sorted({name.rpartition(".")[2] for name in linear})
    for target in lora.targets if isinstance(lora.targets, list) else []:
        if target not in names:
            raise ValueError(f"lora.targets: the model has no linear layer {target!r}{suggestion(target, names)}")
    options: dict[str, Any] = {"r": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout}
    return LoraConfig(**options, target_modules=lora.targets, task_type="CAUSAL_LM")


def has_adapters(model: Any) -> bool:
    """Whether a model is one of peft, with adapters."""
    return hasattr(model, "merge_and_unload")


def in_words(model: Any) -> str:
    """How much of a model with adapters is trained."""
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    whole = sum(weight.numel() for weight in model.parameters()) - trained
    layers = sum(hasattr(module, "get_delta_weight") for module in model.modules())
    return f"LoRA: adapters of {layers} layers, {trained:,} parameters beside {whole:,} that stay as they are"


def training(trainer: Any) -> AbstractContextManager[Any]:
    """The context in which a trainer of adapters runs: autocast alone casts the inputs of adapters.

    peft would copy them to float32 in each layer, and autocast would cast the copies back.
    """
    if not has_adapters(trainer.model) or not trainer.args.bf16:
        return nullcontext()
    from peft.helpers import disable_input_dtype_casting

    return disable_input_dtype_casting(trainer.model)


def merge(trainer: Any, folder: Path) -> None:
    """Replace a trainer's model by the one of `merged_in`; without adapters nothing is done."""
    if not has_adapters(trainer.model):
        return
    weights = merged_in(trainer.model, folder)
    trainer.model = trainer.model.unload()
    for name, weight in trainer.model.named_parameters():
        weight.data = weights[name]


def dtype_of(folder: Path) -> Any:
    """torch's type of the weights in a checkpoint folder."""
    import torch
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    dtype = config.get_text_config().dtype or config.dtype or torch.float32
    return getattr(torch, str(dtype).removeprefix("torch."))


def save(trainer: Any, to: Path, folder: Path) -> None:
    """Write a trainer's weights to `to` while it trains: as `merge` would leave them, if it has adapters.

    All processes of a distributed run call it.

    Args:
        folder: the checkpoint that it came from.
    """
    if not has_adapters(trainer.model):
        trainer.save_model(str(to))
        return
    trainer.model.get_base_model().save_pretrained(to, state_dict=merged_in(trainer.model, folder))


def merged_in(model: Any, folder: Path) -> dict[str, Any]:
    """The weights of `merged`, rounded once to the dtype of the checkpoint folder that the model came from.

    In main memory: if the checkpoint is in float32 and the base was in bfloat16, the GPU may be too small.
    """
    dtype = dtype_of(folder)
    return {name: value.to("cpu", dtype) for name, value in merged(model)}


def merged(model: Any) -> Iterator[tuple[str, Any]]:
    """The weights of a model with its adapters added, by the names that they have without adapters.

    One by one, sums in float32; the model's own weights stay as they are, to the bit.
    """
    import torch

    base = model.get_base_model()
    layers = dict(base.named_modules())
    with torch.no_grad():
        for name, weight in base.named_parameters():
            if PART in name:
                continue
            layer, wrapped, what = name.rpartition(".base_layer.")
            value = weight.detach()
            if wrapped and what == "weight":
                delta = layers[layer].get_delta_weight("default")
                value = value.to(delta.dtype) + delta
            yield name.replace(".base_layer.", "."), value
