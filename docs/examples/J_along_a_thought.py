"""J after each episode of a thought, as a figure: python docs/examples/J_along_a_thought.py [MODEL FIGURE].

The lines of a notebook. Any engine of `mrt.progress` serves in place of transformers'.
"""

import sys

import matplotlib.pyplot as plt
from transformers import AutoModelForCausalLM, AutoTokenizer

from mrt.progress import J_by_likelihood, cut, prefixes, transformers_engine

model, figure = sys.argv[1:] or ("mrt/toy/weights", "J.png")
tokenizer = AutoTokenizer.from_pretrained(model)
engine = transformers_engine(AutoModelForCausalLM.from_pretrained(model), tokenizer)

problem = "Some of the numbers 3, 5, 8 add up to 11. What is the sum of the smallest and the largest of them?"
chat = tokenizer.apply_chat_template(
    [{"role": "user", "content": problem}], tokenize=False, add_generation_prompt=True
)  # this one ends in <think>
((completion,),) = engine.generate([chat], 1, 400, [])
episodes, closed = cut(completion)
prompts = prefixes(chat, episodes, closed=closed)
J = J_by_likelihood(prompts, "11", engine.log_probabilities, opening="Ends:** they add up to \\boxed{")  # the toy's

plt.plot(range(len(J)), J, marker="o")
plt.xlabel("episodes")
plt.ylabel("J, the probability of the gold answer")
plt.ylim(0, 1)
plt.savefig(figure)
