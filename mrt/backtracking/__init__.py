"""Backtracking search (Section 8.4, Appendix A): solution trees, warmstart sets, linearized evaluation."""
