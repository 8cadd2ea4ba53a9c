"""Training passes of RL in which each distinct prompt is read once, however many completions continue it.

The completions of a group share their prompt, and a prompt of MRT (RL) holds a prefix of a thought besides. So a first
pass reads the distinct prompts, all but their last token, and keeps the keys and values of each layer. A second pass
reads rows of a last prompt token and a completion with these keys and values. Gradients flow through both passes, and
are those of rows that hold the whole prompt. `applies` says where this works; elsewhere each row holds its prompt.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mrt.training.devices import LENGTHS, padded_left
from mrt.training.flops import Sizes


def in_groups(micro_batches: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows in as many micro-batches, sorted by their prompts: a pass then meets few distinct ones.

    Args:
        micro_batches: inputs of TRL's GRPOTrainer, of equally many rows. Tensors with a dimension hold a value per row,
            `prompt_ids` and `prompt_mask` [rows, tokens] among them; all other entries are equal in all of them.
    """
    import torch

    prompts = [
        ids[real].tolist()
        for part in micro_batches
        for ids, real in zip(part["prompt_ids"], part["prompt_mask"].bool(), strict=True)
    ]
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), prompts[i]))
    whole = {
        name: torch.cat([part[name] for part in micro_batches])[order]
        if torch.is_tensor(value) and value.dim()
        else value
        for name, value in micro_batches[0].items()
    }
    parts = len(micro_batches)
    split = {
        name: value.tensor_split(parts) if torch.is_tensor(value) and value.dim() else [value] * parts
        for name, value in whole.items()
    }
    return [{name: values[i] for name, values in split.items()} for i in range(parts)]


def has_cache(config: Any) -> bool:
    """Whether every layer of a model with this configuration attends to all earlier tokens, so that a cache holds them.

    Windows are counted in positions of a row, and padding after the prompt would count too.
    """
    kinds = getattr(config, "layer_types", None)
    return set(kinds) == {"full_attention"} if kinds else getattr(config, "sliding_window", None) is None


class PromptCache:
    """Keys and values of the distinct prompts of some rows; `flops` are those of their forward and backward pass."""

    def __init__(self, model: Any, prompts: Sequence[Any], sizes: Sizes, passes: int) -> None:
        """Read the prompts.

        Args:
            model: a causal language model of transformers that `has_cache`, without gradient checkpointing.
            prompts: token ids of each row's prompt without its last token: tensors of at least one token.
            sizes: sizes of the model.
            passes: maximum number of forward passes, each of prompts of similar length.
        """
        import torch
        from torch.nn.functional import pad
        from transformers import DynamicCache

        self.model, self.flops, backward = model, 0.0, torch.is_grad_enabled()
        distinct = {tuple(prompt.tolist()): prompt for prompt in prompts}
        texts = sorted(distinct, key=len)
        place = {text: i for i, text in enumerate(texts)}
        self.row = torch.tensor([place[tuple(prompt.tolist())] for prompt in prompts], device=prompts[0].device)
        self.lengths = torch.tensor([len(text) for text in texts], device=prompts[0].device)
        longest, layers = len(texts[-1]), list[Any]()
        for part in torch.arange(len(texts)).chunk(passes):
            ids, mask = padded_left([distinct[texts[i]] for i in part.tolist()])
            cache, positions = DynamicCache(), (mask.cumsum(1) - 1).clamp(min=0)
            options = {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
            model(input_ids=ids, attention_mask=mask, position_ids=positions, **options)
            missing = (0, 0, longest - ids.size(1), 0)
            layers.append([(pad(layer.keys, missing), pad(layer.values, missing)) for layer in cache.layers])
            self.flops += sizes.training(len(ids), ids.size(1), len(ids), backward=backward)
        self.layers = [[torch.cat(parts) for parts in zip(*layer, strict=True)] for layer in zip(*layers, strict=True)]

    def behind(self, rows: Any) -> Callable[..., Any]:
        """The model, as it reads texts that continue the prompts of these rows (indices) and are padded on the left."""
        import torch
        from transformers import DynamicCache

        which = self.row[rows]
        lengths = self.lengths[which][:, None]
        width = int(lengths.max())
        cache = DynamicCache()
        for i, (keys, values) in enumerate(self.layers):
            cache.update(keys[which, :, -width:], values[which, :, -width:], i)
        prompts = (torch.arange(width, 0, -1, device=which.device) <= lengths).long()

        def read(input_ids: Any, attention_mask: Any, **options: Any) -> Any:
            positions = (lengths + attention_mask.cumsum(1) - 1).clamp(min=0)
            whole = torch.cat([prompts, attention_mask], dim=1)
            inputs = {"attention_mask": whole, "position_ids": positions, "past_key_values": cache}
            return self.model(input_ids=input_ids, **inputs, **options)

        return read

    def width(self, rows: Any) -> int:
        """Tokens of the longest prompt of these rows: every token of a text after them attends to as many."""
        return int(self.lengths[self.row[rows]].max())


def applies(config: Any, prompts: Iterable[Sequence[int]], *, processes: int, checkpointing: bool) -> bool:
    """Whether a training can read its prompts once.

    ZeRO-3 needs the same passes of all processes, and gradient checkpointing keeps no keys and values. The last token
    of a prompt is not in the cache, so that a prompt of one token would leave nothing to keep.

    Args:
        config: configuration of the model.
        prompts: token ids of each prompt; not asked for where the rest says no.
        processes: number of processes of the training.
        checkpointing: whether it uses gradient checkpointing.
    """
    return processes == 1 and not checkpointing and has_cache(config) and min(map(len, prompts)) > 1


def reading_prompts_once(trainer_class: type) -> type:
    """The trainer of `mrt.training.rl.trainer`, as it reads each distinct prompt once."""
    import torch

    class ReadingPromptsOnce(trainer_class):
        def _prepare_inputs(self, generation_batch: Any) -> Any:
            """TRL's method, but the completions of a prompt stay together, so that their passes read it once.

            TRL shuffles them over the micro-batches. The gradients of these are added up, whatever is in which.
            """
            before = self._buffered_inputs
            inputs = super()._prepare_inputs(generation_batch)
            if self._buffered_inputs is before:
                return inputs
            self._buffered_inputs: Any = in_groups(self._buffered_inputs)
            return self._buffered_inputs[self._step % self.args.steps_per_generation]

        def reading(self, model: Any, rows: list[Any], lengths: list[int], batch_size: int) -> Any:
            """A last prompt token and the completion of each row, read with a cache for each batch."""
            ends = [len(row) - length - 1 for row, length in zip(rows, lengths, strict=True)]
            caches: dict[int, PromptCache] = {}

            def reader(which: list[int]) -> tuple[Any, int]:
                first = which[0] // batch_size * batch_size
                if first not in caches:
                    caches.clear()
                    batch = range(first, min(first + batch_size, len(rows)))
                    with self.accelerator.autocast():
                        caches[first] = PromptCache(model, [rows[i][: ends[i]] for i in batch], self.sizes, LENGTHS)
                    self.spent.add(flops=caches[first].flops)
                places = torch.tensor(which) - first
                return caches[first].behind(places), caches[first].width(places)

            return [row[end:] for row, end in zip(rows, ends, strict=True)], reader

    return ReadingPromptsOnce
