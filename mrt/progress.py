"""Progress without the workflow: cut a thought into episodes, estimate J along it, and derive progress, regret, credit.

    from mrt.progress import J_by_likelihood, cut, prefixes, progress, transformers_engine

`__all__` lists the public names; docs/api.md shows them at work. Importing this module imports no torch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mrt.analysis.progress import progress
from mrt.analysis.regret import cumulative_regret, normalized_regret
from mrt.analysis.votes import maj_at_k, pass_at_k
from mrt.episodes.parameterization import MARKERS, Cut, OpenEnded, Segmentation, Template
from mrt.episodes.segmentation import losslessly
from mrt.episodes.thinking import THINK, Thinking, answer_parts, special_ids
from mrt.grading.grade import right_forced
from mrt.grading.task import Choice, Task, answers_in, golds_of, scores, task_of
from mrt.methods.mrt_rl import episode_advantages
from mrt.sampling import prover
from mrt.sampling.tokens import decode, encode, end_of, pieces, tokens_up_to

__all__ = [
    "Cut",
    "Engine",
    "J_by_answers",
    "J_by_likelihood",
    "Template",
    "Thinking",
    "advantages",
    "cumulative_regret",
    "cut",
    "episode_ends",
    "maj_at_k",
    "normalized_regret",
    "openai_engine",
    "outcome",
    "pass_at_k",
    "prefixes",
    "progress",
    "transformers_engine",
    "vllm_engine",
]

OPENING: str = prover.ProverSettings.model_fields["opening"].default
NEUTRAL: dict[str, Any] = {  # of a server's requests; `extra_body` has fields that OpenAI's client does not know
    "top_p": 1.0,
    "extra_body": {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "add_special_tokens": False},
}
WITHOUT_PENALTIES = {  # of transformers: else those of a model's generation settings, which would change J
    **{"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "typical_p": 1.0, "num_beams": 1},
    **dict.fromkeys(("min_p", "min_new_tokens", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens")),
}
Problem = str | Mapping[str, Any]  # the gold answer, or the row of a problem that its task reads
Generate = Callable[[Sequence[str], int, int, Sequence[str]], Sequence[Sequence[str]]]
LogProbabilities = Callable[[Sequence[tuple[str, str, str]]], Sequence[float]]


class Engine(NamedTuple):
    """A model that answers: its two functions. A function of yours with the same arguments serves as well.

    Attributes:
        generate: Called as `generate(prompts, n, max_tokens, stop)`. Gives n completions of each prompt
            [prompts][n]. The stop strings end a completion and are not part of it.
        log_probabilities: Called with a list of `(prompt, opening, text)`. Gives for each the log-probability, in nats,
            of `text` and a `}` after `prompt + opening`; -inf where the context is full.
    """

    generate: Generate
    log_probabilities: LogProbabilities | None = None


def cut(
    text: str,
    *,
    inside: bool = True,
    thinking: Thinking = THINK,
    by: str | Callable[[str], Sequence[str]] = "markers",
    min_steps: int = 3,
    max_episodes: int | None = None,
    markers: Sequence[str] = MARKERS,
) -> Cut:
    """Cut a thought into episodes (Section 5, Appendix D).

    Args:
        text: a thought, or a completion; its answer part belongs to no episode.
        inside: whether the text begins inside a thought, as where its prompt ends with an opening tag.
        thinking: the texts that open and close a thought.
        by: a step that begins an episode starts with a marker (`markers`), or every step does (`steps`). Steps are
            paragraphs. Or a function of a thought that gives its episodes; the other settings are then unread.
        min_steps: steps of an episode before the next may begin, at least 1.
        max_episodes: maximum number of cuts; the rest is one episode.
        markers: texts that a step begins with.

    Returns:
        `episodes`, which joined are the thought, and `closed`, whether the thought ends. A text without a thought has
        no episodes.

    Raises:
        ValueError: a setting is out of range, or episodes of a function are empty or do not give the thought.
    """
    if callable(by):
        function = by
        split = losslessly(lambda thought: function(thought), getattr(by, "__name__", repr(by)))
        return OpenEnded(thinking=thinking).cut(text, inside=inside, split=split)
    if by not in ("markers", "steps"):
        raise ValueError(f"by: {by!r} is none of markers, steps, or a function of a thought")
    segmentation = Segmentation(by=by, min_steps=min_steps, max_episodes=max_episodes, markers=tuple(markers))
    return OpenEnded(thinking=thinking, segmentation=segmentation).cut(text, inside=inside)


def prefixes(
    prompt: str,
    episodes: Sequence[str],
    *,
    closed: bool = False,
    inside: bool = True,
    every: int = 1,
    thinking: Thinking = THINK,
    template: Template | None = None,
) -> list[str]:
    """The prompts that make a model answer after j episodes of a thought (Equation 4, Figure 22).

    Args:
        prompt: the text before the completion, with the chat template.
        episodes: those of the thought [k].
        closed: whether the model closed the thought itself; the last prompt then has no stop phrase.
        inside: whether `prompt` ends inside the thought.
        every: j is 0, `every`, 2 `every`, ..., and k.
        thinking: the texts that open and close a thought.
        template: stop phrase and beginning of the answer; by default the paper's.

    Returns:
        One text for each j, in order; k + 1 of them if `every` is 1.

    Raises:
        ValueError: `every` is below 1.
    """
    if every < 1:
        raise ValueError(f"every: {every} is below 1")
    words = OpenEnded(thinking=thinking, template=template or Template())
    return [str(prefix) for prefix in prover.prefixes(prompt, episodes, closed, words, every, inside=inside)]


def J_by_answers(
    prompts: Sequence[str],
    problem: Problem,
    generate: Generate,
    *,
    answers: int = 20,
    max_tokens: int = 4096,
    stop: Sequence[str] = (),
    task: Choice | Task | None = None,
) -> npt.NDArray[np.float64]:
    """J at each prefix from sampled answers: the mean of their scores (Equation 4).

    Args:
        prompts: those of `prefixes` [prefixes].
        problem: the gold answer, or the row of the problem with its `answer` and the columns that the task reads.
        generate: see `Engine`.
        answers: answers at a prefix (20 in Section 8.1).
        max_tokens: longest answer, in tokens.
        stop: stop strings.
        task: decides which answers are right: a name, or name and settings (docs/grading.md); by default `math`.

    Returns:
        J [prefixes], each in [0, 1].

    Raises:
        ValueError: the engine gives another number of answers, or the row lacks its answer or a column of the task.
    """
    texts = [list(of_prompt) for of_prompt in generate(list(prompts), answers, max_tokens, list(stop))]
    if [len(of_prompt) for of_prompt in texts] != [answers] * len(prompts):
        raise ValueError(f"generate: it has to give {answers} texts for each of {len(prompts)} prompts")
    row, judge = _row(problem), _task(task)
    flat = [text for of_prompt in texts for text in of_prompt]
    with _columns_named(judge):
        values = right_forced(judge, flat, [row] * len(flat))
    return np.reshape(values, (len(prompts), answers)).mean(axis=1)


def J_by_likelihood(
    prompts: Sequence[str],
    problem: Problem,
    log_probabilities: LogProbabilities,
    *,
    opening: str = OPENING,
    template: Template | None = None,
    task: Choice | Task | None = None,
) -> npt.NDArray[np.float64]:
    r"""J at each prefix as the probability of the gold answer: one pass, no samples, no noise (docs/likelihood.md).

    Args:
        prompts: those of `prefixes` [prefixes].
        problem: as for `J_by_answers`.
        log_probabilities: see `Engine`.
        opening: continues the beginning of the answer, up to `\boxed{`; best as the model's answers go on.
        template: that of `prefixes`.
        task: as for `J_by_answers`; it needs texts of the gold answer.

    Returns:
        J [prefixes], each in [0, 1]: the sum over the spellings of the gold answer.

    Raises:
        ValueError: the engine gives another number of values or one above 0; `opening` does not end in `\boxed{`; the
            task has no texts of the gold answer.
    """
    if not opening.endswith("\\boxed{"):
        raise ValueError(f"opening: {opening!r} does not end in \\boxed{{")
    header, judge = (template or Template()).header, _task(task)
    with _columns_named(judge):
        golds = golds_of(judge, _row(problem))
    # a prompt after a thought that the model closed itself does not open the answer
    openings = [opening if prompt.endswith(header) else header + opening for prompt in prompts]
    each = [(prompt, begin, gold) for prompt, begin in zip(prompts, openings, strict=True) for gold in golds]
    values = np.array(log_probabilities(each), dtype=np.float64)
    if values.shape != (len(each),) or not np.all(values <= 1e-6):
        raise ValueError(f"log_probabilities: it has to give {len(each)} numbers of at most 0")
    return np.minimum(np.exp(values).reshape(len(prompts), len(golds)).sum(axis=1), 1.0)


def outcome(
    completion: str,
    problem: Problem,
    *,
    inside: bool,
    thinking: Thinking | None = THINK,
    task: Choice | Task | None = None,
) -> float:
    """The score of a completion's answer: 1 if it is right, 0 if it is wrong or a thought is left open.

    Args:
        completion: the text after the prompt.
        problem: as for `J_by_answers`.
        inside: whether the prompt left a thought open. A wrong value makes wrong scores.
        thinking: the texts that open and close a thought; None: the model writes no thoughts.
        task: as for `J_by_answers`.

    Returns:
        A number in [0, 1].

    Raises:
        ValueError: the row lacks its answer or a column of the task.
    """
    row, judge = _row(problem), _task(task)
    with _columns_named(judge):
        return scores(judge, answers_in(judge, answer_parts([completion], [inside], [thinking]), [row]), [row])[0]


def episode_ends(
    tokenizer: Any, ids: Sequence[int], episodes: Sequence[str], *, thinking: Thinking | None = THINK
) -> list[int]:
    """Tokens of a completion up to the end of each of its episodes but the last, for `advantages`.

    Args:
        tokenizer: a fast tokenizer of transformers.
        ids: token ids of the completion.
        episodes: its episodes (`cut`), which begin with its first character.
        thinking: the texts that open and close a thought; their tags may be special tokens.

    Returns:
        Numbers of tokens, in order [episodes - 1]. Ends inside one token are equal.

    Raises:
        ValueError: the completion does not begin with the episodes.
    """
    texts = list(pieces(tokenizer, [], ids, special_ids(tokenizer, thinking)))
    if not (whole := "".join(texts)).startswith("".join(episodes)):
        raise ValueError(f"the episodes are not the beginning of the completion, {whole[:60]!r}")
    return tokens_up_to(texts, np.cumsum([len(episode) for episode in episodes[:-1]], dtype=int).tolist())


def advantages(
    outcomes: Any,
    J: Sequence[npt.ArrayLike],
    ends: Sequence[Sequence[int]],
    lengths: Sequence[int],
    *,
    alpha: float = 1.0,
    centred: bool = False,
) -> Any:
    """Advantages by episode of a group, the completions of one prompt: r + alpha (J_(t+1) - J_t) (Section 6.2).

    Args:
        outcomes: r of each completion, 0 to 1 [completions]: an array, or a tensor of torch.
        J: for each completion, J before it and at each of its `ends` [completions][ends + 1].
        ends: for each completion, tokens up to the end of each episode but the last, in order (`episode_ends`).
        lengths: tokens of each completion [completions].
        alpha: weight of progress.
        centred: subtract the group's mean from the outcome, and from no progress.

    Returns:
        Advantages [completions, longest], 0 after a completion's end. Tokens after the last of `ends` have
        r + alpha (r - J). A float64 array; of a tensor, a float32 tensor on its device.

    Raises:
        ValueError: lengths differ, a J is outside [0, 1], or ends decrease or exceed the length.
    """
    is_tensor = hasattr(outcomes, "detach")
    r = np.asarray(outcomes.detach().cpu() if is_tensor else outcomes, dtype=np.float64)
    if r.ndim != 1 or not len(r) == len(J) == len(ends) == len(lengths):
        raise ValueError(f"advantages: {r.shape} outcomes, {len(J)} J, {len(ends)} ends, {len(lengths)} lengths")
    values = np.zeros((len(r), max(lengths, default=0)))
    for i, (along, places, length) in enumerate(zip(J, ends, lengths, strict=True)):
        if len(progress(along)) != len(places):
            raise ValueError(f"advantages: completion {i} has {len(places)} ends; it needs one more J than ends")
        if np.any(np.diff([0, *places]) < 0) or max(places, default=0) > length:
            raise ValueError(f"advantages: ends {list(places)} of completion {i}, which has {length} tokens")
        of_tokens = episode_advantages(r[i], np.asarray(along, dtype=np.float64).tolist(), places, length, alpha)
        values[i, :length] = of_tokens - (r.mean() if centred else 0.0)
    if not is_tensor:
        return values
    import torch

    return torch.as_tensor(values, dtype=torch.float32, device=outcomes.device)


def vllm_engine(
    model: Any,
    *,
    temperature: float = 0.7,
    seed: int = 0,
    max_model_len: int | None = None,
    thinking: Thinking | None = THINK,
) -> Engine:
    """An engine of vLLM.

    Args:
        model: a checkpoint folder or a hub id, for which vLLM is started; or a `vllm.LLM` with the default scheduler.
            On a CPU, build yours with `enable_chunked_prefill=False`: vLLM cannot seed requests with it there.
        temperature: of sampling; 0 takes the likeliest token.
        seed: equal calls with an equal seed give equal texts.
        max_model_len: longest prompt and completion, in tokens, where vLLM is started here.
        thinking: the texts that open and close a thought; their tags may be special tokens.

    Returns:
        Both functions. A prompt that fills the context has empty completions, and -inf.

    Raises:
        FileNotFoundError: there is no such folder, and the hub's cache has no such model.
    """
    from mrt.sampling import engine

    sampler = engine.Engine(
        model if isinstance(model, str | Path) else "", engine.EngineSettings(max_model_len=max_model_len)
    )
    sampler.thinking = thinking
    if not isinstance(model, str | Path):
        sampler.llm, sampler.tokenizer = model, model.get_tokenizer()

    def generate(prompts: Sequence[str], n: int, max_tokens: int, stop: Sequence[str] = ()) -> list[list[str]]:
        how = engine.Decoding(temperature=temperature, max_tokens=max_tokens, stop=tuple(stop))
        seeds = [engine.seed_of(seed, place, prompt) for place, prompt in enumerate(prompts)]
        requests = [engine.Request(prompt, n, each, how) for prompt, each in zip(prompts, seeds, strict=True)]
        return [[completion.text for completion in of_prompt] for of_prompt in sampler.generate(requests)]

    def log_probabilities(continuations: Sequence[tuple[str, str, str]]) -> list[float]:
        requests = [
            engine.Request(prompt, 1, 0, engine.Decoding(), scored=text, opening=opening)
            for prompt, opening, text in continuations
        ]
        scored = [completion for (completion,) in sampler.generate(requests)]
        return [-inf if each.mean_logprob is None else each.mean_logprob * each.tokens for each in scored]

    return Engine(generate, log_probabilities)


def transformers_engine(
    model: Any, tokenizer: Any, *, temperature: float = 0.7, thinking: Thinking | None = THINK
) -> Engine:
    """An engine of a causal language model of transformers, for a notebook or a check; vLLM is many times faster.

    Args:
        model: the model; its mode and its gradients stay as they are. Its end tokens count, but no penalty or other
            sampling setting that it ships.
        tokenizer: its fast tokenizer.
        temperature: of sampling, by torch's generator; 0 takes the likeliest token.
        thinking: the texts that open and close a thought; their tags may be special tokens.

    Returns:
        Both functions. A prompt that fills the context has empty completions, and -inf.

    Raises:
        ValueError: `log_probabilities` is called and a layer of the model attends to a window only.
    """
    kept, longest = special_ids(tokenizer, thinking), int(model.config.get_text_config().max_position_embeddings)
    sampled = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}

    def generate(prompts: Sequence[str], n: int, max_tokens: int, stop: Sequence[str] = ()) -> list[list[str]]:
        return [answer(ids, n, max_tokens, stop) for ids in encode(tokenizer, prompts)]

    def answer(ids: list[int], n: int, max_tokens: int, stop: Sequence[str]) -> list[str]:
        import torch

        if len(ids) >= longest:
            return [""] * n
        given = torch.tensor([ids] * n, device=model.device)
        settings = {
            **(sampled if temperature else {"do_sample": False}),
            **WITHOUT_PENALTIES,
            "max_new_tokens": min(max_tokens, longest - len(ids)),
            "stop_strings": list(stop) or None,
            "pad_token_id": tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        }
        with torch.no_grad(), _evaluating(model):
            rows = model.generate(given, attention_mask=torch.ones_like(given), tokenizer=tokenizer, **settings)
        end = end_of(tokenizer, ids)
        texts = [decode(tokenizer, end, row[len(ids) :].tolist(), kept) for row in rows]
        return [text[: min([text.find(each) for each in stop if each in text], default=None)] for text in texts]

    @cache
    def frozen() -> Any:
        from mrt.training.frozen import Frozen

        learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
        reader = Frozen(model, tokenizer, model.device)
        for parameter in learnt:
            parameter.requires_grad_(True)
        return reader

    def log_probabilities(continuations: Sequence[tuple[str, str, str]]) -> list[float]:
        from mrt.sampling.scoring import as_written

        scored = [as_written(tokenizer, opening, text) for _, opening, text in continuations]
        texts = list(zip(encode(tokenizer, (prompt for prompt, *_ in continuations)), scored, strict=True))
        room = [i for i, (ids, text) in enumerate(texts) if len(ids) + len(text.before) + len(text.target) < longest]
        values = [-inf] * len(texts)
        with _evaluating(model):
            for i, value in zip(room, frozen().log_probabilities([texts[i] for i in room]), strict=True):
                values[i] = value
        return values

    return Engine(generate, log_probabilities)


def openai_engine(client: Any, model: str, *, temperature: float = 0.7) -> Engine:
    """An engine of a server with OpenAI's completions API, such as `vllm serve` or SGLang; it only generates.

    Args:
        client: an `openai.OpenAI`.
        model: the model's name on the server.
        temperature: of sampling. Each request switches off the model's other sampling settings, which servers would
            apply. It also says that the prompts have their first token (BOS); servers other than vLLM may ignore that.

    Returns:
        `generate`; J by likelihood needs one of the other engines.

    Raises:
        openai.OpenAIError: from the client, as for a prompt that fills the context.
    """

    def generate(prompts: Sequence[str], n: int, max_tokens: int, stop: Sequence[str] = ()) -> list[list[str]]:
        done = client.completions.create(
            model=model,
            prompt=list(prompts),
            n=n,
            max_tokens=max_tokens,
            temperature=temperature,
            stop=list(stop) or None,
            **NEUTRAL,
        )
        texts = [choice.text for choice in sorted(done.choices, key=lambda choice: choice.index)]
        return [texts[start : start + n] for start in range(0, len(texts), n)]

    return Engine(generate)


def _row(problem: Problem) -> Mapping[str, Any]:
    row = problem if isinstance(problem, Mapping) else {"answer": problem}
    if row.get("answer") is None:
        raise ValueError(f"problem: it has no `answer`, the gold answer; it has {', '.join(row)}")
    return {"id": None, **row, "answer": str(row["answer"])}  # as in the workflow's tables


def _task(task: Choice | Task | None) -> Task:
    return task if isinstance(task, Task) else task_of(task)


@contextmanager
def _columns_named(task: Task) -> Iterator[None]:
    """Turns a KeyError of a task into a ValueError that names the column."""
    try:
        yield
    except KeyError as error:
        kind = type(task)
        raise ValueError(
            f"the task {kind.__name__} reads {error} of the problem; give its row, as `posed(row)` of"
            f" {kind.__module__}.{kind.__name__}() has it"
        ) from error


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """The model in evaluation mode, without dropout; its mode is restored."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
