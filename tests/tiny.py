"""A corpus and a model small enough for a run of a second, and ways to call posenc on them."""

import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
MODEL = ("model.d_model=32", "model.n_layers=2", "model.n_heads=2")
STEPS = 40
TINY = (
    *MODEL,
    "data=files",
    "context_length=16",
    f"train.tokens={STEPS * 128}",
    "train.batch_tokens=128",
    "train.precision=fp32",
    "train.log_every=10",
    "device=cpu",
    "eval.lengths=[1x,2x,4x]",
    "eval.max_targets=400",
)


def keywords(corpus):
    """TINY and a corpus as keyword arguments: mappings, dotted keys, numbers, lists."""
    found = {"data.paths": corpus}
    for key, _, value in (word.partition("=") for word in TINY):
        *group, name = key.split(".")
        (found.setdefault(group[0], {}) if group else found)[name] = yaml.safe_load(value)
    return found


PLUGIN = '''
"""A bias of one's own."""
import torch
from posenc.encodings.base import Encoding, Shape


class Mine(Encoding):
    """By the logarithm of the distance."""

    name = "mine"
    paper = past_training = "none"
    formula = "score $ _ij"
    acts_on = "bias"
    learned = "0"
    relative = penalty = True

    def __init__(self, shape: Shape, *, strength: float) -> None:
        super().__init__(shape)
        self.strength = strength

    def distance_bias(self, r, layer):
        return -self.strength * torch.log1p(r.float()).expand(self.shape.n_heads, -1)
'''


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def write(folder, contents):
    """Files by their names below the folder, of text or of bytes."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def write_corpus(folder, documents=60):
    """Files of 2 to 4 kB of words, the same on every machine."""
    chance = random.Random(0)
    letters = "etaoinshrdlu"
    words = ["".join(chance.choice(letters) for _ in range(chance.randint(2, 8))) for _ in range(150)]
    texts = dict.fromkeys((f"{i:03d}.txt" for i in range(documents)), "")
    for i, name in enumerate(texts):
        while len(texts[name]) < 2000 + 2000 * i // documents:
            texts[name] += chance.choice(words) + (" " if chance.random() < 0.9 else ".\n")
    return write(folder, texts)


def environment(**more):
    """Of a process: one thread, no terminal, nothing of the user's that changes what is printed."""
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "HYDRA_FULL_ERROR", "POSENC_SWEEP")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **more}


def start_python(*arguments, cwd=ROOT, **env):
    """A script, `-c CODE` or `-m MODULE`, as a process of its own."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, cwd=cwd, env=environment(**env), text=True, **streams)


def start(*arguments, cwd, script=None, module="posenc", **env):
    first = ["-m", module] if script is None else [str(ROOT / script)]
    return start_python(*first, *arguments, cwd=cwd, **env)


def finished(process, seconds=600):
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {seconds} s\n{out}\n{err}") from None
    return Result(process.returncode, out, err)


def python(*arguments, **how):
    return finished(start_python(*arguments, **how))


def spawn(*arguments, **how):
    return finished(start(*arguments, **how))
