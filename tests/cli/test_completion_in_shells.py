"""Completion at a real TAB in real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pseudo_terminal import Terminal

from posenc.cli import shells

PROMPT = "ready> "
BIN = Path(sys.executable).parent
START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}
LOAD = {
    "bash": "PS1='{prompt}'; source <(posenc completion bash); echo loaded\r",
    "zsh": "PS1='{prompt}'; unsetopt zle_bracketed_paste; autoload -Uz compinit; compinit -u; "
    "source <(posenc completion zsh); echo loaded\r",
}


def folder_with_a_run(parent: Path) -> Path:
    run = parent / "runs" / "default" / "mine-T16-s0-12345678"
    run.mkdir(parents=True)
    (run / "status.json").write_text("{}")
    return parent


def environment(home: Path) -> dict[str, str]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(home), "ZDOTDIR": str(home)}


@pytest.fixture(scope="module", params=["bash", "zsh"])
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A shell in a folder with one run directory, posenc on its PATH, completion loaded."""
    name: str = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    place = folder_with_a_run(tmp_path_factory.mktemp(name))
    terminal = Terminal(START[name], place, environment(place), columns=160)
    terminal.read(0.3)
    terminal.send(LOAD[name].format(prompt=PROMPT))
    terminal.until("loaded\r\n")
    terminal.read(0.3)
    yield terminal
    terminal.close()


def completed(terminal: Terminal, typed: str, expected: str) -> None:
    """Clear the line, type, press TAB, wait until `expected` stands there."""
    start = len(terminal.seen)
    terminal.send(f"\x15{typed}\t")
    terminal.until(expected, start, seconds=10)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("posenc tra", "posenc train "),
        ("posenc train enc", "encoding"),
        ("posenc train encoding=kerple_p", "encoding=kerple_power "),
        ("posenc train encoding=rope,ali", "encoding=rope,alibi "),
        ("posenc train train.prec", "train.precision="),
        ("posenc train train.precision=fp", "train.precision=fp32 "),
        ("posenc train -m encoding=alibi encoding.learn", "encoding.learned_slopes="),
        ("posenc train experiment=smo", "experiment=smoke "),
        ("posenc eval run=", "run=runs/default/mine-T16-s0-12345678"),
        ("posenc show encoding=kerple_p", "encoding=kerple_power "),
        ("posenc data prepare data=wikitext10", "data=wikitext103 "),
        ("posenc compare --against kerple", "--against kerple-table3 "),
        ("posenc compare --prot", "--protocol "),
    ],
)
def test_a_tab_completes(shell: Terminal, typed: str, expected: str) -> None:
    completed(shell, typed, expected)


def test_several_choices_are_listed(shell: Terminal) -> None:
    completed(shell, "posenc train encoding=s", "encoding=s")  # the first one reads everything from disk
    start, began = len(shell.seen), time.monotonic()
    shell.send("\x15posenc train model=\t\t")
    for word in ("base", "nano", "small", "tiny"):
        shell.until(word, start)
    assert time.monotonic() - began < 30  # two TABs of 0.15 s each on an idle machine


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(tmp_path: Path) -> None:
    place = folder_with_a_run(tmp_path)
    lines = ["posenc train encoding=rope,ali", "posenc tra", "posenc eval run="]
    asked = "; ".join(f'complete -C "{line}"' for line in lines)
    command = ["fish", "--no-config", "-c", f"posenc completion fish | source; {asked}"]
    found = subprocess.run(
        command, cwd=place, env=environment(place), capture_output=True, text=True, timeout=30
    )
    words = [line.split("\t")[0] for line in found.stdout.splitlines()]
    assert {"encoding=rope,alibi", "train"} <= set(words), found
    assert "run=runs/default/mine-T16-s0-12345678" in words


@pytest.mark.parametrize(("name", "start"), [("bash", ".bashrc"), ("zsh", ".zshrc"), ("fish", None)])
def test_install_puts_it_where_the_shell_looks_and_only_once(
    tmp_path: Path, name: str, start: str | None
) -> None:
    if start is not None:
        (tmp_path / start).write_text("echo mine")
    said = shells.install(name, tmp_path)
    shells.install(name, tmp_path)
    place, _, line = shells.PLACES[name]
    assert (tmp_path / place).read_text() == shells.SCRIPTS[name] and str(tmp_path / place) in said
    if start is not None:
        assert (tmp_path / start).read_text().splitlines() == ["echo mine", line]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_an_installed_completion_is_there_in_the_next_shell(tmp_path: Path) -> None:
    """And completes for a posenc that is called by its path."""
    shells.install("bash", tmp_path)
    terminal = Terminal(["bash", "--noprofile", "-i"], tmp_path, environment(tmp_path), columns=160)
    try:
        terminal.read(0.5)
        completed(terminal, f"{BIN}/posenc train model=na", "model=nano ")
    finally:
        terminal.close()


@pytest.mark.parametrize(
    ("line", "words", "current", "quoted"),
    [
        ("posenc train encoding=ro", ["posenc", "train"], "encoding=ro", False),
        ("posenc train ", ["posenc", "train"], "", False),
        ("posenc train 'eval.lengths=[1x,", ["posenc", "train"], "eval.lengths=[1x,", True),
        ('posenc "a b" c\\ d e', ["posenc", "a b", "c d"], "e", False),
    ],
)
def test_a_line_is_split_as_the_shell_would(line: str, words: list[str], current: str, quoted: bool) -> None:
    assert shells.split(line) == (words, current, quoted)
