"""Rules of this code base that are worth keeping, as tests."""

import ast
import functools

import pytest
import yaml
from tiny import ROOT

from posenc.core.paths import conf_dir
from posenc.data.sources import SOURCES
from posenc.encodings.registry import own_encodings
from posenc.tracking import TRACKERS

CODE = sorted((ROOT / "posenc").rglob("*.py"))
CHOICES = [
    (group, path.stem)
    for group in ("encoding", "model", "data", "tokenizer", "optim", "tracking", "eval", "experiment")
    for path in sorted((conf_dir() / group).glob("*.yaml"))
]


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def strings(path):
    """Every string of a file that is not a docstring, with its line."""
    tree = tree_of(path)
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value, node.lineno


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in CODE}
# A package imports only from itself and from those before it.
ORDER = (
    *("core", "settings", "results", "data", "encodings", "model", "training", "evaluation", "laws"),
    *("report", "pictures", "tracking", "config", "running", "api", "cli"),
)


def imports_of(path):
    """The modules of posenc that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return found & MODULES.keys()


IMPORTS = {module: imports_of(path) for module, path in MODULES.items()}


def test_imports_point_only_downward():
    packages = {path.name for path in (ROOT / "posenc").iterdir() if (path / "__init__.py").exists()}
    assert packages <= set(ORDER)
    rank = {f"posenc.{name}": i for i, name in enumerate(ORDER)}
    upward = [
        f"{module} -> {imported}"
        for module, every in IMPORTS.items()
        for imported in every
        if rank.get(".".join(module.split(".")[:2]), len(ORDER))
        < rank.get(".".join(imported.split(".")[:2]), 0)
    ]
    assert not upward


def test_no_files_import_each_other():
    left = {module: set(every) for module, every in IMPORTS.items()}
    while ready := {module for module, every in left.items() if not every & left.keys() - {module}}:
        for module in ready:
            del left[module]
    assert not left, "files that import each other, or files of such a circle"


def test_nothing_outside_encodings_knows_an_encodings_name():
    """Help texts show examples (`encoding=rope`); a bare name would be a branch on it."""
    names = {*own_encodings()} - {"binary", "learned", "path"}  # also words
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in CODE
        if "encodings" not in path.parts
        for text, line in strings(path)
        if text in names
    ]
    assert names and not found


UNPICKLERS = {"pickle", "dill", "joblib", "instantiate", "cloudpickle", "marshal", "shelve"}


def test_nothing_is_instantiated_from_a_configuration_or_unpickled():
    for path in CODE:
        for node in ast.walk(tree_of(path)):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                imported = [node.module or "", *(alias.name for alias in node.names)]
            names = {name.split(".")[0] for name in imported} | {name.split(".")[-1] for name in imported}
            assert not names & UNPICKLERS, path
            if isinstance(node, ast.Call):
                assert "allow_pickle" not in [keyword.arg for keyword in node.keywords], path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = ast.unparse(node.func)
                assert called not in ("torch.load", "torch.save", "yaml.unsafe_load", "yaml.full_load"), path
                assert not called.endswith(".instantiate"), path
        for text, line in strings(path):
            assert "_target_" not in text or text.startswith("hydra."), f"{path}:{line}"
    for path in conf_dir().rglob("*.yaml"):
        assert "_target_" not in path.read_text(), path


@pytest.mark.parametrize("group", ["encoding", "tokenizer", "model", "data", "tracking", "optim"])
def test_a_yaml_is_named_as_what_it_chooses(group):
    paths = sorted((conf_dir() / group).glob("*.yaml"))
    assert paths
    for path in paths:
        text = path.read_text()
        assert yaml.safe_load(text)["name"] == path.stem
        assert text.startswith("# ") and len(text.splitlines()[0]) <= 110, path


def test_yaml_and_modules_go_together():
    assert own_encodings() == sorted(path.stem for path in (conf_dir() / "encoding").glob("*.yaml"))
    assert sorted(TRACKERS) == sorted(path.stem for path in (conf_dir() / "tracking").glob("*.yaml"))
    for path in (conf_dir() / "data").glob("*.yaml"):
        source = yaml.safe_load(path.read_text())["source"]
        assert source in SOURCES


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_composes(group, choice):
    """In `train`, to plain data whose keys the schema knows."""
    from posenc.config.compose import compose_jobs
    from posenc.config.overrides import parse

    given = {"hf": ["tokenizer.path=some.json"], "files": ["data.paths=here"]}.get(choice, [])
    if group == "experiment":  # not all the jobs of a study
        given = ["seed=0", "encoding=rope"]
        params = yaml.safe_load((conf_dir() / "experiment" / f"{choice}.yaml").read_text())
        named = str(params.get("hydra", {}).get("sweeper", {}).get("params", {}).get("encoding", "glob(*)"))
        assert named == "glob(*)" or set(named.split(",")) <= set(own_encodings())
    composed = compose_jobs("train", parse([f"{group}={choice}", *given]))
    for job in composed.jobs:
        settings = job.settings.plain()
        assert settings["context_length"] > 0 and "experiment" not in settings
        if group not in ("eval", "experiment"):
            assert settings[group]["name"] == choice
        assert "???" not in yaml.safe_dump(settings)


def test_the_doors_hold_no_logic():
    for door in ("train.py", "eval.py", "cli.py"):
        body = ast.parse((ROOT / door).read_text()).body
        assert len(body) == 3 and ast.unparse(body[1]) == "from posenc.cli import main", door
