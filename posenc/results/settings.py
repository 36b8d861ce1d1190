"""Old home of names that moved; deleted once nobody imports it."""

from posenc.results.identity import knob_words, own_yaml
from posenc.results.measurements import parse_multiple, select
from posenc.results.numbers import as_text, flatten
from posenc.results.where import where

__all__ = ["as_text", "flatten", "knob_words", "own_yaml", "parse_multiple", "select", "where"]
