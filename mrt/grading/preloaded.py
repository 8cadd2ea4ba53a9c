"""Imported by the fork server of the grading workers, so that each worker starts with the parsers loaded and warm."""

import mrt.grading.grade  # the main module, which a worker runs again
import mrt.grading.workers  # noqa: F401  # and the worker's functions
from mrt.grading.equality import same_answer, search_answer

same_answer("x + 1", "1 + x")
search_answer("The answer is $x$.")
