"""Type about 150 commands in two trees and compare exit codes, output and files.

    python scripts/checks/gate/commands.py compare OLD NEW     each a source tree, or a JSON of `observe`
    python scripts/checks/gate/commands.py observe TREE --out commands.json

Compared are the exit code, JSON and numbers on stdout, the key that an error names, the names of the files
that were made, and what is in them. Hashes of runs, times and rates become tags. A text with the same
numbers and other words is listed as reworded and does not fail; so is stderr, but for the key of an error.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from command_line import Observation, Selection, run_part
from command_list import CHAPTERS, TINY, TINY_MODEL, TRAIN, Command
from contents import UNREAD, Content, file_content, file_label, normalised, stream_content
from differences import Difference, compare_contents
from texts import write_texts
from trees import ForkServer, Outcome, Tree

RUN_NAME = re.compile(r"\{(\w+)\}")
SPACES = re.compile(" +")
JOB_LINE = re.compile(r"^\[\d+/\d+\] ", re.MULTILINE)
ERROR_KEY = re.compile(r"^error: ([^:\n]*)", re.MULTILINE)
MOST_CHARACTERS = 3000  # of an output that is stored whole; of a longer one its digests are
WORKERS = 2


def observe(tree: Tree, selection: Selection) -> Observation:
    """Type all commands, or those of some chapters; return what each of them did, by its text."""
    first = tree.work / "train"
    first.mkdir(parents=True)
    write_texts(first / "texts", seed=0)
    write_texts(first / "other", seed=1)
    observed = _type_all(tree, first, TRAIN)
    with ThreadPoolExecutor(max_workers=WORKERS) as pool:
        waiting = []
        chapters = {name: commands for name, commands in CHAPTERS.items() if selection.has(name)}
        for name, commands in chapters.items():
            folder = tree.work / name
            shutil.copytree(first, folder)
            waiting.append(pool.submit(_type_all, tree, folder, commands))
        for future in waiting:
            observed |= future.result()
    return observed


def _type_all(tree: Tree, folder: Path, commands: list[Command]) -> Observation:
    """Type the commands one after another in a folder; a text that comes again is numbered."""
    observed = {}
    typed: Counter[str] = Counter()
    server = ForkServer(tree, folder.name)
    for command in commands:
        typed[command.line] += 1
        label = f"{folder.name}: {command.line}"
        if typed[command.line] > 1:
            label += f" (time {typed[command.line]})"
        observed[label] = _type_one(tree, server, folder, command)
        print(f"{tree.work.name} {label}", file=sys.stderr, flush=True)
    server.close()
    return observed


def _type_one(tree: Tree, server: ForkServer, folder: Path, command: Command) -> Observation:
    line = command.line.replace("TINY_MODEL", TINY_MODEL).replace("TINY", TINY)
    words = shlex.split(RUN_NAME.sub(lambda match: _run_folder(folder, match[1]), line))
    digests_before = _file_digests(folder)
    if command.interrupted:
        outcome = tree.run_interrupted(words, folder, folder / "runs")
    else:
        outcome = server.run(words, folder)
    if outcome.code != command.code:
        print(f"exit code {outcome.code}, not {command.code}: {command.line}", file=sys.stderr, flush=True)
    changed = [path for path, digest in _file_digests(folder).items() if digests_before.get(path) != digest]
    return _described(tree, folder, command, outcome, changed)


def _run_folder(folder: Path, name: str) -> str:
    """Return the folder of the run with this name, whatever its hash and its experiment."""
    (directory,) = folder.glob(f"runs/*/{name}-????????")
    return directory.relative_to(folder).as_posix()


def _file_digests(folder: Path) -> dict[Path, str]:
    """Return the digest of every file below a folder, so that a file that was written shows."""
    return {
        path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _described(
    tree: Tree, folder: Path, command: Command, outcome: Outcome, changed: list[Path]
) -> Observation:
    """Return what one command did, in a form that can be stored and compared."""
    tags = tree.folder_tags(folder)
    stdout = stream_content(outcome.stdout, tags)
    files = {}
    for path in changed:
        content = file_content(folder / path, tags)
        if command.interrupted or path.suffix == ".txt":  # the moment of the signal is chance
            content = UNREAD
        files[_free_label(file_label(path), files)] = content
    if command.timed:
        stdout = _without_numbers(stdout)
    stderr = normalised(outcome.stderr, tags)
    if JOB_LINE.search(stderr):  # jobs of a sweep that run at once take turns by chance
        stderr = "\n".join(sorted(stderr.splitlines()))
    error = ERROR_KEY.search(outcome.stderr) if outcome.code == 2 else None
    return {
        "code": outcome.code,
        "error": normalised(error[1], tags) if error else None,
        "stdout": stdout.stored(),
        "stderr": stderr,
        "files": {label: content.stored() for label, content in files.items()},
    }


def _free_label(label: str, files: dict[str, Content]) -> str:
    """Return the label, numbered if another file has the same name but for its hash."""
    count = sum(other.partition(" #")[0] == label for other in files)
    return f"{label} #{count + 1}" if count else label


def compact(observation: Observation) -> Observation:
    """Return the observation with digests instead of long outputs and of the content of files."""
    return {label: _compact_command(command) for label, command in observation.items()}


def _compact_command(command: Observation) -> Observation:
    stdout = Content(**command["stdout"]).compacted(MOST_CHARACTERS).stored()
    files = {label: Content(**content).compacted(0).stored() for label, content in command["files"].items()}
    return command | {"stdout": stdout, "files": files}


def _without_numbers(content: Content) -> Content:
    """Return the content of a command that measures time: its keys and words alone."""
    if content.kind == "json":
        return Content("json", dict.fromkeys(content.leaves))
    if content.kind == "text":
        wording = SPACES.sub(" ", str(content.leaves["wording"]))  # columns are as wide as their numbers
        return Content("text", {"numbers": "", "wording": wording})
    return content


def compare(old: Observation, new: Observation) -> Iterator[Difference]:
    """Yield what differs, command by command."""
    for label in sorted(old.keys() | new.keys()):
        if label in old and label in new:
            yield from _compare_command(label, old[label], new[label])
        else:
            yield Difference(label, "commands", "list of commands", label in old, label in new)


def _compare_command(label: str, old: Observation, new: Observation) -> Iterator[Difference]:
    if old["code"] != new["code"]:
        yield Difference(label, "exit code", "exit code", old["code"], new["code"])
    if old["error"] != new["error"]:
        yield Difference(label, "key of the error", "stderr", old["error"], new["error"])
    yield from compare_contents(label, "stdout", Content(**old["stdout"]), Content(**new["stdout"]))
    if old["stderr"] != new["stderr"]:
        yield Difference(label, "wording", "stderr", old["stderr"], new["stderr"])
    for name in sorted(old["files"].keys() | new["files"].keys()):
        old_file = old["files"].get(name)
        new_file = new["files"].get(name)
        if old_file is None or new_file is None:
            yield Difference(label, "files", name, old_file is not None, new_file is not None)
        else:
            yield from compare_contents(label, name, Content(**old_file), Content(**new_file))


if __name__ == "__main__":
    sys.exit(run_part(__doc__, observe, compare, compact))
