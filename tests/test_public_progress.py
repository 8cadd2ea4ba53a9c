"""mrt.progress: each function has the workflow's results, from any engine; wrong input is an error."""

import json
from math import exp, inf, log

import numpy as np
import pytest
from conftest import TOY_BASE
from hypothesis import given
from hypothesis import strategies as st

from mrt.episodes.parameterization import OpenEnded, Segmentation, split_episodes
from mrt.grading.spellings import spellings
from mrt.progress import (
    J_by_answers,
    J_by_likelihood,
    Template,
    Thinking,
    advantages,
    cut,
    episode_ends,
    openai_engine,
    outcome,
    prefixes,
    transformers_engine,
    vllm_engine,
)
from mrt.sampling.prover import prefixes as workflow_prefixes
from mrt.training.method import variants
from mrt.training.variant import Group

CHAT = "<|user|>Some of the numbers 5, 19, 3 add up to 8. What is the sum of the smallest and the largest of them?"
CHAT += "<|assistant|><think>\n"
OPENING = "Ends:** they add up to \\boxed{"
SOLVED = "Try 5 + 3 = 8.\n\n8 is exactly 8.\n\nThe answer so far is 5 + 3 = 8.\n\n"
DOUBTED = "Wait, try 19 + 3 = 22.\n\n22 is more than 8.\n\nThe answer so far is 5 + 3 = 8.\n\n"
MAGISTRAL = Thinking(open="[THINK]", close="[/THINK]")
paragraphs = st.lists(st.sampled_from(["Wait, no.", "So 4.", "Alternatively 5", "# head", ""]), max_size=9)


@given(paragraphs, st.integers(1, 3), st.one_of(st.none(), st.integers(0, 3)), st.sampled_from(["markers", "steps"]))
def test_a_thought_is_cut_as_the_workflow_cuts_it(steps, least, most, by):
    thought = "\n\n".join(steps)
    settings = {"min_steps": least, "max_episodes": most, "by": by}
    assert cut(thought, **settings) == (split_episodes(thought, **settings), False)
    for thinking in (Thinking(), MAGISTRAL):
        whole = f"{thinking.open}{thought}{thinking.close}\\boxed{{4}}"
        words = OpenEnded(segmentation=Segmentation(**settings), thinking=thinking)
        parts = cut(whole, inside=False, thinking=thinking, **settings)
        assert parts == words.cut(whole, inside=False) and "".join(parts.episodes) + thinking.closing in whole
        assert parts.closed


def test_a_function_cuts_losslessly_or_is_an_error():
    assert cut("a\nb\n", by=lambda thought: thought.splitlines(keepends=True)).episodes == ["a\n", "b\n"]
    assert cut("", by=str.split) == ([], False)
    with pytest.raises(ValueError, match=r"split: of a thought that begins 'a b', .* does not give the thought"):
        cut("a b", by=str.split)
    with pytest.raises(ValueError, match="has an empty one"):
        cut("a b", by=lambda thought: [thought, ""])
    with pytest.raises(ZeroDivisionError):  # as it is
        cut("a", by=lambda thought: 1 / 0)
    for wrong in ({"by": "headings"}, {"min_steps": 0}, {"max_episodes": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            cut("a", **wrong)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("thinking", [Thinking(), MAGISTRAL])
def test_prefixes_are_those_of_the_workflow(closed, thinking):
    episodes, template = ["a\n\n", "b\n\n", "c"], Template(stop="Stop.\n", header="So ")
    words = OpenEnded(template=template, thinking=thinking)
    for every, inside in ((1, True), (2, False)):
        texts = prefixes("x", episodes, closed=closed, inside=inside, every=every, thinking=thinking, template=template)
        assert texts == [str(p) for p in workflow_prefixes("x", episodes, closed, words, every, inside=inside)]
        assert ("Stop." in texts[-1]) == (not closed)
    with pytest.raises(ValueError, match="every: 0"):
        prefixes("x", episodes, every=0)


def test_J_by_answers_is_the_mean_score_at_each_prefix():
    calls = []

    def generate(prompts, n, max_tokens, stop):
        calls.append((n, max_tokens, stop))
        return [["\\boxed{8}"] * len(prompt) + ["</think> \\boxed{9}"] * (n - len(prompt)) for prompt in prompts]

    J = J_by_answers(["", "1", "123", "1234"], "8.0", generate, answers=4, max_tokens=7, stop=["\n"])
    assert J.tolist() == [0, 0.25, 0.75, 1] and calls == [(4, 7, ["\n"])]
    row, paris = {"answer": "Paris"}, lambda *_: [["\\boxed{paris}"] * 20]
    assert J_by_answers(["x"], row, paris, task="exact").tolist() == [0]
    assert J_by_answers(["x"], row, paris, task={"name": "exact", "ignore_case": True}).tolist() == [1]
    assert J_by_answers([], "8", generate).shape == (0,)
    for texts in ([["8"] * 20], [["8"] * 20, ["8"] * 19]):
        with pytest.raises(ValueError, match="20 texts for each of 2 prompts"):
            J_by_answers(["x", "y"], "8", lambda *_, texts=texts: texts)
    with pytest.raises(ValueError, match="the task Choice reads 'texts' of the problem; give its row"):
        J_by_answers(["x"], row, paris, task="choice")


def test_J_by_likelihood_is_the_sum_over_the_spellings_at_each_prefix():
    seen = []

    def log_probabilities(continuations):
        seen.extend(continuations)
        return [log(0.1) if prompt == "x" else log(0.9) if prompt == "y" else -inf for prompt, *_ in continuations]

    golds = spellings("1234")
    assert len(golds) > 1
    values = J_by_likelihood(["x", "y", "z"], "1234", log_probabilities, template=Template(header=""))
    assert values == pytest.approx([0.1 * len(golds), 1, 0])
    assert [text for _, _, text in seen] == golds * 3
    seen.clear()
    prompts = prefixes(CHAT, [SOLVED], closed=True)
    J_by_likelihood(prompts, "8", log_probabilities, opening="so \\boxed{")
    openings = {prompt: opening for prompt, opening, _ in seen}
    assert [openings[prompt] for prompt in prompts] == ["so \\boxed{", Template().header + "so \\boxed{"]
    with pytest.raises(ValueError, match=r"does not end in \\boxed{"):
        J_by_likelihood(["x"], "8", log_probabilities, opening="so ")
    for values in ([0.1], [-1, -1], [np.nan]):
        with pytest.raises(ValueError, match="1 numbers of at most 0"):
            J_by_likelihood(["x"], "8", lambda _, values=values: values)
    with pytest.raises(ValueError, match="no text of its gold answer"):
        from mrt.grading.task import Task

        J_by_likelihood(["x"], "8", log_probabilities, task=Task())


def test_an_outcome_is_of_the_answer_part():
    assert outcome("\\boxed{8}, but", "8", inside=True) == 0 == outcome("\\boxed{9}", "8", inside=False)
    assert outcome("\\boxed{9}</think>\\boxed{8}", "8", inside=True) == 1 == outcome("\\boxed{8}", "8", inside=False)
    assert outcome("\\boxed{9}[/THINK]\\boxed{8}", "8", inside=True, thinking=MAGISTRAL) == 1
    assert outcome("Answer: Paris", {"answer": "Paris"}, inside=False, task="exact") == 1
    assert outcome("\\boxed{8}", {"answer": 8}, inside=False) == 1  # a number, as of a JSON file
    for row in ({"gold": "8"}, {"answer": None}):
        with pytest.raises(ValueError, match=f"no `answer`, .* it has {next(iter(row))}"):
            outcome("\\boxed{8}", row, inside=False)


completions = st.lists(
    st.tuples(st.floats(0, 1), st.floats(0, 1), st.lists(st.tuples(st.integers(1, 9), st.floats(0, 1)), max_size=3)),
    min_size=1,
    max_size=4,
)


@given(completions, st.floats(0, 3), st.booleans())
def test_advantages_are_those_of_the_variant(group, alpha, centred):
    import torch

    outcomes, before, episodes = zip(*group, strict=True)
    steps = [[n for n, _ in each] for each in episodes]
    ends, lengths = [np.cumsum(n).astype(int).tolist() for n in steps], [sum(n) + 2 for n in steps]
    along = [[j for _, j in each] for each in episodes]
    J = [[first, *rest] for first, rest in zip(before, along, strict=True)]
    ours = advantages(outcomes, J, ends, lengths, alpha=alpha, centred=centred)
    r = torch.tensor(outcomes)
    of_group = Group(
        r, torch.zeros_like(r), torch.tensor(lengths), torch.tensor(before), list(zip(ends, along, strict=True))
    )
    theirs = variants()["per_episode"](of_group, alpha=alpha, centred=centred)
    inside = np.arange(max(lengths)) < np.array(lengths)[:, None]
    assert ours[inside] == pytest.approx(theirs.numpy()[inside], abs=1e-5) and not ours[~inside].any()
    tensor = advantages(r, J, ends, lengths, alpha=alpha, centred=centred)
    assert tensor.dtype == torch.float32 and tensor.numpy() == pytest.approx(ours, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"J": [[0.5]]}, "1 ends; it needs one more J than ends"),
        ({"J": [[0.5, 1.5]]}, "outside"),
        ({"ends": [[4]]}, r"ends \[4\] of completion 0, which has 3 tokens"),
        ({"ends": [[2, 1]], "J": [[0.5] * 3]}, r"ends \[2, 1\]"),
        ({"lengths": [3, 3]}, "2 lengths"),
    ],
)
def test_advantages_of_what_is_no_group_are_an_error(change, message):
    given = {"outcomes": [1.0], "J": [[0.5, 0.5]], "ends": [[2]], "lengths": [3]} | change
    with pytest.raises(ValueError, match=message):
        advantages(**given)


@pytest.fixture(scope="module")
def toy():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(TOY_BASE).float(), AutoTokenizer.from_pretrained(TOY_BASE)


def test_an_engine_needs_ends_in_tokens(toy):
    _, tokenizer = toy
    completion = SOLVED + DOUBTED + "Wait, so\n\n\n\nit is 8.</think>\n\n\\boxed{8}"
    ids, episodes = tokenizer.encode(completion, add_special_tokens=False), cut(completion, min_steps=1).episodes
    ends = episode_ends(tokenizer, ids, episodes)
    assert len(ends) == len(episodes) - 1 == 2
    for i, end in enumerate(ends, start=1):
        before, upto = (tokenizer.decode(ids[:n]) for n in (end - 1, end))
        assert len(before) < len("".join(episodes[:i])) <= len(upto)
    assert episode_ends(tokenizer, ids, episodes[:1]) == [] == episode_ends(tokenizer, ids, [])
    with pytest.raises(ValueError, match="not the beginning of the completion"):
        episode_ends(tokenizer, ids, episodes[1:])


def test_an_engine_of_transformers_gives_what_vllm_gives(toy):
    """The same J to float32's rounding, at open and closed thoughts; and J of the workflow's own frozen model."""
    model, tokenizer = toy
    model.train()
    slow, fast = transformers_engine(model, tokenizer), vllm_engine(TOY_BASE, max_model_len=512)
    prompts = prefixes(CHAT, [SOLVED, DOUBTED], closed=True)
    by_transformers, by_vllm = (
        J_by_likelihood([*prompts, CHAT * 200], "8", engine.log_probabilities, opening=OPENING)
        for engine in (slow, fast)
    )
    assert by_transformers[:-1] == pytest.approx(by_vllm[:-1], rel=1e-4) and by_vllm[-1] == 0 < by_transformers[1]
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())
    for engine in (slow, fast):
        texts = engine.generate([prompts[1], CHAT * 200], 3, 24, ["add", "\n\n\n"])
        assert [len(of_prompt) for of_prompt in texts] == [3, 3] and texts[1] == [""] * 3
        assert any("Ends:" in text for text in texts[0]) and not any("add" in text for text in texts[0])
    J = [J_by_answers(prompts, "8", engine.generate, answers=60, max_tokens=24) for engine in (slow, fast)]
    spread = 4 * np.sqrt(2 * np.maximum(J[0] * (1 - J[0]), 0.05) / 60)
    assert (np.abs(J[0] - J[1]) < spread).all()
    again = vllm_engine(fast_llm(fast), seed=1)
    assert again.generate(prompts, 2, 24, []) == again.generate(prompts, 2, 24, [])


def test_an_engine_of_transformers_samples_with_nothing_of_a_generation_config(toy, monkeypatch):
    """Qwen's have a repetition penalty, which would change J without an error."""
    from transformers import GenerationConfig

    model, tokenizer = toy
    engine, prompts = transformers_engine(model, tokenizer, temperature=0), prefixes(CHAT, [SOLVED])
    usual = engine.generate(prompts, 1, 24, [])
    theirs = {"repetition_penalty": 5.0, "no_repeat_ngram_size": 1, "suppress_tokens": [26], "num_beams": 2}
    shipped = GenerationConfig(eos_token_id=model.generation_config.eos_token_id, **theirs)
    monkeypatch.setattr(model, "generation_config", shipped)
    assert engine.generate(prompts, 1, 24, []) == usual


def fast_llm(engine):
    """The `vllm.LLM` that an engine has started."""
    (sampler,) = (cell.cell_contents for cell in engine.generate.__closure__ if hasattr(cell.cell_contents, "llm"))
    return sampler.llm


def test_an_engine_of_a_server_gives_texts_in_the_order_of_the_prompts():
    """OpenAI's own client, of a server whose choices come in another order."""
    httpx, openai = pytest.importorskip("httpx"), pytest.importorskip("openai")
    bodies = []

    def serve(request):
        bodies.append(body := json.loads(request.content))
        count = len(body["prompt"]) * body["n"]
        choices = [
            {"index": i, "text": f"{body['prompt'][i // body['n']]}{i % body['n']}", "finish_reason": "stop"}
            for i in reversed(range(count))
        ]
        whole = {"id": "1", "object": "text_completion", "created": 0, "model": body["model"], "choices": choices}
        return httpx.Response(200, json=whole)

    client = openai.OpenAI(
        api_key="none", base_url="http://server/v1", http_client=httpx.Client(transport=httpx.MockTransport(serve))
    )
    engine = openai_engine(client, "m", temperature=0.6)
    assert engine.generate(["a", "b"], 2, 9, ["\n"]) == [["a0", "a1"], ["b0", "b1"]]
    assert bodies[0] | {"max_tokens": 9, "temperature": 0.6, "stop": ["\n"]} == bodies[0]
    neutral = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "add_special_tokens": False}
    assert bodies[0] | neutral == bodies[0]  # vLLM's server would take the model's settings, and add a first token
    assert engine.log_probabilities is None


def test_probabilities_at_the_whole_thought_are_of_the_models_own_closing(toy):
    """J of a thought that the model closed itself: the header is opened by the text that is scored."""
    import torch

    model, tokenizer = toy
    (prompt,) = prefixes(CHAT, [SOLVED], closed=True, every=1)[1:]
    J = J_by_likelihood([prompt], "8", transformers_engine(model, tokenizer).log_probabilities, opening=OPENING)
    begin = tokenizer.encode(prompt, add_special_tokens=False)
    rest = tokenizer.encode(Template().header + OPENING + "8}", add_special_tokens=False)
    with torch.no_grad():
        logps = model(torch.tensor([begin + rest])).logits[0].log_softmax(-1)
    ends = [i for i in tokenizer.get_vocab().values() if tokenizer.decode([i]).startswith("}")]
    of_gold = logps[len(begin) + len(rest) - 3, rest[-2]] + logps[-2, ends].logsumexp(0)
    assert J[0] == pytest.approx(exp(of_gold), rel=1e-4) and J[0] > 0.1
