"""Agreement with libraries that share no line with ours; scripts/encoding_differences.py has the table."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def script() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "encoding_differences.py"
    spec = importlib.util.spec_from_file_location("encoding_differences", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


COMPARISONS = script().COMPARISONS


@pytest.mark.parametrize("name, against", list(COMPARISONS))
def test_largest_difference(name: str, against: str) -> None:
    for word, library in (("x-transformers", "x_transformers"), ("transformers", "transformers")):
        if against.startswith(word):
            pytest.importorskip(library)
    measure, allowed = COMPARISONS[name, against]
    assert measure() <= allowed


def test_the_script_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("x_transformers")
    pytest.importorskip("transformers")
    module = script()
    module.main()
    out = capsys.readouterr().out
    assert "largest difference" in out
    assert sum(line.count("e-") + line.count("e+") for line in out.splitlines()) >= len(module.COMPARISONS)
