"""Completion: what fits at a TAB, and Typer's scripts in real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tiny
from pseudo_terminal import Terminal

from posenc.cli.completion import candidates
from posenc.core.paths import choice_files

Posenc = Callable[..., tiny.Result]
PROMPT = "ready> "
LOAD = {
    "bash": "PS1='{prompt}'; source <(posenc completion bash); echo loaded\r",
    "zsh": "PS1='{prompt}'; unsetopt zle_bracketed_paste; autoload -Uz compinit; compinit -u; "
    "source <(posenc completion zsh); echo loaded\r",
}
START = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}


def at(line: str) -> list[str]:
    """What completes the last word of `COMMAND WORDS... LAST`."""
    command, *words = line.split(" ")
    return candidates(command, words[:-1], words[-1])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("train encoding=kerple_p", ["encoding=kerple_power"]),
        ("train encoding=rope,ali", ["encoding=rope,alibi"]),
        ("train enco", ["encoding=", "encoding."]),
        ("train encoding=", [f"encoding={name}" for name in choice_files("encoding")]),
        ("train eval.protocols=[sliding,fix", ["eval.protocols=[sliding,fixed-target"]),
        ("train encoding=alibi encoding.learned_slopes=t", ["encoding.learned_slopes=true"]),
        ("prepare data=wikitext10", ["data=wikitext103"]),
    ],
)
def test_candidates(line: str, found: list[str]) -> None:
    got = at(line)
    assert got == found


def test_yaml_of_ones_own_and_runs_are_found(place: Path) -> None:
    (place / "mine" / "encoding").mkdir(parents=True)
    (place / "mine" / "encoding" / "odd.yaml").write_text("name: odd\nstrength: 1.0  # of it\n")
    assert at("train --config-dir mine encoding=od") == ["encoding=odd"]
    assert at("train --config-dir mine encoding=odd encoding.") == ["encoding.strength=1.0"]
    run = folder_with_a_run(place)
    assert at("eval run=") == at("show run=runs/d") == [f"run={run}"]


def test_a_tab_needs_neither_torch_nor_hydra(place: Path) -> None:
    code = (
        "import sys; from posenc.cli import main\ntry: main()\nexcept SystemExit: pass\n"
        "assert not {'torch', 'hydra', 'numpy', 'pandas'} & set(sys.modules)"
    )
    line = {"COMP_WORDS": "posenc train encoding = ali", "COMP_CWORD": "4"}
    env = {**tiny.environment(**line), "_POSENC_COMPLETE": "complete_bash"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "alibi\n"), done.stderr


def folder_with_a_run(parent: Path) -> Path:
    run = Path("runs/default/mine-T16-s0-12345678")
    (parent / run).mkdir(parents=True)
    (parent / run / "status.json").write_text("{}")
    return run


def environment(home: Path) -> dict[str, str]:
    """With a `posenc` on PATH that is this one, and a home of its own."""
    script = home / "bin" / "posenc"
    script.parent.mkdir(exist_ok=True)
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m posenc "$@"\n')
    script.chmod(0o755)
    path = os.pathsep.join([str(script.parent), sysconfig.get_path("scripts"), os.environ["PATH"]])
    python = os.pathsep.join([str(tiny.ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PATH": path, "PYTHONPATH": python, "HOME": str(home), "ZDOTDIR": str(home)}


@pytest.fixture(scope="module", params=["bash", "zsh"])
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A shell in a folder with one run directory, completion loaded."""
    name: str = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    place = tmp_path_factory.mktemp(name)
    folder_with_a_run(place)
    terminal = Terminal(START[name], place, environment(place), columns=160)
    terminal.read(0.3)
    terminal.send(LOAD[name].format(prompt=PROMPT))
    terminal.until("loaded\r\n")
    terminal.read(0.3)
    yield terminal
    terminal.close()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("posenc tra", "posenc train "),
        ("posenc train encoding=kerple_p", "encoding=kerple_power "),
        ("posenc eval run=", "run=runs/default/mine-T16-s0-12345678"),
        ("posenc compare --against kerple", "--against kerple-table3 "),
    ],
)
def test_a_tab_completes(shell: Terminal, typed: str, expected: str) -> None:
    start = len(shell.seen)
    shell.send(f"\x15{typed}\t")
    shell.until(expected, start, seconds=20)
