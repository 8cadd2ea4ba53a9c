"""One thought of the toy: its episodes, J, progress and regret, as docs/method.md and docs/likelihood.md show them.

    python docs/examples/one_thought.py          # prints the tables, draws docs/images/one_thought.svg
    python docs/examples/one_thought.py --sample # first samples the forced answers again

`one_thought.json` has a training problem of the laptop experiment, a completion of the base, and 20 answers at each
prefix. All else is computed here, by functions of the package.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).parents[2]))  # the checkout, in case mrt is not installed

from mrt.figures.style import pyplot
from mrt.methods.mrt import best_prefixes
from mrt.progress import (
    Engine,
    J_by_answers,
    J_by_likelihood,
    Template,
    cumulative_regret,
    cut,
    normalized_regret,
    prefixes,
    progress,
    transformers_engine,
)

ROOT = Path(__file__).parents[2]
DATA, WEIGHTS = Path(__file__).with_suffix(".json"), ROOT / "mrt" / "toy" / "weights"
FIGURE = ROOT / "docs" / "images" / "one_thought.svg"
ANSWERS, TOKENS, SEED = 20, 24, 0  # at a prefix; of an answer, at most; of torch's generator
BUDGETS = (64, 96, 128, 192)  # C_0, in tokens
OPENING = "Ends:** they add up to \\boxed{"  # as the answers of the toy go on
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#DDDDDD"


class Measured(NamedTuple):
    """A thought of k episodes, and J at its k + 1 prefixes."""

    episodes: list[str]
    prompts: list[str]  # that force an answer [k + 1]
    J: Any  # from the sampled answers [k + 1]
    likelihood: Any  # J by likelihood [k + 1]
    tokens: Any  # that an answer costs [k + 1]


def toy() -> tuple[Any, Engine]:
    """The tokenizer of the toy's base and the engine of its model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    model = AutoModelForCausalLM.from_pretrained(WEIGHTS, dtype="float32")
    return tokenizer, transformers_engine(model, tokenizer, temperature=1.0)


def chat_of(tokenizer: Any, example: dict[str, Any]) -> str:
    """The prompt of the problem, which ends in an opened thought."""
    messages = [{"role": "user", "content": example["problem"]}]
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text


def sampled(example: dict[str, Any]) -> dict[str, Any]:
    """The example with new answers: at each prefix, how often each text was sampled."""
    import torch

    tokenizer, engine = toy()
    episodes, closed = cut(example["completion"])
    torch.manual_seed(SEED)
    answers = engine.generate(prefixes(chat_of(tokenizer, example), episodes, closed=closed), ANSWERS, TOKENS, [])
    return {**example, "answers": [dict(Counter(of_prefix).most_common()) for of_prefix in answers]}


def measured(example: dict[str, Any]) -> Measured:
    """Episodes of the completion, and J at its prefixes by answers and by likelihood."""
    tokenizer, engine = toy()
    chat = chat_of(tokenizer, example)
    episodes, closed = cut(example["completion"])
    prompts = prefixes(chat, episodes, closed=closed)
    answers = [[text for text, count in of_prefix.items() for _ in range(count)] for of_prefix in example["answers"]]
    J = J_by_answers(prompts, example["answer"], lambda *_: answers, answers=ANSWERS)
    likelihood = J_by_likelihood(prompts, example["answer"], engine.log_probabilities, opening=OPENING)
    sizes = [len(ids) for ids in tokenizer([chat, *prompts])["input_ids"]]
    of_answers = [np.mean([len(ids) + 1 for ids in tokenizer(texts)["input_ids"]]) for texts in answers]  # and its end
    return Measured(episodes, prompts, J, likelihood, np.array(sizes[1:]) - sizes[0] + of_answers)


def tables(m: Measured) -> list[str]:
    """The rows of the three tables."""
    gains = ["", *(f"{gain:+.2f}" for gain in progress(m.J))]
    texts = ["(empty)", *(" ¶ ".join(episode.split("\n\n")).removesuffix(" ¶ ").strip() for episode in m.episodes)]
    head = "| $j$ | its last episode, $z_{j-1}$ | right answers | $J_j$ | progress of $z_{j-1}$ | tokens |"
    rows = [head, "|---|---|---|---|---|---|"]
    for j, (text, J, gain, tokens) in enumerate(zip(texts, m.J, gains, m.tokens, strict=True)):
        rows.append(f"| {j} | {text} | {round(J * ANSWERS)}/{ANSWERS} | {J:.2f} | {gain} | {tokens:.1f} |")
    rows += ["", "| " + " | ".join(f"$C_0 = {budget}$" for budget in BUDGETS) + " |", "|---" * len(BUDGETS) + "|"]
    rows.append("| " + " | ".join(f"{normalized_regret(m.tokens, m.J, budget):.3f}" for budget in BUDGETS) + " |")
    rows += ["", "| $j$ | " + " | ".join(map(str, range(len(m.J)))) + " |", "|---" * (len(m.J) + 1) + "|"]
    for name, J, digits in (("$J_j$ by 20 answers", m.J, 2), ("$J_j$ by likelihood", m.likelihood, 3)):
        rows.append(f"| {name} | " + " | ".join(f"{value:.{digits}f}" for value in J) + " |")
    return [*rows, "", f"cumulative regret {cumulative_regret(m.J[:-1]):.2f}"]


def kept(m: Measured) -> tuple[int, float]:
    """The prefix that MRT (STaR) keeps, and its cumulative progress."""
    of_trace = {"problem_id": "one", "sample": 0, "episodes": len(m.episodes), "answers": ANSWERS}
    table = pl.DataFrame([{**of_trace, "prefix": j, "J": J} for j, J in enumerate(m.J)])
    row = best_prefixes(table).row(0, named=True)
    return row["prefix"], row["gain"]


def learnt(example: dict[str, Any], m: Measured) -> str:
    """The text that MRT (STaR) trains on after the prompt."""
    prefix, _ = kept(m)
    (answer,) = example["answers"][prefix]
    return Template().force("".join(m.episodes[:prefix]), stop=False) + answer


def draw(m: Measured) -> None:
    """J, progress and regret along the thought, with letters that can be read on a telephone."""
    plt = pyplot()
    plt.rcParams.update({"font.size": 15, "svg.hashsalt": "mrt", "axes.spines.top": False, "axes.spines.right": False})
    figure, (rows, curve) = plt.subplots(2, 1, figsize=(7.2, 9.4), layout="constrained", height_ratios=[1.15, 1])
    sums = ["no thought", *(e.partition("try ")[2].partition(".")[0] or e[4:].partition(".")[0] for e in m.episodes)]
    for j, (J, text) in enumerate(zip(m.J, sums, strict=True)):
        rows.barh(j, J, color=BLUE, height=0.3)
        rows.text(0, j - 0.22, f"j = {j}:  {text}", va="bottom")
        rows.text(J + 0.015, j, f"J = {J:.2f}", va="center", color=BLUE)
        if j:
            gain = m.J[j] - m.J[j - 1]
            rows.text(1.45, j, f"{gain:+.2f}", va="center", ha="right", color=ORANGE)
    rows.text(1.45, -0.22, "progress", va="bottom", ha="right", color=ORANGE)
    rows.set(xlim=(0, 1.45), ylim=(len(m.J) - 0.6, -0.8), xticks=[], yticks=[])
    rows.spines[["left", "bottom"]].set_visible(False)
    budget = BUDGETS[2]
    x, y = np.append([0, *m.tokens], budget), np.append([0, *m.J], m.J[-1])
    curve.fill_between(x, y, 1, color=GREY)
    curve.plot(x[:-1], y[:-1], color=BLUE, marker="o")
    curve.plot(x[-2:], y[-2:], color=BLUE, linestyle="dotted")
    for j, (tokens, J) in enumerate(zip(m.tokens, m.J, strict=True)):
        steep = np.diff(m.J[max(j - 1, 0) : j + 2])  # a number is written where no steep line is
        aside = 10 * (steep[0] < -0.5) - 10 * (steep[-1] > 0.5)
        curve.annotate(str(j), (tokens, J), (aside, 8), textcoords="offset points", ha="center", va="bottom")
    regret = normalized_regret(m.tokens, m.J, budget)
    curve.text(38, 0.62, f"regret at $C_0$ = {budget}:\n{regret:.3f} of the area", va="center", ha="center")
    curve.set(xlim=(0, budget), ylim=(0, 1.12), xticks=[0, 32, 64, 96, 128], yticks=[0, 0.5, 1], xlabel="tokens")
    curve.set_ylabel("J at prefix j")
    figure.savefig(FIGURE, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", action="store_true", help="sample the forced answers again")
    example = json.loads(DATA.read_text(encoding="utf-8"))
    if parser.parse_args().sample:
        example = sampled(example)
        DATA.write_text(json.dumps(example, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    m = measured(example)
    prefix, gain = kept(m)
    print(*tables(m), "", f"kept prefix {prefix}, cumulative progress {gain:.2f}", "", learnt(example, m), sep="\n")
    draw(m)


if __name__ == "__main__":
    main()
