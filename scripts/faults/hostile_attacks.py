"""What somebody could put into a run directory: each attack changes a good one. Payloads leave a mark."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

SECRETS = {
    "WANDB_API_KEY": "5ec2e7" * 6 + "aaaa",
    "HF_TOKEN": "hf_5ecretTokenOfNobody",
    "MADE_UP": "m4deUp5ecret",
}
IN_A_FILE = "5ecretOfAnotherFile"
JSONS = ("status.json", "results.json", "metrics.jsonl", "positions.json")
DEEP = 100_000


@dataclass(frozen=True)
class Outside:
    """What is not the run's: a mark that payloads leave, a secret, a file to overwrite, an empty folder."""

    mark: Path
    secret: Path
    victim: Path
    folder: Path

    @staticmethod
    def make(place: Path) -> Outside:
        place.mkdir(parents=True)
        made = Outside(place / "executed", place / "secret.txt", place / "victim.txt", place / "folder")
        made.secret.write_text(f"{IN_A_FILE}\n")
        made.victim.write_text("mine\n")
        made.folder.mkdir()
        (place / "evil.py").write_text(f"open({str(made.mark)!r}, 'a').write('evil.py ')\nclass Evil: ...\n")
        return made


@dataclass(frozen=True)
class Attack:
    """`change` is applied to a copy of a good run directory; it may return the directory's new name."""

    name: str
    change: Callable[[Path, Outside], object]


class _Payload:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"echo pickle >> '{self.mark}'",)


def attacks_by_content() -> Iterator[Attack]:
    """Settings that name code or secrets, YAML that is more than data, pickles."""
    yield from _settings()
    yield from _yaml()
    yield from _pickles()


def checkpoint_of(run: Path) -> Path:
    return next((run / "checkpoints").glob("step-*"))


def seal(checkpoint: Path) -> None:
    """A manifest that fits what is there: whoever changes a file changes that, too."""
    names = (p for p in sorted(checkpoint.iterdir()) if p.name != "manifest.json" and p.is_file())
    manifest = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in names}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def change_config(run: Path, change: dict[str, Any]) -> None:
    """Keys with dots reach into groups."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    for key, value in change.items():
        *above, last = key.split(".")
        functools.reduce(lambda at, name: at[name], above, config)[last] = value
    (run / "config.yaml").write_text(yaml.safe_dump(config))


def _settings() -> Iterator[Attack]:
    call = {"_target_": "os.system", "_args_": ["touch executed"]}
    for change in (
        {"encoding._target_": "evil.Evil"},
        {"encoding": {"name": "rope", **call}},
        {"model._target_": "evil.Evil"},
        {"data._target_": "evil.Evil"},
        {"optim": call},
        {"tokenizer": call},
        {"tracking": {"name": "evil", **call}},
        call,
        {"hydra": {"run": {"dir": "../../../up"}, "launcher": call, "searchpath": ["pkg://evil"]}},
        {"defaults": ["evil", {"encoding": "evil"}]},
        {"plugins": ["evil"]},
        {"plugins": ["evil"], "encoding": {"name": "evil"}},
        {"encoding": {"name": "evil.Evil"}},
        {"encoding": {"name": "../evil"}},
        {"encoding": {"name": "sum", "parts": ["rope", {"name": "evil", "_target_": "evil.Evil"}]}},
        {"data.source": "../../evil"},
        {"data.source": "evil"},
        {"data": {"name": "x", "source": "package", "package": "evil", "exclude": []}},
        {"data": {"name": "x", "source": "package", "package": "evil.inner", "exclude": []}},
        {"tokenizer": {"name": "hf", "path": "evil"}},
        {"tokenizer": {"name": "../evil"}},
        {"eval.protocols": ["evil"]},
        {"eval.protocols": ["../evil"]},
        {"positions": {"name": "evil"}},
        {"attention.name": "evil"},
        {"runs_dir": "../../up", "experiment_name": "../../up"},
        {"name": "../../up"},
        {"encoding.base": "${oc.env:HF_TOKEN}"},
        {"encoding": {"name": "${oc.env:MADE_UP}"}},
        {"data.paths": ["${oc.env:MADE_UP}"]},
        {"experiment_name": "${oc.env:MADE_UP}"},
        {"seed": "${oc.decode:${oc.env:MADE_UP}}"},
        {"eval.split": "${hydra:runtime.cwd}"},
        {"model.name": "${oc.create:{_target_:evil.Evil}}"},
    ):
        yield Attack(f"config.yaml {change}", lambda run, _, change=change: change_config(run, change))


def _yaml() -> Iterator[Attack]:
    for text in (
        "!!python/object/apply:os.system ['touch {mark}']",
        "!!python/object/new:os.system ['touch {mark}']",
        "encoding: !!python/name:evil.Evil ''",
        "encoding: !!python/module:evil ''",
        "a: !!python/object/apply:subprocess.check_output [['touch', '{mark}']]",
        "!!python/object:evil.Evil {{}}",
        "encoding: !include {secret}",
        "--- !ruby/object:Gem\n",
        "a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]",
        "a: &a {{<<: *a}}",
        "[" * DEEP,
        "- " * DEEP,
        "{{a: " * DEEP,
        "seed: " + "9" * 5000,
        "\x00\x01",
        "",
    ):

        def write(run: Path, o: Outside, text: str = text) -> None:
            filled = text.format(mark=o.mark, secret=o.secret) if len(text) < 200 else text.replace("{{", "{")
            whole = (run / "config.yaml").read_text()
            added = f"{whole}{filled}\n" if filled.startswith("encoding") else filled
            (run / "config.yaml").write_text(added)

        yield Attack(f"config.yaml holds {text[:40]!r}", write)


def _pickles() -> Iterator[Attack]:
    def torch_file(path: Path, o: Outside) -> None:
        import torch

        torch.save({"model": _Payload(o.mark)}, path)

    def plain(path: Path, o: Outside) -> None:
        path.write_bytes(pickle.dumps(_Payload(o.mark)))

    for kind, write in (("a pickle", plain), ("a file of torch.save", torch_file)):
        for name in ("model.safetensors", "optimizer.safetensors", "state.json", "tokenizer.json"):

            def in_checkpoint(run: Path, o: Outside, name: str = name, write: Any = write) -> None:
                write(checkpoint_of(run) / name, o)
                seal(checkpoint_of(run))

            yield Attack(f"{kind} as {name}, sealed", in_checkpoint)
    for name in ("config.yaml", *JSONS, "records/a.json", "checkpoints/step-00000099"):
        yield Attack(f"a pickle as {name}", lambda run, o, name=name: plain(run / name, o))

    def beside(run: Path, o: Outside) -> None:
        for name in ("model.pt", "checkpoint.pkl", "config.pkl", "checkpoints/latest.pt"):
            plain(run / name, o)
        torch_file(checkpoint_of(run) / "pytorch_model.bin", o)
        for name in ("sitecustomize", "usercustomize", "posenc", "torch", "rope", "__init__"):
            (run / f"{name}.py").write_text((o.mark.parent / "evil.py").read_text())
        (run / ".hydra").mkdir()
        (run / ".hydra" / "config.yaml").write_text("_target_: evil.Evil\n")

    yield Attack("pickles and modules beside the files", beside)
