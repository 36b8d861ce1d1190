"""An encoding of one's own that is changed is another run, and old weights are not measured with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

from posenc.encodings import encoding_class, source_of

PLUGIN = """
from posenc.encodings.base import Encoding

class Mine(Encoding):
    name, paper, formula, acts_on, past_training = "mine", "none", "none", "nothing", "none"

    def embed(self, x, pos, layer):
        return x * {factor}
"""


@pytest.mark.slow
def test_the_text_of_a_plugin_is_part_of_a_run(place: Path, corpus: Path) -> None:
    (place / "conf" / "encoding").mkdir(parents=True)
    (place / "conf" / "encoding" / "mine.yaml").write_text("name: mine\n")
    command = ["train", "--config-dir", "conf", *tiny.TINY, f"data.paths={corpus}", "plugins=[my_enc]"]
    for factor in (1, 2):
        (place / "my_enc.py").write_text(PLUGIN.format(factor=factor))
        result = tiny.spawn(*command, "encoding=mine", cwd=place)
        assert result.code == 0, result.err
        assert "already finished" not in result.err
    old, new = sorted((place / "runs" / "default").iterdir(), key=lambda p: p.stat().st_ctime)
    again = tiny.spawn("eval", f"run={old}", "plugins=[my_enc]", "eval.lengths=[4x]", cwd=place)
    codes = {again.code, tiny.spawn("eval", f"run={new}", "plugins=[my_enc]", cwd=place).code}
    assert codes == {0, 2}  # one of the two was trained by what my_enc.py says now


@pytest.mark.parametrize("name", ["rope", "nope"])
def test_our_own_say_it_by_revision(name: str) -> None:
    assert source_of(encoding_class(name)) == {"revision": 1, "source": None}


def test_compare_chooses_targets_by_the_length_they_were_measured_at(
    run_copy: Path, posenc: Callable[..., tiny.Result]
) -> None:
    assert posenc("eval", f"run={run_copy}", "eval.lengths=[1x,3x]").code == 0
    plain, chosen = (posenc("compare", str(run_copy), *more) for more in ([], ["--length", "3x"]))
    assert plain.code == chosen.code == 0
    assert " 3x" not in plain.out and " 3x" in chosen.out
    wrong = posenc("compare", str(run_copy), "--length", "77x")
    assert wrong.code == 2 and "--length=77x" in wrong.err
