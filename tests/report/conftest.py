"""Runs that the tests of reports share."""

import random

import pytest
from fake_runs import MULTIPLES, T, positions, recall_records, record, write_run

LOSSES = {  # at 0.5x, 1x, 2x, 4x and 8x
    "alibi": (1.29, 1.285, 1.286, 1.29, 1.30),
    "rope": (1.25, 1.23, 2.4, 3.2, 3.8),
    "learned": (1.3, 1.27, 3.8, 3.9, 4.0),
    "weak": (1.76, 1.75, 1.75, 1.75, 1.75),
}
DISTANCES = (8, 32, 56, 112, 224, 448)
RECALL = {  # values found of 100 by distance; the loss at T, and its slope past T
    "alibi": ((3, 2, 1, 2, 1, 0), 1.25, 0.001),
    "fire": ((100, 100, 100, 97, 96, 92), 1.3, 0.02),
    "hard_alibi": ((100, 100, 100, 99, 98, 97), 1.3, 0.001),
    "kerple_log": ((100, 97, 88, 80, 70, 44), 1.25, 0.004),
    "nope": ((20, 15, 16, 12, 11, 9), 1.6, 0.15),
    "rope": ((100, 100, 91, 62, 14, 5), 1.2, 0.4),
}


@pytest.fixture(scope="session")
def sweep(tmp_path_factory):
    """Four encodings with three seeds each, measured by three protocols; `weak` is undertrained."""
    root = tmp_path_factory.mktemp("sweep")
    draw = random.Random(0)
    for name, losses in LOSSES.items():
        for seed in range(3):
            records = []
            for multiple, loss in zip(MULTIPLES, losses, strict=True):
                noisy = loss + draw.gauss(0, 0.003)
                records.append(record(int(multiple * T), noisy, wiggle=0.1 + 0.05 * draw.random()))
            copies = {"protocol": "induction", "targets_hash": "copies", "bytes": [0] * 40}
            records += [record(T, 0.5, **copies), record(8 * T, 5.0, **copies)]
            records.append(record(T, 1.81, protocol="trigram"))
            records.append(positions(shift=draw.gauss(0, 0.02), breaks_at=97 if seed else None))
            params = {"beyond": "untrained"} if name == "learned" else {}
            write_run(root, name, seed=seed, records=records, params=params)
    return root


@pytest.fixture(scope="session")
def recalling(tmp_path_factory):
    """Six encodings with one seed each, with losses and recall; alibi and nope did not learn to recall."""
    root = tmp_path_factory.mktemp("recall")
    for name, (found, loss, slope) in RECALL.items():
        losses = [record(int(m * T), loss + max(0, m - 1) * slope) for m in MULTIPLES]
        recall = recall_records(dict(zip(DISTANCES, found, strict=True)))
        write_run(root, name, records=[*losses, *recall])
    return root
