"""Dynamic sampling (DAPO, Section 3.2, Equation 11): groups that teach nothing are sampled again, of further problems.

Where all completions of a group are right, or all are wrong, GRPO's advantages are 0. Such a group is replaced by one
of a further problem, in at most `dynamic_sampling` rounds; one that is alike after the last round stays.

Outcomes decide, for every variant; with `implicit` those of both halves. Variants that do not subtract the group's mean
could learn from the groups left out, too: those with credit by episode, exit or budget. And in the groups that are
kept, J of the prompt is no baseline any more, as they are chosen by their outcomes. Each problem keeps its turn, and a
resumed training samples the same. `tokens_sampled` and `flops` count the discarded groups. In the log `groups_redrawn`
is the number of discarded groups for each group of a step, and `groups_varied` the share of the final groups that vary.
`reward` and `completion_tokens` are of the first round, so that curves of methods compare; the rest is of the final
groups.
"""

from collections.abc import Iterator
from typing import Any

from mrt.sampling.engine import seed_of


def alike(outcomes: Any, size: int) -> list[int]:
    """Numbers of the groups whose outcomes do not vary; `outcomes` [completions] has groups of this size in a row."""
    groups = outcomes.view(-1, size)
    numbers: list[int] = (groups == groups[:, :1]).all(dim=1).nonzero()[:, 0].tolist()
    return numbers


def further_problems(trainer: Any, prompts: list[str]) -> Iterator[dict[str, Any]]:
    """The problems of a further pass, without those of these prompts of any process.

    Their order follows from the step: equal in all processes, and in a training that resumes.
    """
    import torch
    from accelerate.utils import gather_object  # type: ignore[import-untyped]

    seed = seed_of(trainer.recipe.seed, "dynamic sampling", trainer.state.global_step)
    problems, present = trainer.train_dataset, set(gather_object(prompts))
    order = torch.randperm(len(problems), generator=torch.Generator().manual_seed(seed)).tolist()
    return (row for row in (problems[i] for i in order) if row["prompt"] not in present)


def draw_again(trainer: Any, inputs: list[dict[str, Any]], sampled: dict[str, list[Any]]) -> list[float]:
    """Replace groups that are alike, in place; all processes call it and agree, as they see all outcomes.

    Args:
        trainer: that of mrt.training.rl.trainer.
        inputs: the row of prompts of each of this process's completions.
        sampled: their completions: lists of a value a completion, `prompt_ids` and `completion_ids` among them.

    Returns:
        The outcome of each of this process's completions.
    """
    import torch
    from accelerate.utils import gather_object

    size, first = trainer.num_generations, trainer.slice_of(len(inputs)).start
    further = further_problems(trainer, [x["prompt"] for x in inputs])
    scores = trainer.scores_of(inputs, sampled["completion_ids"])
    # curves compare methods: they are of the problems that all methods have
    trainer.note_traces(torch.tensor(scores), [len(ids) for ids in sampled["completion_ids"]])
    redrawn, rounds, shared = 0, trainer.recipe.dynamic_sampling, trainer.vllm_generation.tensor_parallel_size > 1
    while unvaried := alike(outcomes := trainer.of_all_processes(torch.tensor(scores)), size):
        replaced = dict(zip(unvaried, further, strict=False)) if rounds else {}
        if not replaced:
            break
        rounds, redrawn = rounds - 1, redrawn + len(replaced)
        places = [i for i in range(len(inputs)) if (first + i) // size in replaced]
        discarded = [[sampled[name][i] for i in places] for name in ("prompt_ids", "completion_ids")]
        for i in places:
            inputs[i] = dict(replaced[(first + i) // size])
        inputs[:] = trainer.prompted(inputs)
        prompts = [inputs[i]["prompt"] for i in places]
        if shared:  # TRL takes equally many prompts from each of the processes that share an engine
            prompts += [inputs[0]["prompt"]] * (max(gather_object([len(places)])) - len(places))
        again = trainer.draw(prompts) if prompts else sampled
        for name, values in sampled.items():
            for i, value in zip(places, again[name], strict=False):
                values[i] = value
        if places:
            rows, ids = [inputs[i] for i in places], [sampled["completion_ids"][i] for i in places]
            for i, score in zip(places, trainer.scores_of(rows, ids), strict=True):
                scores[i] = score
        if prompts:
            filled = [again[name][len(places) :] for name in ("prompt_ids", "completion_ids")]
            trainer.count_sampled(*([*of, *more] for of, more in zip(discarded, filled, strict=True)))
    groups = len(outcomes) // size
    trainer.note("groups_redrawn", redrawn / groups)
    trainer.note("groups_varied", 1 - len(unvaried) / groups)
    return scores
