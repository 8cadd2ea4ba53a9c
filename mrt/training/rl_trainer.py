"""TRL's GRPOTrainer with the rewards and advantages of `mrt.training.rl`."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mrt.episodes.parameterization import OpenEnded, Parameterization
from mrt.episodes.thinking import answer_parts, of_cell, special_ids
from mrt.grading.grade import right_forced
from mrt.grading.task import Row, Task, answers_in, scores
from mrt.sampling.engine import seed_of, vllm_reads
from mrt.sampling.tokens import decode, end_of, pieces
from mrt.training.devices import LENGTHS, padded_left
from mrt.training.flops import Counts, Sizes, distinct, pairs
from mrt.training.frozen import Frozen
from mrt.training.meta_prover import MetaProver
from mrt.training.methods import RLMethod
from mrt.training.rl_engine import DOUBTFUL, FAR, check_fresh
from mrt.training.schedule import EveryStepLearns, carried
from mrt.training.stage import EndsOnce, show_progress

if TYPE_CHECKING:
    from mrt.training.rl import RL


def length_penalized(
    outcomes: npt.ArrayLike, lengths: npt.ArrayLike, num_generations: int, alpha: float
) -> npt.NDArray[np.float64]:
    """Rewards with a length penalty, relative to the right completions of the same group (Arora and Zanette, 2025).

    Args:
        outcomes, lengths: 0/1 outcome and tokens of each completion [groups * num_generations], groups contiguous.
        alpha: share of the reward that length may cost.

    Returns:
        0 for a wrong completion; 1 - alpha sigmoid(z) for a right one, where z is its length standardised over the
        right completions of its group. Lengths are never compared across groups.
    """
    right = np.asarray(outcomes, dtype=np.float64).reshape(-1, num_generations) > 0
    tokens = np.asarray(lengths, dtype=np.float64).reshape(-1, num_generations)
    count = np.maximum(right.sum(axis=1, keepdims=True), 1)
    mean = np.where(right, tokens, 0).sum(axis=1, keepdims=True) / count
    spread = np.sqrt((np.where(right, tokens - mean, 0) ** 2).sum(axis=1, keepdims=True) / count)
    z = np.clip((tokens - mean) / (spread + 1e-4), -50, 50)
    return np.where(right, 1 - alpha / (1 + np.exp(-z)), 0.0).ravel()


def episode_advantages(
    outcome: float, J: Sequence[float], ends: Sequence[int], tokens: int, alpha: float
) -> npt.NDArray[np.float64]:
    """Advantage of each token of a completion by its episode: r + alpha (J_t - J_t-1) (Section 6.2, "per-episode").

    Args:
        outcome: r, 0 or 1.
        J: J before the completion and at each of `ends` [boundaries + 1].
        ends: tokens up to each boundary between episodes, increasing [boundaries]. The tokens after the last one, those
            of the last episode and of the answer, get r + alpha (r - J_last): the outcome stands for J after them.
        tokens: number of tokens of the completion.
    """
    found = np.full(tokens, outcome + alpha * (outcome - J[-1]))
    start = 0
    for end, before, after in zip(ends, J, J[1:], strict=False):
        found[start:end] = outcome + alpha * (after - before)
        start = end
    return found


def without_end(tokenizer: Any, ids: Sequence[int]) -> Sequence[int]:
    """A completion's token ids without the end-of-text token, which may be a special token that texts keep."""
    return ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id else ids


def overlong_penalties(lengths: Sequence[int], longest: int, buffer: int | None) -> list[float]:
    """What each completion loses for its length (DAPO, Equation 13); 0 without a buffer.

    Args:
        lengths: tokens of each completion.
        longest: L_max, the tokens at which a completion is cut.
        buffer: L_cache: over the last so many tokens the penalty goes from 0 to -1, linearly.
    """
    if buffer is None:
        return [0.0] * len(lengths)
    from trl.rewards import get_soft_overlong_punishment

    penalties: list[float] = get_soft_overlong_punishment(longest, buffer)([range(n) for n in lengths])
    return penalties


def problem_of(example: Mapping[str, Any]) -> Row:
    """The problem of a row of prompts; without its column `row`, its id and gold answer alone."""
    row: Row = json.loads(example.get("row") or "{}")
    return row or {"id": example.get("problem_id"), "answer": example["answer"]}


def outcome_reward(task: Task, tokenizer: Any) -> Any:
    """A reward function for TRL: the score of a completion's answer, 1 where it is right.

    A completion that continues a prefix is graded together with it: an attempt in the prefix is the answer if the
    completion adds none. One that begins `inside` a thought has no answer without `</think>`; where `inside` is None,
    it is an answer that was forced.
    """

    def outcome(
        completions: list[str],
        answer: list[str],
        inside: list[bool | None],
        prefix_text: list[str],
        thinking: list[str | None],
        completion_ids: list[list[int]],
        **columns: Any,
    ) -> list[float]:
        if kept := special_ids(tokenizer, of_cell(thinking[0])):  # TRL decodes without special tokens
            completions = [decode(tokenizer, [], without_end(tokenizer, ids), kept) for ids in completion_ids]
        whole = [before + completion for before, completion in zip(prefix_text, completions, strict=True)]
        tags = list(map(of_cell, thinking))
        given = {"answer": answer} | {name: columns[name] for name in ("problem_id", "row") if name in columns}
        problems = [problem_of(dict(zip(given, values, strict=True))) for values in zip(*given.values(), strict=True)]
        score = scores(task, answers_in(task, answer_parts(whole, list(map(bool, inside)), tags), problems), problems)
        forced = [i for i, begins in enumerate(inside) if begins is None]
        of_forced = right_forced(task, [completions[i] for i in forced], [problems[i] for i in forced])
        for i, value in zip(forced, of_forced, strict=True):
            score[i] = value
        return score

    return outcome


def make_trainer_class() -> type:
    """GRPOTrainer with the advantages of `mrt.training.rl`'s table; a function because importing TRL takes seconds."""
    import torch
    from trl import GRPOTrainer
    from trl.trainer.utils import RepeatSampler

    def left_aligned(values: Any, counts: list[tuple[int, int]], width: int) -> Any:
        """The last so many values of each row, moved to its beginning and padded to this width."""
        rows = [torch.nn.functional.pad(values[i, values.size(1) - n :], (0, width - n)) for i, n in counts]
        return torch.stack(rows)

    class Carrying(RepeatSampler):
        """TRL's sampler, which carries problems over to the next epoch where TRL's leaves them out.

        The order of a pass depends on its number, so that a resumed training has the same. It asks for that of the
        epoch: `set_epoch` is not passed on through the samplers that skip batches and split them over processes.
        """

        epoch: Callable[[], int] = int  # 0 where nobody tells

        def order(self, number: int) -> list[int]:
            """The problems in the order of this pass."""
            order: list[int] = torch.randperm(
                self.num_samples, generator=self.generator.manual_seed(self.seed + number)
            ).tolist()
            return order

        def __len__(self) -> int:
            return (
                -(-self.num_samples // self.batch_size) * self.batch_size * self.mini_repeat_count * self.repeat_count
            )

        def __iter__(self) -> Iterator[int]:
            for batch in carried(self.data_source, self.batch_size, self.epoch(), self.order):
                for _ in range(self.repeat_count):
                    yield from (problem for problem in batch for _ in range(self.mini_repeat_count))

    class MRTTrainer(EndsOnce, EveryStepLearns, MetaProver, GRPOTrainer):
        """GRPOTrainer with our rewards and advantages, batches without padding, counters and checks."""

        def __init__(
            self,
            method: RLMethod,
            recipe: "RL",
            task: Task,
            parameterization: Parameterization,
            frozen: Any = None,
            **options: Any,
        ) -> None:
            super().__init__(reward_funcs=outcome_reward(task, options["processing_class"]), **options)
            self.method, self.recipe, self.task = method, recipe, task
            self.parameterization = parameterization
            if recipe.estimate == "likelihood" and not isinstance(parameterization, OpenEnded):
                raise ValueError("estimate: likelihood is for thoughts; after an attempt mu repeats its answer")
            self.kept = special_ids(self.processing_class, of_cell(self.train_dataset[0]["thinking"]))
            self.frozen = frozen and Frozen(frozen, self.processing_class, self.accelerator.device)
            self.outcomes: Any = None  # outcomes of all processes' completions, before any shaping
            self.paid: Any = None  # the same, less what a completion loses for its length (`overlong_buffer`)
            self.lengths: list[int] = []  # tokens of this process's completions, also of those that are masked
            self.spent = Counts("tokens_sampled", "tokens_forced", "tokens_read", "flops")
            self.sizes = Sizes.of(self.model)
            self.cached = []
            self.draws = 0  # calls of the engine in this step
            self.doubted = False  # whether the warning FAR was printed
            if self.use_vllm:
                self.vllm_generation.llm.generate = self.seeded(self.vllm_generation.llm.generate)
            show_progress(self)

        def seeded(self, generate: Any) -> Any:
            """The engine's `generate` with a seed per request, by step and position: equal in a resumed run.

            The engine makes no texts, which takes a fifth of its time on a GPU: TRL reads the tokens alone.
            """
            rank = self.accelerator.process_index // self.vllm_generation.tensor_parallel_size

            def drawn(prompts: Sequence[Any], sampling_params: Any, **options: Any) -> Any:
                self.draws += 1
                each = [sampling_params.clone() for _ in prompts]
                for place, own in enumerate(each):
                    own.seed = seed_of(self.recipe.seed, self.state.global_step, self.draws, rank, place)
                    own.detokenize = own.detokenize and vllm_reads(self.processing_class, own.stop)
                return generate(prompts, sampling_params=each, **options)

            return drawn

        def _get_train_sampler(self, dataset: Any = None) -> Any:
            theirs = super()._get_train_sampler(dataset)
            ours = Carrying(
                theirs.data_source, theirs.mini_repeat_count, theirs.batch_size, theirs.repeat_count, seed=theirs.seed
            )
            ours.epoch = lambda: int(self.state.epoch or 0)
            return ours

        def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
            """Token ids as the sampling engine has them: a chat prompt begins with a special token of its own."""
            return self.encode(prompts), None, {}

        def note(self, name: str, value: float) -> None:
            self._metrics["train" if self.model.training else "eval"][name].append(float(value))

        @contextmanager
        def timed(self, phase: str) -> Iterator[None]:
            began = time.monotonic()
            yield
            self.note(f"seconds_{phase}", time.monotonic() - began)

        def _generate(self, *arguments: Any, **options: Any) -> Any:
            with self.timed("sampling"):
                return super()._generate(*arguments, **options)

        def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
            with self.timed("grading"):
                rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
            self.outcomes = rewards[:, 0].clone()
            self.lengths = [len(ids) for ids in completion_ids_list]
            lengths = self.accelerator.gather(torch.tensor(self.lengths, device=rewards.device)).tolist()
            if self.method == "length_penalty":
                shaped = length_penalized(self.outcomes.tolist(), lengths, self.num_generations, self.recipe.alpha)
                rewards[:, 0] = torch.tensor(shaped, dtype=rewards.dtype, device=rewards.device)
            lost = overlong_penalties(lengths, self.recipe.decoding.max_tokens, self.recipe.overlong_buffer)
            self.paid = self.outcomes + (penalties := torch.tensor(lost, dtype=rewards.dtype, device=rewards.device))
            rewards[:, 0] += penalties
            return rewards

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            self.draws = 0
            first, variant = self.accelerator.process_index * len(inputs), self.recipe.variant
            progress = self.method == "mrt_rl" and self.model.training
            stops = [False] * len(inputs)
            if progress and variant == "implicit":
                forced, half = self.encode(x["forced"] for x in inputs), self.num_generations // 2
                stops = [self.fits(ids) and (first + i) % self.num_generations >= half for i, ids in enumerate(forced)]
                told = [{**x, "prompt": x["forced"], "prefix_text": "", "inside": None} for x in inputs]
                inputs = [t if stop else x for x, t, stop in zip(inputs, told, stops, strict=True)]
            output: dict[str, Any] = super()._generate_and_score_completions(inputs)
            if check_fresh(output) > DOUBTFUL and not self.doubted and self.accelerator.is_main_process:
                self.doubted = True
                print(FAR.format(self.state.global_step + 1), flush=True)
            self.count_sampled(output)
            outcomes, paid = (of_all[first : first + len(inputs)] for of_all in (self.outcomes, self.paid))
            stopped = torch.tensor(stops, device=outcomes.device)
            begun = map(len, self.encode(x["prefix_text"] for x in inputs))
            whole = torch.tensor([b + n for b, n in zip(begun, self.lengths, strict=True)], device=outcomes.device)
            self.note("outcome", self.mean_of(outcomes[~stopped]))
            self.note("trace_tokens", self.mean_of(whole[~stopped]))
            if progress and variant == "implicit":
                self.note("J_prefix", self.mean_of(outcomes[stopped]))
                self.note("progress", self.mean_of(outcomes[~stopped]) - self.mean_of(outcomes[stopped]))
            elif progress:
                mean = self.paid.view(-1, self.num_generations).mean(dim=1).repeat_interleave(self.num_generations)
                base = mean[first : first + len(inputs)] if self.recipe.centred else 0 * outcomes
                with self.timed("forced"):
                    asked = [x["forced"] for x in inputs]
                    J = self.accuracy_at(asked, list(map(problem_of, inputs)))
                    before = torch.tensor(J, dtype=outcomes.dtype, device=outcomes.device)
                    if variant == "explicit":
                        output["advantages"] = paid - base + self.recipe.alpha * (outcomes - before)
                    elif variant == "termination":
                        output["advantages"] = paid - before
                    else:
                        by_episode = self.by_episode(inputs, output, outcomes.tolist(), J)
                        output["advantages"] = by_episode + (paid - outcomes - base)[:, None]
                self.note("J_prefix", self.mean_of(before))
                self.note("progress", self.mean_of(outcomes - before))
            return output

        def _get_per_token_logps_and_entropies(
            self,
            model: Any,
            input_ids: Any,
            attention_mask: Any,
            logits_to_keep: int,
            batch_size: Any = None,
            **options: Any,
        ) -> Any:
            """TRL's method on rows of similar length, with padding removed: it takes most of the time on a CPU.

            Rows come as a prompt, padded on the left, and a completion, padded on the right. Padding then fills up
            whole lengths only, however these divide into prompt and completion.
            """
            rows = [ids[mask] for ids, mask in zip(input_ids, attention_mask.bool(), strict=True)]
            lengths = attention_mask[:, input_ids.size(1) - logits_to_keep :].sum(dim=1).tolist()
            rows, reader = self.reading(model, rows, lengths, batch_size or len(rows))
            again, backward = self.args.gradient_checkpointing, torch.is_grad_enabled()
            parts: list[tuple[Any, Any, Any]] = []
            order: list[int] = []
            for batch in torch.arange(len(rows)).split(batch_size or len(rows)):
                for places in torch.tensor([len(rows[i]) for i in batch]).argsort().chunk(LENGTHS):
                    which = batch[places].tolist()
                    ids, mask = padded_left([rows[i] for i in which])
                    keep, (model, before) = max(1, *(lengths[i] for i in which)), reader(which)
                    *values, aux = super()._get_per_token_logps_and_entropies(model, ids, mask, keep, **options)
                    size = (*ids.shape, int(mask[:, -keep:].sum()), before)
                    self.spent.add(flops=self.sizes.training(*size, backward=backward, checkpointing=again))
                    counts = [(place, lengths[i]) for place, i in enumerate(which)]
                    parts.append((*(x if x is None else left_aligned(x, counts, logits_to_keep) for x in values), aux))
                    order += which
            logps, entropies, aux = zip(*parts, strict=True)
            back_to = torch.tensor(order).argsort()
            joined = (None if x[0] is None else torch.cat(x)[back_to] for x in (logps, entropies))
            return (*joined, None if aux[0] is None else torch.stack(aux).mean())

        def reading(
            self, model: Any, rows: list[Any], lengths: list[int], batch_size: int
        ) -> tuple[list[Any], Callable[[list[int]], tuple[Any, int]]]:
            """What a pass reads of each row, and with what.

            Args:
                model: the model.
                rows: token ids of each row, which ends with its completion.
                lengths: tokens of each completion.
                batch_size: rows that are read at once.

            Returns:
                The token ids to read, and a function of rows (indices): the model that reads them, and how many tokens
                it attends to before them.
            """
            return rows, lambda _: (model, 0)

        def mean_of(self, own: Any) -> float:
            """Mean of the values of all processes."""
            totals = torch.stack([own.sum(), torch.tensor(float(own.numel()), device=own.device)])
            total, count = self.accelerator.reduce(totals, reduction="sum").tolist()
            return total / max(count, 1.0)

        def count_sampled(self, output: dict[str, Any]) -> None:
            """Count the sampled completions, also those of which no token is learnt."""
            asked = zip(output["prompt_ids"], output["prompt_mask"].bool(), strict=True)
            prompts, lengths = [ids[m].tolist() for ids, m in asked], self.lengths
            completions = [ids[:n].tolist() for ids, n in zip(output["completion_ids"], lengths, strict=True)]
            self.cached = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
            read, attended = distinct(prompts)
            behind = sum(pairs(len(p), len(p) + n) for p, n in zip(prompts, lengths, strict=True))
            flops = self.sizes.sampling(read, attended) + self.sizes.sampling(sum(lengths), behind, sum(lengths))
            self.spent.add(tokens_sampled=sum(lengths), tokens_read=read, flops=flops)

        def by_episode(self, inputs: Any, output: Any, outcomes: list[float], J: list[float]) -> Any:
            """Advantage of each token [completions, tokens], from the progress of its episode."""
            ids, mask = output["completion_ids"], output["completion_mask"].bool()
            prompts = zip(output["prompt_ids"], output["prompt_mask"].bool(), strict=True)
            boundaries: list[list[int]] = []  # for each completion: its tokens up to the end of each episode
            asked: list[tuple[str, Row]] = []
            for x, (prompt, read), own, kept in zip(inputs, prompts, ids, mask, strict=True):
                end = end_of(self.processing_class, prompt[read].tolist())
                words = self.parameterization.of(of_cell(x["thinking"]))
                told = list(pieces(self.processing_class, end, own[kept].tolist(), self.kept))
                ends = np.cumsum([len(piece) for piece in told])
                before = x["prefix_text"]
                episodes = words.cut("".join(told), before, inside=bool(x["inside"])).episodes
                thought, chat = "".join(episodes), x["prompt"].removesuffix(before)
                cuts = [cut for cut in np.cumsum([len(e) for e in episodes]) if len(before) < cut < len(thought)]
                boundaries.append([int(np.searchsorted(ends, cut - len(before))) + 1 for cut in cuts])
                asked += [(chat + words.force(thought[:cut]), problem_of(x)) for cut in cuts]
            # all processes call this, even without prefixes: it communicates
            found = iter(self.accuracy_at([p for p, _ in asked], [row for _, row in asked]))
            advantages = torch.zeros(ids.shape, dtype=torch.float32)
            for i, (outcome, start, ends_at) in enumerate(zip(outcomes, J, boundaries, strict=True)):
                along = [start, *(next(found) for _ in ends_at)]
                tokens = int(mask[i].sum())
                advantages[i, :tokens] = torch.tensor(
                    episode_advantages(outcome, along, ends_at, tokens, self.recipe.alpha), dtype=torch.float32
                )
            return advantages.to(ids.device)

        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            super().log({**logs, **self.spent.totals(self)}, start_time)

    return MRTTrainer
