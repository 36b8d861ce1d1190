"""Odd surroundings: homes, limits, mounts, names, users, clocks; with those of environment_streams."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from faults.case import Case, Family, Seen
from faults.commands import TINY, environment
from faults.environment_streams import ascii_only, narrow, plain, streams
from faults.environment_world import POSENC, World, complaint, tried

ODD_NAMES = ("with spaces", "ünï-コード", "new\nline", "-rf", "a'b\"c$(d)", "[red]x[1,2]", "x" * 250)


def homes(world: World) -> Seen:
    """HOME, TMPDIR and the cache that are not there."""
    found = {}
    kinds: dict[str, dict[str, str | None]] = {
        "HOME not set": {"HOME": None},
        "HOME missing": {"HOME": "/nonexistent/home"},
        "HOME a file": {"HOME": "/etc/passwd"},
        "HOME empty": {"HOME": ""},
        "TMPDIR missing": {"TMPDIR": "/nonexistent/tmp"},
        "PATH empty": {"PATH": "/nonexistent"},
    }
    for i, (name, env) in enumerate(kinds.items()):
        found[f"{name}: train"] = complaint(world.sh(f"{world.train} runs_dir=homes seed={i}", env=env))
        found[f"{name}: compare"] = complaint(world.sh(f"{POSENC} compare --plot {i}.png", env=env))
        found[f"{name}: show"] = complaint(world.sh(f"{POSENC} show encoding=nope --out s{i}.png", env=env))
    env = {"HOME": "/etc/passwd", "POSENC_CACHE": None, "XDG_CACHE_HOME": None}
    ended = world.sh(f"{world.train} runs_dir=nocache", env=env)
    found["no place for the cache"] = complaint(ended, (1,), "POSENC_CACHE=FOLDER")
    return tried(found)


def read_only(world: World) -> Seen:
    """The runs on a mount that cannot be written: they can be read, and finished ones recognised."""
    mounted = (
        f"mount --bind {world.place}/runs {world.place}/runs && mount -o remount,ro,bind {world.place}/runs"
    )
    found = {}
    for words, codes, says in (
        (f"{POSENC} compare", (0,), "rope"),
        (f"{POSENC} runs", (0,), "finished"),
        (f"{POSENC} show run={world.run}", (0,), "rope"),
        (world.train, (0,), "already finished"),
        (f"{POSENC} eval run={world.run} eval.lengths=[1x,4x]", (1,), "Read-only file system"),
        (f"{world.train} seed=7", (2,), "runs_dir=runs"),
        (f"{world.train} seed=7 runs_dir=runs/new/folder", (2,), "runs_dir=runs/new/folder"),
    ):
        ended = world.sh(f"unshare -m bash -c {shlex.quote(f'{mounted} && {words}')}")
        found[words.removeprefix(POSENC)[-60:]] = complaint(ended, codes, says)
    return tried(found)


def limits(world: World) -> Seen:
    """Few files, little memory."""
    found = {"64 files: train": complaint(world.sh(f"ulimit -n 64; {world.train} runs_dir=few"))}
    many = world.place / "many" / "default"
    for i in range(150):
        shutil.copytree(
            world.run, many / f"{world.run.name}{i}", ignore=shutil.ignore_patterns("checkpoints")
        )
    found["64 files: compare"] = complaint(world.sh(f"ulimit -n 64; {POSENC} compare many"))
    found["64 files: runs"] = complaint(world.sh(f"ulimit -n 64; {POSENC} runs many"))
    sweep = f"{world.train} runs_dir=fewer -m seed=0,1"
    found["64 files: a sweep"] = complaint(world.sh(f"ulimit -n 64; {sweep}"))
    for megabytes in (200, 800, 2000):
        ended = world.sh(f"ulimit -v {megabytes * 1024}; {world.train} runs_dir=little{megabytes}")
        found[f"{megabytes} MB: train"] = complaint(ended, (0, 1))
    found["1 MB a file: train"] = complaint(
        world.sh(f"ulimit -f 100; {world.train} runs_dir=short"), (1,), "File too large"
    )
    return tried(found)


def clocks(world: World) -> Seen:
    """A clock that went back: what is on disk is from the future."""
    found = {}
    for state in ("running", "interrupted", "finished"):
        runs = world.place / f"future-{state}"
        shutil.copytree(world.place / "runs", runs)
        run = next((runs / "default").iterdir())
        status = json.loads((run / "status.json").read_text())
        later = {
            "status": state,
            "started": "2199-01-01T00:00:00+00:00",
            "updated": "2199-01-02T00:00:00+00:00",
        }
        (run / "status.json").write_text(json.dumps({**status, **later, "pid": 2**22 + 1}))
        for path in [run, *run.rglob("*")]:
            os.utime(path, (7e9, 7e9))
        ended = world.sh(f"{POSENC} runs {runs.name}")
        found[f"runs: {state}"] = complaint(ended) or ("an age below 0" if " -" in ended.out else None)
        found[f"compare: {state}"] = complaint(world.sh(f"{POSENC} compare {runs.name}"))
        found[f"train: {state}"] = complaint(world.sh(f"{world.train} runs_dir={runs.name}"))
    return tried(found)


def no_place(world: World) -> Seen:
    """The working folder is gone."""
    found = {}
    for words in (
        "compare",
        "runs",
        "encodings",
        "show encoding=nope",
        "data list",
        "--help",
        "doctor --json",
    ):
        codes = (0, 1, 2)
        ended = world.sh(f"mkdir gone; cd gone; rmdir ../gone; {POSENC} {words}")
        found[words] = complaint(ended, codes)
    ended = world.sh(f"mkdir gone; cd gone; rmdir ../gone; {world.train}")
    found["train"] = complaint(ended, (1, 2), "working folder")
    return tried(found)


def names(world: World) -> Seen:
    """Folders with odd names: to work in, for runs, for texts."""
    found = {}
    for i, name in enumerate(ODD_NAMES):
        folder = world.place / "odd" / name
        (folder / "in").mkdir(parents=True)
        shutil.copytree(world.place / "texts", folder / "texts")
        train = f"{POSENC} train {' '.join(TINY)} data.paths=../texts encoding=rope seed={i}"
        found[f"{name[:20]}: train"] = complaint(world.sh(train, cwd=folder / "in"))
        found[f"{name[:20]}: compare"] = complaint(
            world.sh(f"{POSENC} compare --plot x.svg", cwd=folder / "in")
        )
        runs = shlex.quote(str(folder / "in" / "runs"))
        found[f"{name[:20]}: runs DIR"] = complaint(world.sh(f"{POSENC} runs {runs}"), says="finished")
        found[f"{name[:20]}: again"] = complaint(world.sh(train, cwd=folder / "in"), says="already finished")
    return tried(found)


def another_user(world: World) -> Seen:
    """As nobody: what belongs to another can be read and not written."""
    if world.sh(f"su -s /bin/bash nobody -c {shlex.quote(f'{POSENC} --version')}").code:
        return Seen("not tried: this environment can be read by its owner alone", 0)
    found: dict[str, str | None] = {}
    whole = " ".join(f"{key}={shlex.quote(value)}" for key, value in environment(world.place).items())
    mine = world.place / "theirs"
    mine.mkdir()
    os.chown(mine, *(getattr(pwd.getpwnam("nobody"), key) for key in ("pw_uid", "pw_gid")))
    private = f"env POSENC_CACHE={mine}/cache HOME={mine}"
    for words, codes, says in (
        (f"{POSENC} compare", (0,), "rope"),
        (f"{POSENC} runs", (0,), "finished"),
        (world.train, (0,), "already finished"),
        (f"{POSENC} eval run={world.run} eval.lengths=[1x,4x]", (1,), "Permission denied"),
        (f"{world.train} seed=8", (2,), "runs_dir=runs"),
        (f"{private} {world.train} seed=8 runs_dir={mine}/runs", (0,), "1x is the crop line"),
        (f"{POSENC} compare --html page.html", (1, 2), "ermission denied"),
        (f"{POSENC} show encoding=nope --out x.png", (1, 2), "ermission denied"),
    ):
        line = f"cd {world.place} && env {whole} {words}"
        ended = world.sh(f"su -s /bin/bash nobody -c {shlex.quote(line)}")
        found[words.removeprefix(POSENC)[-60:]] = complaint(ended, codes, says)
    return tried(found)


def cases(place: Path, quick: bool) -> Iterator[Case]:
    """Every surrounding; those that need root or a mount where there are such."""
    world = World(place)
    root = os.geteuid() == 0
    every: list[tuple[str, Callable[[World], Seen], bool, bool]] = [
        ("20 and 80 columns", narrow, True, True),
        ("colour", plain, True, True),
        ("no Unicode", ascii_only, False, True),
        ("stdout, stdin, stderr", streams, True, True),
        ("HOME, TMPDIR, PATH", homes, False, True),
        ("a read-only mount", read_only, True, root and _may_mount()),
        ("files, memory, file size", limits, False, True),
        ("a clock that went back", clocks, False, True),
        ("working folder deleted", no_place, True, True),
        ("names of folders", names, False, True),
        ("another user", another_user, True, root and shutil.which("su") is not None),
    ]
    for name, function, fast, possible in every:
        if possible and (fast or not quick):
            yield Case(name, "works, or says why in a line", partial(function, world))


def _may_mount() -> bool:
    command = ["unshare", "-m", "mount", "--bind", "/tmp", "/tmp"]
    return shutil.which("unshare") is not None and not subprocess.run(command, capture_output=True).returncode


FAMILY = Family("environment", cases)
