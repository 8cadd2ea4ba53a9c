"""Prompts: what of them must not change from day to day. Completions of backtracking search: where they are cut."""

import datetime

from conftest import TOY_BASE

from mrt.episodes.parameterization import Backtracking, Template
from mrt.sampling.engine import Completion
from mrt.sampling.rollouts import Prompt, Sample


def test_a_template_that_states_the_date_gives_the_same_prompt_every_day():
    """As Llama 3.2's does: at midnight every prompt would be another one, and no completion would be found again."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TOY_BASE)
    tokenizer.chat_template = (
        "{{ strftime_now('%d %b %Y') }}, {{ date_string if date_string is defined else 'today' }}:"
        " {{ messages[0].content }}"
    )
    assert Prompt(instruction="{problem}").render(tokenizer, "x") == "26 Jul 2024, 26 Jul 2024: x<think>\n"
    other = Prompt(instruction="{problem}", date=datetime.date(2026, 1, 2))
    assert other.render(tokenizer, "x") == "02 Jan 2026, 02 Jan 2026: x<think>\n"


def test_a_thought_is_opened_once():
    """By the template or by the prompt; the direct baseline's prompt is that of J at the empty prefix."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TOY_BASE)
    usual = Prompt(instruction="{problem}").render(tokenizer, "x")
    assert usual.endswith("<|assistant|><think>\n")
    direct = Prompt(instruction="{problem}", open_thought="<think>\n" + Template().force(""))
    assert direct.render(tokenizer, "x") == usual + Template().force("")
    tokenizer.chat_template = "{{ messages[0].content }}:"
    assert direct.render(tokenizer, "x") == "x:<think>\n" + Template().force("")
    assert Prompt(instruction="{problem}", open_thought="").render(tokenizer, "x") == "x:"


def test_a_completion_cut_after_a_revision_counts_its_own_tokens():
    attempt, again = "Step 1: Take 13.\n\nAnswer: \\boxed{13}\n\n", Backtracking().marker + "\n\nStep 1:"
    revision = " Take 46.\n\nAnswer: \\boxed{46}\n\n"
    whole = attempt + again + revision + again + revision
    stage = Sample(model=str(TOY_BASE), names=("m", "d"), problems="p", out="o", episodes=3)
    drawn = [Completion(whole, 90, "length", -1.0), Completion(attempt + again + revision, 7, "stop", -1.0)]
    (found,) = stage.cut([drawn], 3)
    assert found[0].text == attempt + again + revision and found[1] is drawn[1]
    (size,) = stage.sampler.count([found[0].text])
    assert (found[0].tokens, found[0].finish_reason, found[0].mean_logprob) == (size, "stop", None)
