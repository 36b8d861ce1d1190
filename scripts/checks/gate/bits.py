"""Train short runs in two trees and compare every weight and every number of their records, bit for bit.

    python scripts/checks/gate/bits.py compare OLD NEW      each a source tree, or a JSON file of `observe`
    python scripts/checks/gate/bits.py observe TREE --out bits.json

Fifteen runs cover encodings, attention, positions, precisions, optimizers, tokenizers and a continued
run; three are stopped by SIGTERM and go on. Then every test-time extension is measured, and the initial
values of every encoding are read. Bits hold for one machine and one version of torch: a stored observation
names both, and a comparison across machines says so first.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from command_line import Observation, Selection, run_part
from contents import Leaves, flatten, tensor_digests
from differences import Difference
from texts import write_texts
from trees import ForkServer, Outcome, Tree

# Small enough that all take minutes on one core, and every step still goes through all of the code.
SIZES = (
    "model.d_model=64 model.n_layers=2 model.n_heads=2 context_length=32 train.batch_tokens=512 "
    "train.tokens=15360 train.log_every=5 eval.max_targets=400 eval.lengths=[0.5x,1x,2x,8x] device=cpu"
)
PROTOCOLS = "eval.protocols=[fixed-target,sliding,nonoverlapping,positions,induction,far-copy]"
INTERRUPTED_TOKENS = 40960  # 80 steps: long enough to be stopped on the way
STOPPED = 143  # exit code after SIGTERM


@dataclass(frozen=True)
class ShortRun:
    """A run by its label; `options` are those of `posenc train`; `interrupted` stops it once on the way."""

    label: str
    options: str
    precision: str = "fp32"
    interrupted: bool = False

    def words(self, folder: Path) -> list[str]:
        """Return what follows `posenc train`; `{LABEL}` in the options is the folder of an earlier run."""
        options = self.options
        for directory in sorted(folder.glob("runs/default/*")):
            label = directory.name.rpartition("-")[0]
            options = options.replace("{" + label + "}", str(directory))
        words = [
            *shlex.split(SIZES),
            PROTOCOLS,
            f"train.precision={self.precision}",
            "experiment_name=default",
        ]
        if self.interrupted:
            words += [f"train.tokens={INTERRUPTED_TOKENS}"]
        return [*words, f"name={self.label}", *shlex.split(options)]


RUNS = (
    ShortRun("rope", "encoding=rope", interrupted=True),
    ShortRun("alibi", "encoding=alibi", precision="bf16"),
    ShortRun("t5", "encoding=t5 seed=1"),
    ShortRun("learned", "encoding=learned"),
    ShortRun("fire", "encoding=fire", precision="bf16"),
    ShortRun("fox", "encoding=fox train.length_schedule=[[0.5,16],[0.5,32]]", interrupted=True),
    ShortRun("transformer_xl", "encoding=transformer_xl"),
    ShortRun("dape", "encoding=dape"),
    ShortRun("sum", "encoding=sum encoding.parts=[alibi,rope]"),
    ShortRun("mla", "encoding=rope attention=mla"),
    ShortRun("randomized", "encoding=rope positions=randomized"),
    ShortRun("ssmax", "encoding=rope attention.scale=ssmax attention.window=8 attention.qk_norm=true"),
    ShortRun(
        "recall",
        "encoding=transformer_xl experiment=recall experiment_name=default "
        "eval.protocols=[fixed-target,recall] eval.recall.windows=16",
        precision="bf16",
        interrupted=True,
    ),
    ShortRun("bpe", "encoding=nope data=files data.paths=[texts] tokenizer=bpe tokenizer.vocab_size=400"),
    ShortRun("continued", "encoding=rope extend=pi context_length=64 train.init={rope} eval.base_length=32"),
)
# Measured on the run of that label, beside what its training measured.
OF_ROPE = (
    *("dca", "drop", "dynamic_ntk", "llama3", "lm_infinite", "logn", "ntk", "ntk_by_parts", "pi"),
    *("rerope", "scale", "self_extend", "sinks", "string", "window", "yarn"),
)
EXTENDED = (
    *(("rope", name) for name in OF_ROPE),
    *(("alibi", "window"), ("alibi", "sinks"), ("t5", "self_extend"), ("mla", "yarn")),
)
EXTENDED_CELLS = ("eval.lengths=[1x,8x]", "eval.protocols=[fixed-target]")
INITIAL_VALUES = Path(__file__).with_name("initial_values.py")
# One step whose rate is below the last bit of a weight, so what is saved are the initial values.
ONE_STEP = (
    "model.d_model=32 model.n_layers=2 model.n_heads=2 context_length=16 train.batch_tokens=64 "
    "train.tokens=64 train.lr=1.0e-12 train.precision=fp32 eval.max_targets=64 eval.lengths=[1x] "
    "eval.protocols=[fixed-target] device=cpu experiment_name=initial"
)


def observe(tree: Tree, selection: Selection) -> Observation:
    """Train, measure and read all runs of one tree; return their weights and numbers by label."""
    folder = tree.work / "bits"
    folder.mkdir(parents=True)
    write_texts(folder / "texts", seed=0)
    observation: Observation = {"about": _machine(tree, folder), "runs": {}, "initial": {}}
    server = ForkServer(tree, "bits")
    runs = [run for run in RUNS if selection.has(run.label)]
    for run in runs:
        began = time.monotonic()
        # The server answers when a command has ended, so a run that is to be stopped is no fork of it.
        if run.interrupted:
            words = ["train", *run.words(folder)]
            _expect(tree.run_interrupted(words, folder, folder / "runs"), STOPPED, words)
        _run(server, ["train", *run.words(folder)], folder)
        print(f"{tree.work.name}: {run.label} {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    extended = [(label, extension) for label, extension in EXTENDED if selection.has(label)]
    for label, extension in extended:
        words = ["eval", f"run={_directory(folder, label)}", f"extend={extension}", *EXTENDED_CELLS]
        seconds = _run(server, words, folder)
        print(f"{tree.work.name}: {label} {extension} {seconds:.0f} s", file=sys.stderr, flush=True)
    server.close()
    for run in runs:
        observation["runs"][run.label] = _read_run(_directory(folder, run.label))
    if selection.has("initial"):
        observation["initial"] = _initial_values(tree, folder)
    return observation


def _machine(tree: Tree, folder: Path) -> dict[str, str]:
    code = "import torch; print(torch.__version__, torch.backends.cpu.get_cpu_capability())"
    return {"torch": tree.run_python(["-c", code], folder).stdout.strip(), "machine": platform.machine()}


def _run(server: ForkServer, words: list[str], folder: Path) -> float:
    """Run a command that must succeed; return its seconds."""
    outcome = server.run(words, folder)
    _expect(outcome, 0, words)
    return outcome.seconds


def _expect(outcome: Outcome, code: int, words: list[str]) -> None:
    if outcome.code != code:
        sys.exit(f"posenc {shlex.join(words)}\nended with {outcome.code}, not {code}\n{outcome.stderr}")


def _directory(folder: Path, label: str) -> Path:
    (directory,) = folder.glob(f"runs/default/{label}-????????")
    return directory


def _read_run(directory: Path) -> dict[str, Leaves]:
    """Return the last weights, every record, the curve and the logged losses of a run, as leaves."""
    weights = sorted(directory.glob("checkpoints/step-*/model.safetensors"))[-1]
    results = json.loads((directory / "results.json").read_text())
    logged = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps = {step["step"]: step for step in logged}  # a resumed run may have logged a step twice
    return {
        "weights": dict(tensor_digests(weights)),
        "records": dict(_record_leaves(results["records"])),
        "logged": dict(flatten([steps[step] for step in sorted(steps)], {})),
        "final": {"final_loss": results["run"]["final_loss"]},
    }


def _record_leaves(records: list[Observation]) -> Iterator[tuple[str, object]]:
    """Yield (path, leaf) of every record; the path begins with what the record measured."""
    for record in records:
        extension = json.dumps(record.get("extend"), sort_keys=True)
        label = f"{record['protocol']} W={record['window']} {record['split']} {extension}"
        for path, leaf in flatten(record, {}):
            yield f"{label}: {path}", leaf


def _initial_values(tree: Tree, folder: Path) -> dict[str, Leaves]:
    """Return the weights of every encoding after a step that changes none of them."""
    words = shlex.split(ONE_STEP)
    outcome = tree.run_python([str(INITIAL_VALUES), *words], folder)
    _expect(outcome, 0, ["(initial values)"])
    initial = {}
    for name, directory in json.loads(outcome.stdout).items():
        (weights,) = (folder / directory).glob("checkpoints/step-*/model.safetensors")
        initial[name] = dict(tensor_digests(weights))
    return initial


def compare(old: Observation, new: Observation) -> Iterator[Difference]:
    """Yield every weight and number that differs. Renamed ones differ only if their values do."""
    if old["about"] != new["about"]:
        print(f"observed on different machines: {old['about']} and {new['about']}: bits may differ")
    for label in sorted(old["runs"].keys() | new["runs"].keys()):
        old_parts = old["runs"].get(label, {})
        new_parts = new["runs"].get(label, {})
        for part in sorted(old_parts.keys() | new_parts.keys()):
            yield from _compare_leaves(label, part, old_parts.get(part, {}), new_parts.get(part, {}))
    for name in sorted(old["initial"].keys() | new["initial"].keys()):
        old_weights = old["initial"].get(name, {})
        new_weights = new["initial"].get(name, {})
        yield from _compare_leaves(f"initial {name}", "weights", old_weights, new_weights)


def _compare_leaves(label: str, part: str, old: Leaves, new: Leaves) -> Iterator[Difference]:
    kind = "weights" if part == "weights" else "numbers"
    for key in sorted(old.keys() & new.keys()):
        if old[key] != new[key]:
            yield Difference(label, kind, f"{part} {key}", old[key], new[key])
    gone = Counter(str(old[key]) for key in old.keys() - new.keys())
    added = Counter(str(new[key]) for key in new.keys() - old.keys())
    if gone == added and gone:
        print(f"{label}: {sum(gone.values())} {part} have other names and the same values")
        return
    for value in (gone - added).elements():
        names = [key for key in old.keys() - new.keys() if str(old[key]) == value]
        yield Difference(label, kind, f"{part} {names[0]}", value, "(absent)")
    for value in (added - gone).elements():
        names = [key for key in new.keys() - old.keys() if str(new[key]) == value]
        yield Difference(label, kind, f"{part} {names[0]}", "(absent)", value)


if __name__ == "__main__":
    sys.exit(run_part(__doc__, observe, compare))
