"""Protocols are found by their files, say what tables need, and do so without torch."""

import subprocess
import sys

import pytest

from posenc.evaluation.protocols import find_protocol, protocol_names

EACH = pytest.mark.parametrize("name", protocol_names())
WITHOUT_TORCH = """
import sys
from posenc.evaluation.protocols import find_protocol, protocol_names
for name in protocol_names():
    protocol = find_protocol(name)
    print(protocol.title, protocol.explain, protocol.note, protocol.unit, protocol.Settings.model_fields)
print([heavy for heavy in ("torch", "scipy.stats", "pandas") if heavy in sys.modules])
"""


def test_all_protocols_are_found():
    assert set(protocol_names()) == {
        *("fixed-target", "sliding", "nonoverlapping", "positions"),
        *("induction", "far-copy", "recall", "key-tokens", "dispersion", "exact"),
        *("needle", "ruler", "memory"),
    }


@EACH
def test_a_protocol_has_the_name_of_its_file(name):
    assert find_protocol(name).name == name


@EACH
def test_a_protocol_says_what_it_measures(name):
    protocol = find_protocol(name)
    assert protocol.title
    assert protocol.explain


def test_an_unknown_protocol_is_not_found():
    with pytest.raises(KeyError):
        find_protocol("base")


def test_the_words_of_all_protocols_come_without_torch():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_names_of_all_protocols_come_without_numpy_and_pydantic():
    code = "import sys; from posenc.evaluation.protocols import protocol_names; protocol_names(); "
    code += "print([heavy for heavy in ('numpy', 'pydantic') if heavy in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "[]\n"
