"""Tasks: what a right answer is, one file each. `mrt.grading.task` has their interface."""
