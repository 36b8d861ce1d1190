"""SIGTERM, SIGINT and SIGUSR1 in every phase of every command: how long until it ends, and what is left."""

from __future__ import annotations

import itertools
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from faults.case import Case, Family, Seen
from faults.commands import TINY, Ended, digests, environment, finish, posenc, write_corpus

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGUSR1: 143}
LIMIT = 60.0  # seconds from the signal to the end of the process: a hang, or more than a cluster grants
# posenc with a file touched when a function is entered for the nth time: where the phase begins.
PROGRAM = """
import importlib, pathlib, sys
where, marker, count = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
module, _, names = where.partition(":")
owner = importlib.import_module(module)
*path, name = names.split(".")
for part in path:
    owner = getattr(owner, part)
real = getattr(owner, name)
def entered(*given, **named):
    global count
    count -= 1
    if count == 0:
        marker.touch()
    return real(*given, **named)
setattr(owner, name, entered)
sys.argv[:] = ["posenc", *sys.argv[4:]]
from posenc.cli import main
main()
"""
TRAIN = ("train", *TINY, "encoding=rope", "data.paths=../texts")
LARGE = ("train", *TINY, "encoding=rope", "data.paths=../large")
LONG = (
    "train",
    *TINY,
    "encoding=t5",
    "data.paths=../long",
    "eval.max_targets=4000",
    "eval.lengths=[1x,256x]",
)
BENCH = [word for word in TRAIN[1:] if not word.startswith("eval.")]
PROBES = ("eval.protocols=[positions,induction,far-copy]", "eval.lengths=[1x,16x]")


@dataclass(frozen=True)
class Phase:
    """Where a signal is to strike: `count` times into a function, or `seconds` after the start."""

    name: str
    words: tuple[str, ...]
    where: str | None
    count: int = 1
    within: float = 0.3  # seconds after that, at random
    cold: bool = False  # with an empty token cache


PHASES = (
    Phase("start-up", TRAIN, None, within=2.0),
    Phase(
        "reading",
        ("train", *TINY, "data.paths=../large"),
        "posenc.data.corpus_stats:read_documents",
        cold=True,
    ),
    Phase(
        "tokenising",
        LARGE,
        "posenc.data.tokenizers:ByteTokenizer.encode_all",
        cold=True,
    ),
    Phase(
        "training a tokenizer",
        (*LARGE, "tokenizer=bpe", "tokenizer.vocab_size=2000"),
        "posenc.data.tokenizers:_train",
        within=3.0,
        cold=True,
    ),
    Phase("the dry run", (*TRAIN, "--dry-run"), "posenc.cli.dry_run:print_dry_run"),
    Phase(
        "compiling", (*TRAIN, "train.compile=true"), "posenc.training.loop:gradients", within=5.0, cold=True
    ),
    Phase("training", TRAIN, "posenc.training.loop:update", count=5, within=0.05),
    Phase("evaluation, a long cell", LONG, "posenc.evaluation.subject:_forward", count=3, within=2.0),
    Phase("probes", (*TRAIN, *PROBES), "posenc.evaluation.subject:window_losses", count=2, within=0.1),
    Phase("putting together", TRAIN, "posenc.running.run_directory:assemble_results", within=0.05),
    Phase("drawing", (*TRAIN, "tracking=tensorboard"), "posenc.tracking.base:Pictures.png"),
    Phase("the table", TRAIN, "posenc.running.one_job:show_run"),
    Phase("bench", ("bench", *BENCH, "--repeats", "1"), "posenc.cli.bench:_answer", within=3.0),
    Phase("compare", ("compare", "../done/runs"), "posenc.cli.compare:run_compare"),
    Phase("check", ("check", "encoding=rope"), "posenc.cli.check:run_check", within=3.0),
)


def cases(place: Path, quick: bool) -> Iterator[Case]:
    """A case a phase, and signals in the middle of a save."""
    write_corpus(place / "texts")
    write_corpus(place / "large", documents=1000 if quick else 4000)
    long = place / "long"
    long.mkdir()
    texts = [path.read_text() for path in sorted((place / "texts").iterdir())]
    for number in range(len(texts)):
        (long / f"{number}.txt").write_text("".join((texts * 2)[number : number + 5]))
    done = place / "done"
    done.mkdir()
    posenc(done, *TRAIN)
    numbers = itertools.cycle(CODES)
    for phase in PHASES:
        chosen = [next(numbers)] if quick else list(CODES)
        yield Case(
            f"a signal in {phase.name}",
            f"gone in {LIMIT:.0f} s, 143 or 130, says how to go on; again: as undisturbed",
            lambda phase=phase, chosen=chosen: _struck(place, phase, chosen),
        )
    yield Case(
        "two signals in a save",
        "the save is whole; again: as undisturbed",
        lambda: _in_a_save(place, 4 if quick else 20),
    )


def _struck(place: Path, phase: Phase, numbers: list[signal.Signals]) -> Seen:
    slug = re.sub(r"\W+", "-", phase.name)
    whole = place / f"{slug}-whole"
    whole.mkdir()
    undisturbed = posenc(whole, *phase.words)
    if undisturbed.code:
        return Seen(f"exit {undisturbed.code} undisturbed", failed=1, details=(undisturbed.err[-400:],))
    seconds, codes, wrong = [], set(), []
    for number in numbers:
        own = place / f"{slug}-{number.name}"
        own.mkdir()
        env = {"POSENC_CACHE": str(own / "cache")} if phase.cold else {"POSENC_CACHE": str(whole / "cache")}
        ended = strike(own, phase, [number], random.Random(f"{slug}{number}"), env)
        seconds.append(ended.seconds)
        codes.add(ended.code)
        trouble = _trouble(ended, phase, number)
        again = posenc(own, *phase.words, env=env)
        if again.code or (phase.words[0] == "train" and results(own) != results(whole)):
            trouble.append(f"the same command again: exit {again.code}, {again.err[-300:]}")
        if trouble:
            wrong.append(f"{number.name}: {'; '.join(trouble)}: {ended.err[-300:]}")
    text = f"gone after {max(seconds):.1f} s at most, exit {', '.join(map(str, sorted(codes)))}"
    return Seen(text, len(numbers), len(wrong), tuple(wrong))


def _trouble(ended: Ended, phase: Phase, number: signal.Signals) -> list[str]:
    """What was not as promised. What ended by itself before the signal had an effect may be done."""
    killed = ended.code == -number and phase.where is None  # Python itself was not up yet
    found = []
    if ended.seconds > LIMIT:
        found.append(f"gone after {ended.seconds:.1f} s only")
    if ended.code not in (CODES[number], 0) and not killed:
        found.append(f"exit {ended.code}")
    if not killed:
        if "Traceback" in ended.err:
            found.append("a traceback")
        if ended.code and ended.err.count("same command") != 1:
            found.append("does not say how to go on")
    return found


def strike(
    place: Path,
    phase: Phase,
    numbers: list[signal.Signals],
    chance: random.Random,
    env: dict[str, str],
    apart: float = 0.05,
) -> Ended:
    """Run the phase's command and send it `numbers`; the seconds are those from the first of them on."""
    marker = place / "marker"
    marker.unlink(missing_ok=True)
    command = [sys.executable, "-m", "posenc", *phase.words]
    if phase.where is not None:
        command = [sys.executable, "-c", PROGRAM, phase.where, str(marker), str(phase.count), *phase.words]
    process = subprocess.Popen(
        command,
        cwd=place,
        env=environment(place, **env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    last = time.monotonic() + 300
    while phase.where is not None and process.poll() is None and time.monotonic() < last:
        if marker.exists():
            break
        time.sleep(0.005)
    time.sleep(chance.random() * phase.within)
    began = time.monotonic()
    for number in numbers:
        process.send_signal(number)
        time.sleep(chance.random() * apart if len(numbers) > 1 else 0)
    ended = finish(process)
    return Ended(ended.code, ended.out, ended.err, time.monotonic() - began)


def results(place: Path) -> dict[str, object]:
    """Weights, moments and records of every run below `place`, without what a clock says."""
    found: dict[str, object] = {}
    for run in place.glob("runs/*/*"):
        last = max(run.glob("checkpoints/step-*"), default=run)
        found |= {f"{run.name}/{name}": digest for name, digest in digests(last, "*.safetensors").items()}
        for path in run.glob("records/*.json"):
            found[f"{run.name}/{path.name}"] = {**json.loads(path.read_text()), "seconds": 0}
    return found


def _in_a_save(place: Path, attempts: int) -> Seen:
    words = (*TRAIN, "train.checkpoint_seconds=0")
    phase = Phase("a save", words, "posenc.training.loop:save_checkpoint")
    whole = place / "save-whole"
    whole.mkdir()
    posenc(whole, *words)
    wrong, most, chance = [], 0.0, random.Random(0)
    for attempt in range(attempts):
        own = place / f"save-{attempt}"
        own.mkdir()
        env = {"POSENC_CACHE": str(whole / "cache")}
        inside = Phase(phase.name, words, phase.where, count=chance.randint(1, 30), within=0.02)
        numbers = chance.choices(list(CODES), k=2)
        ended = strike(own, inside, numbers, chance, env, apart=0.02)
        most = max(most, ended.seconds)
        trouble = _trouble(ended, inside, numbers[0])
        if list(own.glob("runs/*/*/checkpoints/.tmp*")):
            trouble.append("something half written is left")
        again = posenc(own, *words, env=env)
        if again.code or results(own) != results(whole):
            trouble.append(f"the same command again: exit {again.code}, {again.err[-300:]}")
        if trouble:
            names = " ".join(number.name for number in numbers)
            wrong.append(f"{names}: {'; '.join(trouble)}: {ended.err[-300:]}")
    return Seen(f"gone after {most:.1f} s at most", attempts, len(wrong), tuple(wrong))


FAMILY = Family("signals", cases)
