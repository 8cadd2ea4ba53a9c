"""Run a Python file of a user's as a stage: imports are looked up in its folder first, as Python does for a script.

python -m mrt.core.user_file my_figure.py --help
"""

import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run the file that the command line names."""
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
