"""The real engine against the real model: log-probabilities and seeds."""

import json
import math
import shutil
from types import SimpleNamespace

import pytest
from conftest import TOY_BASE
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mrt.sampling.engine import Decoding, Engine, EngineSettings, Request, engine_options, seed_of
from mrt.sampling.tokens import decode, end_of

QUESTION = "Some of the numbers 9, 17, 8, 2, 10 add up to 29. What is the sum of the smallest and the largest of them?"
PROMPT = f"<|user|>{QUESTION}<|assistant|><think>\n"


@pytest.fixture(scope="module")
def engine():
    return Engine(TOY_BASE, EngineSettings(max_model_len=512))


def test_text_survives_the_engines_tokenizer(engine):
    text = PROMPT + "Try 9 + 8 = 17.\n\n17 is less than 29.\n\nNo answer so far.\n</think>\n\n**A:** \\boxed{17}"
    (ids,) = engine.encode([text])
    assert engine.tokenizer.decode(ids) == text


def test_vllm_and_transformers_agree_on_log_probabilities(engine):
    import torch
    from transformers import AutoModelForCausalLM

    decoding = Decoding(temperature=1.0, max_tokens=120, logprobs=True)
    completions = engine.generate([Request(PROMPT, 4, seed_of("agree"), decoding)])[0]
    model = AutoModelForCausalLM.from_pretrained(TOY_BASE, dtype=torch.float32).eval()
    (prompt,) = engine.encode([PROMPT])
    for completion in completions:
        (ids,) = engine.encode([completion.text])
        ids += [engine.tokenizer.eos_token_id] * (completion.finish_reason == "stop")
        assert len(ids) == completion.tokens
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        picked = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])
        assert completion.mean_logprob == pytest.approx(picked.mean().item(), abs=1e-3)


def test_samples_do_not_depend_on_the_batch_and_more_are_additions(engine):
    decoding = Decoding(temperature=1.0, max_tokens=60)
    few = engine.generate([Request(PROMPT, 2, 7, decoding)])[0]
    many = engine.generate([Request(PROMPT + "Try", 5, 3, decoding), Request(PROMPT, 5, 7, decoding)])[1]
    assert [c.text for c in few] == [c.text for c in many[:2]]
    assert len({c.text for c in many}) == 5


def sentencepiece():
    """A tokenizer whose blanks are in its pieces and whose other characters are bytes, as Llama 2's."""
    pieces = [
        "<unk>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        "\u2581Wait",
        "it",
        "\u25817",
        ".",
    ]
    own = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    own.decoder = decoders.Sequence(steps)
    own.add_special_tokens([AddedToken("</s>")])
    return PreTrainedTokenizerFast(tokenizer_object=own)


TOKENIZERS = [AutoTokenizer.from_pretrained(TOY_BASE), sentencepiece()]


@given(st.sampled_from(TOKENIZERS), st.text(min_size=1), st.lists(st.integers(0, 260)))
def test_texts_are_as_vllm_reads_them_after_the_whole_prompt(tokenizer, text, ids):
    from vllm import SamplingParams
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

    prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
    asked = SimpleNamespace(sampling_params=SamplingParams(), prompt_token_ids=prompt, request_id="r")
    vllms = FastIncrementalDetokenizer(tokenizer, asked)
    vllms.update(ids, stop_terminated=False)
    assert decode(tokenizer, end_of(tokenizer, prompt), ids) == vllms.output_text


def test_texts_are_as_vllm_reads_them_where_it_does(engine):
    hot = Decoding(temperature=1.5, max_tokens=90)
    never = hot.model_copy(update={"stop": ("never said",)})
    read, told = (engine.generate([Request(PROMPT, 16, 3, decoding)])[0] for decoding in (hot, never))
    assert read == told and {c.finish_reason for c in read} == {"stop", "length"}


def test_requests_reach_the_scheduler_by_priority(engine, monkeypatch):
    core, reached = engine.llm.llm_engine.engine_core, []
    add = core.add_request
    monkeypatch.setattr(core, "add_request", lambda request: (reached.append(request), add(request))[1])
    one = Decoding(max_tokens=1)
    engine.generate([Request(PROMPT, 1, number, one, priority) for number, priority in enumerate([3, -1, 3, 0])])
    assert [(r.sampling_params.seed, r.priority) for r in reached] == [(1, -1), (3, 0), (0, 3), (2, 3)]
    arrived = [r.arrival_time for r in reached]
    assert arrived == sorted(arrived) and arrived[0] > 0


def test_a_prompt_that_fills_the_context_is_data(engine):
    five = Decoding(max_tokens=5)
    long, short = engine.generate([Request(PROMPT * 30, 2, 1, five), Request(PROMPT, 1, 1, five)])
    assert [(c.text, c.finish_reason) for c in long] == [("", "length")] * 2
    assert short[0].tokens == 5


def test_a_stop_text_ends_a_completion_and_is_not_part_of_it(engine):
    whole = engine.generate([Request(PROMPT, 3, 7, Decoding(temperature=1.0, max_tokens=300))])[0]
    cut = engine.generate([Request(PROMPT, 3, 7, Decoding(temperature=1.0, max_tokens=300, stop=("</think>",)))])[0]
    assert [c.text for c in cut] == [c.text.split("</think>")[0] for c in whole]
    assert all(c.finish_reason == "stop" for c in cut) and any("</think>" in c.text for c in whole)


def test_settings_reach_vllm_on_a_gpu_and_on_a_cpu():
    own = EngineSettings(dtype="float16", block_size=64, max_num_seqs=7)
    assert engine_options(EngineSettings(), cpu=False) == {"dtype": "auto", "max_num_seqs": 512}  # the rest is vLLM's
    assert engine_options(own, cpu=False) == {"dtype": "float16", "max_num_seqs": 7, "block_size": 64}
    assert engine_options(own, cpu=False).items() <= engine_options(own, cpu=True).items()
    assert {"dtype": "float32", "block_size": 32}.items() <= engine_options(EngineSettings(), cpu=True).items()


def test_an_engine_on_several_gpus_compiles_no_kernel_of_flashinfers():
    from vllm.config import PassConfig

    options = engine_options(EngineSettings(tensor_parallel_size=2), cpu=False)
    assert PassConfig(**options["compilation_config"]["pass_config"]).fuse_allreduce_rms is False
    assert "compilation_config" not in engine_options(EngineSettings(tensor_parallel_size=1), cpu=False)


def test_seeds_are_spaced_and_named():
    seeds = [seed_of(0, "base", "toy", f"p{i}") for i in range(2000)]
    assert len({s // 64 for s in seeds}) == 2000
    assert all(0 <= s < 2**62 for s in seeds)
    assert seed_of("a", "bc") != seed_of("ab", "c")
    assert math.isclose(sum(seeds) / 2000 / 2**61, 1, rel_tol=0.1)


def test_nothing_of_a_models_generation_config_is_sampled_with(engine, tmp_path):
    """vLLM would take these, as Qwen's checkpoints have them, for requests that do not say how they are sampled."""
    theirs = {"do_sample": True, "top_k": 1, "top_p": 0.1, "min_p": 0.9, "temperature": 0.01, "repetition_penalty": 2.0}
    shutil.copytree(TOY_BASE, folder := tmp_path / "model")
    usual = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(usual | theirs | {"max_new_tokens": 3}))
    other, request = Engine(folder, engine.settings), Request(PROMPT, 5, 7, Decoding(temperature=1.0, max_tokens=60))
    assert other.llm.get_default_sampling_params().top_k == 1  # so vLLM has read them
    assert other.generate([request]) == engine.generate([request])


def test_each_end_of_a_model_ends_its_completions_and_is_no_part_of_them(tmp_path):
    """As `<|im_end|>` and `<|endoftext|>` do; here the second end is the tag that closes thoughts."""
    folder = shutil.copytree(TOY_BASE, tmp_path / "model")
    settings = json.loads((folder / "generation_config.json").read_text())
    tag = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("</think>")
    (folder / "generation_config.json").write_text(json.dumps(settings | {"eos_token_id": [1, tag]}))
    two_ends = Engine(str(folder), EngineSettings(max_model_len=512, cpu_cache_gib=0.1))
    for stop in ((), ("never said",)):  # decoded here, and by vLLM
        decoding = Decoding(temperature=1.0, max_tokens=150, stop=stop)
        completions = two_ends.generate([Request(PROMPT, 8, 5, decoding)])[0]
        ended = [c for c in completions if c.finish_reason == "stop"]
        assert ended and not any("</think>" in c.text or "boxed" in c.text for c in completions)
        assert all(len(two_ends.encode([c.text])[0]) + 1 == c.tokens for c in ended)
