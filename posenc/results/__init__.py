"""Results: records on disk, runs that are read back, their comparison and its statistics. Without torch.

How records become a table, a file for each step. No step changes what an earlier one made.
  records.py       a record: one measurement of a run, as it is stored
  runs.py          a run that is read back, with all of its records
  measurements.py  a measurement: a record, flattened for comparison
  pools.py         members: runs with those of their measurements that belong together
  rankings.py      rankings: runs whose numbers can be compared, a table each
  grouping.py      row groups: the members that are seeds of one row
  drafts.py        drafts: tables with rows and columns, before any number is computed
  cells.py         cells: the numbers of a row at one length
  comparison.py    comparisons: tables with their numbers, ranks and headers

Terms of this package:
  crop line     the loss of a run as trained, in windows of its training length T: what cropping a text gives
  change        the loss of a row in a window minus its crop line on the same targets
  curve         the loss by position in one long window (protocol `positions`); its columns are bins
  mixed         what the rows of a table differ in although ranks need it equal; only with --allow-mixed
  long-trained  a run of the same encoding and settings that was trained at a longer T (headroom.py)
  beside        measured in addition to a loss, by the protocol of the table or by another one on the same
                runs: recall, dispersion and memory stand beside the losses of the headline (beside/)
"""

from __future__ import annotations

from posenc.results.discovery import load_runs
from posenc.results.runs import Run

__all__ = ["Run", "load_runs"]
