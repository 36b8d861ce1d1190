"""From a name to an encoding: its YAML, its class, plug-ins and entry points, wrong names and parameters."""

import inspect
import re
import sys
from importlib.metadata import EntryPoint

import pytest
import tiny
import torch
import yaml
from tiny_model import encoding_of

from posenc.core.errors import UserError
from posenc.core.paths import conf_dir
from posenc.encodings import list_encodings, registry
from posenc.encodings.building import build_encoding, resolve_encoding, sources_of
from posenc.encodings.other_names import FAMILIES, OTHER_NAMES
from posenc.encodings.registry import encoding_class, own_encodings
from posenc.encodings.rope import RoPE
from posenc.settings.signature import parameters_of
from posenc.settings.tree import EncodingSettings

PATHS = sorted((conf_dir() / "encoding").glob("*.yaml"))
IMPORTED = "from posenc.encodings.rope import RoPE"  # not one of the module's own
MODULE = f"{IMPORTED}{tiny.PLUGIN.replace('strength: float', 'strength: float, start: float = 2.0')}"


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """The name of a module with an encoding, which could be imported."""
    module = f"posenc_test_plugin_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return module


# --- The YAML and the class of each encoding
every_yaml = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def settings_of(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@every_yaml
def test_module_yaml_and_class_have_the_same_name(path):
    settings = settings_of(path)
    cls = encoding_class(path.stem)
    assert settings["name"] == path.stem
    assert cls.name == path.stem
    assert cls.__module__ == f"posenc.encodings.{path.stem}"


@every_yaml
def test_a_yaml_has_the_parameters_of_the_class(path):
    assert set(settings_of(path)) - {"name"} == set(parameters_of(encoding_class(path.stem)))


@every_yaml
@pytest.mark.parametrize("n_layers", [1, 3, 16])
def test_the_formula_of_the_catalogue_counts_what_is_learned(path, n_layers):
    cls = encoding_class(path.stem)
    if cls.learned is None:
        pytest.skip("its parts have the numbers")
    encoding = encoding_of(path.stem, n_layers=n_layers)
    shape = encoding.shape
    sizes = {
        "T": shape.train_length,
        "d": shape.d_model,
        "D": shape.head_dim,
        "H": shape.n_heads,
        "L": n_layers,
    }
    count = eval(cls.learned, {**settings_of(path), **sizes})
    assert count == encoding.learned_parameters()


@every_yaml
def test_a_class_has_no_defaults(path):
    """The YAML is their only home."""
    _, *parameters = inspect.signature(encoding_class(path.stem)).parameters.values()
    for parameter in parameters:
        assert parameter.default is inspect.Parameter.empty


@every_yaml
def test_a_class_has_its_texts(path):
    cls = encoding_class(path.stem)
    for text in (cls.paper, cls.formula, cls.past_training, sys.modules[cls.__module__].__doc__):
        assert text
        assert text != "not given"


@every_yaml
def test_a_paper_begins_with_its_authors(path):
    paper = encoding_class(path.stem).paper
    assert paper[0].isalpha()


@every_yaml
def test_a_class_says_where_it_acts(path):
    acts_on = encoding_class(path.stem).acts_on
    assert acts_on in {"embed", "rotate", "bias", "mask", "scores", "weights", "several", "nothing"}
    assert (acts_on == "nothing") == (not encoding_of(path.stem).hooks)


@every_yaml
def test_a_null_in_a_yaml_is_derived(path):
    nulls = {key for key, value in settings_of(path).items() if value is None}
    assert set(encoding_of(path.stem).derived) == nulls


@pytest.mark.parametrize("name", ["os", "base", "../x", "posenc.encodings.rope", ""])
def test_names_that_are_no_encodings_import_nothing(name, monkeypatch):
    monkeypatch.setattr(registry.importlib, "import_module", None)  # whoever calls it fails
    with pytest.raises(UserError, match="no such encoding"):
        resolve_encoding(EncodingSettings(name=name))


@pytest.mark.parametrize("name", [None, 3, ["rope"]])
def test_a_name_that_is_no_text_is_refused(name):
    with pytest.raises(UserError, match="must be a name"):
        build_encoding(name, d_model=16, n_heads=2, head_dim=8, n_layers=1, train_length=8)


def test_every_name_of_other_tools_leads_to_an_encoding():
    assert set(OTHER_NAMES) <= set(own_encodings())
    assert {name for family in FAMILIES.values() for name in family} <= set(own_encodings())


# --- Plug-ins
def test_a_plugin_that_nobody_names_is_not_imported(plugin):
    with pytest.raises(UserError, match="no such encoding"):
        encoding_class("mine")
    assert plugin not in sys.modules


def test_a_plugin_is_found_when_it_is_named(plugin):
    assert "mine" in list_encodings([plugin])
    assert encoding_of("mine", plugins=[plugin], strength=2).strength == 2.0


def test_an_encoding_that_a_plugin_imports_is_not_its_own(plugin):
    assert list(registry._plugin_classes([plugin])) == ["mine"]
    assert encoding_class("rope", [plugin]) is RoPE


def test_a_default_of_a_plugins_class_is_a_setting_like_others(plugin):
    """It is stored, and part of the run's identity."""
    resolved = resolve_encoding(EncodingSettings(name="mine", strength=1), [plugin])
    assert resolved.plain() == {"name": "mine", "start": 2.0, "strength": 1.0}


def test_a_wrong_name_is_compared_with_those_of_plugins(plugin):
    with pytest.raises(UserError, match="did you mean: mine"):
        encoding_class("mime", [plugin])


PARTS = ["rope", {"name": "mine", "strength": 0.5}]


def test_a_part_of_a_sum_may_come_from_a_plugin(plugin):
    built = encoding_of("sum", parts=PARTS, plugins=[plugin])
    assert torch.equal(built.distance_bias(torch.tensor([4]), 0), -torch.full((2, 1), 5.0).log() / 2)


def test_a_part_of_a_plugin_needs_the_plugin():
    with pytest.raises(UserError, match="mine"):
        encoding_of("sum", parts=PARTS)


def test_the_source_of_a_plugins_part_is_noted(plugin):
    resolved = resolve_encoding(EncodingSettings(name="sum", parts=PARTS), [plugin])
    of_posenc, of_plugin = sources_of(resolved, [plugin])["parts"]
    assert of_posenc == {"revision": 1, "source": None}
    assert re.fullmatch("[0-9a-f]{16}", of_plugin["source"])


BROKEN_PLUGINS = {
    "mine.py": (None, r"plugins=mine\.py: there is no such file"),
    "posenc_missing": (None, r"(?s)cannot be imported .*plugins=\[posenc_missing\]: a module in this folder"),
    "posenc_nameless": (MODULE.replace("name =", "nom ="), "defines no encoding"),
    "posenc_taken": (MODULE.replace('"mine"', '"rope"'), "its encoding rope has the name of another one"),
}


@pytest.mark.parametrize("name", BROKEN_PLUGINS)
def test_plugins_that_are_refused(name, tmp_path, monkeypatch):
    source, message = BROKEN_PLUGINS[name]
    if source is not None:
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=message) as caught:
        encoding_class("mine", [name])
    assert caught.value.key == "plugins"


# --- Entry points
def install(monkeypatch, name, value):
    """Have a package installed that names an encoding in its entry points."""
    points = {"posenc.encodings": [EntryPoint(name, value, registry.ENTRY_POINTS)]}
    monkeypatch.setattr(registry, "entry_points", lambda group: points.get(group, []))


def test_an_entry_point_is_listed_without_an_import(plugin, monkeypatch):
    install(monkeypatch, "installed", f"{plugin}:Mine")
    assert "installed" in list_encodings()
    assert plugin not in sys.modules


def test_an_entry_point_is_an_encoding(plugin, monkeypatch):
    install(monkeypatch, "installed", f"{plugin}:Mine")
    assert encoding_class("installed").__module__ == plugin
    assert encoding_of("installed", strength=1.0).strength == 1.0


@pytest.mark.parametrize("value", ["no_such_module_here:Mine", "json:loads"])
def test_an_entry_point_that_is_no_encoding_is_refused_and_harms_no_other(monkeypatch, value):
    install(monkeypatch, "installed", value)
    with pytest.raises(UserError, match="installed"):
        encoding_class("installed")
    assert encoding_class("rope") is RoPE
