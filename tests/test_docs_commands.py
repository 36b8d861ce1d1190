"""Every command of the README and of docs/ runs, in the order of its page, with small models.

Each page has a folder of its own. `<!-- not run: REASON -->` right before a block leaves its commands out.
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
from test_add_an_encoding import in_a_clone, in_a_package, in_one_file, loose

PAGES = [tiny.ROOT / "README.md", *sorted((tiny.ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?:<!--(?P<mark>(?:(?!-->).)*)-->\n)?^```(?:sh|text)\n(?P<body>.*?)^```", re.S | re.M)
# A file that the reader is told to write: This one is `mine.py`, and its text.
FILE = re.compile(r"`(?P<name>\w+\.py)`:\n```python\n(?P<text>.*?)^```", re.S | re.M)
# Added to whatever trains or measures: seconds instead of minutes.
SMALL_MODEL = ("model.d_model=32", "model.n_layers=2", "model.n_heads=2")
SMALL_TRAINING = (*SMALL_MODEL, "train.tokens=4096")
SMALL_EVAL = ("eval.max_targets=600",)
SMALL_BENCH = (*SMALL_MODEL, "train.batch_tokens=512", "--repeats=1", "--eval-lengths=none")
# Fewer jobs where a page asks for many.
FEWER = {
    "seed=0,1,2": "seed=0",
    "extend=glob(*)": "extend=glob(s*)",
    "encoding=nope,learned,sinusoidal,rope,alibi,t5": "encoding=rope,alibi,t5",
    "experiment=headline": "experiment=headline encoding=rope",
    "[[0.3,16],[0.3,32],[0.4,64]]": "[[0.5,16],[0.5,64]]",  # shares of two updates
}
ONLY_ASKS = {"--help", "--cfg"}
# Flags that Hydra reads, so that Typer does not know them.
HYDRA_FLAGS = {
    "train": ("-m", "--cfg", "--config-dir"),
    "eval": ("-m", "--cfg", "--config-dir"),
    "check": ("-m", "--config-dir"),
    "show": ("-m", "--config-dir"),
}
# What the reader of a page writes before the commands of each block. Elsewhere typing the commands is all.
SET_UP = {"add-an-encoding.md": (in_one_file, in_one_file, in_a_clone, in_a_package, loose)}


@dataclass(frozen=True)
class Command:
    """A command line of a page."""

    page: str
    line: int
    block: int  # the number of its block, among those of the page with commands
    text: str
    reason: str | None  # why it is not run

    def __str__(self):
        return f"{self.page}:{self.line}:{self.text[:60]}"


def commands_of(page):
    """Yield the commands of a page in order."""
    text = page.read_text(encoding="utf-8")
    block_number = 0
    for block in BLOCK.finditer(text):
        mark = (block["mark"] or "").strip()
        reason = mark.removeprefix("not run:").strip() if mark.startswith("not run:") else None
        first_line = text.count("\n", 0, block.start("body")) + 1
        has_commands = False
        for line_number, line in enumerate(block["body"].split("\n"), start=first_line):
            if is_command(line):
                has_commands = True
                yield Command(page.name, line_number, block_number, without_explanation(line), reason)
        if has_commands:
            block_number += 1


def is_command(line):
    return re.match(r"posenc (--)?[a-z]", line) is not None


def without_explanation(line):
    """Return the command without the words behind it: `# ...`, or text after two blanks."""
    return re.split(r"\s+# |\s{2,}", line.rstrip())[0]


COMMANDS = [command for page in PAGES for command in commands_of(page)]
COMMANDS_TO_RUN = [command for command in COMMANDS if command.reason is None]
LEFT_OUT = [command for command in COMMANDS if command.reason is not None]


@pytest.fixture(scope="module")
def folder_of_pages(tmp_path_factory):
    return tmp_path_factory.mktemp("docs")


@pytest.fixture
def working_folder(command, folder_of_pages, shared_cache, monkeypatch):
    """Enter the folder of a command's page, with what earlier commands left; return it and the environment.

    The environment is None where the command runs in this process. The fixture replaces that of conftest.py,
    which `posenc` uses and which would enter another folder for each command.
    """
    set_up = SET_UP.get(command.page)
    folder = folder_of_pages / command.page
    if set_up is not None:
        folder /= f"block-{command.block}"
    if not folder.exists():
        folder.mkdir(parents=True)
        tiny.write_corpus(folder / "my_texts")  # the reader's own files
        write_files_of(command.page, folder)
    environment = None
    if set_up is not None:
        shutil.rmtree(folder / "clone", ignore_errors=True)
        environment = set_up[command.block](folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("POSENC_CACHE", str(shared_cache))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("COLUMNS", "80")
    return folder, environment


def write_files_of(name, folder):
    """Write the files whose texts the page shows."""
    (page,) = [page for page in PAGES if page.name == name]
    for file in FILE.finditer(page.read_text(encoding="utf-8")):
        (folder / file["name"]).write_text(file["text"])


def with_fewer_jobs(text):
    for many, few in FEWER.items():
        text = text.replace(many, few)
    return text


def with_real_runs(text):
    """Replace a run that the page abbreviates, `run=runs/default/rope-...`, by one trained before."""

    def trained_run(match):
        pattern = f"{match[2]}*" if match[2] else "runs/default/rope-*"
        runs = sorted(path for path in Path().glob(pattern) if (path / "results.json").is_file())
        assert runs, f"no run {pattern}"
        return f"{match[1]}{runs[0]}"

    if "--delete NAME" in text:
        # the last one by name: later commands of the page need the run of rope
        name = max(file.parent.name for file in Path("runs").glob("*/*/results.json"))
        text = text.replace("--delete NAME", f"--delete {name} --yes")
    return re.sub(r"(run=|(?= ?runs/))([\w/.-]*?)\.\.\.", trained_run, text)


def small_settings(words):
    """Return what makes a command small."""
    name = words[1]
    if name == "bench":
        return SMALL_BENCH
    if ONLY_ASKS & set(words):
        return ()
    return {"train": (*SMALL_TRAINING, *SMALL_EVAL), "eval": SMALL_EVAL}.get(name, ())


def run_in_shell(line):
    """Run a line with a part for the reader's shell, `$(...)`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=environment, check=False)
    return tiny.Result(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS_TO_RUN, ids=str)
def test_the_command_runs(command, working_folder, posenc):
    folder, environment = working_folder
    text = with_real_runs(with_fewer_jobs(command.text))
    small = small_settings(text.split())
    if "$(" in text:
        result = run_in_shell(" ".join([text, *small]))
    elif environment is not None:
        result = tiny.spawn(*shlex.split(text)[1:], *small, cwd=folder, **environment)
    else:
        result = posenc(*shlex.split(text)[1:], *small)
    assert result.code == 0, f"{text}\n{result.out[-500:]}\n{result.err[-2000:]}"
    assert "Traceback" not in result.err
    assert (result.out + result.err).strip(), "it says nothing"


def test_most_pages_have_commands_that_run():
    pages = {command.page for command in COMMANDS_TO_RUN}
    assert {"README.md", "tutorial.md", "add-an-encoding.md", "corpora.md", "recipes.md"} <= pages


@pytest.mark.parametrize("command", LEFT_OUT, ids=str)
def test_a_command_that_is_left_out_has_a_reason(command):
    assert " " in command.reason, "a reason is a sentence"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_mark_stands_right_before_a_block_of_commands(page):
    after_marks = re.findall(r"<!-- not run:.*?-->\n(.*)", page.read_text(encoding="utf-8"))
    assert [line for line in after_marks if not line.startswith("```sh")] == []


def quoted_commands(page):
    """Return the commands that a page quotes inside its sentences."""
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    return re.findall(r"`(posenc [^`]+)`", prose)


@pytest.fixture(scope="module")
def typer_command():
    """Return posenc's command of all commands."""
    import typer

    from posenc import cli

    return typer.main.get_command(cli.app)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_flags_inside_sentences_exist(page, typer_command):
    for sentence in quoted_commands(page):
        words = re.split(r"\s+", sentence)[1:]
        hydra_flags = HYDRA_FLAGS.get(words[0], ())
        command = typer_command
        while words and hasattr(command, "commands") and not words[0].startswith("-"):
            name = re.split(r"[|.,]", words.pop(0))[0]
            assert name in command.commands, f"{page.name}: {sentence}"
            command = command.commands[name]
        options = {option for parameter in command.params for option in parameter.opts}
        options |= {"--help", *hydra_flags}
        flags = [re.split(r"[=,.;)]", word)[0] for word in words if re.match(r"--?[a-z]", word)]
        assert [flag for flag in flags if flag not in options] == [], f"{page.name}: {sentence}"
