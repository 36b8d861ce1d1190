"""Settings with a type: what a run is made from, which values are allowed, and which of them define the run.

The values and their comments live in `conf/*.yaml`. This package holds only types, bounds and marks. It
imports neither torch nor Hydra, so that a stored run can be read without them.
"""
