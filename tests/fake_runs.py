"""Run directories: written as posenc does, with losses that are known by hand, and read back."""

import dataclasses
import hashlib
import json
from itertools import pairwise

import yaml

from posenc.core.atomic_files import write_json_atomic
from posenc.results import load_runs
from posenc.results.comparison import CompareRequest, compare_runs
from posenc.results.records import (
    DocumentSums,
    RecordContext,
    RecordKey,
    assemble_results,
    make_record,
    write_record,
)

T = 64
MULTIPLES = (0.5, 1, 2, 4, 8)
DOCUMENTS = 40
TOKENS = 3_276_800
EDGES = [1, 9, 17, 33, 49, 65, 97, 129, 257, 513]  # bins end at 1/8, 1/4, 1/2, 3/4, 1, 1.5, 2, 4 and 8 T


def record(window, loss, *, count=DOCUMENTS, wiggle=0.1, train_length=T, note=None, **changes):
    """Every document has 10 targets of one byte; document d loses `loss` + a wiggle that sums to 0.

    `changes` are of the key, the context, the sums (`bytes`, `groups`, ...) or the extra fields of a record.
    """
    key = {"protocol": "fixed-target", "fingerprint": "f" * 64, "split": "test", "targets_hash": "a" * 16}
    key |= {"window": window, "checkpoint_step": 800}
    context = {"corpus": "sympy", "train_length": train_length, "seconds": 1.0}
    sums = {
        "documents": range(count),
        "nats": [10 * (loss + wiggle * (-1) ** d) for d in range(count)],
        "targets": [10] * count,
        "bytes": [10] * count,
    }
    fields = {
        "key": {field.name for field in dataclasses.fields(RecordKey)},
        "context": {field.name for field in dataclasses.fields(RecordContext)},
        "sums": {field.name for field in dataclasses.fields(DocumentSums)},
    }
    key |= {name: value for name, value in changes.items() if name in fields["key"]}
    context |= {name: value for name, value in changes.items() if name in fields["context"]}
    sums |= {name: value for name, value in changes.items() if name in fields["sums"]}
    known = set.union(*fields.values())
    extra = {name: value for name, value in changes.items() if name not in known}
    return make_record(
        RecordKey(**key),
        RecordContext(**context),
        None if note else DocumentSums(**sums),
        note=note,
        extra=extra,
    )


def curve(shift=0.0, slope=1e-3, breaks_at=97, flat=False):
    """Bin i has a loss of 1 + i / 10 + shift (1 + shift if `flat`), over a level of 1.2."""
    nats = [1 + (0 if flat else i / 10) + shift for i in range(len(EDGES) - 1)]
    rise = {"level": 1.2, "rise": [loss - 1.2 for loss in nats], "breaks_at": breaks_at}
    rise["rise_ci95"] = [None, *([loss - 1.25, loss - 1.15] for loss in nats[1:])]
    rise |= {"slope": slope, "slope_ci95": None if slope is None else [slope - 2e-4, slope + 2e-4]}
    return {"edges": EDGES, "nats": nats, "targets": [40 * (b - a) for a, b in pairwise(EDGES)], **rise}


def positions(**changes):
    return record(8 * T, 1.5, protocol="positions", curve=curve(**changes))


def recall_records(found, windows=100):
    """Records of windows T/2 to 8T: `found` has the values found of 100 by distance in tokens.

    Four pairs as in training; at half of T also one and 16, of which 50 and 10 are found.
    """
    made = []
    for window in (T // 2, T, 2 * T, 4 * T, 8 * T):
        lines = [(distance, 4, count) for distance, count in found.items() if distance < window]
        lines += [(T // 2, 1, 50), (T // 2, 16, 10)] if window >= T else [(8, 1, 50)]
        distance, pairs, correct = map(list, zip(*lines, strict=True))
        nats = [4.16 * (1 - count / windows) for count in correct]
        recall = {"distance": distance, "pairs": pairs, "windows": [windows] * len(lines)}
        recall |= {"correct": correct, "nats": nats}
        changes = {"unit": "nats per value", "targets_hash": "c" * 16, "bytes": [0] * DOCUMENTS}
        made.append(record(window, 2.0, protocol="recall", recall=recall, **changes))
    return made


# A complete config.yaml but for its encoding, seed and experiment.
SETTINGS = {
    "schema_version": 2,
    "attention": {"name": "mha", "window": None, "scale": "none"},
    "positions": {"name": "contiguous"},
    "extend": {"name": "none"},
    "model": {
        "name": "nano",
        "d_model": 128,
        "n_layers": 4,
        "n_heads": 4,
        "mlp_ratio": 4,
        "short_conv": None,
    },
    "data": {"name": "sympy", "plant": None},
    "tokenizer": {"name": "bytes"},
    "context_length": T,
    "optim": {
        "name": "adamw",
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "grad_clip": 1.0,
        "warmup_fraction": 0.02,
        "final_lr_fraction": 0.0,
    },
    "train": {
        "tokens": TOKENS,
        "batch_tokens": 2048,
        "lr": 0.003,
        "init": None,
        "length_schedule": None,
        "precision": "fp32",
        "compile": False,
        "checkpoint_seconds": 60.0,
        "log_every": 25,
        "began": None,
        "tuned": None,
    },
    "eval": {
        "lengths": ["0.5x", "1x", "2x", "4x", "8x"],
        "base_length": None,
        "protocols": ["fixed-target"],
        "split": "test",
        "max_targets": 32000,
        "batch_tokens": 8192,
        "precision": "auto",
    },
    "tracking": {"name": "none"},
    "device": "cpu",
    "name": None,
    "runs_dir": "runs",
    "plugins": [],
}


def merged(tree, changes):
    """The tree with the changes of each group inside it."""
    result = dict(tree)
    for key, value in changes.items():
        is_group = isinstance(value, dict) and isinstance(tree.get(key), dict)
        result[key] = merged(tree[key], value) if is_group else value
    return result


def settings_tree(encoding="rope", seed=0, experiment="default", **changes):
    """A complete config.yaml as plain data; `changes` go into its groups."""
    described = encoding if isinstance(encoding, dict) else {"name": encoding}
    tree = {**SETTINGS, "encoding": described, "seed": seed, "experiment_name": experiment}
    return merged(tree, changes)


def run_facts(encoding="rope", seed=0, name="run", **changes):
    """The `run` object of results.json."""
    described = encoding if isinstance(encoding, dict) else {"name": encoding}
    return {
        "name": name,
        "encoding": described,
        "context_length": T,
        "seed": seed,
        "tokens": TOKENS,
        "steps": 800,
        "model": {"name": "nano", "n_layers": 4},
        "parameters": {"total": 803_000, "encoding": 0, "embedding": 33_000},
        "tokenizer": "bytes",
        "corpus": {"name": "sympy", "fingerprint": "f" * 64},
        **changes,
    }


ABOUT = {"name": None, "status": "finished", "reason": None, "params": None, "facts": None, "config": None}


def write_run(root, encoding="rope", *, seed=0, losses=None, records=None, results=True, **about):
    """A run directory under `root`; `losses` by multiple of T.

    `about` changes what ABOUT has: `facts` and `config` are changes of the complete ones.
    """
    name, status, reason, params, facts, config = (ABOUT | about).values()
    digest = hashlib.sha256(repr((params, facts, config)).encode()).hexdigest()[:8]
    run = root / (name or f"{encoding}-nano-T64-s{seed}-{digest}")
    run.mkdir(parents=True)
    described = {"name": encoding, **(params or {})}
    tree = settings_tree(described, seed, root.name, **(config or {}))
    (run / "config.yaml").write_text(yaml.safe_dump(tree))
    process = {"host": "here", "pid": 1, "overrides": [f"encoding={encoding}", f"seed={seed}"]}
    write_json_atomic(run / "status.json", {"status": status, "reason": reason, **process})
    (run / "log.txt").write_text("")
    if not results:
        return run
    if records is None:
        losses = dict.fromkeys(MULTIPLES, 1.3) if losses is None else losses
        records = [record(int(multiple * T), loss) for multiple, loss in losses.items()]
    for measured in records:
        write_record(run, measured)
    assemble_results(run, run_facts(described, seed, run.name, **(facts or {})))
    return run


def read_json(path):
    return json.loads(path.read_text())


def edit_json(path, **changes):
    """Change top-level keys of a JSON file, as somebody with an editor would."""
    path.write_text(json.dumps(read_json(path) | changes))


def only_run(runs):
    """The only run directory below a `runs_dir`."""
    (run,) = (runs / "default").glob("[!.]*")
    return run


def stamps(folder):
    """Every path below it, files with time and number: one that was written again has others."""
    facts = {path: path.stat() for path in folder.rglob("*")}
    return {path: path.is_file() and (one.st_mtime_ns, one.st_ino) for path, one in facts.items()}


def compared(root, metric="nats", allow_mixed=False, protocol="fixed-target", **request):
    """Return the first table of all runs below `root`; `request` are fields of CompareRequest."""
    asked = CompareRequest(protocol, metric, allow_mixed=allow_mixed, **request)
    return compare_runs(load_runs([root]), asked)[0]


def rows_of(comparison):
    return {row.label: row for row in comparison.rows}
