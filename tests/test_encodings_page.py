"""docs/encodings.md is what the classes say today."""

from __future__ import annotations

import subprocess
import sys

from tiny import ROOT


def test_the_page_is_what_its_script_writes() -> None:
    code = "import sys; sys.path[:0] = ['scripts']; import encodings_page as e; print(e.page(), end='')"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    page = (ROOT / "docs" / "encodings.md").read_text(encoding="utf-8")
    assert made.stdout == page, "run python scripts/encodings_page.py"
