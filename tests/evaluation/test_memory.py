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
from posenc.evaluation import forward_cache
from posenc.evaluation.forward_cache import memory_needed
from posenc.training.device import LiveTensors


def squared(n):
    rows = torch.ones(30, n)
    pairs = torch.ones(8, n, n)
    del rows, pairs


def test_what_a_window_needs_is_known_from_shorter_ones():
    for window in (1024, 1000, 17):
        with LiveTensors() as meter:
            squared(window)
        assert memory_needed(squared, window) == pytest.approx(meter.peak, rel=1e-6)


class Quadratic(Encoding):
    """Numbers for every pair of tokens, as of somebody who did not think of long windows."""

    def embed(self, x, pos, layer):
        pairs = (pos[:, None] - pos[None, :]).double().expand(16, -1, -1) * 1e-9
        return x + pairs.sum((0, 2))[:, None].to(x.dtype)


def test_what_would_not_fit_is_noted_and_never_tried(subject_of, measured, windows_passed, monkeypatch):
    subject = subject_of("nope")
    subject.model._effective = (Quadratic(subject.model.encoding.shape),)
    monkeypatch.setattr(forward_cache, "free_memory", lambda: 2_000_000)
    records = measured(subject, [T, 12 * T], protocols=["fixed-target", "nonoverlapping"], max_targets=50)
    for protocol in ("fixed-target", "nonoverlapping"):
        assert records[protocol, T]["nats"] is not None
        words = rf"oom at {12 * T} tokens, batch 1: needs about [\d.]+ GB, 0\.002 GB free"
        assert re.fullmatch(words, records[protocol, 12 * T]["note"])
        assert records[protocol, 12 * T]["nats"] is None
    assert max(windows_passed) == 2 * T - 8  # an eighth of it, or T
    again = measured(subject_of("nope"), [T, 12 * T], protocols=["fixed-target"], max_targets=50)
    assert again["fixed-target", 12 * T]["nats"] is not None


def test_free_memory_is_the_least_of_machine_and_group(tmp_path, monkeypatch):
    machine = SimpleNamespace(available=20_480_000_000)
    monkeypatch.setattr(machine_module.psutil, "virtual_memory", lambda: machine)
    root = write(tmp_path, {"proc/self/cgroup": "0::/a\n"})
    assert free_memory(root) == machine.available
    own = {"memory.max": "3000\n", "memory.current": "2000\n", "memory.stat": "inactive_file 7\n"}
    write(root / "sys/fs/cgroup", own)
    assert free_memory(root) == 1007
    below = {"a/memory.max": "9000\n", "a/memory.current": "1\n"}
    write(root / "sys/fs/cgroup", {**below, "memory.max": "max\n"})
    assert free_memory(root) == 8999
