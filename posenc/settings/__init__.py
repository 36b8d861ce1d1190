"""Settings with a type: what a run is made from, which values are allowed, and which of them define the run.

The values and their comments live in `conf/*.yaml`. Here are types, bounds and marks alone, without torch and
without Hydra, so that whoever reads a stored run needs neither.
"""
