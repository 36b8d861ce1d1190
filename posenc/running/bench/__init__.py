"""Measure speed and memory of training and evaluation (`posenc bench`).

A `case` says what is measured, `work` is what is repeated, `timing` times it, `document` holds the result.
"""
