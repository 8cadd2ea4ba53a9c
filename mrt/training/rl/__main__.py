from mrt.core.cli import run
from mrt.training.rl.stage import Train

if __name__ == "__main__":
    run(Train)
