"""docs/add-an-extension.md, done literally: two files in a copy of the tree."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import tiny

TEXT = (tiny.ROOT / "docs" / "add-an-extension.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```(\w+)\n(.*?)```", TEXT, re.S))


def test_two_files_make_an_extension(run_copy: Path, place: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("posenc", "conf"):
        shutil.copytree(tiny.ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "posenc" / "evaluation" / "extensions" / "coarse.py").write_text(BLOCKS["python"])
    (tree / "conf" / "extend" / "coarse.yaml").write_text(BLOCKS["yaml"])
    asked = [f"run={run_copy}", "extend=coarse", "eval.protocols=[fixed-target]"]
    result = tiny.spawn("eval", *asked, cwd=place, PYTHONPATH=str(tree))
    assert result.code == 0, result.err
    assert "rope+coarse" in result.out
    records = [r for r in json.loads((run_copy / "results.json").read_text())["records"] if r["extend"]]
    assert {r["window"] for r in records} == {16, 32, 64} and all(r["extend"]["step"] == 4 for r in records)
    plain = {
        r["window"]: r["nats"]
        for r in json.loads((run_copy / "results.json").read_text())["records"]
        if not r["extend"] and r["protocol"] == "fixed-target"
    }
    found = {r["window"]: r["nats"] for r in records}
    assert found[16] == plain[16] and found[64] != plain[64]
