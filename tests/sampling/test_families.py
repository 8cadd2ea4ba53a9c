"""Models of the shape of each family, with templates and tokens of ours: from a prompt to grades and training sets."""

import json
import re
import shutil
from dataclasses import dataclass, field

import polars as pl
import pytest
import yaml
from conftest import ROOT, TOY_BASE

from mrt.core.artifacts import EPISODES, GRADES, PROBLEMS, RL_PROMPTS, ROLLOUTS, SET
from mrt.core.hub import ends_of, tokenizer_of, unnamed_end
from mrt.episodes.cut import CutRollouts
from mrt.episodes.parameterization import OpenEnded
from mrt.episodes.thinking import FAMILIES, THINK, Thinking, special_ids, take_apart
from mrt.grading.grade import Grade, right_forced
from mrt.grading.task import task_of
from mrt.sampling.prompt import Prompt
from mrt.sampling.prover import Prefix
from mrt.sampling.tokens import decode, end_of
from mrt.traces.page import Folder, traces_of
from mrt.training.prompts import MakePrompts
from mrt.training.rl.trainer import outcome_reward
from mrt.training.sets import MakeSet
from mrt.training.sft import tokenize

QUESTION = "What is 3 + 4?"
EPISODES_OF = ["Try 3 + 4 = 8.\n\nHm.\n\nNo: 8 is 4 + 4.\n\n", "Wait, 3 + 4 = 7.\n"]
RIGHT = "It is \\boxed{7}."

CHATML = """
{%- for m in messages %}
    {%- set content = m.content.split('</think>')[-1].lstrip('\\n') if m.role == 'assistant' else m.content %}
    {{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}END{% endif %}"""
PLAIN = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
QWEN3_END = (
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
)
DEEPSEEK = """{{ bos_token }}
{%- for m in messages %}
    {%- if m.role == 'system' %}{{- m.content }}{%- endif %}
    {%- if m.role == 'user' %}{{- '<｜User｜>' + m.content }}{%- endif %}
    {%- if m.role == 'assistant' %}
        {{- '<｜Assistant｜>' + m.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<｜Assistant｜>END' }}{% endif %}"""
MAGISTRAL = """{{ bos_token }}
{%- set default = 'Draft your thinking first: [THINK]thoughts[/THINK]Then answer.' %}
{%- set system = messages[0].content if messages[0].role == 'system' else default %}
{{- '[SYSTEM_PROMPT]' + system + '[/SYSTEM_PROMPT]' }}
{%- for m in messages if m.role != 'system' %}
    {{- '[INST]' + m.content + '[/INST]' if m.role == 'user' else m.content + eos_token }}
{%- endfor %}"""
GPT_OSS = """
{%- set reasoning_effort = reasoning_effort | default('medium') %}
{{- '<|start|>system<|message|>Current date: ' + strftime_now('%Y-%m-%d') + '\\n\\nReasoning: ' + reasoning_effort }}
{{- '\\n\\n# Valid channels: analysis, commentary, final.<|end|>' }}
{%- for m in messages %}
    {%- if m.role == 'system' %}
        {{- '<|start|>developer<|message|># Instructions\\n\\n' + m.content + '\\n\\n<|end|>' }}
    {%- elif m.role == 'assistant' %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + m.content }}
        {{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
    {%- else %}{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{% endif %}"""


@dataclass
class Family:
    """A model's chat template and tokens, its part of the configuration, and the required end of its prompts."""

    template: str
    special: tuple[str, ...]
    end: str  # by which its answers end
    tail: str  # of its prompts, after the question
    eos: str = ""  # the tokenizer's end token, if it is another
    bos: str = ""
    settings: dict = field(default_factory=dict)  # the configuration's `prompt`
    thinking: Thinking | None = THINK
    inside: bool = True
    head: str = ""  # the text of a prompt before the question


IM = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
DEEP = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
SQUARE = ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[INST]", "[/INST]", "<s>", "</s>")
CHANNEL = (
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|return|>",
    "<|call|>",
    "<|endoftext|>",
)
TURN, ASSISTANT = "<|im_end|>\n<|im_start|>assistant\n", "<｜Assistant｜>"
OSS_TAIL = "<|end|><|start|>assistant<|channel|>analysis<|message|>"
MODELS = {
    "Qwen3": Family(CHATML.replace("END", QWEN3_END), IM, IM[1], TURN + "<think>\n"),
    "Qwen3, enable_thinking": Family(
        CHATML.replace("END", QWEN3_END), IM, IM[1], TURN + "<think>\n",
        settings={"template": {"enable_thinking": True}},
    ),
    "Qwen3, which does not think": Family(
        CHATML.replace("END", QWEN3_END), IM, IM[1], TURN + "<think>\n\n</think>\n\n",
        settings={"template": {"enable_thinking": False}, "thinking": "none"}, thinking=None, inside=False,
    ),
    "Qwen's base": Family(CHATML.replace("END", QWEN3_END), IM, IM[1], TURN + "<think>\n", eos=IM[2]),
    "QwQ": Family(CHATML.replace("END", "{{ '<think>\\n' }}"), IM, IM[1], TURN + "<think>\n"),
    "an instruct model": Family(
        PLAIN, IM, IM[1], TURN, settings={"open_thought": ""}, thinking=None, inside=False
    ),
    "R1-0528": Family(DEEPSEEK.replace("END", ""), DEEP, DEEP[1], ASSISTANT + "<think>\n", bos=DEEP[0], head=DEEP[0]),
    "R1-0528, which opens thoughts itself": Family(
        DEEPSEEK.replace("END", ""), DEEP, DEEP[1], ASSISTANT, bos=DEEP[0], settings={"open_thought": ""}, inside=False
    ),
    "R1-Distill-Llama": Family(
        DEEPSEEK.replace("END", "<think>\\n"), DEEP, DEEP[1], ASSISTANT + "<think>\n", bos=DEEP[0], head=DEEP[0]
    ),
    "tags as special tokens": Family(
        DEEPSEEK.replace("END", "<think>\\n"), (*DEEP, "<think>", "</think>"), DEEP[1], ASSISTANT + "<think>\n"
    ),
    "Magistral": Family(
        MAGISTRAL, (*SQUARE, "[THINK]", "[/THINK]"), "</s>", "[/INST][THINK]", bos="<s>", thinking=FAMILIES[1],
        head="<s>[SYSTEM_PROMPT]Draft your thinking first: [THINK]",
    ),
    "Magistral, with a system prompt": Family(
        MAGISTRAL, (*SQUARE, "[THINK]", "[/THINK]"), "</s>", "[/INST][THINK]", bos="<s>", thinking=FAMILIES[1],
        settings={"system": "Think first."}, head="<s>[SYSTEM_PROMPT]Think first.[/SYSTEM_PROMPT][INST]",
    ),
    "gpt-oss": Family(
        GPT_OSS, CHANNEL, "<|return|>", OSS_TAIL, thinking=FAMILIES[2],
        settings={"template": {"reasoning_effort": "high"}, "system": "Be brief."},
        head="<|start|>system<|message|>Current date: 2024-07-26\n\nReasoning: high\n\n# Valid channels: analysis,"
        " commentary, final.<|end|><|start|>developer<|message|># Instructions\n\nBe brief.\n\n<|end|>",
    ),
    "others": Family(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>", ("<reason>", "</reason>"),
        "<eos>", "<|assistant|><reason>\n", thinking=Thinking(open="<reason>\n", close="</reason>\n\n"),
        settings={"thinking": {"open": "<reason>\n", "close": "</reason>\n\n"}},
    ),
}  # fmt: skip


@pytest.fixture(params=MODELS)
def family(request):
    return MODELS[request.param]


@pytest.fixture
def folder(family, tmp_path):
    """The family's tokenizer and settings, as a checkpoint folder has them."""
    from tokenizers import AddedToken
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    tokenizer, folder = AutoTokenizer.from_pretrained(TOY_BASE), tmp_path / "model"
    special = [AddedToken(token, special=True, normalized=False) for token in family.special]
    tokenizer.add_tokens(special, special_tokens=True)
    tokenizer.eos_token, tokenizer.chat_template = family.eos or family.end, family.template
    if family.bos:  # as Llama's, the tokenizer adds it to all texts
        tokenizer.bos_token = family.bos
        begin = (family.bos, tokenizer.convert_tokens_to_ids(family.bos))
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(f"{begin[0]} $A", special_tokens=[begin])
    tokenizer.save_pretrained(folder)
    saved = json.loads((folder / "tokenizer.json").read_text())
    for token in saved["added_tokens"]:  # the toy's own tags are not
        token["special"] |= token["content"] in family.special
    (folder / "tokenizer.json").write_text(json.dumps(saved))
    shutil.copy(TOY_BASE / "config.json", folder)
    ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(family.end)]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return folder


@pytest.fixture
def tokenizer(folder):
    return tokenizer_of(folder)


@pytest.fixture
def prompt(family):
    return Prompt(instruction="{problem}", **family.settings)


def written(family, answer=RIGHT):
    """A completion of two episodes as the family's model writes it, without the end."""
    if family.thinking is None:
        return answer
    opening = "" if family.inside else family.thinking.open
    return opening + "".join(EPISODES_OF) + family.thinking.close + answer


def decoded(tokenizer, prompt, ids, thinking):
    """The text of a completion that ended by itself, as the engine reads it after its prompt."""
    before = end_of(tokenizer, tokenizer.encode(prompt, add_special_tokens=False))
    return decode(tokenizer, before, ids[:-1], special_ids(tokenizer, thinking))


def sampled(family, tokenizer, prompt, answer=RIGHT):
    """Token ids of a completion, with its end."""
    ids = tokenizer.encode(written(family, answer), add_special_tokens=False)
    return [*ids, tokenizer.convert_tokens_to_ids(family.end)]


def test_a_prompt_ends_as_the_family_thinks(family, tokenizer, prompt):
    chat = prompt.chat(tokenizer, QUESTION)
    assert chat.text.startswith(family.head) and chat.text.endswith(QUESTION + family.tail)
    assert chat.inside == family.inside and prompt.thinking_of(tokenizer) == family.thinking
    ids = tokenizer.encode(chat.text, add_special_tokens=False)
    assert not family.bos or (ids[0] == tokenizer.bos_token_id not in ids[1:])
    specials = [token for token in (*family.special, family.end) if token in chat.text]
    assert all(tokenizer.convert_tokens_to_ids(token) in ids for token in specials)


def test_an_answer_ends_with_the_token_that_the_template_writes(family, tokenizer):
    first, *others = ends_of(tokenizer)
    assert tokenizer.convert_ids_to_tokens(first) == family.end
    assert {first, *others} == {tokenizer.eos_token_id, first}


@pytest.fixture
def tables(family, folder, tokenizer, prompt, tmp_path):
    """Tables of a right and a wrong completion, made by the stages."""
    chat, thinking = prompt.chat(tokenizer, QUESTION), prompt.thinking_of(tokenizer)
    problem = ("p", QUESTION, "7", None, 1.0, "here", "test")
    rows = []
    for sample, answer in enumerate((RIGHT, "It is \\boxed{8}.")):
        ids = sampled(family, tokenizer, prompt, answer)
        text = decoded(tokenizer, chat.text, ids, thinking)
        tags = thinking.cell() if thinking else None
        rows.append(("p", sample, chat.text, text, len(ids), 9, "stop", None, chat.inside, tags))
    files = {
        "problems": PROBLEMS.path.format(d="test"),
        **{kind: artifact.path.format(m="m", d="test") for kind, artifact in
           {"rollouts": ROLLOUTS, "episodes": EPISODES, "grades": GRADES}.items()},
    }  # fmt: skip
    files = {kind: tmp_path / "results" / file for kind, file in files.items()}
    PROBLEMS.write(pl.DataFrame([problem], schema=PROBLEMS.columns, orient="row"), files["problems"])
    ROLLOUTS.write(pl.DataFrame(rows, schema=ROLLOUTS.columns, orient="row"), files["rollouts"])
    CutRollouts(rollouts=files["rollouts"], out=files["episodes"]).cli_cmd()
    Grade(problems=files["problems"], answers=files["rollouts"], out=files["grades"], workers=1).cli_cmd()
    return files


def test_a_completion_is_cut_graded_and_shown(family, tables, tmp_path):
    rollouts, episodes = ROLLOUTS.read(tables["rollouts"]), EPISODES.read(tables["episodes"])
    assert rollouts["text"][0] == written(family)  # no tag is lost, and no end is added
    assert GRADES.read(tables["grades"])["correct"].to_list() == [True, False]
    first = episodes.filter(sample=0)
    opening = "" if family.inside or family.thinking is None else family.thinking.open
    expected = [opening + EPISODES_OF[0], EPISODES_OF[1]] if family.thinking else [""]
    assert first["text"].to_list() == expected and first["closed"].to_list() == [bool(family.thinking)] * len(expected)
    shown, _ = traces_of(Folder(tmp_path / "results"), "m", "test")["p"]
    assert shown["before"] + "".join(shown["episodes"]) + shown["after"] == written(family)
    assert shown["after"].endswith(RIGHT) and shown["correct"]


def test_a_prefix_is_forced_and_its_answer_judged(family, tokenizer, prompt, tables):
    if family.thinking is None:
        pytest.skip("it writes no thoughts")
    chat, thinking = prompt.chat(tokenizer, QUESTION), family.thinking
    words = OpenEnded().of(thinking)
    episodes = EPISODES.read(tables["episodes"]).filter(sample=0)["text"].to_list()
    for j in range(3):
        forced = str(Prefix(chat.text, episodes, True, words, j, chat.inside))
        ending = forced.removeprefix(chat.text)
        assert (thinking.close + words.template.header * (j < 2)) in ending
        assert take_apart(ending + "7", inside=chat.inside, thinking=thinking).answer is not None
        ids = tokenizer.encode(forced, add_special_tokens=False)
        pieces = tokenizer.convert_ids_to_tokens(ids)
        for token in (token for token in family.special if token in thinking.closing):
            assert pieces.count(token) == forced.count(token)
    end = tokenizer.convert_tokens_to_ids(family.end)
    text = "Sum:** 3 + 4 = 7, so \\boxed{7}."
    ids = [*tokenizer.encode(text, add_special_tokens=False), end]
    assert decoded(tokenizer, forced, ids, thinking) == text
    assert right_forced(task_of(), [text], [{"answer": "7"}]) == [1.0]


def test_what_is_learnt_ends_as_the_model_does(family, folder, tokenizer, prompt, tables, tmp_path):
    out = tmp_path / "set.parquet"
    files = {kind: tables[kind] for kind in ("rollouts", "grades")}
    MakeSet(method="star", out=out, out_rules=tmp_path / "rules.parquet", **files).cli_cmd()
    (example,) = SET.read(out).to_dicts()
    assert (example["prompt"], example["completion"]) == (prompt.render(tokenizer, QUESTION), written(family))
    ((row,), dropped) = tokenize(tokenizer, [example], 512)
    learnt = [token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label != -100]
    assert learnt == sampled(family, tokenizer, prompt) and not dropped


def test_rl_begins_within_the_thought_and_sees_it(family, folder, tokenizer, prompt, tables, tmp_path):
    settings = {"prompt": prompt, "prefixes": 1.0, "least_prefix": 1, "forced": True, "max_model_len": 512}
    if family.thinking is None:
        settings |= {"prefixes": 0.0, "least_prefix": 0}
    MakePrompts(
        model=str(folder),
        problems=tables["problems"],
        episodes=tables["episodes"],
        out=tmp_path / "p.parquet",
        **settings,
    ).cli_cmd()
    (row,) = RL_PROMPTS.read(tmp_path / "p.parquet").to_dicts()
    chat = prompt.chat(tokenizer, QUESTION)
    first = EPISODES.read(tables["episodes"])["text"][0]
    assert row["prompt"] == chat.text + first and row["inside"] == (family.thinking is not None)
    close = family.thinking.close if family.thinking else ""
    texts = ["Wait, 7.\n" + close + RIGHT, "Wait, 7.\n" + close + "\\boxed{8}", "Wait, \\boxed{7}, but"]
    ends = [[family.end], [family.eos or family.end], []]  # the last one is cut
    ids = [
        tokenizer.encode(text, add_special_tokens=False) + tokenizer.convert_tokens_to_ids(end)
        for text, end in zip(texts, ends, strict=True)
    ]
    columns = {name: [row[name]] * 3 for name in ("answer", "inside", "prefix_text", "thinking")}
    plain = tokenizer.batch_decode(ids, skip_special_tokens=True)  # as TRL has them
    rewards = outcome_reward(task_of(), tokenizer)(plain, completion_ids=ids, **columns)
    assert rewards == [1, 0, 0 if family.thinking else 1]


SHOWN = {  # of the models on the page
    "qwen3": "Qwen3, enable_thinking", "r1_0528": "R1-0528", "r1_llama": "R1-Distill-Llama", "qwq": "QwQ",
    "magistral": "Magistral", "gpt_oss": "gpt-oss", "instruct": "an instruct model", "other": "others",
}  # fmt: skip


def test_the_page_shows_what_to_set_for_each_family():
    page = (ROOT / "docs" / "your_own.md").read_text()
    (block,) = (block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "gpt_oss:" in block)
    shown = {name: model.get("prompt", {}) for name, model in yaml.safe_load(block)["models"].items()}
    assert shown == {name: MODELS[family].settings for name, family in SHOWN.items()}


def test_an_end_that_is_no_special_token_is_no_part_of_an_answer(tmp_path):
    """TRL decodes it as text; a task that compares texts would find no right answer."""
    from tokenizers import AddedToken
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TOY_BASE)
    tokenizer.add_tokens([AddedToken("<|im_end|>", special=False, normalized=False)])
    tokenizer.save_pretrained(tmp_path)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, end]}))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = [[*tokenizer.encode("Answer: 7", add_special_tokens=False), token] for token in (1, end)]
    plain = tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert plain[1].endswith("<|im_end|>")
    columns = {"answer": ["7"] * 2, "inside": [False] * 2, "prefix_text": [""] * 2, "thinking": [None] * 2}
    assert outcome_reward(task_of("exact"), tokenizer)(plain, completion_ids=ids, **columns) == [1, 1]


@pytest.mark.parametrize(
    ("template", "named", "ends", "unnamed"),
    [
        (None, None, ["<eos>"], None),
        (None, 1, ["<eos>"], None),
        ("{{ raise_exception('no assistants') }}", [5, 1], ["<eos>", 5], None),
        ("{% for m in messages %}{{ m.content }}<|user|>{% endfor %}", None, ["<eos>"], "<|user|>"),
        ("{% for m in messages %}{{ m.content }}<|user|>{% endfor %}", 2, ["<|user|>", "<eos>"], None),
        ("{% for m in messages %}{{ m.content }}\n<|user|><eos>{% endfor %}", [1, 2], ["<|user|>", "<eos>"], None),
        ("{% for m in messages %}{{ m.content }}<|user|><eos>{% endfor %}", None, ["<eos>"], None),
        ("{% for m in messages %}{{ m.content }}<eos>{% endfor %}", [2, 1], ["<eos>", "<|user|>"], None),
        ("{{ messages[0].content }}<|user|>", [2, 1], ["<eos>", "<|user|>"], None),  # the answer is not in it
    ],
)
def test_the_ends_are_those_at_which_engines_stop(tmp_path, template, named, ends, unnamed):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TOY_BASE)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path)
    if named is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    expected = [end if isinstance(end, int) else tokenizer.convert_tokens_to_ids(end) for end in ends]
    assert list(ends_of(tokenizer)) == expected and unnamed_end(tokenizer) == unnamed
