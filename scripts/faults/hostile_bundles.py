"""Bundles of results from somebody else: bombs, odd lines, names that lead elsewhere, links."""

from __future__ import annotations

import functools
import gzip
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from faults.hostile_attacks import DEEP, IN_A_FILE, Attack, Outside
from faults.hostile_names import NAMES, write_runs

SUFFIX = ".runs.jsonl.gz"
COMMANDS = (  # what reads a bundle, or meets one; the good run beside it stays in the table
    ["compare", "--allow-mixed"],
    ["compare", "--allow-mixed", "--format", "json", "--html", "page.html"],
    ["runs"],
    ["export", "runs", "--out", f"runs/again{SUFFIX}"],
)
MEBIBYTE = 2**20
Line = dict[str, Any]


def attacks_by_bundles() -> Iterator[Attack]:
    """All of them; each puts a bundle beside the run directory."""
    yield from _bombs()
    yield from _odd_files()
    yield from _odd_lines()
    yield from _links()


def write_bundle(good: Path, folder: Path) -> None:
    """A bundle with a run for each name of `hostile_names`, which stands wherever a text can."""
    write_runs(good, folder / "written")
    runs = sorted((folder / "written").iterdir(), key=lambda run: int(run.name.removeprefix("run")))
    lines = [{**_line(run), "name": name} for run, name in zip(runs, NAMES, strict=True)]
    (folder / f"names{SUFFIX}").write_bytes(_packed(_json(lines)))
    shutil.rmtree(folder / "written")


def _line(run: Path) -> Line:
    """The run as a line of a bundle."""
    results, status = (json.loads((run / f"{name}.json").read_text()) for name in ("results", "status"))
    return {"name": run.name, "status": status, "config": {}, "results": results}


def _json(lines: list[Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _head(runs: object) -> bytes:
    return _json([{"posenc_bundle": 1, "schema_version": 1, "runs": runs}])


def _packed(lines: bytes) -> bytes:
    return gzip.compress(_head(lines.count(b"\n")) + lines)


def _attack(name: str, content: Callable[[Path, Outside], bytes]) -> Attack:
    def change(run: Path, o: Outside) -> None:
        (run.parent / f"theirs{SUFFIX}").write_bytes(content(run, o))

    return Attack(f"bundle: {name}", change)


@functools.cache
def _bomb(block: bytes, blocks: int, head: bytes = b"") -> bytes:
    """Members of gzip one after another: as many bytes as asked for, made at once."""
    return gzip.compress(head or _head(10**6)) + gzip.compress(block, 9) * blocks


def _bombs() -> Iterator[Attack]:
    for name, block, blocks in (
        ("a line of 4 GB", b" " * (64 * MEBIBYTE), 64),
        ("lines of 40 MB, 4 GB of them", b"{" + b" " * (40 * MEBIBYTE) + b"}\n", 100),
        ("empty objects, 1 GB of them", b"{}\n" * (10 * MEBIBYTE), 32),
        ("lists in each other, a line of 40 MB", b'{"a":' + b"[" * (40 * MEBIBYTE) + b"\n", 20),
    ):
        yield _attack(f"bomb: {name}", lambda run, o, block=block, blocks=blocks: _bomb(block, blocks))
    yield _attack("bomb: a head of 1 GB", lambda run, o: _bomb(b" " * (64 * MEBIBYTE), 16, b" "))


def _odd_files() -> Iterator[Attack]:
    def changed(change: Callable[[bytes], bytes]) -> Callable[[Path, Outside], bytes]:
        return lambda run, o: change(_packed(_json([_line(run)])))

    for name, change in (
        ("nothing", lambda data: b""),
        ("no gzip", lambda data: b"\x00\x01\x02"),
        ("gzip of nothing", lambda data: gzip.compress(b"")),
        ("cut", lambda data: data[: len(data) // 2]),
        ("a bit flipped", lambda data: data[:-900] + bytes([data[-900] ^ 8]) + data[-899:]),
        ("other bytes after it", lambda data: data + b"more"),
        ("another bundle after it", lambda data: data * 2),
        (
            "a name in gzip's own header",
            lambda data: data[:3] + b"\x08" + data[4:10] + b"../../up\0" + data[10:],
        ),
    ):
        yield _attack(f"file: {name}", changed(change))
    for runs in (-1, 10**30, None, "1", [1], 0.5, True, {"runs": 1}):
        yield _attack(
            f"file: {str(runs)[:20]} runs promised",
            lambda run, o, runs=runs: gzip.compress(_head(runs) + _json([_line(run)])),
        )


def _odd_lines() -> Iterator[Attack]:
    for text in (
        b"\n",
        b"null\n",
        b"[]\n",
        b"3\n",
        b'"text"\n',
        b"{\n",
        b"\xff\xfe\n",
        b'{"a": NaN}\n',
        b'{"name": ' + b"9" * 5000 + b"}\n",
        b'{"name": "\\ud800"}\n',
        b"[" * DEEP + b"]" * DEEP + b"\n",
        b'{"results": ' + b'{"a": ' * DEEP + b"1" + b"}" * DEEP + b"}\n",
    ):
        yield _attack(f"line {text[:30]!r}", lambda run, o, text=text: _packed(text))
    names: tuple[object, ...] = (*(f"{i}{name}" for i, name in enumerate(NAMES)), "../../up", "/etc/passwd")
    names += ("", ".", "..", "a/b", "\x00", "x" * 10**6, None, 3, [], {"a": 1}, True)
    for name in names:
        yield _attack(f"name {str(name)[:30]!r}", lambda run, o, name=name: _changed(run, name=name))
    yield _attack("a name twice", lambda run, o: _packed(_json([_line(run)] * 2)))
    call = {"_target_": "os.system", "_args_": ["touch executed"]}
    for key, value in (
        ("status", []),
        ("status", {"status": ["finished"], "reason": {"a": 1}, "step": "x", "updated": 10**400}),
        ("status", {"status": "x" * 10**6, "host": 3}),
        ("config", "text"),
        ("config", {"encoding": call, "plugins": ["evil"], "seed": "${oc.env:MADE_UP}"}),
        ("config", {"encoding": {"name": "../evil"}, "seed": -(10**18), "context_length": 1e300}),
        ("results", None),
        ("results", {"schema_version": 1, "run": call, "records": [call]}),
        ("results", {"schema_version": 1, "run": [], "records": {}}),
    ):
        shown = f"{key}: {str(value)[:60]}"
        yield _attack(shown, lambda run, o, key=key, value=value: _changed(run, **{key: value}))
    for key, value in (
        ("nats", "x"),
        ("nats", 1e308),
        ("multiple", -1),
        ("multiple", 10**300),
        ("window", 10**30),
        ("targets", -3),
        ("protocol", "../../up"),
        ("per_document", {"nats": [1, "x"], "tokens": 3}),
        ("per_document", {"nats": [1e308] * 1000, "targets": [0] * 1000}),
        ("extend", [1]),
    ):
        shown = f"record's {key}: {str(value)[:40]}"
        yield _attack(shown, lambda run, o, key=key, value=value: _recorded(run, key, value))


def _changed(run: Path, **changes: object) -> bytes:
    return _packed(_json([{**_line(run), **changes}]))


def _recorded(run: Path, key: str, value: object) -> bytes:
    line = _line(run)
    line["results"]["records"] = [{**record, key: value} for record in line["results"]["records"]]
    return _packed(_json([line]))


def _links() -> Iterator[Attack]:
    def link(target: Callable[[Path, Outside], Path]) -> Callable[[Path, Outside], None]:
        return lambda run, o: (run.parent / f"theirs{SUFFIX}").symlink_to(target(run, o))

    def elsewhere(run: Path, o: Outside) -> Path:
        """A bundle that is good, with a secret in it."""
        path = o.folder / f"mine{SUFFIX}"
        path.write_bytes(_changed(run, name=IN_A_FILE, status={"status": IN_A_FILE}))
        return path

    def special(device: bool) -> Callable[[Path, Outside], None]:
        def change(run: Path, o: Outside) -> None:
            path = run.parent / f"theirs{SUFFIX}"
            if device:
                os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
            else:
                os.mkfifo(path)

        return change

    def huge(run: Path, o: Outside) -> None:
        with (run.parent / f"theirs{SUFFIX}").open("wb") as file:
            file.truncate(20 * 10**9)

    def folder(run: Path, o: Outside) -> None:
        shutil.copytree(run, run.parent / f"theirs{SUFFIX}", ignore=shutil.ignore_patterns("checkpoints"))

    yield Attack("bundle -> a bundle elsewhere", link(elsewhere))
    yield Attack("bundle -> a secret", link(lambda run, o: o.secret))
    yield Attack("bundle -> itself", link(lambda run, o: Path(f"theirs{SUFFIX}")))
    yield Attack("bundle -> nothing", link(lambda run, o: o.folder / "new"))
    yield Attack("bundle -> a folder", link(lambda run, o: o.folder))
    yield Attack("bundle: a pipe", special(device=False))
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        yield Attack("bundle: /dev/zero", special(device=True))
    yield Attack("bundle: 20 GB of nothing", huge)
    yield Attack("bundle: a folder with a run", folder)
