"""What a user reads: tables of a comparison in several formats, and the list of what failed."""

from __future__ import annotations

from posenc.report.failures import failures_lines
from posenc.report.table import FORMATS, render, render_run, show, show_run

__all__ = ["FORMATS", "failures_lines", "render", "render_run", "show", "show_run"]
