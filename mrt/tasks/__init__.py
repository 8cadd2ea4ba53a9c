"""Tasks, which define right answers, one file each. `mrt.grading.task` has their interface."""
