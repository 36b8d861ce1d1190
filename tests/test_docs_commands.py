"""Every command of the README and of docs/ is run, in order and in one place, with small models.

A block that cannot run here has `<!-- not run: REASON -->` right before it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny
from test_add_an_encoding import in_a_clone, in_a_package, loose

Posenc = Callable[..., tiny.Result]
PAGES = [tiny.ROOT / "README.md", *sorted((tiny.ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?:<!--(?P<mark>.*?)-->\n)?^```(?:sh|text)\n(?P<body>.*?)^```", re.S | re.M)
# Added to whatever trains or measures: seconds instead of minutes.
SMALL_MODEL = ["model.d_model=32", "model.n_layers=2", "model.n_heads=2", "train.tokens=4096"]
SMALL_EVAL = ["eval.max_targets=600"]
FEWER = ("seed=0,1,2", "seed=0,1")  # in the text of the command
ONLY_ASKS = {"--help", "--cfg", "--dry-run"}
# What a page has the reader set up before its blocks, where that is more than typing commands.
SET_UP = {
    ("add-an-encoding.md", 0): in_a_clone,
    ("add-an-encoding.md", 1): in_a_package,
    ("add-an-encoding.md", 2): loose,
}
MY_TEXTS = "my_texts"  # the reader's own


@dataclass(frozen=True)
class Command:
    """A line of a block; `block` counts the page's blocks with commands."""

    page: str
    line: int
    block: int
    text: str
    reason: str | None  # why it is not run

    def __str__(self) -> str:
        return f"{self.page}:{self.line}:{self.text[:60]}"


def commands(page: Path) -> Iterator[Command]:
    text, count = page.read_text(encoding="utf-8"), 0
    for found in BLOCK.finditer(text):
        mark = (found["mark"] or "").strip()
        reason = mark.removeprefix("not run:").strip() if mark.startswith("not run:") else None
        first = text.count("\n", 0, found.start("body")) + 1
        body = re.sub(r"\\\n\s*", lambda m: " ", found["body"])
        lines = [(first + i, line) for i, line in enumerate(body.split("\n")) if is_command(line)]
        for number, line in lines:
            yield Command(page.name, number, count, without_explanation(line), reason)
        count += bool(lines)


def is_command(line: str) -> bool:
    """A call of posenc; the README's two lines of set-up are run by .ci/run."""
    return bool(re.match(r"posenc (--)?[a-z]", line))


def without_explanation(line: str) -> str:
    """The command without what stands after it: `# ...`, or text after two blanks and more."""
    return re.split(r"\s+# |\s{2,}", line.rstrip())[0]


EVERY = [command for page in PAGES for command in commands(page)]
RUN = [command for command in EVERY if command.reason is None]


@pytest.fixture(scope="module")
def one_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    tiny.write_corpus(folder / MY_TEXTS)
    return folder


@pytest.fixture
def place(one_place: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder for all commands, so that what one left is there for the next."""
    monkeypatch.chdir(one_place)
    monkeypatch.setenv("POSENC_CACHE", str(shared_cache))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("COLUMNS", "80")
    return one_place


def filled_in(text: str) -> str:
    """A run that the page abbreviates with `...` as one that is there; fewer seeds."""
    text = text.replace(*FEWER)

    def run(found: re.Match[str]) -> str:
        pattern = f"{found[1]}*" if found[1] else "runs/default/rope-*"
        there = sorted(path for path in Path().glob(pattern) if (path / "results.json").is_file())
        assert there, f"no run {pattern}"
        return f"run={there[0]}"

    return re.sub(r"run=([\w/.-]*?)(?:\.\.\.|DIR)", run, text)


def made_small(words: list[str]) -> list[str]:
    if not ONLY_ASKS & set(words):
        if words[1] == "train":
            return [*words, *SMALL_MODEL, *SMALL_EVAL]
        if words[1] == "eval":
            return [*words, *SMALL_EVAL]
    return words


@pytest.mark.slow
@pytest.mark.parametrize("command", RUN, ids=str)
def test_it_runs(command: Command, place: Path, posenc: Posenc) -> None:
    text = filled_in(command.text)
    if "$(" in text:  # the reader's shell has a part in it
        added = " ".join(made_small(["posenc", text.split()[1]])[2:])
        env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-c", f"{text} {added}"], capture_output=True, text=True, env=env, check=False
        )
        result = tiny.Result(done.returncode, done.stdout, done.stderr)
    elif set_up := SET_UP.get((command.page, command.block)):
        own = place / f"set-up-{command.block}"
        env = {} if own.exists() else None
        own.mkdir(exist_ok=True)
        env = environment_of(set_up, own, first=env is None)
        result = tiny.spawn(*made_small(shlex.split(text))[1:], cwd=own, **env)
    else:
        result = posenc(*made_small(shlex.split(text))[1:])
    assert result.code == 0, f"{text}\n{result.out[-500:]}\n{result.err[-2000:]}"
    assert "Traceback" not in result.err
    assert result.out.strip() or result.err.strip()


ENVIRONMENTS: dict[Path, dict[str, str]] = {}


def environment_of(set_up: Callable[[Path], dict[str, str]], own: Path, first: bool) -> dict[str, str]:
    """What the page has the reader write, written once into a folder; returns the environment it needs."""
    if first:
        ENVIRONMENTS[own] = set_up(own)
    return ENVIRONMENTS[own]


def test_there_are_commands_and_every_one_left_out_has_a_reason() -> None:
    left_out = [command for command in EVERY if command.reason is not None]
    print(f"{len(RUN)} commands are run, {len(left_out)} are not")
    assert len(RUN) >= 60 and len({command.page for command in RUN}) >= 5
    assert all(command.reason and len(command.reason) > 10 for command in left_out)
    assert len(left_out) <= 12
    for page in PAGES:
        marks = re.findall(r"<!-- not run:.*?-->\n(.*)", page.read_text(encoding="utf-8"))
        assert all(line.startswith("```sh") for line in marks), f"{page.name}: a mark that marks nothing"


def test_the_gathering_itself() -> None:
    assert without_explanation("posenc data list                     corpora") == "posenc data list"
    assert without_explanation("posenc compare --metric bpb  # bits") == "posenc compare --metric bpb"
    assert without_explanation("posenc eval 'run=glob(*)' x=[1,2]") == "posenc eval 'run=glob(*)' x=[1,2]"
    assert is_command("posenc train encoding=rope") and is_command("posenc --version")
    assert not is_command("posenc/corpus/       text") and not is_command("a posenc train")


INLINE = re.compile(r"`(posenc [^`]+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_inside_sentences_exist(page: Path) -> None:
    """Named commands and options are real ones."""
    import typer

    from posenc import cli

    root: Any = typer.main.get_command(cli.app)
    for text in INLINE.findall(re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)):
        words = re.split(r"\s+", text)[1:]
        command, path = root, []
        while words and hasattr(command, "commands") and not words[0].startswith("-"):
            name = re.split(r"[|.,]", words[0])[0]
            assert name in command.commands, f"{page.name}: {text}"
            command, path = command.commands[name], [*path, name]
            words = words[1:]
        known = {option for parameter in command.params for option in parameter.opts}
        known |= (
            {"--help", "-m", "--cfg", "--config-dir", "--debug"}
            if path and path[0] in ("train", "eval")
            else {"--help"}
        )
        known |= {"-m", "--config-dir"} if path and path[0] in ("check", "show") else set()
        for word in words:
            if re.match(r"--?[a-z]", word):
                assert re.split(r"[=,.;)]", word)[0] in known, f"{page.name}: {text}"


def test_the_python_page_runs_from_top_to_bottom(place: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (tiny.ROOT / "docs" / "python.md").read_text(), re.S)
    assert len(blocks) >= 8
    (tmp_path / "page.py").write_text("\n".join(blocks))
    env = tiny.environment(POSENC_CACHE=str(tmp_path / "cache"), PYTHONPATH=str(tiny.ROOT), MPLBACKEND="agg")
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "rope finished" in done.stdout and "| alibi" in done.stdout
    shift = re.search(r"\['rotate'\] tensor\((\S+)\)", done.stdout)
    assert shift is not None and float(shift[1]) < 1e-4  # what the page says of RoPE


@pytest.mark.skipif(
    importlib.util.find_spec("material") is None, reason="needs mkdocs-material (posenc[docs])"
)
def test_the_site_builds_strictly_and_needs_no_other_machine(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")],
        cwd=tiny.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    pages = sorted((tmp_path / "site").glob("*.html"))
    assert {page.stem for page in pages} >= {path.stem for path in PAGES[1:]} | {"contributing", "changelog"}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(
            r"<(?:script|img|iframe)[^>]*src=\"?(\S+)|<link[^>]*rel=\"?stylesheet\"?[^>]*href=\"?(\S+)", text
        )
        assert not [url for pair in loaded for url in pair if re.match(r"(https?:)?//", url)], page.name
        assert "<!-- not run" not in re.sub(r"<!-- not run: [^>]*-->", "", text)
        for target in re.findall(r"<a [^>]*href=\"?([\w.-]+\.html)", text):
            assert (tmp_path / "site" / target).is_file(), f"{page.name}: {target}"
