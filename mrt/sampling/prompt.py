"""How a problem becomes a prompt: the instruction, the model's chat template, and the thought that the prompt opens."""

import datetime
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple, Self

from pydantic import Field, model_validator

from mrt.core.settings import Settings
from mrt.episodes.thinking import THINK, Setting, Thinking, ends_inside, last_tag, left_open, of_template, syntax_of

# Given to each chat template by transformers, besides the arguments of `prompt.template`.
GIVEN = {"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"}


class Chat(NamedTuple):
    """A rendered prompt, and whether it leaves a thought open."""

    text: str
    inside: bool


@lru_cache(maxsize=16)
def arguments_of(template: str) -> frozenset[str]:
    """The arguments that a chat template reads: names that it does not set before it reads them.

    Those that transformers gives are left out.
    """
    from jinja2 import meta

    tree = syntax_of(template)
    first: dict[str, str] = {}
    for name in _names(tree):
        first.setdefault(name.name, name.ctx)
    undeclared = meta.find_undeclared_variables(tree)
    return frozenset(name for name in undeclared - GIVEN if first.get(name) == "load")


def _names(node: Any) -> Iterator[Any]:
    """The names in a syntax tree in the order in which they are read and set."""
    from jinja2 import nodes

    if isinstance(node, nodes.Name):
        yield node
    fields = [node.node, node.target] if isinstance(node, nodes.Assign) else node.iter_child_nodes()
    for child in fields:
        yield from _names(child)


class Prompt(Settings):
    """How a problem becomes a prompt."""

    system: str | None = Field(
        None,
        description="The system prompt. By default that of the chat template, if it has one; an empty text"
        " replaces it.",
    )
    instruction: str = Field(
        "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{}.",
        pattern=r"\{problem\}",
        description="The user's message; `{problem}` stands for the problem.",
    )
    thinking: Setting = Field(
        "auto",
        description="How the model writes thoughts. auto: as its chat template shows (`<think>`, `[THINK]`,"
        " gpt-oss's channels), else in `<think>` if the prompt opens a thought. none: it writes no"
        " thoughts. Or the texts that open and close a thought, `{open: ..., close: ...}`.",
    )
    open_thought: str | None = Field(
        None,
        description="Added after the chat prompt if the chat template does not open the thought itself; by default"
        " `thinking.open`. Empty for a model that does not think.",
    )
    template: dict[str, bool | int | float | str] = Field(
        {},
        description="Arguments of the chat template, such as `{enable_thinking: true}` or `{reasoning_effort: high}`."
        " One that the template does not read is an error.",
    )
    date: datetime.date = Field(
        datetime.date(2024, 7, 26),
        description="Today's date for chat templates that state it (Llama 3): fixed, so that completions stay cached.",
    )

    @model_validator(mode="after")
    def _opens_what_is_recorded(self) -> Self:
        if self.thinking == "none" and (tag := left_open(self.open_thought or "")):
            raise ValueError(
                f"open_thought leaves a thought open, with {tag!r}, and `thinking: none` says that the model writes"
                " none; leave out one of them"
            )
        return self

    @property
    def opens_thought(self) -> bool:
        """Whether the prompt opens a thought, as far as the configuration tells."""
        return self.thinking != "none" if self.open_thought is None else bool(self.open_thought.strip())

    def thinking_of(self, tokenizer: Any) -> Thinking | None:
        """How a model with this tokenizer writes thoughts; None if it writes none.

        Raises ValueError if its chat template shows a kind of thought that is not known.
        """
        if isinstance(self.thinking, Thinking):
            return self.thinking
        if self.thinking == "none":
            return None
        try:
            shown = of_template(tokenizer.get_chat_template())
        except ValueError as error:
            raise ValueError(f"{tokenizer.name_or_path}: {error}") from error
        return shown or (THINK if self.opens_thought else None)

    def render(self, tokenizer: Any, problem: str) -> str:
        """The text of the chat prompt (`chat`)."""
        return self.chat(tokenizer, problem).text

    def chat(self, tokenizer: Any, problem: str) -> Chat:
        """The chat prompt; it ends inside a thought unless `open_thought` is empty or closes it.

        Raises ValueError if the chat template cannot be rendered, loses the problem or the system prompt, or does not
        read one of the arguments. So it does if the template closes a thought where the prompt should open one, or if
        the prompt opens a thought of another kind than the model's.
        """
        thinking = self.thinking_of(tokenizer)
        prompt, tail = self._written(tokenizer, problem)
        opening = self.open_thought if self.open_thought is not None else thinking.open if thinking else ""
        if thinking and not opening.strip():
            opening = ""
        elif ends_inside(tail, thinking):  # by the template; the opening may go on, as that of the direct baseline
            opening = opening.lstrip().removeprefix(thinking.opening if thinking else "").lstrip("\n")
        elif last_tag(tail, thinking):
            raise ValueError(
                f"{tokenizer.name_or_path}: its chat template closes the thought itself: the prompt ends in"
                f" {tail[-60:]!r}. If the model can think, switch that on (`prompt: {{template: {{enable_thinking:"
                " true}}`, or what its template reads); if it is not to think, set `prompt: {thinking: none}`"
            )
        inside = ends_inside(tail + opening, thinking)
        if not (behind := tail + opening).strip() and self.instruction.rstrip()[-1:] in ">]▷⟩":
            behind = self.instruction.rpartition("{problem}")[2]  # the model goes on where the message ends
        if tag := left_open(behind, thinking if inside else None):
            raise ValueError(
                f"{tokenizer.name_or_path}: the prompt opens a thought with {tag!r}, but the model"
                f" {f'thinks in {thinking.opening!r}' if thinking else 'writes no thoughts (`thinking: none`)'}: it"
                f" ends in {(prompt + opening)[-60:]!r}. Make `prompt: {{thinking: {{open: ..., close: ...}}}}` and"
                " `open_thought` fit the template, or have it open no thought (`prompt: {template: ...}`)"
            )
        return Chat(prompt + opening, inside)

    def _written(self, tokenizer: Any, problem: str) -> tuple[str, str]:
        """The prompt as the chat template writes it, and the text that it adds after the message.

        Raises ValueError if it does not read one of the arguments, or loses the problem or the system prompt.
        """
        name, message = tokenizer.name_or_path, self.instruction.replace("{problem}", problem)
        known = arguments_of(tokenizer.get_chat_template()) if self.template else frozenset()
        if unread := sorted(self.template.keys() - known):
            raise ValueError(
                f"{name}: its chat template does not read {', '.join(unread)} of `prompt.template`. It reads"
                f" {', '.join(sorted(known)) or 'no arguments'}. What only some models read belongs into their own"
                " `prompt`"
            )
        prompt = self._rendered(tokenizer, message)
        if lost := self._lost_in(prompt, message, problem):
            with suppress(ValueError):  # templates of models that see images may read a list of parts
                parts = self._rendered(tokenizer, message, in_parts=True)
                as_it_is = re.search(r"[\"']type[\"']: ?[\"']text[\"']", parts)
                if not as_it_is and not self._lost_in(parts, message, problem):
                    prompt, lost = parts, None
        if lost:
            hint = ". Leave `prompt.system` out, and put it into `prompt.instruction`" if lost != "problem" else ""
            raise ValueError(
                f"{name}: the {lost} does not stand in the prompt that its chat template makes; the prompt of"
                f" {problem[:60]!r} is {prompt[-200:]!r}{hint}"
            )
        return prompt, around(prompt, message, problem)[1]

    def _lost_in(self, prompt: str, message: str, problem: str) -> str | None:
        """The part that a prompt lacks: the problem, or the system prompt outside of the message."""
        if problem.strip() not in prompt:
            return "problem"
        system = (self.system or "").strip()
        return None if any(system in part for part in around(prompt, message, problem)) else "system prompt"

    def _rendered(self, tokenizer: Any, message: str, *, in_parts: bool = False) -> str:
        """A chat of the system prompt, if there is one, and a message of the user's, as the chat template writes it."""
        from jinja2 import TemplateError

        texts = ({} if self.system is None else {"system": self.system}) | {"user": message}
        chat = [
            {"role": role, "content": [{"type": "text", "text": text}] if in_parts else text}
            for role, text in texts.items()
        ]
        date = {"date_string": f"{self.date:%d %b %Y}", "strftime_now": self.date.strftime}
        try:
            return str(
                tokenizer.apply_chat_template(
                    chat, tokenize=False, add_generation_prompt=True, **(date | self.template)
                )
            )
        except (TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            what = "a message of the user's" if self.system is None else "a system prompt and a message of the user's"
            hint = "" if self.system is None else ". If it has no system role, put `system` into `prompt.instruction`"
            raise ValueError(
                f"{tokenizer.name_or_path}: its chat template cannot write {what}: {type(error).__name__}:"
                f" {error}{hint}"
            ) from error


def around(prompt: str, message: str, problem: str) -> tuple[str, str]:
    """The parts of a prompt before and after its message; those around its problem, if the message was changed."""
    anchor = message.strip() if message.strip() in prompt else problem.strip()
    before, _, after = prompt.rpartition(anchor)
    return before, after
