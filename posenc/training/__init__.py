"""Train a model: the loop (loop.py), the optimizer, checkpoints, precision, and several processes."""
