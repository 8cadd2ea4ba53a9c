"""How models write thoughts: the tags of a thought, found in a chat template, and a completion taken apart by them.

A completion begins inside a thought if its prompt opened one. That is decided once, from the end of the prompt, where
the completion is sampled or imported, and stored in its row (`inside`, with the tags in `thinking`). All later stages
take completions apart with `take_apart`, from the row alone.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import starmap
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from mrt.core.settings import Settings


class Thinking(Settings, frozen=True):
    """The texts around a thought; prompts and mu write the tags with the white space around them."""

    open: str = Field("<think>\n", pattern=r"\S", description="Text that opens a thought.")
    close: str = Field("</think>\n\n", pattern=r"\S", description="Text that closes a thought; the answer follows.")

    @model_validator(mode="after")
    def _two_tags(self) -> Self:
        if self.opening == self.closing:
            raise ValueError(f"a thought opens and closes with the same tag, {self.opening!r}")
        return self

    @property
    def opening(self) -> str:
        """The tag that opens a thought."""
        return self.open.strip()

    @property
    def closing(self) -> str:
        """The tag that closes a thought."""
        return self.close.strip()

    @property
    def patterns(self) -> tuple[str, str]:
        """Patterns of the tag that opens a thought and of the one that closes it."""
        return _patterns(self.opening, self.closing)

    def occurs_in(self, text: str) -> bool:
        """Whether a text has one of the tags."""
        if self.patterns == _CHANNELS:  # the patterns are slow
            start = text[:200].lstrip().startswith(("analysis", "commentary"))
            return (start or "<|channel|>" in text or "assistant" in text) and bool(_tags_in(text, self))
        return self.opening in text or self.closing in text

    def cell(self) -> str:
        """The tags as a cell of a table (`of_cell`)."""
        return json.dumps({"open": self.open, "close": self.close}, ensure_ascii=False)


# gpt-oss: a message of another channel than `final` is a thought; also as it is decoded without special tokens.
_HEADER = r"[^<]*(?:<\|constrain\|>[^<]*)?"
_CHANNELS = (
    rf"<\|channel\|>\s*(?!final\b)\w+{_HEADER}(?:<\|message\|>|\Z)"
    r"|(?:\A\s*|assistant)(?:analysis|commentary)(?=[^\W_a-z]|[\"'“\\$]|\Z)",
    rf"(?:<\|end\|>\s*)?(?:<\|start\|>assistant\s*)?<\|channel\|>\s*final\b{_HEADER}<\|message\|>|assistantfinal",
)


@lru_cache(maxsize=64)
def _patterns(opening: str, closing: str) -> tuple[str, str]:
    if "<|channel|>" in opening:
        return _CHANNELS
    return (
        _GRANITE if (opening, closing) == (_SAID.opening, _SAID.closing) else (re.escape(opening), re.escape(closing))
    )


THINK = Thinking()  # R1, QwQ, Qwen3
FAMILIES = (  # those that a chat template is searched for
    THINK,
    Thinking(open="[THINK]", close="[/THINK]"),  # Magistral
    Thinking(  # gpt-oss
        open="<|channel|>analysis<|message|>", close="<|end|><|start|>assistant<|channel|>final<|message|>"
    ),
)
# Kinds whose tags do not look alike; like those of `_TAG_LIKE`, they are recognised in completions.
_GRANITE = (r"Here(?:['’]s| is) my thought process:", r"Here(?:['’]s| is) my response:")
_SAID = Thinking(open="Here is my thought process:\n", close="Here is my response:\n")  # Granite
_OTHERS = (_SAID, Thinking(open="<|channel>thought\n", close="<channel|>"))  # gemma
Setting = Literal["auto", "none"] | Thinking
NEEDED = (
    "Say how this model writes thoughts: `thinking: {open: ..., close: ...}`, or `thinking: none` if it writes none"
)

# Tags of other kinds. They are recognised in completions; a model that writes them is not set up by itself.
_WORD = (
    r"(?:(?i:think(?:ing)?|thoughts?|reasoning|analysis|cot|scratch_?pad|inner_?monologue)"
    r"|(?P<weak>(?i:reason|reflect(?:ion)?|ponder)))"  # weak: in HTML or prose, a word like others
)
# A word of a name: `chain_of_thought`, `antThinking`, `thinking_process`.
_NAME = (
    rf"(?:[A-Za-z]+[_:\-]|[a-z]+(?=[A-Z])|(?i:begin|start|end)(?i:of)?){{0,4}}{_WORD}(?:[_:\-][A-Za-z]+|[A-Z][a-z]+){{0,3}}"
    r"|(?i:inner_(?:prefix|suffix))|[思推][考维維理](?:过程|過程|链|鏈)?"
)
_TAG_LIKE = re.compile(
    rf"(?P<left>(?:[<◁⟨\[【‹〈＜«]|&lt;)\|?)\s*(?P<slash>/?)\s*(?P<name>{_NAME})\s*\|?(?:[>▷⟩\]】›〉＞»]|&gt;)"
)
_EDGE = re.compile(r"(?i)\A(?:begin|start|end)|(?<=[_:\-])(?:begin|start|end|prefix|suffix)\Z")
_OTHER_EDGE = {"begin": "end", "start": "end", "prefix": "suffix", "end": "start", "suffix": "prefix"}
_CLOSES = ("end", "suffix")
# A tag that a text speaks of: in quotes, or a word of a sentence.
_QUOTES = "\"'`“‘«"
_AS_A_WORD = re.compile(
    r"[,;:!?)}]|\.(?!\.)|\s(?:tags?|tokens?|blocks?|notation|elements?|markers?|delimiters?|syntax)\b"
)
# A word of a sentence, in a completion. A prompt may end so with an order ("begin with <think> now"): it may open one.
_IN_A_SENTENCE = (
    re.compile(
        r"(?i)\b(?:an?|the|in|of|with|by|as|word|tag|token|say|write|print|use|using|called|named|html|xml)[^\S\n]+\Z"
    ),
    re.compile(r"[^\S\n]+[a-z]"),
)
_AT_A_START = re.compile(r"(?:\A|[\n.!?:…>。！？：])[^\S\n]*\Z")  # of a line or a sentence
# Turns of a chat; the text before the first text of the model's.
_TURN = re.compile(
    r"(?im)<[|｜][^<>\s]+[|｜]>|<(?:start|end)_of_turn>|<\|turn>|<turn\|>"
    r"|\[/INST\]|\[\|\w+\|\]|</s>|\bassistant:|^#+ *response:"
    r"|(?:^\W*|>)assistant\s*$"
)
_TURN_OF_MODEL = re.compile(
    r"(?im)(?:[|｜]assistant[|｜][>\]]|assistant<[|｜]\w+[|｜]>|<start_of_turn>model|<\|turn>model|<\|(?:model|chatbot\w*)\|>"
    r"|\[/INST\]|[|｜]>assistant|\b(?:assistant|response):\**|(?:^\W*|>)assistant\s*\n)\s*\Z"
)


def of_cell(cell: str | None) -> Thinking | None:
    """The tags in a cell of a table; None of a model that writes no thoughts."""
    return _of_cell(cell) if cell else None


@lru_cache(maxsize=64)
def _of_cell(cell: str) -> Thinking:
    return Thinking.model_validate_json(cell)


@lru_cache(maxsize=16)
def of_template(template: str) -> Thinking | None:
    """How a model writes thoughts, by the texts in its chat template; None if they show no thought.

    Raises ValueError if they show tags that no family in `FAMILIES` has, or those of two families.
    """
    texts = "\n".join(_texts_of(template))
    shown = [family for family in FAMILIES if family.opening in texts or family.closing in texts]
    if not shown and "<|channel|>" in texts:  # gpt-oss writes the channel's name from a variable
        shown = [FAMILIES[2]]
    if len(shown) > 1:
        raise ValueError(f"its chat template shows {' and '.join(f.opening for f in shown)}. {NEEDED}")
    if shown:
        return shown[0]
    if unknown := _TAG_LIKE.search(texts) or re.search(_GRANITE[0], texts):
        raise ValueError(f"its chat template shows an unknown kind of thought, {unknown.group()!r}. {NEEDED}")
    return None


def syntax_of(template: str) -> Any:
    """A chat template as Jinja's syntax tree. Raises ValueError if it cannot be read."""
    from jinja2 import Environment, TemplateSyntaxError

    environment = Environment(extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"], autoescape=False)
    try:
        return environment.parse(re.sub(r"{%-?\s*(?:end)?generation\s*-?%}", "", template))
    except TemplateSyntaxError as error:
        raise ValueError(f"its chat template cannot be read: {error}") from error


def _texts_of(template: str) -> Iterator[str]:
    """The texts that a chat template may write or compare: not the names of its variables, nor its comments."""
    from jinja2 import nodes

    for node in syntax_of(template).find_all((nodes.TemplateData, nodes.Const)):
        value = node.data if isinstance(node, nodes.TemplateData) else getattr(node, "value", None)
        if isinstance(value, str):
            yield value


class Parts(NamedTuple):
    """A completion taken apart.

    `opening` is the text before the thought (its opening tag, if the completion writes one). `thought` is the first
    thought, and `closed` says whether it ends. `answer` is the text after the last thought: None if a thought is left
    open.
    """

    opening: str
    thought: str
    closed: bool
    answer: str | None


def whole(completion: str) -> Parts:
    """A completion without a thought: all of it is the answer."""
    return Parts("", "", False, completion)


@lru_cache(maxsize=256)
def _tags(pairs: tuple[tuple[str, str], ...]) -> re.Pattern[str]:
    """A pattern of opening tags (groups o0, o1, ...) and closing tags (c0, c1, ...)."""
    of_pairs = (f"(?P<c{i}>{close})|(?P<o{i}>{opening})" for i, (opening, close) in enumerate(pairs))
    return re.compile("|".join(of_pairs))


def _tags_in(text: str, thinking: Thinking) -> list[re.Match[str]]:
    """The tags of one kind in a text, in groups o0 and c0."""
    return list(_tags((thinking.patterns,)).finditer(text))


def _pairs_in(text: str, thinking: Thinking | None) -> tuple[tuple[str, str], ...]:
    """Patterns of the tags that count in a text: the model's first, then those of other models that occur in it."""
    known = [family for family in FAMILIES if family.occurs_in(text)]
    foreign = [kind for kind in _foreign_in(text) if kind != _SAID or _are_tags(text, thinking)]
    kinds = [*([thinking] if thinking else []), *known, *foreign]
    return tuple(dict.fromkeys(kind.patterns for kind in kinds))


def _are_tags(text: str, thinking: Thinking | None) -> bool:
    """Whether Granite's sentences are tags in a text of a model with other tags, or none: where one closes the other.

    One alone is a tag too if the model may write thoughts, and the text has no tag of the model.
    """
    both = "oc" in "".join(str(tag.lastgroup)[0] for tag in _tags_in(text, _SAID))
    return both or (thinking is not None and not thinking.occurs_in(text))


def _kind_of(tag: re.Match[str]) -> tuple[Thinking, bool]:
    """The pair of tags that a tag is of, and whether it opens: `<x>` and `</x>`, `<start_x>` and `<end_x>`."""
    written, left, name = tag.group(), tag["left"], tag["name"]
    if edge := _EDGE.search(name):
        closes = bool(tag["slash"]) or edge.group().lower() in _CLOSES
        other = "begin" if closes and re.match("(?i)end_?of", name) else _OTHER_EDGE[edge.group().lower()]
        other = other.upper() if edge.group().isupper() else other
        counterpart = written.replace(name, name[: edge.start()] + other + name[edge.end() :], 1)
    else:
        closes = bool(tag["slash"])
        counterpart = written.replace("/", "", 1) if closes else written.replace(left, left + "/", 1)
    return Thinking(open=counterpart if closes else written, close=written if closes else counterpart), not closes


def _is_quoted(tag: re.Match[str], opens: bool = True) -> bool:
    """Whether a text speaks of a tag, and does not use it."""
    text = tag.string
    before, behind = text[: tag.start()][-1:], text[tag.end() : tag.end() + 12]
    in_quotes = before and before in _QUOTES and (opens or bool(re.match(r"[\"'`”’»]", behind)))
    return bool(in_quotes or _AS_A_WORD.match(behind))


def _is_heading(tag: re.Match[str]) -> bool:
    """Whether a word in brackets may be a heading: [Reasoning] ... [Answer]."""
    left = tag["left"][0]
    return left == "[" or (left == "【" and "【" in tag.string[tag.end() :])


def _is_mentioned(tag: re.Match[str]) -> bool:
    """Whether a completion only speaks of an opening tag: after other words, in quotes or as a word of a sentence."""
    text, (before, behind) = tag.string, _IN_A_SENTENCE
    if not re.search(r"\w", text[: tag.start()]):  # it begins the text, unless quotes are around it
        return text[: tag.start()].endswith(tuple(_QUOTES)) and text.startswith(tuple("\"'`”’»"), tag.end())
    in_a_sentence = before.search(text, max(0, tag.start() - 12), tag.start()) and behind.match(text, tag.end())
    return bool(_is_quoted(tag) or in_a_sentence)


def _foreign_in(text: str) -> list[Thinking]:
    """The kinds of thoughts outside `FAMILIES` that a text shows.

    Any of these does: a tag that begins the text, a closing tag that nothing opened, a pair, an opening tag at the
    start of a line or a sentence. Quoted tags show none. A word in brackets may be a heading: it needs its closing tag.
    A word that HTML or prose may hold (`<reason>`) counts at the beginning, or where it closes what nothing opened.
    """
    shown = {  # by the closing tag
        kind.closing: kind
        for kind in _OTHERS
        if any(not _is_quoted(tag, opens=tag.lastgroup == "o0") for tag in _tags_in(text, kind))
    }
    opened: dict[str, tuple[Thinking, re.Match[str]]] = {}
    for tag in _TAG_LIKE.finditer(text):
        kind, opens = _kind_of(tag)
        if any(kind.opening == family.opening for family in FAMILIES):
            continue
        if opens and not _is_heading(tag) and not text[: tag.start()].strip():
            shown[kind.closing] = kind
        elif opens:
            opened.setdefault(kind.closing, (kind, tag))
        elif not _is_quoted(tag, opens=False) and (kind.closing not in opened or not tag["weak"]):
            shown.setdefault(kind.closing, opened.get(kind.closing, (kind,))[0])
    for closing, (kind, tag) in opened.items():
        begins = _AT_A_START.search(text, max(0, tag.start() - 20), tag.start())
        if begins and closing not in text and not (tag["weak"] or _is_heading(tag) or _is_mentioned(tag)):
            shown.setdefault(closing, kind)
    return list(shown.values())


def take_apart(completion: str, *, inside: bool = False, thinking: Thinking | None = THINK) -> Parts:
    """Take a completion apart into its thought and its answer part.

    A thought begins with the completion (`inside`) or with an opening tag, and ends with the first closing tag of its
    kind. A closing tag without an opening one ends a thought that began with the completion; after a thought it is
    text. A thought that is opened again counts, so that the answer follows the last one. An opening tag in quotes, or
    as a word of a sentence, that is never closed is text. Tags of other models count where they occur in the text.

    Args:
        completion: the text of the model after its prompt.
        inside: whether the prompt left a thought open.
        thinking: the model's tags; None if it writes no thoughts.
    """
    pairs = _pairs_in(completion, thinking or (THINK if inside else None))
    if not pairs:
        return whole(completion)
    opened: int | None = 0 if inside else None  # the pair of the thought that is open
    start, end, after, seen = (0 if inside else None), None, 0, False  # of the first thought; of the answer part
    opening_end = 0
    tags = list(_tags(pairs).finditer(completion))
    last_closing = {str(tag.lastgroup): tag.start() for tag in tags if str(tag.lastgroup)[0] == "c"}
    for tag in tags:
        kind, number = str(tag.lastgroup)[0], int(str(tag.lastgroup)[1:])
        if kind == "o" and last_closing.get(f"c{number}", -1) < tag.start() and _is_mentioned(tag):
            continue
        if kind == "o":
            if opened is None:
                opened = number
                if start is None:
                    start, opening_end = 0, tag.end()
            elif end is None and not completion[: tag.start()].strip():
                opening_end = tag.end()  # the completion repeats the tag that its prompt opened
        elif opened == number:
            end = tag.start() if end is None else end
            opened, after = None, tag.end()
        elif opened is None and not seen and start is None:
            start, end, after = 0, tag.start(), tag.end()
        seen = True
    if start is None:
        return whole(completion)
    thought = completion[opening_end : len(completion) if end is None else max(end, opening_end)]
    return Parts(completion[:opening_end], thought, end is not None, None if opened is not None else completion[after:])


def shown_in(text: str, prompt: str = "") -> list[Thinking]:
    """The kinds of thought that a completion or its prompt shows."""
    shown = [family for family in FAMILIES if family.occurs_in(text) or in_prompt(prompt, family)]
    if shown:
        return shown
    shown = [kind for kind in _OTHERS if in_prompt(prompt, kind) == "opens"]
    for last in list(_TAG_LIKE.finditer(prompt))[-1:]:
        kind, _ = _kind_of(last)
        where = in_prompt(prompt, kind)
        if where and (where != "may open" or not (last["weak"] or last["left"][0] in "[【")):
            shown.append(kind)
    return list(dict.fromkeys([*shown, *_foreign_in(text)]))


def in_prompt(prompt: str, thinking: Thinking) -> Literal["opens", "closes", "may open"] | None:
    """The effect of the last tag of a whole prompt whose message has no known end; None: no effect.

    It counts at the end of the prompt or in the model's turn. With other text after it, it may belong to the message:
    an opening tag then may open a thought. In front of another turn a tag belongs to the message.
    """
    tags = _tags_in(prompt, thinking)
    in_turn = [tag for tag in tags if _TURN_OF_MODEL.search(prompt[: tag.start()])]
    tags = [tag for tag in tags if tag.lastgroup == "c0" or tag in in_turn or not _is_quoted(tag)]
    if not tags or _TURN.search(behind := prompt[tags[-1].end() :]):
        return None
    certain = not behind.strip() or any(not _TURN.search(prompt[tag.end() :]) for tag in in_turn)
    if tags[-1].lastgroup == "c0":
        return "closes" if certain else None
    return "opens" if certain else "may open"


def ends_in_turn(prompt: str) -> bool:
    """Whether a prompt ends where the model's turn begins; "assistant:" that ends a sentence of a question does not."""
    end = prompt[-200:]
    turn = _TURN_OF_MODEL.search(end)
    in_a_sentence = r"(?:assistant|response):\**\s*\Z"  # roles inside of a line are capitals ("USER: ... ASSISTANT:")
    return bool(turn and not (re.match(in_a_sentence, turn.group()) and re.search(r"\w[^\n]*\Z", end[: turn.start()])))


def opens_later(text: str, thinking: Thinking) -> bool:
    """Whether a text uses a tag that opens a thought, and does not only speak of it."""
    return any(tag.lastgroup == "o0" and not _is_mentioned(tag) for tag in _tags_in(text, thinking))


def answers_at_once(text: str, thinking: Thinking) -> bool:
    """Whether a text begins with the header of gpt-oss's answers, so that it has no thought."""
    header = r"\s*(?:<\|start\|>assistant\s*)?<\|channel\|>\s*final\b"
    return thinking.patterns == _CHANNELS and bool(re.match(header, text))


def has_answer_part(completion: str, inside: bool, tags: str | None) -> bool:
    """Whether a completion leaves no thought open; `tags` as a cell of a table."""
    return take_apart(completion, inside=inside, thinking=of_cell(tags)).answer is not None


def answer_parts(
    completions: Sequence[str], inside: Sequence[bool], thinking: Sequence[Thinking | None]
) -> list[str | None]:
    """The answer part of each completion; None where a thought is left open."""
    each = zip(completions, inside, thinking, strict=True)
    return list(starmap(lambda text, begins, tags: take_apart(text, inside=begins, thinking=tags).answer, each))


def without_tags(text: str) -> str | None:
    """A text with a line end for each tag of a thought; None if it has none."""
    pairs = _pairs_in(text, None)
    plain = _tags(pairs).sub("\n", text) if pairs else text
    return None if plain == text else plain


def last_tag(tail: str, thinking: Thinking | None) -> Literal["opens", "closes"] | None:
    """The effect on a thought of the last tag at the end of a prompt, after its last message."""
    tags = _tags_in(tail, thinking) if thinking else []
    return ("opens" if tags[-1].lastgroup == "o0" else "closes") if tags else None


def ends_inside(tail: str, thinking: Thinking | None) -> bool:
    """Whether the end of a prompt, after its last message, leaves a thought open."""
    return last_tag(tail, thinking) == "opens"


def left_open(tail: str, thinking: Thinking | None = None) -> str | None:
    """The tag of a thought that the end of a prompt, after its last message, leaves open; any but the model's."""
    kinds = [*FAMILIES, *(_kind_of(tag)[0] for tag in _TAG_LIKE.finditer(tail))]
    if thinking:
        kinds = [k for k in kinds if k.opening not in thinking.opening and k.patterns != thinking.patterns]
    return next((kind.opening for kind in kinds if ends_inside(tail, kind)), None)


def special_ids(tokenizer: Any, thinking: Thinking | None) -> dict[int, str]:
    """The special tokens that a model's tags consist of, with their texts: decoding has to keep them."""
    if thinking is None:
        return {}
    ids = tokenizer(thinking.opening + thinking.closing, add_special_tokens=False)["input_ids"]
    special = {i: str(token.content) for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return {i: special[i] for i in ids if i in special}
