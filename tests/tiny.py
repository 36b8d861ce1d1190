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
    """Return TINY and a corpus as keyword arguments: mappings, dotted keys, numbers, lists."""
    arguments = {"data.paths": corpus}
    for override in TINY:
        key, _, text = override.partition("=")
        value = yaml.safe_load(text)
        group, dot, name = key.partition(".")
        if dot:
            arguments.setdefault(group, {})[name] = value
        else:
            arguments[key] = value
    return arguments


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
    """Write files by their names below the folder, of text or of bytes."""
    for name, content in contents.items():
        data = content.encode() if isinstance(content, str) else content
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def random_word(chance):
    letters = [chance.choice("etaoinshrdlu") for _ in range(chance.randint(2, 8))]
    return "".join(letters)


def write_corpus(folder, documents=60):
    """Write files of 2 to 4 kB of text, the same on every machine."""
    chance = random.Random(0)
    vocabulary = [random_word(chance) for _ in range(150)]
    texts = {}
    for i in range(documents):
        text = ""
        while len(text) < 2000 + 2000 * i // documents:
            text += chance.choice(vocabulary)
            text += " " if chance.random() < 0.9 else ".\n"
        texts[f"{i:03d}.txt"] = text
    return write(folder, texts)


# What a user may have set and what changes the text that posenc prints.
CHANGES_OUTPUT = ("COLUMNS", "HYDRA_FULL_ERROR", "POSENC_SWEEP")


def environment(**variables):
    """Return the variables of a process: one thread, no terminal, nothing that changes what is printed."""
    inherited = {name: value for name, value in os.environ.items() if name not in CHANGES_OUTPUT}
    return {**inherited, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **variables}


def start_python(*arguments, cwd=ROOT, **variables):
    """Start a script, `-c CODE` or `-m MODULE`, as another process with these environment variables."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, cwd=cwd, env=environment(**variables), text=True, **streams)


def start(*arguments, cwd, script=None, module="posenc", **variables):
    """Start posenc, another module or a script of the clone, as another process."""
    program = ["-m", module] if script is None else [str(ROOT / script)]
    return start_python(*program, *arguments, cwd=cwd, **variables)


def finished(process, seconds=600):
    """Wait for a process and return its result."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {seconds} s\n{out}\n{err}") from None
    return Result(process.returncode, out, err)


def python(*arguments, **options):
    """Run a script, `-c CODE` or `-m MODULE`, and wait; the options are those of `start_python`."""
    return finished(start_python(*arguments, **options))


def spawn(*arguments, **options):
    """Run posenc as another process and wait; the options are those of `start`."""
    return finished(start(*arguments, **options))
