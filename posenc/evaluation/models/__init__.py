"""Models that posenc did not train: a function from tokens to logits, or a model of transformers."""

from posenc.evaluation.models.callables import CallableModel
from posenc.model.decoder import Decoder

MeasuredModel = Decoder | CallableModel  # what can be measured
