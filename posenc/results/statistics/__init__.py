"""Statistics of a comparison: intervals, verdicts and ranks.

A loss is uncertain for two reasons: it is measured on a few documents, and the model was trained with one
seed of many. `documents` has the first part and `intervals` joins both. `shared_variance` lets rows with few
seeds learn from other rows. `verdicts` and `ranking` turn intervals into words. `proportions` is for shares.
"""
