"""Old home of names that moved; deleted once nobody imports it."""

from posenc.results.headroom import Recovered
from posenc.results.recall import KEPT, LEVEL, RecallCell, RowRecall

__all__ = ["KEPT", "LEVEL", "RecallCell", "Recovered", "RowRecall"]
