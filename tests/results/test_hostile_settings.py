"""A config.yaml that would take long or much memory to read is a damaged run, and no other run is."""

import time

import pytest
from fake_runs import write_run

from posenc.results import load_runs
from posenc.results.comparison import compare_runs


def alias_bomb():
    """A value that stands for 10^9 values, in 400 bytes."""
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    for level in range(1, 9):
        inside = ",".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} [{inside}]")
    return "\n".join(lines)


HOSTILE = {
    "alias bomb": alias_bomb(),
    "alias": "seed: &seed 0\nother: *seed",
    "deep lists": "a: " + "[" * 100_000,
    "deep mappings": "a: " + "{b: " * 100_000,
    "deep blocks": "- " * 100_000,
    "number of base 60": "a: " + "1:" * 300_000 + "1",
    "many values": "a: [" + "x," * 300_000 + "]",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_config_is_damaged_in_a_second(tmp_path, text):
    (write_run(tmp_path) / "config.yaml").write_text(text)
    before = time.process_time()
    (run,) = load_runs([tmp_path])
    assert run.state == "damaged"
    assert run.problem.startswith("config.yaml: ")
    assert time.process_time() - before < 1


def test_one_hostile_config_leaves_the_other_runs_readable(tmp_path):
    (write_run(tmp_path, "alibi") / "config.yaml").write_text(HOSTILE["alias bomb"])
    write_run(tmp_path, "rope")
    (table,) = compare_runs(load_runs([tmp_path]))
    assert {row.cells[0].note for row in table.rows} == {None, "damaged"}
