"""Run directories from somebody else: nothing in them is executed, nothing outside is read or written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from faults.case import Case, Family, Seen
from faults.commands import TINY, Ended, digests, posenc, write_corpus
from faults.hostile_attacks import IN_A_FILE, SECRETS, Attack, Outside, attacks_by_content
from faults.hostile_bundles import COMMANDS, attacks_by_bundles, write_bundle
from faults.hostile_files import attacks_by_files
from faults.hostile_names import seen_in_formats, write_runs
from faults.in_fork import forked

SECONDS = 60  # for one command; a pipe that is opened hangs for ever
OURS = {"runs", "evil.py", "page.html", "plot.svg"}
EVERY = 5  # of the attacks: a quick round
BUNDLES = "bundles of results"
AT_ONCE = 15  # seconds in which a bomb is refused; what it asks for takes longer


def _kind(attack: Attack) -> str:
    name = attack.name
    if name.startswith("bundle"):
        return BUNDLES
    if " -> " in name:
        return "links out of it"
    if "pickle" in name or "torch.save" in name:
        return "pickles"
    if name.startswith("config.yaml {"):
        return "settings that name code or secrets"
    if name.startswith("config.yaml holds"):
        return "YAML that is more than data"
    return "sizes, pipes, devices"


class World:
    """A good run, and what lies outside it; `attacked` puts a changed copy in its place."""

    def __init__(self, place: Path) -> None:
        self.place, self.work = place, place / "work"
        for folder in (self.work, place / "home"):
            folder.mkdir()
        write_corpus(place / "texts")
        self.train = ["train", *TINY, f"data.paths={place}/texts", "encoding=rope"]
        ended = posenc(self.work, *self.train, env={"POSENC_CACHE": str(place / "cache")})
        assert ended.code == 0, ended.err
        (self.work / "runs").rename(place / "good")
        self.name = next((place / "good" / "default").iterdir()).name
        self.count = 0

    def attacked(self, attack: Attack) -> tuple[Path, Outside]:
        """The changed run below work/runs, and a fresh outside."""
        self.count += 1
        outside = Outside.make(self.place / "outside" / str(self.count))
        shutil.rmtree(self.work)
        self.work.mkdir()
        shutil.copytree(self.place / "good", self.work / "runs")
        shutil.copy(outside.mark.parent / "evil.py", self.work / "evil.py")
        run = self.work / "runs" / "default" / self.name
        attack.change(run, outside)
        return run, outside

    def commands(self, run: Path, turn: int) -> list[list[str]]:
        """What is done to a run directory: two that write to it, and one of the others in turn."""
        given = f"run={run.relative_to(self.work)}"
        others = [
            ["compare"],
            ["runs"],
            ["show", given],
            ["runs", "--format", "json", "--where", "encoding=rope"],
            ["compare", "--html", "page.html", "--format", "json"],
            [*self.train, "--dry-run"],
            ["compare", "--plot", "plot.svg", "--plot-kind", "training"],
            [*self.train, "tracking=tensorboard"],
        ]
        return [["eval", given, "eval.lengths=[1x,4x]"], self.train, others[turn % len(others)]]


def broken_promises(world: World, attack: Attack, turn: int) -> tuple[int, list[str]]:
    """How many commands ran, and what of it must not be."""
    found, bundled = [], _kind(attack) == BUNDLES
    commands = len(COMMANDS) if bundled else 3
    for i in range(commands):
        run, outside = world.attacked(attack)
        command = list(COMMANDS[i]) if bundled else world.commands(run, turn)[i]
        before = digests(outside.mark.parent)
        env = {**SECRETS, "PYTHONPATH": str(outside.mark.parent), "HOME": str(world.place / "home")}
        ended = forked(world.work, command, env=env, seconds=SECONDS, cache=world.place)
        wrong = _wrong(world, outside, before, ended.code, ended.out + ended.err)
        if bundled and not wrong:
            wrong = _of_bundle(attack, command, ended)
        if wrong:
            said = "".join((ended.out + ended.err).strip().splitlines()[-1:])[:300]
            found.append(f"{attack.name}; posenc {command[0]} {command[-1][:30]}: {wrong}; {said}")
    return commands, found


def _wrong(world: World, outside: Outside, before: dict[str, str], code: int, text: str) -> str:
    if outside.mark.exists():
        return f"EXECUTED {outside.mark.read_text()}"
    after = digests(outside.mark.parent)
    if after != before:
        return f"WROTE OUTSIDE {sorted(set(after.items()) ^ set(before.items()))[:3]}"
    if odd := sorted({p.name for p in world.work.iterdir()} - OURS):
        return f"WROTE {odd}"
    for secret in (*SECRETS.values(), IN_A_FILE):
        if secret in text:
            return "A SECRET PRINTED"
        for path in world.work.rglob("*"):
            if path.is_symlink() or not path.is_file() or path.stat().st_size > 10**8:
                continue
            if secret.encode() in path.read_bytes():
                return f"A SECRET IN {path}"
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if "Traceback" in text or "fault of posenc" in text:
        return "not said in posenc's words"
    return ""


def _of_bundle(attack: Attack, command: list[str], ended: Ended) -> str:
    """A bomb costs seconds, and what lies beside a bad bundle is still read."""
    if "bomb" in attack.name and ended.seconds > AT_ONCE:
        return f"took {ended.seconds:.0f} s"
    if command[0] == "compare" and (ended.code or "rope" not in ended.out):
        return f"exit code {ended.code}, or without the good run"
    return ""


def cases(place: Path, quick: bool) -> Iterator[Case]:
    """A case for each kind of attack, each with all the commands that read a run directory."""
    world = World(place)
    kinds: dict[str, list[Attack]] = {}
    for attack in [*attacks_by_content(), *attacks_by_files(), *attacks_by_bundles()]:
        kinds.setdefault(_kind(attack), []).append(attack)
    for kind, some in kinds.items():
        chosen = some[::EVERY] if quick else some

        def run(some: list[Attack] = chosen) -> Seen:
            tried, wrong = 0, []
            for i, attack in enumerate(some):
                count, found = broken_promises(world, attack, i)
                tried += count
                wrong += found
            return Seen(f"{len(some)} run directories", tried, len(wrong), tuple(wrong))

        yield Case(kind, "nothing executed, read or written outside; said in posenc's words", run)
    yield Case("names that mean something", "text in every format", lambda: _names(world))
    yield Case("names in a bundle", "text in every format", lambda: _names(world, bundle=True))
    yield Case("keys in the environment", "in no file, on no screen", lambda: _tracked(world))


def _names(world: World, bundle: bool = False) -> Seen:
    work = world.place / ("names-bundle" if bundle else "names")
    (write_bundle if bundle else write_runs)(world.place / "good" / "default" / world.name, work / "runs")
    return seen_in_formats(work, lambda words: forked(work, words, seconds=120, cache=world.place))


def _tracked(world: World) -> Seen:
    """A training with keys in its environment, tracked by W&B without a network, and all that it wrote."""
    work = world.place / "tracked"
    work.mkdir()
    words = [*world.train, "tracking=wandb", "tracking.mode=offline"]
    env = {**SECRETS, "POSENC_CACHE": str(world.place / "cache"), "HOME": str(world.place / "home")}
    ended = posenc(work, *words, env=env)
    files = [p for folder in (work, world.place / "cache", world.place / "home") for p in folder.rglob("*")]
    files = [path for path in files if path.is_file()]
    found = [
        f"{name} in {path}"
        for path in files
        for name, key in SECRETS.items()
        if key.encode() in path.read_bytes()
    ]
    found += [f"{name} was printed" for name, key in SECRETS.items() if key in ended.out + ended.err]
    found += [] if ended.code == 0 else [f"exit code {ended.code}: {ended.err[-300:]}"]
    return Seen(f"{len(files)} files searched for {len(SECRETS)} keys", len(files), len(found), tuple(found))


FAMILY = Family("hostile", cases)
