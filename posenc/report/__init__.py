"""What a user reads: tables in several formats, progress, plots, pictures, the HTML page."""

from __future__ import annotations

from posenc.report.runs_table import failures_lines
from posenc.report.writers import FORMATS, render, render_run, show, show_run

__all__ = ["FORMATS", "failures_lines", "render", "render_run", "show", "show_run"]
