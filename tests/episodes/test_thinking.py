"""How models write thoughts: found in chat templates, completions taken apart by their tags."""

import pytest
from conftest import TOY_BASE
from hypothesis import given
from hypothesis import strategies as st

from mrt.episodes.parameterization import OpenEnded
from mrt.episodes.thinking import (
    FAMILIES,
    THINK,
    Thinking,
    ends_inside,
    has_answer_part,
    of_cell,
    of_template,
    special_ids,
    take_apart,
    whole,
)
from mrt.grading.grade import is_correct

BRACKETS, CHANNELS = FAMILIES[1:]
OTHERS = [
    ("<antThinking>", "</antThinking>"),
    ("<thinking_process>", "</thinking_process>"),
    ("<thoughtProcess>", "</thoughtProcess>"),
    ("<model-thoughts>", "</model-thoughts>"),
    ("<step_by_step_analysis>", "</step_by_step_analysis>"),
    ("<|beginOfThought|>", "<|endOfThought|>"),
    ("<analysis>", "</analysis>"),
    ("【思考】", "【/思考】"),
    ("〈think〉", "〈/think〉"),
    ("‹think›", "‹/think›"),
    ("&lt;think&gt;", "&lt;/think&gt;"),
]
PROSE = [("<|channel>thought\n", "<channel|>"), ("Here is my thought process:\n", "Here is my response:\n")]
FOREIGN = [
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("◁think▷", "◁/think▷"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<Think>", "</Think>"),
    *OTHERS,
]
TAGS = [(t.opening, t.closing) for t in FAMILIES]
words = st.text(st.characters(codec="utf-8", exclude_characters="<[◁|>]▷", exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize(
    ("completion", "inside", "parts"),
    [
        ("<think>\na\n</think>\n\nb", False, ("<think>", "\na\n", True, "\n\nb")),
        ("\n <think>\na\n</think>\n\nb", False, ("\n <think>", "\na\n", True, "\n\nb")),
        ("a\n</think>\n\nb", True, ("", "a\n", True, "\n\nb")),
        ("a\n</think>\n\nb", False, ("", "a\n", True, "\n\nb")),  # nothing else opened it
        ("<think>\na", False, ("<think>", "\na", False, None)),
        ("<think>\na</think>b", True, ("<think>", "\na", True, "b")),  # the tag of the prompt, once more
        ("a", True, ("", "a", False, None)),
        ("a", False, ("", "", False, "a")),
        ("", True, ("", "", False, None)),
        ("</think>b", True, ("", "", True, "b")),
        ("a</think>b</think>c", True, ("", "a", True, "b</think>c")),
        ("<think>a</think>b<think>c</think>d", False, ("<think>", "a", True, "d")),
        ("<think>a</think><think>b \\boxed{42} but", False, ("<think>", "a", True, None)),
        ("Well. <think>a</think>b", False, ("Well. <think>", "a", True, "b")),
        ("analysisWe add.assistantfinal\\boxed{4}", False, ("analysis", "We add.", True, "\\boxed{4}")),
        ("analysis shows that it is 4", False, ("", "", False, "analysis shows that it is 4")),
        ("We add. assistantfinal4", False, ("", "We add. ", True, "4")),
        ("<|channel|>analysis", False, ("<|channel|>analysis", "", False, None)),  # cut in the header
        ("a</thought>b", False, ("", "a", True, "b")),
        ("Okay.\n<thought>a", False, ("Okay.\n<thought>", "a", False, None)),
        ("Okay. <thought>a</thought>b", False, ("Okay. <thought>", "a", True, "b")),
        ("A <reason>a</reason> b", False, ("", "", False, "A <reason>a</reason> b")),
        *(
            (text, False, ("", "", False, text))
            for text in (
                r"We write `<think>` first. The answer is \boxed{1}",
                r"`<think>` begins a thought. \boxed{1}",
                r"We print '<think>' in HTML. \boxed{1}",
                r"The answer, in <think> notation, is \boxed{3}",
                r"A <think> element is meant. \boxed{3}",
                r"The word <think> means it. \boxed{3}",
                r"We print `[THINK]`, then \boxed{3}",
                r"In “<|channel|>analysis<|message|>” it is \boxed{3}",
            )
        ),
        ("<think>a</think>Not `<think>`: 3", False, ("<think>", "a", True, "Not `<think>`: 3")),
        ("<think>, so a", False, ("<think>", ", so a", False, None)),  # it begins the text
        ('"<think>So a', False, ('"<think>', "So a", False, None)),
        ("Okay, so <think>a", False, ("Okay, so <think>", "a", False, None)),
        ("A `<think>` b</think>c", False, ("A `<think>", "` b", True, "c")),  # it closes
        ("The tags `<thought>` and `</thought>`", False, ("", "", False, "The tags `<thought>` and `</thought>`")),
    ],
)
def test_a_completion_is_taken_apart(completion, inside, parts):
    assert take_apart(completion, inside=inside) == parts


@pytest.mark.parametrize("thinking", [None, THINK, CHANNELS])
@pytest.mark.parametrize(
    ("close", "answer"),
    [
        (CHANNELS.close, "7"),
        ("<|end|>\n<|start|>assistant<|channel|>final<|message|>", "7"),
        ("<|channel|>final<|message|>", "7"),
        ("<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>", "7"),
        ("<|end|><|start|>assistant<|channel|>commentary<|message|>", None),
    ],
)
def test_all_headers_of_gpt_oss_are_read_alike(thinking, close, answer):
    """Whatever the model's own tags are said to be."""
    opening, thought, closed, rest = take_apart(CHANNELS.open + "hm" + close + "7", thinking=thinking)
    assert (opening, closed, rest) == (CHANNELS.open, answer is not None, answer)
    assert thought == ("hm" if answer else "hm" + close + "7")
    if thinking is CHANNELS:
        assert take_apart("hm" + close + "7", inside=True, thinking=thinking).answer == answer
        assert ends_inside("<|assistant|>" + CHANNELS.open + "hm" + close, thinking) == (answer is None)


@pytest.mark.parametrize(("opening", "closing"), [*TAGS, *FOREIGN, *PROSE])
def test_a_thought_in_any_tags_is_no_answer_until_it_closes(opening, closing):
    assert not is_correct(f"{opening}maybe \\boxed{{7}}, cut off", "7")
    assert is_correct(f"{opening}maybe \\boxed{{7}}{closing}\n\nIt is \\boxed{{8}}.", "8")
    assert not is_correct(f"{opening}maybe \\boxed{{7}}{closing}\n\nIt is \\boxed{{8}}.", "7")
    assert not is_correct(f"{opening}a{closing}{opening}b \\boxed{{7}} but", "7")


@pytest.mark.parametrize(
    "sentence", ["Here's my thought process:", "Here is my response:", "Sure! Here is my response:"]
)
def test_a_sentence_is_no_tag_of_a_model_without_thoughts_or_beside_its_own_tags(sentence):
    text = sentence + "\n\n1. Add 2 and 3.\n\nThe answer is \\boxed{5}."
    assert take_apart(text, thinking=None) == whole(text)
    assert take_apart("<think>\nhm</think>" + text) == ("<think>", "\nhm", True, text)
    both = "Here is my thought process: 2 + 3. Here is my response: 5"
    assert take_apart(both, thinking=None).answer == " 5"


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{7}",
        "[Reasoning] 3 + 4 = 7\n\n[Answer] \\boxed{7}",
        "x < thinking > \\boxed{7}",
        "<details>Analysis: \\boxed{7}</details>",
        "<thinker> \\boxed{7}",
        "<b>Thought</b> \\boxed{7}",
        "He has a <reason> for \\boxed{7}",
        "【思考】3 + 4\n【答案】\\boxed{7}",
        "&lt;details&gt; \\boxed{7}",
        "My thought process: 3 + 4. My response: \\boxed{7}",
    ],
)
def test_an_answer_without_a_thought_is_an_answer(text):
    assert is_correct(text, "7") and not is_correct(text, "7", inside=True)


@given(words, words, st.sampled_from(FAMILIES), st.booleans())
def test_taking_apart_loses_nothing(thought, answer, thinking, inside):
    text = ("" if inside else thinking.open) + thought + thinking.close + answer
    opening, found, closed, rest = take_apart(text, inside=inside, thinking=thinking)
    assert closed and opening + found + thinking.closing + rest == text
    assert found.strip() == thought.strip() and rest.strip() == answer.strip()
    assert has_answer_part(text, inside, thinking.cell())
    assert not has_answer_part(text.partition(thinking.closing)[0], inside, thinking.cell())


@pytest.mark.parametrize("thinking", FAMILIES)
def test_only_the_tags_differ_between_families(thinking):
    """Cut, forced and finished: the same texts with other tags."""
    thought, usual = "a\n\nb\n\nc\n\nWait, d\n\n", OpenEnded()
    words = usual.of(of_cell(thinking.cell()))
    assert words.cut(thought + thinking.close + "e") == usual.cut(thought + "</think>\n\ne")
    assert words.force(thought) == usual.force(thought).replace(THINK.close, thinking.close)
    assert words.force("", inside=False) == thinking.open + words.force("")
    assert words.finish(thought) == thought + thinking.close


def test_a_completion_without_a_thought_has_no_episodes():
    assert OpenEnded().cut("We add.\n\nIt is \\boxed{4}.", inside=False) == ([], False)


TEMPLATES = {
    "{{ messages[0].content }}<|assistant|><think>\n": THINK,
    "{% if m.role == 'assistant' %}{{ m.content.split('</think>')[-1] }}{% endif %}": THINK,
    "{%- if enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}": THINK,
    "{% if reasoning %}[THINK]{{ reasoning }}[/THINK]{% endif %}": BRACKETS,
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}": CHANNELS,
    "{{ '<|start|>assistant<|channel|>' + m.channel + '<|message|>' }}": CHANNELS,
    "{# <thinking> is a comment #}{% set think = true %}{{ reasoning_content }}": None,
    "{{ messages[0].content }}": None,
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_template_shows_how_a_model_thinks(template):
    assert of_template(template) == TEMPLATES[template]


@pytest.mark.parametrize("tag", [*(tag for pair in FOREIGN for tag in pair), "[REASONING]"])
def test_a_template_with_an_unknown_kind_of_thought_is_refused(tag):
    with pytest.raises(ValueError, match=r"unknown kind of thought, .*`thinking: \{open: \.\.\., close: \.\.\.\}`"):
        of_template("{{ messages[0].content }}<|assistant|>" + tag)


def test_a_template_with_two_kinds_or_with_an_error_is_refused():
    with pytest.raises(ValueError, match=r"shows <think> and \[THINK\]"):
        of_template("<think>[THINK]")
    with pytest.raises(ValueError, match="cannot be read"):
        of_template("{% if %}")


def test_the_same_tag_twice_is_refused():
    with pytest.raises(ValueError, match="opens and closes with the same tag"):
        Thinking(open="||\n", close="||")


@pytest.mark.parametrize(
    ("tail", "inside"),
    [
        ("<|assistant|><think>\n", True),
        ("<|assistant|><think>\nOkay", True),
        ("<|assistant|><think>\n\n</think>\n\n", False),
        ("<|assistant|>", False),
        ("</think><think>", True),
    ],
)
def test_the_end_of_a_prompt_says_whether_a_thought_is_open(tail, inside):
    assert ends_inside(tail, THINK) == inside and not ends_inside(tail, None)


def test_tags_that_are_special_tokens_are_kept_when_decoded():
    from transformers import AutoTokenizer

    from mrt.sampling.tokens import decode

    tokenizer = AutoTokenizer.from_pretrained(TOY_BASE)
    tags = [CHANNELS.opening, "<|end|>", "<|start|>", "<|channel|>", "<|message|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": tags[1:]})
    text = CHANNELS.open + "Try 3 + 4 = 7." + CHANNELS.close + "\\boxed{7}"
    ids = tokenizer.encode(text, add_special_tokens=False)
    kept = special_ids(tokenizer, CHANNELS)
    assert sorted(kept.values()) == sorted(tags[1:])
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    assert decode(tokenizer, [], [*ids, end, pad], kept) == text
    assert CHANNELS.closing not in decode(tokenizer, [], ids)
    assert special_ids(tokenizer, None) == {}
