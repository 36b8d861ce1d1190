"""docs/encodings.md is what the classes say today."""

from __future__ import annotations

import subprocess
import sys

from tiny import ROOT

from posenc.encodings import list_encodings
from posenc.encodings.registry import encoding_class

PAGE = ROOT / "docs" / "encodings.md"


def test_the_page_is_what_its_script_writes() -> None:
    code = "import sys; sys.path[:0] = ['scripts']; import encodings_page as e; print(e.page(), end='')"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert made.stdout == PAGE.read_text(encoding="utf-8"), "run python scripts/encodings_page.py"


def test_every_encoding_has_a_section_with_its_formula_and_traps() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in list_encodings():
        cls = encoding_class(name)
        section = text.split(f"\n### {name}\n")[1].split("\n### ")[0]
        assert (sys.modules[cls.__module__].__doc__ or "").strip() in section
        assert all(trap in section for trap in cls.traps)
