"""Wrong arguments and corpora: exit 2, one screen that names the key, nothing written."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from faults.bad_arguments import SETTINGS
from faults.bad_commands import OTHERS
from faults.case import Case, Family, Seen
from faults.commands import TINY, Ended, environment, posenc, write_corpus
from faults.in_fork import forked

LINES, COLUMNS = 24, 80
SAMPLE = 25  # every so many are processes of their own, too
CORPUS = [word for word in TINY if not word.startswith("eval.lengths")] + ["encoding=rope"]


class World:
    """A good run to read, and a folder to call posenc in that must stay empty."""

    def __init__(self, place: Path) -> None:
        self.place, self.work = place, place / "work"
        self.work.mkdir()
        write_corpus(place / "texts")
        (place / "file").write_text("x")
        ended = posenc(place, "train", *TINY, f"data.paths={place}/texts", "encoding=rope")
        assert ended.code == 0, ended.err
        self.run = next((place / "runs" / "default").iterdir())

    def filled(self, words: list[str]) -> list[str]:
        """With the paths in place of {run} and the like."""
        if not any("{" in word for word in words):
            return words
        names = {
            "run": self.run,
            "runs": self.place / "runs",
            "place": self.work,
            "file": self.place / "file",
        }
        found = []
        for word in words:
            for name, path in names.items():
                word = word.replace("{" + name + "}", str(path))
            found.append(word.replace("{{", "{").replace("}}", "}"))
        return found

    def problem(self, words: list[str], says: list[str], ended: Ended) -> str | None:
        """What is wrong with an answer to wrong input."""
        message = ended.err.strip()
        rows = sum(max(1, -(-len(line) // COLUMNS)) for line in message.splitlines())
        wrong = None
        if left := sorted(p.name for p in self.work.iterdir()):
            wrong = f"wrote {left[:3]}"
            for path in self.work.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif ended.code != 2:
            wrong = f"exit code {ended.code}"
        elif "Traceback" in message or "fault of posenc" in message:
            wrong = "not in posenc's words"
        elif ended.out.strip():
            wrong = "printed to stdout"
        elif not message or rows > LINES:
            wrong = f"{rows} lines"
        elif missing := [text for text in self.filled(says) if text not in " ".join(message.split())]:
            wrong = f"does not name {missing}"
        if wrong is None:
            return None
        shown = " ".join(word for word in words if word not in TINY)[:100]
        return f"posenc {shown!r}: {wrong}; {' / '.join(message.splitlines()[:4])[:400]}"


def _answers(world: World, asked: list[tuple[list[str], list[str]]], quick: bool) -> Seen:
    wrong, slowest, tried = [], (0.0, ""), 0
    for i, (words, says) in enumerate(asked):
        if not says:
            continue
        tried += 1
        ended = forked(world.work, world.filled(words), cache=world.place)
        if found := world.problem(words, says, ended):
            wrong.append(found)
        if i % SAMPLE == 0 and not quick:
            tried += 1
            env = {"POSENC_CACHE": str(world.place / "cache")}
            ended = posenc(world.work, *world.filled(words), env=env)
            slowest = max(slowest, (ended.seconds, " ".join(words)[-60:]))
            if found := world.problem(words, says, ended):
                wrong.append(f"as a process: {found}")
    text = f"{tried - len(wrong)} of {tried} with exit 2 and one screen"
    if slowest[1]:
        text += f"; slowest of the processes {slowest[0]:.1f} s ({slowest[1]})"
    return Seen(text, tried, len(wrong), tuple(wrong))


def corpora(folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """(what it is, data.paths, what the message must say)."""

    def made(name: str, content: bytes) -> str:
        (folder / name).write_bytes(content)
        return str(folder / name)

    folder.mkdir()
    yield "nothing there", f"{folder}/nowhere", ["nowhere", "no such file"]
    yield "an empty file", made("empty.txt", b""), ["empty.txt", "empty"]
    yield "one byte", made("one.txt", b"x"), ["data=files", "split is empty"]
    yield "one document", made("alone.txt", b"all alone " * 1000), ["data=files", "split is empty"]
    yield "white space", made("blank.txt", b" \n" * 10), ["split is empty"]
    yield "binary", made("binary.txt", bytes(range(256)) * 10), ["binary.txt", "not UTF-8"]
    yield "zeros", made("zeros.txt", b"\0" * 5000), ["split is empty"]
    yield "Latin-1", made("latin.txt", b"h\xe9re"), ["latin.txt", "0xe9 at offset 1"]
    yield "UTF-16", made("utf16.txt", "text".encode("utf-16")), ["utf16.txt", "not UTF-8"]
    yield "a byte-order mark only", made("bom.txt", b"\xef\xbb\xbf"), ["no text"]
    yield "a cut gzip", made("cut.txt.gz", gzip.compress(b"text " * 999)[:-9]), ["cut.txt.gz", "gzip"]
    yield "no gzip", made("not.txt.gz", b"plain"), ["not.txt.gz", "gzip"]
    yield "an empty gzip", made("none.txt.gz", gzip.compress(b"")), ["no text"]
    yield "a gzip bomb", made("bomb.txt.gz", gzip.compress(b"\0" * 10**9, 1)), ["split is empty"]
    yield "bad JSON", made("bad.jsonl", b'{"text": \n'), ["bad.jsonl:1", "not JSON"]
    yield "JSON nested deep", made("deep.jsonl", b"[" * 100_000), ["deep.jsonl:1", "not JSON"]
    yield "JSON of numbers", made("numbers.jsonl", b"3\n"), ["numbers.jsonl:1", "not a JSON object"]
    yield "another field", made("body.jsonl", b'{"body": "x"}\n'), ["data.text_field=text", "body"]
    yield "a thousand fields", made("wide.jsonl", _wide()), ["data.text_field=text"]
    yield "text is no text", made("three.jsonl", b'{"text": 3}\n'), ["data.text_field=text"]
    yield "half a surrogate", made("half.jsonl", b'{"text": "\\ud800"}\n'), ["half.jsonl:1", "surrogate"]
    made("red\x1b[31m\n.txt", b"\xff")
    yield "escapes in a name", f"'{folder}/red*.txt'", [r"red\x1b[31m\n.txt", "not UTF-8"]
    for name, text in (("short", "few words {}"), ("same", "the same text in every one " * 300)):
        (folder / name).mkdir()
        for i in range(60):
            (folder / name / f"{i}.txt").write_text(text.format(i))
    yield "documents too short", f"{folder}/short", ["longest that works is"]
    yield "all documents the same", f"{folder}/same", ["data=files", "same text"]
    (folder / "nothing").mkdir()
    yield "an empty folder", f"{folder}/nothing", ["no text was found"]
    yield "a glob without hits", f"'{folder}/*.md'", ["no text was found"]
    (folder / "tree.txt").mkdir()
    yield "a folder like a file", f"{folder}/tree.txt", ["no text was found"]
    (folder / "loop.txt").symlink_to("loop.txt")
    yield "a link to itself", f"{folder}/loop.txt", ["loop.txt"]
    os.mkfifo(folder / "pipe.txt")
    yield "a pipe", f"{folder}/pipe.txt", ["pipe.txt", "neither a file nor a folder"]
    yield "a device", "/dev/zero", ["/dev/zero", "neither a file nor a folder"]
    yield "two paths, one missing", f"[{folder}/one.txt,{folder}/nowhere]", ["nowhere", "no such file"]
    yield "no path", "", ["data.paths"]
    yield "an empty list", "[]", ["data.paths"]
    yield "a number", "3", ["data.paths=3"]
    yield "a path too long", f"{folder}/{'n' * 300}", ["data.paths=", "nnn"]
    if os.geteuid() != 0:
        closed = Path(made("closed.txt", b"text"))
        closed.chmod(stat.S_IWUSR)
        yield "not readable", str(closed), ["closed.txt", "Permission denied"]


def _wide() -> bytes:
    return ("{" + ", ".join(f'"field{i}": 1' for i in range(1000)) + "}\n").encode()


def _bad_corpora(world: World) -> Seen:
    asked = []
    for _, paths, says in corpora(world.place / "bad"):
        asked.append((["train", *CORPUS, "eval.lengths=[1x,4x]", f"data.paths={paths}"], says))
    return _answers(world, asked, quick=True)


def _not_tokenised(world: World) -> Seen:
    """Nothing of all that was wrong came as far as the token cache: the good run's entry is alone there."""
    entries = [
        p.name for p in Path(environment(world.place)["POSENC_CACHE"], "tokens").iterdir() if p.is_dir()
    ]
    return Seen(f"{len(entries)} entry", failed=int(len(entries) != 1), details=tuple(entries[1:]))


def cases(place: Path, quick: bool) -> Iterator[Case]:
    """Settings of a training, options of the other commands, corpora."""
    world = World(place)
    told = "exit 2, one screen that names key and value, nothing written"
    nowhere = ["train", *TINY, "data.paths=nowhere"]
    settings = [([*nowhere, *words], says) for words, says in SETTINGS]
    some = slice(None, None, 6 if quick else None)
    yield Case("settings of train", told, lambda: _answers(world, settings[some], quick))
    yield Case("other commands", told, lambda: _answers(world, OTHERS[some], quick))
    yield Case("corpora", told, lambda: _bad_corpora(world))
    yield Case("before anything is tokenised", "one entry in the token cache", lambda: _not_tokenised(world))


FAMILY = Family("bad_input", cases)
