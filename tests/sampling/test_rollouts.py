"""Prompts: what of them must not change from day to day."""

import datetime

from conftest import TOY_BASE

from mrt.sampling.rollouts import Prompt


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
