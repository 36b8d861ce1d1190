"""The documentation site builds, needs no other machine, and its Python page runs."""

import importlib.util
import re
import subprocess
import sys

import pytest
import tiny

DOCS = tiny.ROOT / "docs"


@pytest.mark.slow
def test_the_python_page_runs_from_top_to_bottom(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(encoding="utf-8"), re.S)
    assert len(blocks) >= 8
    (tmp_path / "page.py").write_text("\n".join(blocks), encoding="utf-8")
    env = tiny.environment(POSENC_CACHE=str(tmp_path / "cache"), PYTHONPATH=str(tiny.ROOT), MPLBACKEND="agg")
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "rope finished" in done.stdout and "| alibi" in done.stdout
    shift = re.search(r"\['rotate'\] tensor\((\S+)\)", done.stdout)
    assert shift is not None and float(shift[1]) < 1e-4  # what the page says of RoPE


@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="needs posenc[docs]")
def test_the_site_builds_strictly_and_needs_no_other_machine(tmp_path):
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(site)],
        cwd=tiny.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    pages = sorted(path for path in site.glob("*.html") if path.stem != "404")
    assert {page.stem for page in pages} >= {path.stem for path in DOCS.glob("*.md")} | {"contributing"}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*src=[\"']?([^\"' >]+)", text)
        loaded += re.findall(r"<link[^>]*stylesheet[^>]*href=[\"']?([^\"' >]+)", text)
        assert loaded and not [url for url in loaded if re.match(r"(https?:)?//", url)], page.name
        for target in re.findall(r"<a [^>]*href=[\"']?([\w./-]+\.html)", text):
            assert (site / target).is_file(), f"{page.name}: {target}"
