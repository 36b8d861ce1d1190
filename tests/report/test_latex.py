"""LaTeX tables: every number whole, names as text, and they compile."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fake_runs import record, write_run
from test_render import fixed_target, sweep

from posenc.report import render
from posenc.report.escape import latex as safe

HOSTILE = 'a_b%&#{}~^\\$x$ \\input{/etc/passwd} <i> | é ± "q" -1 --x'


def test_holds_every_loss_of_the_table(tmp_path: Path) -> None:
    expected = sweep(tmp_path)
    text = render(fixed_target(tmp_path), "latex", 80, False)
    assert expected <= set(re.findall(r"\d\.\d{3}(?!\d)", text))
    assert text.count(r"\begin{tabular}") == text.count(r"\bottomrule") == 2
    assert text.count(r"\textbf{") == 5  # the lowest of each length


def test_names_are_text() -> None:
    shown = safe(HOSTILE)
    assert shown.isascii()
    bare = re.sub(r"\\textbackslash\{\}|\\text\w+\{\}|\\[&%$#_{}]|\$\\pm\$|\$-\$|-\{\}-", "", shown)
    assert not set(bare) & set("\\{}$&%#_~^")


def test_signed_numbers_have_minus_signs_and_words_have_hyphens() -> None:
    assert safe("-0.123±0.004") == r"$-$0.123$\pm$0.004"
    assert safe("fixed-target +0.1 T-2") == "fixed-target +0.1 T-2"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on this machine")
def test_compiles(tmp_path: Path) -> None:
    sweep(tmp_path / "runs", encodings=("rope", "alibi"))
    write_run(tmp_path / "runs", HOSTILE.replace("/", ""), name="hostile", params={"beyond": HOSTILE})
    write_run(tmp_path / "runs", "lost", records=[record(64, 1.0), record(512, 0.0, note="oom: $ & _")])
    (tmp_path / "t.tex").write_text(render(fixed_target(tmp_path / "runs"), "latex", 80, False))
    document = r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{t}\end{document}"
    (tmp_path / "d.tex").write_text(document)
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "d.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-1500:]
    assert (tmp_path / "d.pdf").stat().st_size > 5000
