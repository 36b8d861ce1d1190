"""No pickle in the source: what reads a file can read data only.

The one exception is no code of ours: `posenc/running/slurm.py` starts jobs through submitit, which
writes and reads pickles in a folder of its own below `runs/.sweeps`; nothing of a run directory goes that
way.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import ROOT

PICKLERS = {
    *("pickle", "_pickle", "cPickle", "pickletools", "marshal", "shelve", "copyreg", "dbm"),
    *("dill", "cloudpickle", "joblib", "jsonpickle", "hickle", "zodbpickle"),
}
CALLS = {  # by their last two names: torch.load, whatever it was imported as
    *("torch.load", "torch.save", "serialization.load", "jit.load", "hub.load", "export.load"),
    *("pandas.read_pickle", "pd.read_pickle", "numpy.load", "np.load", "numpy.fromregex"),
    *("yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all", "yaml.full_load_all"),
}
OF_YAML = {"yaml.load", "yaml.load_all"}
SAFE = {"SafeLoader", "CSafeLoader", "yaml.SafeLoader", "yaml.CSafeLoader"}
OF_SUBMITIT = {"posenc/running/slurm.py"}


def found_in(source: str) -> Iterator[str]:
    """What this source imports or calls that could make objects of bytes."""
    tree = ast.parse(source)
    own: dict[str, str] = {}  # a name here -> what it was imported as
    loaders: dict[str, str] = {}  # a variable -> what it was set to
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                own[alias.asname or alias.name.split(".")[0]] = alias.name if alias.asname else ""
                yield from (alias.name for part in alias.name.split(".") if part in PICKLERS)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                own[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                parts = {*(node.module or "").split("."), alias.name}
                yield from sorted(parts & PICKLERS)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            loaders[node.targets[0].id] = ast.unparse(node.value)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        first, _, rest = ast.unparse(node.func).partition(".")
        whole = ".".join(filter(None, (own.get(first) or first, rest)))
        last = ".".join(whole.split(".")[-2:])
        if last in CALLS and not whole.startswith("safetensors."):
            yield whole
        if last in OF_YAML:
            given = [ast.unparse(k.value) for k in node.keywords if k.arg == "Loader"]
            given += [ast.unparse(argument) for argument in node.args[1:2]]
            said = loaders.get(given[0], given[0]) if given else "no loader"
            # getattr(yaml, "CSafeLoader", yaml.SafeLoader): every loader it names is a safe one
            if not given or "SafeLoader" not in said or said.replace("SafeLoader", "").count("Loader"):
                yield f"{whole} with {said}"
        if whole in ("__import__", "importlib.import_module", "import_module") and node.args:
            named = node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
            yield from (str(named) for part in str(named).split(".") if part in PICKLERS)
        if any(k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in node.keywords):
            yield f"{whole} with allow_pickle"


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, marshal as m",
        "from shelve import open",
        "def f():\n    from joblib import Parallel",
        "import torch.serialization as s\ns.load('x')",
        "import torch\ntorch.load('x', weights_only=True)",
        "from torch import save as keep\nkeep({}, 'x')",
        "import torch as t\nt.load('x')",
        "import yaml\nyaml.load(text)",
        "import yaml\nyaml.load(text, yaml.Loader)",
        "import yaml\nloader = yaml.UnsafeLoader\nyaml.load(text, Loader=loader)",
        "from yaml import load\nload(text, Loader=FullLoader)",
        "import yaml\nyaml.unsafe_load(text)",
        "import numpy as np\nnp.load('x')",
        "import numpy as np\nnp.lib.format.read_array(f, allow_pickle=True)",
        "import importlib\nimportlib.import_module('pickle')",
        "__import__('cloudpickle')",
    ],
)
def test_it_would_be_found(source: str) -> None:
    assert list(found_in(source))


@pytest.mark.parametrize(
    "source",
    [
        "import yaml\nyaml.safe_load(text)",
        "import yaml\nyaml.load(text, Loader=yaml.CSafeLoader)",
        "import yaml\nloader = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)\nyaml.load(text, Loader=loader)",
        "import json\njson.load(file)",
        "from safetensors.torch import load\nload(data)",
        "from safetensors.torch import load_file, save_file\nload_file(path)",
    ],
)
def test_plain_data_is_let_through(source: str) -> None:
    assert not list(found_in(source))


def test_there_is_none_in_the_package() -> None:
    files = sorted((ROOT / "posenc").rglob("*.py"))
    found = {str(path.relative_to(ROOT)): list(found_in(path.read_text())) for path in files}
    assert len(files) > 100 and not {name: what for name, what in found.items() if what}


def imports_submitit(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if any(name.split(".")[0] == "submitit" for name in names):
            return True
    return False


def test_submitit_is_met_where_clusters_are_alone() -> None:
    files = sorted((ROOT / "posenc").rglob("*.py"))
    assert {str(path.relative_to(ROOT)) for path in files if imports_submitit(path)} <= OF_SUBMITIT
