"""Train with progress from a plain TRL script: python docs/examples/train_with_progress.py [MODEL FOLDER]."""

import sys

from datasets import load_dataset

from mrt.trl import MRTConfig, MRTTrainer

if __name__ == "__main__":  # vLLM may start processes, which read this file again
    model, folder = sys.argv[1:] or ("mrt/toy/weights", "trained")
    args = MRTConfig(
        folder,
        variant="per_episode",  # r + alpha (J_(t+1) - J_t) for each token of episode z_t
        centred=True,
        estimate="likelihood",  # J is the probability of the gold answer
        opening="Ends:** they add up to \\boxed{",  # as the toy answers; leave it out for other models
        learning_rate=5e-4,
        per_device_train_batch_size=16,
        max_completion_length=256,
        max_steps=2,
    )
    dataset = load_dataset("json", data_files="docs/examples/sums.jsonl", split="train")  # prompt and answer
    trainer = MRTTrainer(model, args, dataset)
    trainer.train()
    trainer.save_model()
