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
from posenc.encodings.other_names import OTHER_NAMES
from posenc.encodings.registry import encoding_class, own_encodings, resolve_encoding, sources_of
from posenc.encodings.rope import RoPE
from posenc.settings.signature import parameters_of

PATHS = sorted((conf_dir() / "encoding").glob("*.yaml"))
IMPORTED = "from posenc.encodings.rope import RoPE"  # not one of the module's own
MODULE = f"{IMPORTED}{tiny.PLUGIN.replace('strength: float', 'strength: float, start: float = 2.0')}"


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    module = f"posenc_test_plugin_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return module


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_module_yaml_and_class_agree(path):
    settings, cls = yaml.safe_load(path.read_text(encoding="utf-8")), encoding_class(path.stem)
    assert settings["name"] == path.stem == cls.name and cls.__module__ == f"posenc.encodings.{path.stem}"
    assert set(settings) - {"name"} == set(parameters_of(cls))
    parameters = list(inspect.signature(cls).parameters.values())[1:]
    assert all(one.default is inspect.Parameter.empty for one in parameters), "the YAML has the defaults"
    for text in (cls.paper, cls.formula, cls.past_training, sys.modules[cls.__module__].__doc__):
        assert text and text != "not given"
    assert cls.acts_on in {"embed", "rotate", "bias", "mask", "scores", "weights", "several", "nothing"}
    made = encoding_of(path.stem)
    assert (cls.acts_on == "nothing") == (not made.hooks)
    assert set(made.derived) == {key for key, value in settings.items() if value is None}


@pytest.mark.parametrize("name", ["os", "base", "../x", "posenc.encodings.rope", ""])
def test_names_that_are_no_encodings_import_nothing(name, monkeypatch):
    monkeypatch.setattr(registry.importlib, "import_module", None)  # whoever calls it fails
    with pytest.raises(UserError, match="no such encoding"):
        resolve_encoding({"name": name})


def test_every_name_of_other_tools_leads_to_an_encoding():
    assert set(OTHER_NAMES) <= set(own_encodings())


def test_a_plugin_is_found_when_it_is_named(plugin):
    with pytest.raises(UserError, match="no such encoding"):
        encoding_class("mine")
    assert plugin not in sys.modules  # nothing is imported unless somebody names it
    assert "mine" in list_encodings([plugin])
    assert list(registry._plugin_classes([plugin])) == ["mine"]  # not the RoPE that it imports
    assert encoding_of("mine", plugins=[plugin], strength=2).strength == 2.0
    # a default of the class is a setting like another: it is stored, and part of the run's identity
    settings = {"name": "mine", "start": 2.0, "strength": 1.0}
    assert resolve_encoding({"name": "mine", "strength": 1}, [plugin]) == settings
    assert encoding_class("rope", [plugin]) is RoPE
    with pytest.raises(UserError, match="did you mean: mine"):
        encoding_class("mime", [plugin])


def test_a_part_of_a_sum_may_come_from_a_plugin(plugin):
    parts = ["rope", {"name": "mine", "strength": 0.5}]
    made = encoding_of("sum", parts=parts, plugins=[plugin])
    assert torch.equal(made.distance_bias(torch.tensor([4]), 0), -torch.full((2, 1), 5.0).log() / 2)
    with pytest.raises(UserError, match="mine"):
        encoding_of("sum", parts=parts)
    resolved = resolve_encoding({"name": "sum", "parts": parts}, [plugin])
    own, theirs = sources_of(resolved, [plugin])["parts"]
    assert own == {"revision": 1, "source": None} and re.fullmatch("[0-9a-f]{16}", theirs["source"])


BROKEN_PLUGINS = {
    "mine.py": (None, r"(?s)cannot be imported .*plugins=\[mine\]: a module in this folder"),
    "posenc_nameless": (MODULE.replace("name =", "nom ="), "defines no encoding"),
    "posenc_taken": (MODULE.replace('"mine"', '"rope"'), "its encoding rope has the name of another one"),
}


@pytest.mark.parametrize("name", BROKEN_PLUGINS)
def test_plugins_that_are_refused(name, tmp_path, monkeypatch):
    source, says = BROKEN_PLUGINS[name]
    if source is not None:
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=says) as caught:
        encoding_class("mine", [name])
    assert caught.value.key == "plugins"


def install(monkeypatch, name, value):
    points = {"posenc.encodings": [EntryPoint(name, value, registry.ENTRY_POINTS)]}
    monkeypatch.setattr(registry, "entry_points", lambda group: points.get(group, []))


def test_entry_points(plugin, monkeypatch):
    install(monkeypatch, "theirs", f"{plugin}:Mine")
    assert "theirs" in list_encodings() and plugin not in sys.modules
    assert encoding_class("theirs").__module__ == plugin
    assert encoding_of("theirs", strength=1.0).strength == 1.0

    for value in ("no_such_module_here:Mine", "json:loads"):
        install(monkeypatch, "theirs", value)
        with pytest.raises(UserError, match="theirs"):
            encoding_class("theirs")
        assert encoding_class("rope") is RoPE
