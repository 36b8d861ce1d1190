"""Measure how the loss of a trained model changes with the length of the window that it is given.

`protocols/` says what is scored, one protocol a file. `passes.py` runs the model, `evaluate.py` turns a
protocol, a window and a model into a stored record. `extensions/` changes a trained model for windows
beyond its training length, and `models/` holds the models that posenc did not train.
"""
