"""YAMLs and plug-ins of one's own that say something wrong, and a run found by the hash that is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

Posenc = Callable[..., tiny.Result]

BROKEN = {
    "encoding/cut.yaml": ("name: cut\nstart: [1.0\n", ["cut.yaml", "cannot be read as YAML in line 3"]),
    "encoding/nameless.yaml": ("start: 1.0\n", ["encoding.name", "is missing"]),
    "experiment/flat.yaml": ("context_length: 32\n", ["experiment/flat.yaml", "# @package _global_"]),
    "experiment/wrong.yaml": ("# @package _global_\ntrian:\n  lr: 1\n", ["experiment/wrong.yaml", "trian"]),
}


@pytest.mark.parametrize("file", BROKEN)
def test_a_file_of_ones_own_that_says_something_wrong(posenc: Posenc, place: Path, file: str) -> None:
    text, says = BROKEN[file]
    path = place / "mine" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    result = posenc("train", "--config-dir", "mine", f"{path.parent.name}={path.stem}")
    assert (result.code, result.out) == (2, "") and "Traceback" not in result.err, result
    assert all(word in result.err for word in says), result.err
    assert sorted(one.name for one in place.iterdir()) == ["mine"]


def test_a_plug_in_without_a_name_and_one_that_does_not_parse(posenc: Posenc, place: Path) -> None:
    (place / "unnamed_one.py").write_text(
        "from posenc.encodings.base import Encoding\n\nclass Mine(Encoding):\n    pass\n"
    )
    (place / "unparsed_one.py").write_text("class Mine(:\n")
    unnamed = posenc("train", "plugins=[unnamed_one]")
    assert unnamed.code == 2 and "its class Mine has no `name`" in unnamed.err
    unparsed = posenc("train", "plugins=[unparsed_one]")
    assert unparsed.code == 2 and "SyntaxError" in unparsed.err and "PYTHONPATH" not in unparsed.err


def test_a_run_is_found_by_the_hash_that_is_shown(posenc: Posenc, run_copy: Path) -> None:
    shown = posenc("runs")
    assert run_copy.name[-8:] in shown.out
    result = posenc("eval", f"run={run_copy.name[-8:]}", "eval.lengths=[1x,2x,4x]", "eval.max_targets=400")
    assert result.code == 0 and "rope" in result.out, result
