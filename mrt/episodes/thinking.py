"""How models write thoughts: the tags of a thought, found in a chat template, and a completion taken apart by them.

A completion begins inside a thought if its prompt opened one. That is decided once, from the end of the prompt, where
the completion is sampled or imported, and stands in its row (`inside`, with the tags in `thinking`). All later stages
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
    """The texts around a thought; white space around the tags belongs to what a prompt opens and mu closes."""

    open: str = Field("<think>\n", pattern=r"\S", description="What opens a thought.")
    close: str = Field("</think>\n\n", pattern=r"\S", description="What closes a thought; the answer follows.")

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

    def cell(self) -> str:
        """The tags as a cell of a table (`of_cell`)."""
        return json.dumps({"open": self.open, "close": self.close}, ensure_ascii=False)


THINK = Thinking()  # R1, QwQ, Qwen3
FAMILIES = (  # those that a chat template is searched for
    THINK,
    Thinking(open="[THINK]", close="[/THINK]"),  # Magistral
    Thinking(  # gpt-oss
        open="<|channel|>analysis<|message|>", close="<|end|><|start|>assistant<|channel|>final<|message|>"
    ),
)
Setting = Literal["auto", "none"] | Thinking
NEEDED = (
    "Say how this model writes thoughts: `thinking: {open: ..., close: ...}`, or `thinking: none` if it writes none"
)

# Tags that other models write. They are recognised in completions; a model that writes them is not set up by itself.
_WORD = (
    r"(?:[a-z]+[:_])?(?:think(?:ing)?|thoughts?|reason(?:ing)?|reflect(?:ion)?|scratch_?pad|inner_?monologue|ponder)"
)
_NAME = rf"(?P<name>(?:begin_of_|start_of_|start_)?{_WORD}|inner_prefix)"
_TAG_LIKE = re.compile(rf"(?i)(?P<left><\|?|◁|⟨)\s*{_NAME}\s*(?P<right>\|?>|▷|⟩)")
_IN_BRACKETS = re.compile(rf"(?i)\[{_NAME}\]")  # in a completion that may be a heading
_CHANNEL = re.compile(r"<\|channel\|>\s*(?!final\b)\w+")
_STRIPPED_CHANNEL = re.compile(r"analysis(?=[A-Z\"'\d])")  # gpt-oss's, decoded without special tokens


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
    if unknown := _TAG_LIKE.search(texts) or _IN_BRACKETS.search(texts):
        raise ValueError(f"its chat template shows an unknown kind of thought, {unknown.group()!r}. {NEEDED}")
    return None


def _texts_of(template: str) -> Iterator[str]:
    """The texts that a chat template may write or compare: not the names of its variables, nor its comments."""
    from jinja2 import Environment, TemplateSyntaxError, nodes

    environment = Environment(extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"], autoescape=False)
    try:
        tree = environment.parse(re.sub(r"{%-?\s*(?:end)?generation\s*-?%}", "", template))
    except TemplateSyntaxError as error:
        raise ValueError(f"its chat template cannot be read: {error}") from error
    for node in tree.find_all((nodes.TemplateData, nodes.Const)):
        value = node.data if isinstance(node, nodes.TemplateData) else getattr(node, "value", None)
        if isinstance(value, str):
            yield value


class Parts(NamedTuple):
    """A completion taken apart.

    `opening` is what stands before the thought (its opening tag, if the completion writes one), `thought` the first
    thought, `closed` whether it ends, and `answer` what follows the last thought: None if a thought is left open.
    """

    opening: str
    thought: str
    closed: bool
    answer: str | None


@lru_cache(maxsize=256)
def _tags(pairs: tuple[tuple[str, str], ...]) -> re.Pattern[str]:
    """A pattern of opening tags (groups o0, o1, ...) and closing tags (c0, c1, ...)."""
    of_pairs = (f"(?P<c{i}>{close})|(?P<o{i}>{opening})" for i, (opening, close) in enumerate(pairs))
    return re.compile("|".join(of_pairs))


_FINAL = r"(?:<\|end\|>)?(?:<\|start\|>assistant)?<\|channel\|>final<\|message\|>"
_CHANNELS = (r"<\|channel\|>\s*(?!final\b)\w+[^<]*<\|message\|>", _FINAL)


def _pairs_in(text: str, thinking: Thinking | None) -> tuple[tuple[str, str], ...]:
    """Patterns of the tags that count in a text: the model's first, then those of other models that stand in it."""
    pairs: list[tuple[str, str]] = []
    for family in (thinking, *FAMILIES[:2]):
        if family and (family is thinking or family.opening in text or family.closing in text):
            pairs.append((re.escape(family.opening), re.escape(family.closing)))
    if "<|channel|>" in text:
        pairs.append(_CHANNELS)
    start = text[:200].lstrip()
    if _STRIPPED_CHANNEL.match(start):
        pairs.append((r"\A\s*analysis", "assistantfinal"))
    if foreign := _TAG_LIKE.match(start):
        pairs.append(_foreign(foreign))
    return tuple(dict.fromkeys(pairs))


def _foreign(tag: re.Match[str]) -> tuple[str, str]:
    """Patterns of a tag of an unknown family and of the one that closes it: `</x>`, `<end_of_x>`, `<x_suffix>`."""
    left, right = re.escape(tag.group("left")), re.escape(tag.group("right"))
    ended = re.sub(r"(?i)^(begin|start)(?=_)", "end", tag.group("name")).replace("prefix", "suffix")
    slash = "/" if ended == tag.group("name") else "/?"
    return re.escape(tag.group()), rf"(?i:{left}\s*{slash}\s*{re.escape(ended)}\s*{right})"


def take_apart(completion: str, *, inside: bool = False, thinking: Thinking | None = THINK) -> Parts:
    """Take a completion apart into its thought and its answer part.

    A thought begins with the completion (`inside`) or with an opening tag, and ends with the first closing tag of its
    kind. A closing tag that nothing opened ends a thought that began with the completion; behind a thought it is text.
    A thought that is opened again counts, so that the answer stands behind the last one. Tags of other models count
    where they stand in the text.

    Args:
        completion: what the model wrote after its prompt.
        inside: whether the prompt left a thought open.
        thinking: the model's tags; None if it writes no thoughts.
    """
    pairs = _pairs_in(completion, thinking or (THINK if inside else None))
    if not pairs:
        return Parts("", "", False, completion)
    opened: int | None = 0 if inside else None  # the pair of the thought that is open
    start, end, after, seen = (0 if inside else None), None, 0, False  # of the first thought; of the answer part
    opening_end = 0
    for tag in _tags(pairs).finditer(completion):
        kind, number = str(tag.lastgroup)[0], int(str(tag.lastgroup)[1:])
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
        return Parts("", "", False, completion)
    thought = completion[opening_end : len(completion) if end is None else max(end, opening_end)]
    return Parts(completion[:opening_end], thought, end is not None, None if opened is not None else completion[after:])


def shown_in(text: str, prompt: str = "") -> list[Thinking]:
    """The kinds of thought that a completion or the end of its prompt shows."""
    found = [f for f in FAMILIES if prompt.rstrip().endswith((f.opening, f.closing)) or f.closing in text]
    found += [f for f in FAMILIES if f not in found and f.opening in text]
    start = text[:200].lstrip()
    if not found and (foreign := _TAG_LIKE.match(start)):
        closing = re.search(_foreign(foreign)[1], text)
        ending = closing.group() if closing else foreign.group().replace(foreign["left"], foreign["left"] + "/", 1)
        found.append(Thinking(open=foreign.group(), close=ending))
    return found


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
    found = _tags(pairs).sub("\n", text) if pairs else text
    return None if found == text else found


def ends_inside(tail: str, thinking: Thinking | None) -> bool:
    """Whether the end of a prompt, behind its last message, leaves a thought open."""
    if thinking is None:
        return False
    last = tail.rfind(thinking.opening)
    return last >= 0 and thinking.closing not in tail[last:]


def special_ids(tokenizer: Any, thinking: Thinking | None) -> dict[int, str]:
    """The special tokens that a model's tags consist of, with their texts: decoding has to keep them."""
    if thinking is None:
        return {}
    ids = tokenizer(thinking.opening + thinking.closing, add_special_tokens=False)["input_ids"]
    special = {i: str(token.content) for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return {i: special[i] for i in ids if i in special}
