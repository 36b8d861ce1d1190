"""Bits flipped and files cut in checkpoints and token caches: none may go unnoticed, and the run goes on."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.case import Case, Family, Seen
from faults.commands import TINY, Ended, digests, posenc, write_corpus

RUN = ("train.checkpoint_seconds=0", "tokenizer=bpe", "tokenizer.vocab_size=270", "train.tokens=640")


class Made:
    """A finished run with two checkpoints, and the token cache it was made from."""

    def __init__(self, place: Path, quick: bool) -> None:
        self.place, self.quick = place, quick
        self.words = ("train", *TINY, f"data.paths={write_corpus(place / 'texts', 20)}", *RUN)
        self.env = {"POSENC_CACHE": str(place / "cache")}
        self.first = posenc(place, *self.words, env=self.env)
        (self.run,) = (place / "runs" / "default").iterdir()
        self.newest, self.before = sorted((self.run / "checkpoints").iterdir(), reverse=True)
        self.weights = digests(self.newest, "*.safetensors")
        shutil.copytree(place / "runs", place / "kept")

    def again(self) -> Ended:
        """The same command, as if the process had died before it wrote that it is finished."""
        (self.run / "status.json").write_text('{"status": "running"}')
        return posenc(self.place, *self.words, env=self.env)

    def restore(self) -> None:
        shutil.rmtree(self.place / "runs")
        shutil.copytree(self.place / "kept", self.place / "runs")


def damages(path: Path, chance: random.Random, flips: int, cuts: int) -> Iterator[str]:
    """One damage after the other done to a file, each told; the file is whole again at the end."""
    whole = path.read_bytes()
    try:
        for _ in range(flips):
            bit = chance.randrange(8 * len(whole))
            broken = bytearray(whole)
            broken[bit // 8] ^= 1 << bit % 8
            path.write_bytes(broken)
            yield f"{path.name}: bit {bit} flipped"
        for size in [0, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(cuts))]:
            path.write_bytes(whole[:size])
            yield f"{path.name}: cut to {size} of {len(whole)} bytes"
        path.write_bytes(whole + b"\0")
        yield f"{path.name}: a byte longer"
        path.unlink()
        yield f"{path.name}: gone"
    finally:
        path.write_bytes(whole)


def noticed(folder: Path, believed: Callable[[], bool], flips: int, cuts: int) -> Seen:
    """Damage every file of a folder; `believed` says whether what is there is taken for whole."""
    chance, tried, unseen = random.Random(0), 0, []
    if not believed():
        return Seen("it is not believed as it is", failed=1)
    for path in sorted(folder.iterdir()):
        for what in damages(path, chance, flips, cuts):
            tried += 1
            if believed():
                unseen.append(what)
    if not believed():
        unseen.append("whole again, and not believed")
    return Seen(f"undetected {len(unseen)} of {tried}", tried, len(unseen), tuple(unseen[:20]))


def checkpoints(made: Made) -> Seen:
    from posenc.training.checkpoint import newest_checkpoint

    folder = made.run / "checkpoints"

    def believed() -> bool:
        found = newest_checkpoint(folder)
        return found is not None and found.path == made.newest

    with quiet():
        return noticed(made.newest, believed, 8 if made.quick else 40, 3 if made.quick else 15)


def token_cache(made: Made) -> Seen:
    from posenc.data.token_cache import open_entry

    entries = [path for path in (made.place / "cache" / "tokens").iterdir() if path.is_dir()]
    flips, cuts = (8, 3) if made.quick else (40, 15)
    seen = [noticed(path, lambda path=path: open_entry(path) is not None, flips, cuts) for path in entries]
    tried, failed = sum(s.tried for s in seen), sum(s.failed for s in seen)
    details = tuple(detail for s in seen for detail in s.details)
    return Seen(f"undetected {failed} of {tried} in {len(entries)} entries", tried, failed, details)


def tokenizers(made: Made) -> Seen:
    from posenc.core.atomic_files import read_sealed

    (path,) = (made.place / "cache" / "tokenizers").glob("*.json")
    tried, unseen = 0, []
    for what in damages(path, random.Random(0), 8 if made.quick else 40, 3):
        tried += 1
        if read_sealed(path) is not None:
            unseen.append(what)
    return Seen(f"undetected {len(unseen)} of {tried}", tried, len(unseen), tuple(unseen))


def the_command_falls_back(made: Made) -> Seen:
    """Each file of the newest checkpoint once, by the real command."""
    failed = []
    names = sorted(path.name for path in made.newest.iterdir())
    for name in names[:2] if made.quick else names:
        broken = bytearray((made.newest / name).read_bytes())
        broken[len(broken) // 2] ^= 1
        (made.newest / name).write_bytes(broken)
        ended = made.again()
        told = f"damaged checkpoint skipped: {made.newest.name} (" in ended.err
        lost = "128 tokens of training are lost" in ended.err
        if ended.code or not told or not lost or digests(made.newest, "*.safetensors") != made.weights:
            failed.append(f"{name}: exit {ended.code}: {ended.err[-400:]}")
        made.restore()
    tried = len(names[:2] if made.quick else names)
    return Seen(
        f"{tried - len(failed)} of {tried} named and trained again", tried, len(failed), tuple(failed)
    )


def all_damaged(made: Made) -> Seen:
    """Nothing to fall back on: it stops, and leaves everything as it is."""
    for path in (made.newest, made.before):
        with (path / "model.safetensors").open("r+b") as file:
            file.truncate(1000)
    before = digests(made.run / "checkpoints")
    ended = made.again()
    good = ended.code == 1 and made.newest.name in ended.err and made.before.name in ended.err
    good &= digests(made.run / "checkpoints") == before and "Traceback" not in ended.err
    made.restore()
    return Seen(f"exit {ended.code}", failed=int(not good), details=() if good else (ended.err[-600:],))


def the_cache_is_built_again(made: Made) -> Seen:
    """A damaged entry and a damaged tokenizer, by the real command: the same bytes, the same weights."""
    tokens = made.place / "cache"
    before = {name: digest for name, digest in digests(tokens).items() if not name.endswith(".lock")}
    for path in [*tokens.glob("tokens/*/tokens.bin"), *tokens.glob("tokenizers/*.json")]:
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(b"\xff\x00")
    shutil.rmtree(made.run)
    ended = posenc(made.place, *made.words, env=made.env)
    after = {name: digest for name, digest in digests(tokens).items() if not name.endswith(".lock")}
    same = after == before and digests(made.newest, "*.safetensors") == made.weights
    good = ended.code == 0 and same and "damaged" in ended.err
    made.restore()
    text = f"exit {ended.code}, {'the same' if same else 'other'} bytes and weights"
    return Seen(text, failed=int(not good), details=() if good else (ended.err[-600:],))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the hundreds of warnings."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def cases(place: Path, quick: bool) -> Iterator[Case]:
    """One run for all of them; every damage is undone."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    made = Made(place, quick)
    back = "says which and how many tokens are lost; ends with the same weights"
    yield Case("checkpoint files", "undetected 0", lambda: checkpoints(made))
    yield Case("token cache files", "undetected 0", lambda: token_cache(made))
    yield Case("trained tokenizer", "undetected 0", lambda: tokenizers(made))
    yield Case("newest checkpoint, the command", back, lambda: the_command_falls_back(made))
    yield Case("all checkpoints, the command", "exit 1, nothing touched", lambda: all_damaged(made))
    yield Case("token cache, the command", "built again, the same", lambda: the_cache_is_built_again(made))


FAMILY = Family("damage", cases)
