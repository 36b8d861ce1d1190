"""Measure speed and memory of training and evaluation (`posenc bench`): cases, works, timings, a document."""
