"""`--help` of train and eval: examples first, then everything with its comment; near misses are named."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import typer

from posenc.cli import app
from posenc.cli.train import help_text
from posenc.config.conf_text import choices, groups

Posenc = Callable[..., tiny.Result]


@pytest.mark.parametrize("command", ["train", "eval"])
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_examples_then_choices_then_settings(
    posenc: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch, command: str, flag: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = posenc(command, flag)
    assert (result.code, result.err) == (0, "")
    out = result.out
    assert out.index("Examples") < out.index("Choices") < out.index("Settings") < out.index("Options")
    assert out.index(f"posenc {command} ") < 200
    wide = [line for line in out.splitlines() if len(line) > 80 and not line.lstrip().startswith("posenc ")]
    assert not wide
    flat = " ".join(out.split())
    for group in groups(command):
        for name in choices(group):
            assert name in flat
    assert not list(place.iterdir())


def test_settings_stand_with_their_comments_and_can_be_typed() -> None:
    lines = help_text("train", [], 80).splitlines()
    assert "  context_length=64               training length T, in tokens" in lines
    assert any(line.startswith("  eval.lengths=[0.5x,1x,2x,4x,8x]") for line in lines)


def test_it_follows_the_choices_on_the_command_line() -> None:
    assert "encoding.base=10000.0" in help_text("train", [], 80)
    chosen = help_text("train", ["encoding=alibi", "--help"], 80)
    assert "encoding.learned_slopes=false" in chosen and "encoding.base=10000.0" not in chosen
    assert "extend.beta_fast=32.0" in help_text("eval", ["extend=yarn"], 80)


def test_help_needs_no_torch(place: Path) -> None:
    code = (
        "import sys; sys.argv = ['posenc', 'train', '--help']\n"
        "from posenc.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "assert not {'torch', 'hydra', 'numpy'} & set(sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env=tiny.environment(), capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "--multrun"], "did you mean: --multirun"),
        (["train", "--dryrun"], "did you mean: --dry-run"),
        (["eval", "--dry-run"], "is an option of posenc train alone"),
        (["eval", "--config-dri", "x"], "did you mean: --config-dir"),
        (["trian"], "train"),
        (["runs", "--wach"], "--watch"),
        (["runs", "--sort", "lost"], "did you mean: loss"),
        (["runs", "--format", "jsn"], "did you mean: json"),
        (["completion", "bsh"], "did you mean: bash"),
        (["doctr"], "doctor"),
    ],
)
def test_a_near_miss_is_named(posenc: Posenc, place: Path, arguments: list[str], says: str) -> None:
    result = posenc(*arguments)
    assert result.code == 2 and result.out == "", result
    assert says in result.err, result.err
    assert not list(place.iterdir())


def names(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The command and every one below it."""
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from names(below, (*path, name))


@pytest.mark.parametrize("command", list(names(typer.main.get_command(app))), ids=" ".join)
def test_every_command_knows_both_words_for_help(posenc: Posenc, command: tuple[str, ...]) -> None:
    long, short = posenc(*command, "--help"), posenc(*command, "-h")
    assert (short.code, short.out) == (0, long.out) and len(long.out) > 100, short
