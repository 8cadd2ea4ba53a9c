"""Imported by the fork server of the grading workers, so that each worker starts with the parsers loaded and warm."""

import mrt.grading.grade  # noqa: F401  # what a worker runs again as its main module
from mrt.grading.equality import same_answer, search_answer

same_answer("x + 1", "1 + x")
search_answer("The answer is $x$.")
