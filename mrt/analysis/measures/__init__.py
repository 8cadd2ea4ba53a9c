"""Measures: each file has one, with all that is its own (`mrt.analysis.measure`)."""
