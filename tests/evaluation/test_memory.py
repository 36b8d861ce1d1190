"""A window that does not fit is refused before the kernel ends the process; its record says what it needs."""

import re
from types import SimpleNamespace

import pytest
import torch
from tiny import write
from tiny_model import T

from posenc.core import machine as machine_module
from posenc.core.machine import free_memory
from posenc.encodings.base import Encoding
from posenc.evaluation import passes
from posenc.training.memory import LiveTensors, memory_needed


def squared(n):
    rows = torch.ones(30, n)
    pairs = torch.ones(8, n, n)
    del rows, pairs


@pytest.mark.parametrize("window", [1024, 1000, 17])
def test_what_a_window_needs_is_known_from_shorter_ones(window):
    with LiveTensors() as meter:
        squared(window)
    assert memory_needed(squared, window) == pytest.approx(meter.peak, rel=1e-6)


class Quadratic(Encoding):
    """Numbers for every pair of tokens, as of somebody who did not think of long windows."""

    def embed(self, x, pos, layer):
        pairs = (pos[:, None] - pos[None, :]).double().expand(16, -1, -1) * 1e-9
        return x + pairs.sum((0, 2))[:, None].to(x.dtype)


LONG = 12 * T


@pytest.fixture
def quadratic_records(subject_of, measured, monkeypatch):
    """Records of two protocols by a model that needs too much memory for a window of 12T."""
    subject = subject_of("nope")
    subject.model._effective = (Quadratic(subject.model.encoding.shape),)
    with monkeypatch.context() as patch:
        patch.setattr(passes, "free_memory", lambda: 2_000_000)
        return measured(subject, [T, LONG], protocols=["fixed-target", "nonoverlapping"], max_targets=50)


@pytest.mark.parametrize("protocol", ["fixed-target", "nonoverlapping"])
def test_a_window_that_would_not_fit_is_noted_with_what_it_needs(quadratic_records, protocol):
    note = rf"oom at {LONG} tokens, batch 1: needs about [\d.]+ GB, 0\.002 GB free"
    assert re.fullmatch(note, quadratic_records[protocol, LONG]["note"])
    assert quadratic_records[protocol, LONG]["nats"] is None


@pytest.mark.parametrize("protocol", ["fixed-target", "nonoverlapping"])
def test_shorter_windows_are_measured_all_the_same(quadratic_records, protocol):
    assert quadratic_records[protocol, T]["nats"] is not None


def test_a_window_that_would_not_fit_is_never_tried(windows_passed, quadratic_records):
    assert max(windows_passed) == 2 * T - 8  # an eighth of it, or T


def test_with_room_the_window_is_measured(subject_of, measured):
    records = measured(subject_of("nope"), [T, LONG], protocols=["fixed-target"], max_targets=50)
    assert records["fixed-target", LONG]["nats"] is not None


@pytest.fixture
def group(tmp_path, monkeypatch):
    """Write files of a control group below a root; return the root. The machine itself has 20 GB."""
    machine = SimpleNamespace(available=20_480_000_000)
    monkeypatch.setattr(machine_module.psutil, "virtual_memory", lambda: machine)
    root = write(tmp_path, {"proc/self/cgroup": "0::/a\n"})

    def make(files):
        write(root / "sys/fs/cgroup", files)
        return root

    return make


OWN_LIMIT = {"memory.max": "3000\n", "memory.current": "2000\n", "memory.stat": "inactive_file 7\n"}
LIMIT_BELOW = {"a/memory.max": "9000\n", "a/memory.current": "1\n", "memory.max": "max\n"}


def test_without_a_limit_free_memory_is_the_machines(group):
    assert free_memory(group({})) == 20_480_000_000


def test_a_limit_of_the_group_counts_without_its_inactive_files(group):
    assert free_memory(group(OWN_LIMIT)) == 1007


def test_the_least_of_nested_groups_counts(group):
    group(OWN_LIMIT)
    assert free_memory(group(LIMIT_BELOW)) == 8999
