"""Run directories: written as posenc does, with losses that are known by hand, and read back."""

import hashlib
import json
from dataclasses import dataclass, field, fields
from itertools import pairwise

import yaml

from posenc.core.atomic_files import write_json_atomic
from posenc.results import load_runs
from posenc.results.comparison import compare_runs
from posenc.results.drafts import CompareRequest
from posenc.results.record_files import assemble_results, write_record
from posenc.results.record_making import DocumentSums, RecordContext, RecordKey, make_record

T = 64
MULTIPLES = (0.5, 1, 2, 4, 8)
DOCUMENTS = 40
TOKENS = 3_276_800
EDGES = [1, 9, 17, 33, 49, 65, 97, 129, 257, 513]  # bins end at 1/8, 1/4, 1/2, 3/4, 1, 1.5, 2, 4 and 8 T


def take_fields(kind, changes):
    """Take the changes that are fields of a dataclass out of `changes`, and return them."""
    names = [member.name for member in fields(kind) if member.name in changes]
    return {name: changes.pop(name) for name in names}


def record(window, loss, *, count=DOCUMENTS, wiggle=0.1, train_length=T, note=None, **changes):
    """Make a record in which every document has 10 targets of one byte.

    Document d loses `loss` nats a target, plus or minus a wiggle that sums to 0 over the documents.
    `changes` are of the key, the context, the sums (`bytes`, `groups`, ...) or the extra fields of a record.
    """
    key = {
        "protocol": "fixed-target",
        "fingerprint": "f" * 64,
        "split": "test",
        "targets_hash": "a" * 16,
        "window": window,
        "checkpoint_step": 800,
    }
    context = {"corpus": "sympy", "train_length": train_length, "seconds": 1.0}
    sums = {
        "documents": range(count),
        "nats": [10 * (loss + wiggle * (-1) ** document) for document in range(count)],
        "targets": [10] * count,
        "bytes": [10] * count,
    }
    key |= take_fields(RecordKey, changes)
    context |= take_fields(RecordContext, changes)
    sums |= take_fields(DocumentSums, changes)
    return make_record(
        RecordKey(**key),
        RecordContext(**context),
        None if note else DocumentSums(**sums),
        note=note,
        extra=changes,
    )


def curve(shift=0.0, slope=1e-3, breaks_at=97, flat=False):
    """Return a curve by position: bin i has a loss of 1 + i / 10 + shift, over a level of 1.2.

    A `flat` one has a loss of 1 + shift in every bin.
    """
    level = 1.2
    bins = range(len(EDGES) - 1)
    nats = [1 + shift for _ in bins] if flat else [1 + i / 10 + shift for i in bins]
    # The first bin has no interval, as in a measured curve of few documents.
    rise_ci95 = [None] + [[loss - level - 0.05, loss - level + 0.05] for loss in nats[1:]]
    slope_ci95 = None if slope is None else [slope - 2e-4, slope + 2e-4]
    return {
        "edges": EDGES,
        "nats": nats,
        "targets": [40 * (end - start) for start, end in pairwise(EDGES)],
        "level": level,
        "rise": [loss - level for loss in nats],
        "breaks_at": breaks_at,
        "rise_ci95": rise_ci95,
        "slope": slope,
        "slope_ci95": slope_ci95,
    }


def positions(**changes):
    """Make a record of the protocol `positions` to 8T; `changes` are arguments of `curve`."""
    return record(8 * T, 1.5, protocol="positions", curve=curve(**changes))


def exact_records(right_by_multiple, instances=100, **changes):
    """Make records of whole answers, from how many of 100 instances are right by multiple of T."""
    records = []
    for multiple, right in right_by_multiple.items():
        exact = {
            "size": int(10 * multiple),
            "instances": instances,
            "right": right,
            "tokens": 10 * instances,
            "tokens_right": 5 * instances + 5 * right,
        }
        records.append(record(int(multiple * T), 1.0, protocol="exact", exact=exact, **changes))
    return records


def recall_records(correct_by_distance, windows=100, has_fixed_draw=False):
    """Make records of recall for windows T/2 to 8T, from the values found of 100 by distance in tokens.

    They have four pairs, as in training; at half of T also one and 16, of which 50 and 10 are found. With a
    fixed draw they are as from before 0.2.
    """
    records = []
    for window in (T // 2, T, 2 * T, 4 * T, 8 * T):
        lines = [(distance, 4, count) for distance, count in correct_by_distance.items() if distance < window]
        lines += [(T // 2, 1, 50), (T // 2, 16, 10)] if window >= T else [(8, 1, 50)]
        distances, pairs, correct = map(list, zip(*lines, strict=True))
        recall = {
            "distance": distances,
            "pairs": pairs,
            "windows": [windows] * len(lines),
            "correct": correct,
            "nats": [4.16 * (1 - count / windows) for count in correct],
        }
        if not has_fixed_draw:
            recall["draw"] = 0
        changes = {"unit": "nats per value", "targets_hash": "c" * 16, "bytes": [0] * DOCUMENTS}
        records.append(record(window, 2.0, protocol="recall", recall=recall, **changes))
    return records


def needle_records(correct_by_multiple, keys=(1,), answers=16, **changes):
    """Make records of needle, from how many of 16 are found at depths 0, 0.5 and 1, by multiple of T."""
    records = []
    for multiple, correct in correct_by_multiple.items():
        needle = {
            "depth": [0.0, 0.5, 1.0] * len(keys),
            "keys": [number for number in keys for _ in range(3)],
            "answers": [answers] * 3 * len(keys),
            "correct": [*correct] * len(keys),
            "nats": [1.0] * 3 * len(keys),
        }
        window = int(multiple * T)
        records.append(
            record(window, 1.0, protocol="needle", targets_hash="e" * 16, needle=needle, **changes)
        )
    return records


def dispersion_record(window, loss, *, entropy=2.0, first=0.3, variance=1.0, far_nats=None):
    """Make a record of the protocol `dispersion` with two layers; the first has more on the first token."""
    dispersion = {
        "entropy": [entropy, entropy],
        "first": [first, first / 2],
        "variance": [variance, variance],
        "far_nats": far_nats,
    }
    return record(window, loss, protocol="dispersion", targets_hash="d" * 16, dispersion=dispersion)


def memory_record(window, loss, *, variation=0.1, gained=0.02, lost=0.01):
    """Make a record of the protocol `memory`, whose numbers are the same for every shorter window."""
    shorter = [length for length in (T // 4, T // 2, T) if length < window]
    memory = {
        "window": shorter,
        "variation": [variation] * len(shorter),
        "variation_ci95": [[variation - 0.01, variation + 0.01]] * len(shorter),
        "gained": [gained] * len(shorter),
        "lost": [lost] * len(shorter),
    }
    return record(window, loss, protocol="memory", targets_hash="e" * 16, memory=memory)


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
    """Return the tree with the changes of each group inside it."""
    result = dict(tree)
    for key, value in changes.items():
        is_group = isinstance(value, dict) and isinstance(tree.get(key), dict)
        result[key] = merged(tree[key], value) if is_group else value
    return result


def settings_tree(encoding="rope", seed=0, experiment="default", **changes):
    """Return a complete config.yaml as plain data; `changes` go into its groups."""
    encoding_settings = encoding if isinstance(encoding, dict) else {"name": encoding}
    tree = {**SETTINGS, "encoding": encoding_settings, "seed": seed, "experiment_name": experiment}
    return merged(tree, changes)


def run_facts(encoding="rope", seed=0, name="run", **changes):
    """Return the `run` object of results.json."""
    encoding_settings = encoding if isinstance(encoding, dict) else {"name": encoding}
    return {
        "name": name,
        "encoding": encoding_settings,
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


@dataclass(frozen=True)
class RunDetails:
    """What a run directory says beside its numbers; `facts` and `config` are changes of the complete ones."""

    name: str | None = None
    status: str = "finished"
    reason: str | None = None
    params: dict = field(default_factory=dict)
    facts: dict = field(default_factory=dict)
    config: dict = field(default_factory=dict)

    @property
    def digest(self):
        """Return eight digits that are others for other settings, as in the name of a real run."""
        return hashlib.sha256(repr((self.params, self.facts, self.config)).encode()).hexdigest()[:8]


def losses_as_records(losses):
    """Make a record for each loss by multiple of T."""
    return [record(int(multiple * T), loss) for multiple, loss in losses.items()]


def write_run(root, encoding="rope", *, seed=0, losses=None, records=None, results=True, **details):
    """Write a run directory under `root`, with `losses` by multiple of T or with these records.

    It has no results.json if `results` is false. `details` are fields of RunDetails.
    """
    about = RunDetails(**details)
    run = root / (about.name or f"{encoding}-nano-T64-s{seed}-{about.digest}")
    run.mkdir(parents=True)
    encoding_settings = {"name": encoding, **about.params}
    tree = settings_tree(encoding_settings, seed, root.name, **about.config)
    (run / "config.yaml").write_text(yaml.safe_dump(tree))
    status = {
        "status": about.status,
        "reason": about.reason,
        "host": "here",
        "pid": 1,
        "overrides": [f"encoding={encoding}", f"seed={seed}"],
    }
    write_json_atomic(run / "status.json", status)
    (run / "log.txt").write_text("")
    if not results:
        return run
    if losses is None:
        losses = dict.fromkeys(MULTIPLES, 1.3)
    if records is None:
        records = losses_as_records(losses)
    for measurement in records:
        write_record(run, measurement)
    assemble_results(run, run_facts(encoding_settings, seed, run.name, **about.facts))
    return run


def read_json(path):
    """Return the contents of a JSON file."""
    return json.loads(path.read_text())


def edit_json(path, **changes):
    """Change top-level keys of a JSON file, as somebody with an editor would."""
    path.write_text(json.dumps(read_json(path) | changes))


def only_run(runs):
    """Return the only run directory below a `runs_dir`."""
    (run,) = (runs / "default").glob("[!.]*")
    return run


def stamps(folder):
    """Return every path below a folder, with time and inode of files: one written again has others."""
    stamp_by_path = {}
    for path in folder.rglob("*"):
        status = path.stat()
        stamp_by_path[path] = (status.st_mtime_ns, status.st_ino) if path.is_file() else None
    return stamp_by_path


def compared(root, metric="nats", allow_mixed=False, protocol="fixed-target", **options):
    """Return the first table of all runs below `root`; `options` are fields of CompareRequest."""
    request = CompareRequest(protocol, metric, allow_mixed=allow_mixed, **options)
    return compare_runs(load_runs([root]), request)[0]


def rows_of(comparison):
    """Return the rows of a comparison by their labels."""
    return {row.label: row for row in comparison.rows}
