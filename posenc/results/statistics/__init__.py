"""Statistics of a comparison: intervals, verdicts, ranks. Every interval says what it is of.

Test data (documents) and training (seeds) are two sources of noise. `documents` has the first, `intervals`
joins both, `verdicts` and `ranking` turn them into words, `proportions` is about shares of windows.
"""
