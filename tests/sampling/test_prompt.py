"""Prompts: they hold the problem, end where they should, and do not change from day to day."""

import datetime

import pytest
from conftest import TOY_BASE

from mrt.episodes.parameterization import Template
from mrt.episodes.thinking import FAMILIES, THINK, Thinking
from mrt.sampling.prompt import Prompt, arguments_of

EACH = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>"
SHORT = Prompt(instruction="{problem}")


@pytest.fixture
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TOY_BASE)


def test_a_template_that_states_the_date_gives_the_same_prompt_every_day(tokenizer):
    """As Llama 3.2's does: at midnight every prompt would be another one, and no completion would be found again."""
    tokenizer.chat_template = (
        "{{ strftime_now('%d %b %Y') }}, {{ date_string if date_string is defined else 'today' }}:"
        " {{ messages[0].content }}"
    )
    assert Prompt(instruction="{problem}").render(tokenizer, "x") == "26 Jul 2024, 26 Jul 2024: x<think>\n"
    other = Prompt(instruction="{problem}", date=datetime.date(2026, 1, 2))
    assert other.render(tokenizer, "x") == "02 Jan 2026, 02 Jan 2026: x<think>\n"


def test_a_thought_is_opened_once(tokenizer):
    """By the template or by the prompt; the direct baseline's prompt is that of J at the empty prefix."""
    usual = Prompt(instruction="{problem}").render(tokenizer, "x")
    assert usual.endswith("<|assistant|><think>\n")
    direct = Prompt(instruction="{problem}", open_thought="<think>\n" + Template().force(""))
    assert direct.render(tokenizer, "x") == usual + Template().force("")
    tokenizer.chat_template = "{{ messages[0].content }}:"
    assert direct.render(tokenizer, "x") == "x:<think>\n" + Template().force("")
    assert Prompt(instruction="{problem}", open_thought="").render(tokenizer, "x") == "x:"


@pytest.mark.parametrize(
    ("end", "settings", "text", "inside", "thinking"),
    [
        ("<think>\n{% endif %}", {}, "<think>\n", True, THINK),
        ("{% endif %}", {}, "<think>\n", True, THINK),  # the prompt opens it
        ("{% endif %}", {"open_thought": ""}, "", False, None),
        ("{% endif %}", {"thinking": "none"}, "", False, None),
        ("{% if think %}<think>\n{% endif %}{% endif %}", {"open_thought": ""}, "", False, THINK),
        ("{% if think %}<think>\n{% endif %}{% endif %}", {"template": {"think": True}}, "<think>\n", True, THINK),
        ("<think>\n\n</think>\n\n{% endif %}", {"thinking": "none"}, "<think>\n\n</think>\n\n", False, None),
        ("<think>\n\n</think>\n\n{% endif %}", {"open_thought": ""}, "<think>\n\n</think>\n\n", False, THINK),
        ("{% if x %}[THINK]{% endif %}{% endif %}", {}, "[THINK]", True, FAMILIES[1]),
        ("{% if x %}<|channel|>analysis{% endif %}{% endif %}", {}, FAMILIES[2].open, True, FAMILIES[2]),
        ("{% endif %}", {"thinking": {"open": "((", "close": "))"}}, "((", True, Thinking(open="((", close="))")),
        ("{% endif %}", {"open_thought": "<think>\nOkay,"}, "<think>\nOkay,", True, THINK),
        ("<think>\n{% endif %}", {"open_thought": "<think>\nOkay,"}, "<think>\nOkay,", True, THINK),
        ("<think>{% endif %}", {"open_thought": "<think>\nDone.\n</think>"}, "<think>Done.\n</think>", False, THINK),
    ],
)
def test_a_prompt_ends_as_the_model_thinks(tokenizer, end, settings, text, inside, thinking):
    tokenizer.chat_template = EACH + end
    prompt = Prompt(instruction="{problem}", **settings)
    assert prompt.chat(tokenizer, "3 + 4?") == ("<|user|>3 + 4?<|assistant|>" + text, inside)
    assert prompt.thinking_of(tokenizer) == thinking


@pytest.mark.parametrize("problem", ["Is <think> a tag?", "What closes it: </think>?", "a <think> b </think> <think>"])
def test_a_problem_that_names_a_tag_opens_no_thought(tokenizer, problem):
    tokenizer.chat_template = EACH + "{% endif %}"
    plain = Prompt(instruction="Begin with <think>. {problem} Use <think>.", thinking=THINK, open_thought="")
    assert not plain.chat(tokenizer, problem).inside
    assert plain.model_copy(update={"open_thought": None}).chat(tokenizer, problem).inside


@pytest.mark.parametrize(
    ("end", "settings", "tag"),
    [
        ("<think>\n", {"thinking": "none"}, "<think>"),
        ("[THINK]", {"thinking": "none"}, r"\[THINK\]"),
        ("<thought>\nOkay, ", {"thinking": "none"}, "<thought>"),
        ("<think>\n", {"thinking": {"open": "((", "close": "))"}}, "<think>"),
        ("<thought>\n", {"thinking": THINK, "open_thought": ""}, "<thought>"),
        ("<think>\n</think>[THINK]", {"thinking": "none", "open_thought": "Well, "}, r"\[THINK\]"),
        ("", {"open_thought": "<thought>\n"}, "<thought>"),
        ("", {"open_thought": "[THINK]"}, r"\[THINK\]"),
        ("", {"open_thought": "<|begin_of_thought|>Okay, "}, r"<\|begin_of_thought\|>"),
        ("{% if x %}[THINK]{% endif %}", {"open_thought": "<think>\n"}, "<think>"),
    ],
)
def test_a_prompt_that_opens_what_nobody_records_is_refused(tokenizer, end, settings, tag):
    tokenizer.chat_template = EACH + end + "{% endif %}"
    with pytest.raises(ValueError, match=rf"weights: the prompt opens a thought with '{tag}', but the model"):
        Prompt(instruction="{problem}", **settings).chat(tokenizer, "3 + 4?")


@pytest.mark.parametrize(
    ("end", "settings", "text", "inside"),
    [
        ("", {"thinking": "none"}, "", False),
        ("", {"thinking": "none", "open_thought": "Answer: "}, "Answer: ", False),
        ("", {"thinking": "none", "open_thought": "<think>\n</think>\n"}, "<think>\n</think>\n", False),
        ("<think>\n", {"open_thought": "Done.\n</think>\n"}, "<think>\nDone.\n</think>\n", False),
        ("", {"thinking": {"open": "Now <think>\n", "close": "</think>"}}, "Now <think>\n", True),
        ("<thought>", {"thinking": {"open": "<thought>\n", "close": "</thought>\n"}}, "<thought>", True),
        (
            "{% if x %}<|channel|>{% endif %}",
            {"open_thought": "<|channel|>analysis<|message|>"},
            FAMILIES[2].open,
            True,
        ),
    ],
)
def test_a_prompt_may_name_tags_and_close_thoughts(tokenizer, end, settings, text, inside):
    tokenizer.chat_template = EACH + end + "{% endif %}"
    problem = "Is <think> a tag? And <thought>?"
    prompt = Prompt(instruction="{problem}", **settings)
    assert prompt.chat(tokenizer, problem) == (f"<|user|>{problem}<|assistant|>{text}", inside)


@pytest.mark.parametrize("tag", ["<think>\n", "[THINK]", FAMILIES[2].open, "<thought>\nOkay, "])
def test_a_model_without_thoughts_opens_none(tag):
    with pytest.raises(ValueError, match=r"open_thought leaves a thought open, with .*; leave out one of them"):
        Prompt(thinking="none", open_thought=tag)


def test_a_message_that_ends_the_prompt_opens_no_thought(tokenizer):
    tokenizer.chat_template = "{{ messages[0].content }}"
    silent = Prompt(instruction="{problem}\n<think>\n", open_thought="")
    with pytest.raises(ValueError, match="the prompt opens a thought with '<think>'"):
        silent.chat(tokenizer, "1 + 1?")
    assert silent.model_copy(update={"open_thought": None}).chat(tokenizer, "1 + 1?").inside
    assert not Prompt(instruction="{problem}", open_thought="").chat(tokenizer, "Is this a tag: <b>").inside


@pytest.mark.parametrize("end", ["<think>\n\n</think>\n\n", "<think></think>", "</think>"])
def test_a_template_that_closes_the_thought_is_refused(tokenizer, end):
    tokenizer.chat_template = EACH + end + "{% endif %}"
    with pytest.raises(ValueError, match=r"weights: its chat template closes the thought itself: .*`prompt: \{th"):
        SHORT.chat(tokenizer, "3 + 4?")


def test_a_message_may_have_to_be_a_list_of_parts(tokenizer):
    parts = "{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}"
    tokenizer.chat_template = EACH.replace("{{ m.content }}", parts) + "{% endif %}"
    assert SHORT.render(tokenizer, "3 + 4?") == "<|user|>3 + 4?<|assistant|><think>\n"


@pytest.mark.parametrize("content", ["", "{{ m.contents }}", "{{ m.content[:3] }}", "{{ m.content | upper }}"])
def test_a_template_that_loses_the_problem_is_refused(tokenizer, content):
    tokenizer.chat_template = EACH.replace("{{ m.content }}", content) + "{% endif %}"
    with pytest.raises(ValueError, match=r"weights: the problem does not stand in the prompt"):
        SHORT.chat(tokenizer, "What is 3 + 4?")


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no users here') }}", "{{ messages[0].content + 1 }}", "{{ messages[3].content }}"]
)
def test_a_template_that_raises_is_one_error(tokenizer, template):
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match=r"weights: its chat template cannot write a message of the user's: \w+"):
        SHORT.chat(tokenizer, "3 + 4?")


def test_an_unknown_kind_of_thought_is_refused(tokenizer):
    tokenizer.chat_template = EACH + "<thinking>{% endif %}"
    with pytest.raises(ValueError, match=r"weights: its chat template shows an unknown kind of thought, '<thinking>'"):
        SHORT.chat(tokenizer, "3 + 4?")


@pytest.mark.parametrize(
    ("template", "arguments"),
    [
        ("{% if enable_thinking is defined and enable_thinking is false %}{% endif %}", {"enable_thinking"}),
        ("{% if not effort is defined %}{% set effort = 'low' %}{% endif %}{{ effort }}", {"effort"}),
        ("{% set effort = effort | default('low') %}{{ effort }}", {"effort"}),
        ("{% set effort = effort or 'low' %}{{ effort }}", {"effort"}),
        ("{% if not effort %}{% set effort = 'low' %}{% endif %}{{ effort }}", {"effort"}),
        ("{% if messages %}{% set text = 'a' %}{% else %}{% set text = 'b' %}{% endif %}{{ text }}", set()),
        ("{% for m in messages %}{{ loop.index }}{{ m.effort }}{{ m['think'] }}{% endfor %}", set()),
        ("{% macro say(text) %}{{ text }}{{ style }}{% endmacro %}{{ say('a') }}", {"style"}),
        ("{# effort #}{{ bos_token }}{{ 'think' }}{{ strftime_now('%Y') }}{{ raise_exception('a') }}", {"bos_token"}),
        ("{% set ns = namespace(style='') %}{% set ns.style = tone %}{{ ns.style }}{{ range(2) }}", {"tone"}),
        ("{% generation %}{{ tools }}{{ documents }}{% endgeneration %}", set()),
    ],
)
def test_a_template_reads_the_names_that_it_does_not_set_first(template, arguments):
    assert arguments_of(template) == arguments


READS = "{% if enable_thinking %}<think>\n{% endif %}{{ reasoning_effort | default('') }}{% endif %}"


def test_an_argument_reaches_the_template(tokenizer):
    tokenizer.chat_template = EACH + READS
    prompt = Prompt(instruction="{problem}", open_thought="", template={"enable_thinking": True, "reasoning_effort": 3})
    assert prompt.render(tokenizer, "3 + 4?") == "<|user|>3 + 4?<|assistant|><think>\n3"


@pytest.mark.parametrize(
    ("end", "template", "message"),
    [
        (READS, {"enable_thinkin": True}, "enable_thinkin of .* reads enable_thinking, reasoning_effort\\."),
        (READS, {"enable_thinking": True, "think": 1, "effort": 2}, "read effort, think of"),
        ("{% endif %}", {"enable_thinking": True}, "read enable_thinking of .* reads no arguments"),
        (READS, {"continue_final_message": True}, "read continue_final_message of"),
        ("{% set text = 'a' %}{{ text }}{% endif %}", {"text": "b"}, "read text of"),
        (READS, {"chat_template": "{{ messages[0].content }}"}, "read chat_template of"),
        (READS, {"add_generation_prompt": False}, "read add_generation_prompt of"),
    ],
)
def test_an_argument_that_the_template_does_not_read_is_refused(tokenizer, end, template, message):
    tokenizer.chat_template = EACH + end
    for thinking in ("auto", THINK):
        with pytest.raises(ValueError, match=f"weights: its chat template does not .*{message}"):
            Prompt(instruction="{problem}", thinking=thinking, template=template).chat(tokenizer, "3 + 4?")


FIRST_USER = (  # as Gemma 3's and Mistral's
    "{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n\n' %}{% else %}{% set first = '' %}"
    "{% endif %}{% for m in messages if m.role == 'user' %}<|user|>{{ first }}{{ m.content }}{% endfor %}<|assistant|>"
)
DEFAULT = (  # as Qwen2.5's and Magistral's
    "<|system|>{{ messages[0].content if messages[0].role == 'system' else 'The default.' }}"
    "{% for m in messages if m.role != 'system' %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
)
PARTS = EACH.replace("{{ m.content }}", "{% for c in m.content %}{{ c.text }}{% endfor %}") + "{% endif %}"


@pytest.mark.parametrize(
    ("template", "system", "text"),
    [
        (EACH + "{% endif %}", "Be brief.", "<|system|>Be brief.<|user|>3 + 4?<|assistant|>"),
        (EACH + "{% endif %}", " Be brief. 3 + 4?\n", "<|system|> Be brief. 3 + 4?\n<|user|>3 + 4?<|assistant|>"),
        (EACH + "{% endif %}", "3", "<|system|>3<|user|>3 + 4?<|assistant|>"),
        (PARTS, "Be brief.", "<|system|>Be brief.<|user|>3 + 4?<|assistant|>"),
        (FIRST_USER, "Be brief.", "<|user|>Be brief.\n\n3 + 4?<|assistant|>"),
        (DEFAULT, "Be brief.", "<|system|>Be brief.<|user|>3 + 4?<|assistant|>"),
        (DEFAULT, "", "<|system|><|user|>3 + 4?<|assistant|>"),
        (DEFAULT, None, "<|system|>The default.<|user|>3 + 4?<|assistant|>"),
    ],
)
def test_a_system_prompt_is_a_message_of_its_role(tokenizer, template, system, text):
    tokenizer.chat_template = template
    prompt = Prompt(instruction="{problem}", system=system)
    assert prompt.chat(tokenizer, "3 + 4?") == (text + "<think>\n", True)


def test_a_system_prompt_may_name_tags(tokenizer):
    """It opens no thought, wherever the template writes it."""
    for template in (EACH + "{% endif %}", FIRST_USER):
        tokenizer.chat_template = template
        prompt = Prompt(instruction="{problem}", system="Think in <think> first, or in [THINK].", open_thought="")
        assert not prompt.chat(tokenizer, "3 + 4?").inside


@pytest.mark.parametrize(
    ("template", "system", "message"),
    [
        # dropped
        (EACH.replace("in messages", "in messages if m.role == 'user'") + "{% endif %}", "Be brief.", "the system pro"),
        ("<|user|>{{ messages[-1].content }}<|assistant|>", "Be brief.", "the system prompt does not .*instruction`"),
        ("<|user|>{{ messages[-1].content }}<|assistant|>", "3 + 4", "the system prompt does not"),  # in the problem
        ("<|user|>" + "{{ messages[-1].content | upper }}", "Be brief.", "the problem does not"),
        ("{{ messages[0].content }}", "Be brief.", "the problem does not"),
        ("{{ messages[0].content }}", "What is 3 + 4? Be brief.", "the system prompt does not"),  # all that is left
        # refused, as Gemma 2's
        (
            "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}",
            "Be brief.",
            r"cannot write a system prompt and a message of the user's: TemplateError: no system role\..*instruction`",
        ),
    ],
)
def test_a_template_that_loses_the_system_prompt_is_refused(tokenizer, template, system, message):
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match=f"weights: .*{message}"):
        Prompt(instruction="{problem}", system=system).chat(tokenizer, "What is 3 + 4?")


def test_without_a_system_prompt_no_key_changes():
    from mrt.core.digest import canonical

    assert "system" not in canonical(Prompt()) and canonical(Prompt(system=""))["system"] == ""
