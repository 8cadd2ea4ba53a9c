"""A frozen mu: a packed tree of texts gives the values of each text alone, and reads each distinct token once."""

from types import SimpleNamespace

import numpy as np
import pytest
from conftest import TOY_BASE
from hypothesis import given
from hypothesis import strategies as st

from mrt.sampling.scoring import as_written
from mrt.training.flops import Sizes, distinct
from mrt.training.frozen import Frozen, rows

texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=8)


@given(texts, st.integers(1, 20))
def test_a_row_is_a_tree_of_its_texts(texts, size):
    found, nodes = {}, 0
    for row in rows(texts, size):
        assert len(row.ids) <= max(size, max(len(texts[number]) for number, _ in row.paths))
        nodes += len(row.ids)
        for number, path in row.paths:
            found[number] = row.ids[path].tolist()
            assert row.depth[path].tolist() == list(range(len(path)))
            for node in path:  # it attends to its own text up to itself, and to nothing else
                assert np.flatnonzero(row.mask[node]).tolist() == sorted(path[: row.depth[node] + 1])
    assert found == dict(enumerate(texts))
    assert nodes >= distinct(texts)[0]


@given(texts)
def test_each_distinct_token_is_read_once(texts):
    packed = list(rows(texts))
    assert sum(len(row.ids) for row in packed) == distinct(texts)[0] and len(packed) == bool(texts)


@pytest.fixture(scope="module")
def toy():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(TOY_BASE).float(), AutoTokenizer.from_pretrained(TOY_BASE)


def test_probabilities_are_those_of_each_text_alone(toy):
    import torch

    model, tokenizer = toy
    chat = "<|user|>Some of the numbers 5, 19, 3 add up to 8. What is the sum of the smallest and the largest of them?"
    chat += "<|assistant|><think>\n"
    header = "</think>\n\n**Step-by-Step Explanation and Answer:**\n\n1. **"
    opening = "Ends:** they add up to \\boxed{"
    step = "Try 5 + 3 = 8.\n\n8 is exactly 8.\n\n"
    texts = [(chat + thought + header, gold) for thought in ("", step, step + step) for gold in ("8", "24")]
    texts = [
        (tokenizer(prompt, add_special_tokens=False)["input_ids"], as_written(tokenizer, opening, gold))
        for prompt, gold in texts
    ]
    brace = [i for i in tokenizer.get_vocab().values() if tokenizer.decode([i]).startswith("}")]
    frozen = Frozen(model, tokenizer, "cpu")
    found = frozen.log_probabilities(texts)
    whole = [([*prompt, *scored.before], scored.target) for prompt, scored in texts]
    for (before, own), logp in zip(whole, found, strict=True):
        with torch.no_grad():
            alone = model(torch.tensor([before + own])).logits[0].log_softmax(-1)
        expected = sum(float(alone[len(before) + i - 1, token]) for i, token in enumerate(own))
        expected += float(alone[-1, brace].logsumexp(0))
        assert logp == pytest.approx(expected, abs=1e-4)
    assert np.exp(found[2]) > 0.3  # where the first episode found it
    size, _ = distinct([before + own for before, own in whole])
    assert frozen.taken() == pytest.approx(Sizes.of(model).training(1, size, 12, backward=False), rel=0.05)
    assert frozen.taken() == 0 and frozen.log_probabilities([]) == []
    assert not any(p.requires_grad for p in model.parameters())


def test_a_model_with_windows_is_refused():
    config = SimpleNamespace(layer_types=["full_attention", "sliding_attention"])
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: config))
    with pytest.raises(ValueError, match="full attention in every layer; use mu: policy"):
        Frozen(model, None, "cpu")
