"""Measures, one a file (`mrt.analysis.measure`)."""
