"""Rules of this code base that are worth keeping, as tests."""

import ast
import functools
import json

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
    for group in ("model", "data", "tokenizer", "optim", "tracking", "eval", "experiment")
    for path in sorted((conf_dir() / group).glob("*.yaml"))
]
ENCODINGS = [("encoding", path.stem) for path in sorted((conf_dir() / "encoding").glob("*.yaml"))]
# The laws build every encoding from its YAML. So each tenth is enough here.
CHOICES += ENCODINGS[::10]
OTHERS = [choice for choice in ENCODINGS if choice not in CHOICES]
SLOW_CHOICES = [pytest.param(*choice, marks=pytest.mark.slow) for choice in OTHERS]


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def strings(path):
    """Yield every string of a file that is not a docstring, with its line."""
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
    *("core", "settings", "results", "data", "encodings", "model", "nn", "training", "evaluation", "laws"),
    *("report", "pictures", "tracking", "config", "running", "api", "cli"),
)


def imports_of(path):
    """Return the modules of posenc that a file imports, inside functions too."""
    imported = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                imported.add(submodule if submodule in MODULES else node.module)
    return imported & MODULES.keys()


def package_of(module):
    """Return the name of the package in posenc that a module is in."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


@functools.cache
def all_imports():
    """Return the modules of posenc that each module imports."""
    return {module: imports_of(path) for module, path in MODULES.items()}


def test_every_package_has_its_place_in_the_order():
    packages = {path.name for path in (ROOT / "posenc").iterdir() if (path / "__init__.py").exists()}
    assert packages <= set(ORDER)


def test_imports_point_only_downward():
    rank = {package: i for i, package in enumerate(ORDER)}
    upward = []
    for module, imports in all_imports().items():
        # posenc itself may import everything, and what lies beside the packages is imported by all
        highest = rank.get(package_of(module), len(ORDER))
        upward += [f"{module} -> {name}" for name in imports if rank.get(package_of(name), 0) > highest]
    assert not upward


def test_no_files_import_each_other():
    """Take away, again and again, the files whose imports are all taken away: a circle is left."""
    remaining = {module: imports - {module} for module, imports in all_imports().items()}
    while True:
        free = [module for module, imports in remaining.items() if not imports & remaining.keys()]
        if not free:
            break
        for module in free:
            del remaining[module]
    assert not remaining, "files that import each other, or files that import those"


def test_nothing_outside_encodings_knows_an_encodings_name():
    """Help texts show examples (`encoding=rope`); a bare name would be a branch on it."""
    names = {*own_encodings()} - {"binary", "learned", "path"}  # words of the language as well
    assert names
    uses = []
    for path in CODE:
        if "encodings" not in path.parts:
            uses += [f"{path.relative_to(ROOT)}:{line}" for text, line in strings(path) if text in names]
    assert not uses


UNPICKLERS = {"pickle", "dill", "joblib", "instantiate", "cloudpickle", "marshal", "shelve"}


UNSAFE_CALLS = {"torch.load", "torch.save", "yaml.unsafe_load", "yaml.full_load"}


def imported_names(node):
    """Return the first and the last part of each name that a statement imports."""
    names = []
    if isinstance(node, ast.Import | ast.ImportFrom):
        names += [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        names.append(node.module or "")
    return {name.split(".")[0] for name in names} | {name.split(".")[-1] for name in names}


def is_unsafe_call(node):
    """Tell whether a node unpickles, or makes an object that a text names."""
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    allows_pickle = "allow_pickle" in [keyword.arg for keyword in node.keywords]
    return allows_pickle or called in UNSAFE_CALLS or called.endswith(".instantiate")


def test_nothing_that_unpickles_is_imported():
    imports = []
    for path in CODE:
        imports += [(path, name) for node in ast.walk(tree_of(path)) for name in imported_names(node)]
    assert [(path, name) for path, name in imports if name in UNPICKLERS] == []


def test_nothing_is_unpickled_or_instantiated():
    unsafe = []
    for path in CODE:
        unsafe += [f"{path}:{node.lineno}" for node in ast.walk(tree_of(path)) if is_unsafe_call(node)]
    assert unsafe == []


def test_no_text_of_the_code_is_a_target_of_hydra():
    targets = []
    for path in CODE:
        targets += [(path, line, text) for text, line in strings(path) if "_target_" in text]
    assert [target for target in targets if not target[2].startswith("hydra.")] == []


def test_no_yaml_has_a_target_of_hydra():
    for path in conf_dir().rglob("*.yaml"):
        assert "_target_" not in path.read_text(), path


def yaml_files(group):
    return sorted((conf_dir() / group).glob("*.yaml"))


@pytest.mark.parametrize("group", ["encoding", "tokenizer", "model", "data", "tracking", "optim"])
def test_a_yaml_is_named_as_what_it_chooses(group):
    assert yaml_files(group)
    for path in yaml_files(group):
        assert yaml.safe_load(path.read_text())["name"] == path.stem


@pytest.mark.parametrize("group", ["encoding", "tokenizer", "model", "data", "tracking", "optim"])
def test_a_yaml_begins_with_what_it_is(group):
    for path in yaml_files(group):
        first_line = path.read_text().splitlines()[0]
        assert first_line.startswith("# "), path
        assert len(first_line) <= 110, path


def test_every_encoding_has_its_yaml():
    assert own_encodings() == [path.stem for path in yaml_files("encoding")]


def test_every_tracker_has_its_yaml():
    assert sorted(TRACKERS) == [path.stem for path in yaml_files("tracking")]


def test_every_corpus_has_a_source():
    for path in yaml_files("data"):
        assert yaml.safe_load(path.read_text())["source"] in SOURCES


@pytest.mark.parametrize(("group", "choice"), [*CHOICES, *SLOW_CHOICES])
def test_every_choice_composes(group, choice):
    """In `train`, to plain data whose keys the schema knows."""
    from posenc.config.compose import compose_jobs
    from posenc.config.overrides import parse

    needed_by_choice = {
        "tokenizer=hf": ["tokenizer.path=some.json"],
        "data=hf": ["data.repository=here"],
        "data=files": ["data.paths=here"],
        "data=task": ["data.task=copy"],
    }
    needed = needed_by_choice.get(f"{group}={choice}", [])
    if group == "experiment":  # not all the jobs of a study
        needed = ["seed=0", "encoding=rope"]
    composed = compose_jobs("train", parse([f"{group}={choice}", *needed]))
    for job in composed.jobs:
        settings = job.settings.plain()
        assert settings["context_length"] > 0
        assert "experiment" not in settings
        if group not in ("eval", "experiment"):
            assert settings[group]["name"] == choice
        assert "???" not in json.dumps(settings)


@pytest.mark.parametrize("path", yaml_files("experiment"), ids=lambda path: path.stem)
def test_an_experiment_sweeps_over_encodings_that_there_are(path):
    hydra = yaml.safe_load(path.read_text()).get("hydra", {})
    swept = str(hydra.get("sweeper", {}).get("params", {}).get("encoding", "glob(*)"))
    assert swept == "glob(*)" or set(swept.split(",")) <= set(own_encodings())


@pytest.mark.parametrize("script", ["train.py", "eval.py", "cli.py"])
def test_a_script_of_the_clone_holds_no_logic(script):
    _docstring, import_of_main, _call = ast.parse((ROOT / script).read_text()).body
    assert ast.unparse(import_of_main) == "from posenc.cli import main"


MUTATIONS = ROOT / "scripts/checks/mutations/mutations.yaml"


@pytest.mark.parametrize(
    "fault", yaml.safe_load(MUTATIONS.read_text())["mutations"], ids=lambda fault: fault["name"]
)
def test_a_fault_that_is_made_on_purpose_has_its_place_in_the_code(fault):
    changed = fault["new"]
    text = (ROOT / changed["file"]).read_text()
    assert text.count(changed["before"]) == 1
    if changed["file"].endswith(".py"):
        ast.parse(text.replace(changed["before"], changed["after"]))
