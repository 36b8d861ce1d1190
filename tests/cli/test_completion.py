"""Completion: what fits at a TAB, through Typer's scripts."""

import pytest

from posenc.config.overrides import candidates
from posenc.core.paths import choice_files

RUN = "runs/default/mine-T16-s0-12345678"


def at(line):
    """What completes the last word of `COMMAND WORDS... LAST`."""
    command, *words = line.split(" ")
    return candidates(command, words[:-1], words[-1])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("train encoding=rope,ali", ["encoding=rope,alibi"]),
        ("train context", ["context_length="]),
        ("train encoding=", [f"encoding={name}" for name in choice_files("encoding")]),
        ("train eval.protocols=[sliding,fix", ["eval.protocols=[sliding,fixed-target"]),
        ("train encoding=alibi encoding.le", ["encoding.learned_slopes="]),
        ("train --config-dir mine encoding=od", ["encoding=odd"]),
        ("train --config-dir mine encoding=odd encoding.", ["encoding.strength="]),
        ("eval run=", [f"run={RUN}"]),
    ],
)
def test_keys_choices_values_and_runs(place, line, found):
    (place / "mine" / "encoding").mkdir(parents=True)
    (place / "mine" / "encoding" / "odd.yaml").write_text("name: odd\nstrength: 1.0  # of it\n")
    (place / RUN).mkdir(parents=True)
    (place / RUN / "status.json").write_text("{}")
    assert at(line) == found
