"""How a problem becomes a prompt: the instruction, the model's chat template, and the thought that the prompt opens."""

import datetime
import re
from typing import Any, NamedTuple, Self

from pydantic import Field, model_validator

from mrt.core.settings import Settings
from mrt.episodes.thinking import THINK, Setting, Thinking, ends_inside, last_tag, left_open, of_template


class Chat(NamedTuple):
    """A rendered prompt, and whether it leaves a thought open."""

    text: str
    inside: bool


class Prompt(Settings):
    """How a problem becomes a prompt."""

    instruction: str = Field(
        "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{}.",
        pattern=r"\{problem\}",
        description="The user's message; `{problem}` stands for the problem.",
    )
    thinking: Setting = Field(
        "auto",
        description="How the model writes thoughts. auto: as its chat template shows (`<think>`, `[THINK]`, gpt-oss's"
        " channels), else in `<think>` if the prompt opens a thought; none: it writes none; or the texts that open and"
        " close a thought, `{open: ..., close: ...}`.",
    )
    open_thought: str | None = Field(
        None,
        description="Added after the chat prompt if the chat template does not open the thought itself; by default"
        " `thinking.open`. Empty for a model that does not think.",
    )
    template: dict[str, bool | int | float | str] = Field(
        {}, description="Arguments of the chat template, such as `{enable_thinking: true}`."
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
        """Whether the prompt asks for a thought, as far as the configuration tells."""
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

        Raises ValueError if the chat template cannot be rendered, loses the problem, closes a thought where the prompt
        should open one, or if the prompt opens a thought of another kind than the model's.
        """
        thinking = self.thinking_of(tokenizer)
        message = self.instruction.replace("{problem}", problem)
        prompt = self._rendered(tokenizer, message)
        if problem.strip() not in prompt:  # templates of models that see images may read a list of parts
            prompt = self._rendered(tokenizer, [{"type": "text", "text": message}])
            prompt = "" if re.search(r"[\"']type[\"']: ?[\"']text[\"']", prompt) else prompt  # the list, as it is
        if problem.strip() not in prompt:
            raise ValueError(
                f"{tokenizer.name_or_path}: the problem does not stand in the prompt that its chat template makes; the"
                f" prompt of {problem[:60]!r} is {prompt[-200:]!r}"
            )
        anchor = message.strip() if message.strip() in prompt else problem.strip()
        tail = prompt.rpartition(anchor)[2]  # what the template adds behind the message
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

    def _rendered(self, tokenizer: Any, content: str | list[dict[str, str]]) -> str:
        """A chat of one message of the user's, as the chat template writes it."""
        from jinja2 import TemplateError

        date = {"date_string": f"{self.date:%d %b %Y}", "strftime_now": self.date.strftime}
        try:
            return str(
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": content}],
                    tokenize=False,
                    add_generation_prompt=True,
                    **(date | self.template),
                )
            )
        except (TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            raise ValueError(
                f"{tokenizer.name_or_path}: its chat template cannot write a message of the user's:"
                f" {type(error).__name__}: {error}"
            ) from error
