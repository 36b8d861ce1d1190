"""Every command of the README and of docs/ is run, in order, with small models, a folder for each page.

A block that cannot run here has `<!-- not run: REASON -->` right before it.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import tiny
from test_add_an_encoding import in_a_clone, in_a_package, loose

PAGES = [tiny.ROOT / "README.md", *sorted((tiny.ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?:<!--(?P<mark>(?:(?!-->).)*)-->\n)?^```(?:sh|text)\n(?P<body>.*?)^```", re.S | re.M)
# Added to whatever trains or measures: seconds instead of minutes.
SMALL_MODEL = ("model.d_model=32", "model.n_layers=2", "model.n_heads=2", "train.tokens=4096")
SMALL_BENCH = (*SMALL_MODEL[:3], "train.batch_tokens=512", "--repeats=1", "--eval-lengths=none")
SMALL_EVAL = ("eval.max_targets=600",)
FEWER = {
    "seed=0,1,2": "seed=0",
    "extend=glob(*)": "extend=glob(s*)",
    "encoding=nope,learned,sinusoidal,rope,alibi,t5": "encoding=rope,alibi,t5",
    "experiment=headline": "experiment=headline encoding=rope",
    "[[0.3,16],[0.3,32],[0.4,64]]": "[[0.5,16],[0.5,64]]",  # of two updates
}
ONLY_ASKS = {"--help", "--cfg"}
HYDRAS = dict.fromkeys(("train", "eval"), ("-m", "--cfg", "--config-dir"))
HYDRAS |= dict.fromkeys(("check", "show"), ("-m", "--config-dir"))
# What a page has the reader write, by block; elsewhere typing the commands is all.
SET_UP = {"add-an-encoding.md": (in_a_clone, in_a_package, loose)}


@dataclass(frozen=True)
class Command:
    """A line of a block; `block` counts the page's blocks with commands."""

    page: str
    line: int
    block: int
    text: str
    reason: str | None  # why it is not run

    def __str__(self):
        return f"{self.page}:{self.line}:{self.text[:60]}"


def commands(page):
    text, count = page.read_text(encoding="utf-8"), 0
    for found in BLOCK.finditer(text):
        mark = (found["mark"] or "").strip()
        reason = mark.removeprefix("not run:").strip() if mark.startswith("not run:") else None
        first = text.count("\n", 0, found.start("body")) + 1
        lines = [(first + i, line) for i, line in enumerate(found["body"].split("\n")) if is_command(line)]
        for number, line in lines:
            yield Command(page.name, number, count, without_explanation(line), reason)
        count += bool(lines)


def is_command(line):
    return bool(re.match(r"posenc (--)?[a-z]", line))


def without_explanation(line):
    """The command without what stands after it: `# ...`, or text after two blanks and more."""
    return re.split(r"\s+# |\s{2,}", line.rstrip())[0]


EVERY = [command for page in PAGES for command in commands(page)]
RUN = [command for command in EVERY if command.reason is None]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("docs")


@pytest.fixture
def place(command, folders, shared_cache, monkeypatch):
    """The folder of the command's page, with what earlier commands left, and the environment it asks for."""
    set_up, env = SET_UP.get(command.page), None
    folder = folders / command.page / (f"block-{command.block}" if set_up else "")
    if not folder.exists():
        folder.mkdir(parents=True)
        tiny.write_corpus(folder / "my_texts")  # the reader's own files
    if set_up is not None:
        shutil.rmtree(folder / "clone", ignore_errors=True)
        env = set_up[command.block](folder)
    monkeypatch.chdir(folder)
    given = {"POSENC_CACHE": str(shared_cache), "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
    for name, value in {**given, "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    return folder, env


def filled_in(text):
    """A run that the page abbreviates, `run=runs/default/rope-...`, as one that is there; fewer jobs."""

    def run(found):
        pattern = f"{found[2]}*" if found[2] else "runs/default/rope-*"
        there = sorted(path for path in Path().glob(pattern) if (path / "results.json").is_file())
        assert there, f"no run {pattern}"
        return f"{found[1]}{there[0]}"

    for many, few in FEWER.items():
        text = text.replace(many, few)
    return re.sub(r"(run=|(?= ?runs/))([\w/.-]*?)\.\.\.", run, text)


def what_makes_it_small(words):
    if words[1] == "bench":
        return SMALL_BENCH
    if ONLY_ASKS & set(words) or words[1] not in ("train", "eval"):
        return ()
    return (*SMALL_MODEL, *SMALL_EVAL) if words[1] == "train" else SMALL_EVAL


@pytest.mark.slow
@pytest.mark.parametrize("command", RUN, ids=str)
def test_it_runs(command, place, posenc):
    text, (folder, env) = filled_in(command.text), place
    small = what_makes_it_small(text.split())
    if "$(" in text:  # the reader's shell has a part in it
        path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        shell = ["sh", "-c", " ".join((text, *small))]
        done = subprocess.run(shell, capture_output=True, text=True, env={**os.environ, **path}, check=False)
        result = tiny.Result(done.returncode, done.stdout, done.stderr)
    elif env is not None:
        result = tiny.spawn(*shlex.split(text)[1:], *small, cwd=folder, **env)
    else:
        result = posenc(*shlex.split(text)[1:], *small)
    assert result.code == 0, f"{text}\n{result.out[-500:]}\n{result.err[-2000:]}"
    assert "Traceback" not in result.err and (result.out + result.err).strip()


def test_there_are_commands_and_every_one_left_out_has_a_reason():
    left_out = [command for command in EVERY if command.reason is not None]
    assert len(RUN) >= 60 and len({command.page for command in RUN}) >= 5
    assert all(command.reason and len(command.reason) > 10 for command in left_out)
    assert len({(command.page, command.block) for command in left_out}) <= 11  # blocks
    for page in PAGES:
        marks = re.findall(r"<!-- not run:.*?-->\n(.*)", page.read_text(encoding="utf-8"))
        assert all(line.startswith("```sh") for line in marks), f"{page.name}: a mark that marks nothing"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_inside_sentences_exist(page):
    import typer

    from posenc import cli

    root = typer.main.get_command(cli.app)
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for sentence in re.findall(r"`(posenc [^`]+)`", text):
        words = re.split(r"\s+", sentence)[1:]
        command, first = root, words[0]
        while words and hasattr(command, "commands") and not words[0].startswith("-"):
            name = re.split(r"[|.,]", words.pop(0))[0]
            assert name in command.commands, f"{page.name}: {sentence}"
            command = command.commands[name]
        known = {option for parameter in command.params for option in parameter.opts}
        known |= {"--help", *HYDRAS.get(first, ())}
        for word in words:
            if re.match(r"--?[a-z]", word):
                assert re.split(r"[=,.;)]", word)[0] in known, f"{page.name}: {sentence}"
