"""Stopped and continued = not stopped, bit for bit: every encoding, in one process and by the command."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from faults.case import Case, Family, Seen
from faults.commands import TINY, digests, finish, posenc, start, write_corpus

LENGTH, STEPS = 16, 12
STOPS = {"step 1": (1,), "half-way": (STEPS // 2,), "last-1": (STEPS - 1,), "3 stops": (2, 5, 4)}
LONG = ("train.tokens=76800", "train.checkpoint_seconds=1e9")  # 600 updates


class StopAfter:
    """Asks for a stop after so many updates of this start; never for None."""

    def __init__(self, updates: int | None) -> None:
        self.left = updates

    def requested(self) -> bool:
        if self.left is not None:
            self.left -= 1
        return self.left == 0

    def at_once(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def in_this_process(place: Path, quick: bool) -> Seen:
    """Each encoding of conf/encoding x stop point, sha256 of weights and of the optimizer's moments."""
    from posenc.core.paths import conf_dir

    names = sorted(path.stem for path in (conf_dir() / "encoding").glob("*.yaml"))
    names = names[::8] if quick else names
    trainer, tried, differ = Trainer(place), 0, []
    for name in names:
        whole = trainer.trained(name, "whole", ())
        for stop, updates in STOPS.items():
            tried += 1
            if trainer.trained(name, stop, updates) != whole:
                differ.append(f"{name}, {stop}")
    equal = tried - len(differ)
    text = f"{equal} of {tried} equal: {len(names)} encodings x {len(STOPS)} stop points"
    return Seen(text, tried, len(differ), tuple(differ))


class Trainer:
    """The training loop on a tiny model; every start has another model than the one it continues."""

    def __init__(self, place: Path) -> None:
        os.environ.update({"POSENC_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"})
        import torch

        from posenc.data import prepare

        torch.set_num_threads(1)
        split = {"validation": 0.1, "test": 0.2}
        paths = str(write_corpus(place / "texts", 20))
        data = {"name": "files", "source": "files", "paths": paths, "text_field": "text", "split": split}
        self.place, self.store = place, prepare(data, {"name": "bytes"})

    def trained(self, encoding: str, stop: str, updates: tuple[int, ...]) -> list[str]:
        """sha256 of the last checkpoint's tensors, of a run that stopped after so many updates each time."""
        folder = self.place / encoding / stop.replace(" ", "-")
        for start_number, after in enumerate((*updates, None)):
            ended = self._start(encoding, folder, seed=start_number, after=after)
            expected = "interrupted" if after is not None else "finished"
            if ended.status != expected:
                return [f"{ended.status} instead of {expected}"]
        newest = folder / f"step-{STEPS:08d}"
        names = ("model.safetensors", "optimizer.safetensors")
        return [hashlib.sha256((newest / name).read_bytes()).hexdigest() for name in names]

    def _start(self, encoding: str, folder: Path, *, seed: int, after: int | None):  # type: ignore[no-untyped-def]
        import torch

        from posenc.data import WindowSampler
        from posenc.encodings import build_encoding
        from posenc.model.decoder import Decoder, ModelShape, initialize
        from posenc.training.loop import train
        from posenc.training.optimizer import Optimization

        sizes = {"d_model": 32, "n_heads": 2, "head_dim": 16, "n_layers": 2, "train_length": LENGTH}
        shape = ModelShape("nano", d_model=32, n_layers=2, n_heads=2, mlp_ratio=4)
        model = Decoder(shape, self.store.vocab_size, build_encoding(encoding, **sizes))
        initialize(model, seed)  # beyond the first start everything has to come from the checkpoint
        schedule = {"warmup_fraction": 0.25, "final_lr_fraction": 0.0}
        decay = {"weight_decay": 0.1, "grad_clip": 1.0, **schedule}
        return train(
            model,
            WindowSampler(self.store, LENGTH, 0),
            Optimization(lr=2e-3, betas=(0.9, 0.95), eps=1e-8, **decay),
            steps=STEPS,
            batch_windows=4,
            context_length=LENGTH,
            seed=0,
            precision="fp32",
            device=torch.device("cpu"),
            checkpoints=folder,
            checkpoint_seconds=1e9,
            log_every=5,
            provenance={},
            files={},
            on_resume=lambda step: None,
            on_log=lambda progress: None,
            stop=StopAfter(after),
        )


def by_signals(place: Path, signals: tuple[signal.Signals, ...]) -> Seen:
    """One run stopped by each signal in turn, somewhere; then to the end."""
    words = ("train", *TINY, f"data.paths={write_corpus(place / 'texts', 20)}", *LONG)
    env = {"POSENC_CACHE": str(place / "cache")}
    posenc(place, *words, "runs_dir=whole", env=env)
    wrong, stops = [], []
    for number in signals:
        before = steps_of(place)
        process, until = start(place, *words, env=env), time.monotonic() + 120
        while steps_of(place) <= before and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(number)
        ended = finish(process)
        stops.append(str(max(map(step_of, place.glob("runs/default/*/checkpoints/step-*")), default=0)))
        if ended.code != (130 if number == signal.SIGINT else 143):
            wrong.append(f"{number.name}: exit {ended.code}: {ended.err[-300:]}")
    last = posenc(place, *words, env=env)
    found, whole = (
        digests(max((place / runs).glob("default/*/checkpoints/step-*")), "*.safetensors")
        for runs in ("runs", "whole")
    )
    if last.code or found != whole:
        wrong.append(f"exit {last.code}, {'the same' if found == whole else 'other'} weights")
    text = f"stopped at {', '.join(stops)} of 600; {'other' if found != whole else 'the same'} weights"
    return Seen(text, len(signals) + 1, len(wrong), tuple(wrong))


def steps_of(place: Path) -> int:
    """Lines that are logged."""
    return sum(len(path.read_text().splitlines()) for path in place.glob("runs/default/*/metrics.jsonl"))


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def other_threads(place: Path) -> Seen:
    """Continued with another number of threads: a warning names it."""
    words = ("train", *TINY, f"data.paths={write_corpus(place / 'texts', 20)}", *LONG)
    env = {"POSENC_CACHE": str(place / "cache")}
    process, until = start(place, *words, env=env), time.monotonic() + 120
    while not steps_of(place) and time.monotonic() < until:
        time.sleep(0.01)
    process.terminate()
    finish(process)
    ended = posenc(place, *words, env={**env, "OMP_NUM_THREADS": "2"})
    told = "threads 1 -> 2" in ended.err
    return Seen(
        "named" if told else "not named", failed=int(not told), details=(ended.err[-300:],) * (not told)
    )


def cases(place: Path, quick: bool) -> Iterator[Case]:
    """Each with a folder of its own."""

    def own(name: str) -> Path:
        folder = place / name
        folder.mkdir()
        return folder

    three = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    same = "the weights and moments of a run that was not stopped"
    yield Case("every encoding", same, lambda: in_this_process(own("loop"), quick))
    yield Case("signals", same, lambda: by_signals(own("signals"), three[:1] if quick else three))
    yield Case("other threads", "a warning names it", lambda: other_threads(own("threads")))


FAMILY = Family("resume", cases)
