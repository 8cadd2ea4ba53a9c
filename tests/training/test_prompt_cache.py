"""Prompts that are read once: what comes out is what whole rows give."""

import pytest
from conftest import TOY_BASE

from mrt.training.devices import padded_left
from mrt.training.flops import Sizes
from mrt.training.prompt_cache import PromptCache, applies, has_cache, in_groups

PROMPTS, COMPLETIONS = (7, 19, 7, 30), [(0, 4), (1, 3), (0, 9), (1, 12), (2, 5), (3, 1), (3, 8), (0, 6)]


@pytest.fixture
def model():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(TOY_BASE, dtype="float32")


@pytest.fixture
def rows():
    """Prompt and completion of each row; three of the four prompts differ."""
    import torch

    draw = torch.Generator().manual_seed(0)
    texts = [torch.randint(5, 600, (n,), generator=draw) for n in PROMPTS]
    texts[2] = texts[0]
    return [(texts[i], torch.randint(5, 600, (n,), generator=draw)) for i, n in COMPLETIONS]


def whole_rows(model, rows):
    """Log-probabilities of each completion's tokens, in rows that hold the whole prompt."""
    import torch

    found = []
    for prompt, completion in rows:
        logits = model(torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1]
        found.append(logits.log_softmax(-1).gather(1, completion[:, None])[:, 0])
    return found


def behind_the_cache(model, rows, passes=2, parts=3):
    """The same after a cache, in batches of any rows in any order."""
    import torch

    cache = PromptCache(model, [prompt[:-1] for prompt, _ in rows], Sizes.of(model), passes)
    texts = [torch.cat([prompt[-1:], completion]) for prompt, completion in rows]
    found = [None] * len(rows)
    for part in torch.tensor([1, 0, 5, 3, 2, 4, 7, 6]).chunk(parts):
        ids, mask = padded_left([texts[i] for i in part])
        logits = cache.behind(part)(ids, mask).logits.log_softmax(-1)
        for place, i in enumerate(part.tolist()):
            completion = rows[i][1]
            own = logits[place, -len(completion) - 1 : -1]
            found[i] = own.gather(1, completion[:, None])[:, 0]
    return found


@pytest.mark.parametrize(("passes", "parts"), [(1, 1), (2, 3), (9, 8)])
def test_log_probabilities_and_gradients_are_those_of_whole_rows(passes, parts, model, rows):
    whole = whole_rows(model, rows)
    sum(logps.pow(2).sum() for logps in whole).backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    found = behind_the_cache(model, rows, passes, parts)
    for ours, theirs in zip(found, whole, strict=True):
        assert ours.tolist() == pytest.approx(theirs.tolist(), abs=1e-4)
    sum(logps.pow(2).sum() for logps in found).backward()
    for name, weight in model.named_parameters():
        size = float(expected[name].abs().max())
        assert float((weight.grad - expected[name]).abs().max()) < 1e-4 * size, name


def test_micro_batches_hold_the_same_rows_by_their_prompts(rows):
    import torch

    ids, mask = padded_left([prompt for prompt, _ in rows])
    whole = {"prompt_ids": ids, "prompt_mask": mask, "row": torch.arange(len(rows)), "none": None}
    shuffled = torch.tensor([6, 1, 4, 3, 0, 7, 2, 5])
    parts = [{name: x if x is None else x[i] for name, x in whole.items()} for i in shuffled.split(2)]
    total = torch.tensor(7.0)
    found = in_groups([{**part, "total": total} for part in parts])
    assert [len(part["row"]) for part in found] == [2] * 4
    assert all(part["total"] is total and part["none"] is None for part in found)
    order = torch.cat([part["row"] for part in found]).tolist()
    assert sorted(order) == list(range(len(rows)))
    assert [PROMPTS[COMPLETIONS[i][0]] for i in order] == [7, 7, 7, 7, 19, 19, 30, 30]
    for name, values in whole.items():  # a row keeps all its values
        if values is not None:
            assert torch.cat([part[name] for part in found]).tolist() == values[order].tolist()


def test_each_distinct_prompt_is_read_once(model, rows):
    read, forward = [], model.forward
    model.forward = lambda **options: (read.append(options["attention_mask"].sum(1).tolist()), forward(**options))[1]
    cache = PromptCache(model, [prompt[:-1] for prompt, _ in rows], Sizes.of(model), 2)
    assert read == [[6, 18], [29]]
    assert cache.width(slice(None)) == 29 and cache.flops > 0


def test_windows_of_attention_have_no_such_cache():
    from transformers import Gemma2Config, LlamaConfig, MistralConfig, Qwen2Config

    assert has_cache(LlamaConfig()) and has_cache(Qwen2Config())
    assert not has_cache(MistralConfig(sliding_window=4096)) and not has_cache(Gemma2Config())


def test_prompts_are_read_once_where_that_works():
    from transformers import AutoConfig

    config, prompts = AutoConfig.from_pretrained(TOY_BASE), [[1, 2], [3, 4, 5]]
    assert applies(config, prompts, processes=1, checkpointing=False)
    assert not applies(config, prompts, processes=2, checkpointing=False)
    assert not applies(config, prompts, processes=1, checkpointing=True)
    assert not applies(config, [*prompts, [6]], processes=1, checkpointing=False)
