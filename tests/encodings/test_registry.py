"""From a name to an encoding: its YAML, its class, plug-ins and entry points, wrong names and parameters."""

import inspect
import re
import sys
from importlib.metadata import EntryPoint

import pytest
import torch
import yaml

from posenc.core.errors import UserError
from posenc.core.paths import conf_dir
from posenc.core.signature import parameters_of
from posenc.encodings import build_encoding, list_encodings, registry
from posenc.encodings.registry import encoding_class, resolve_encoding, sources_of
from posenc.encodings.rope import RoPE

SIZES = {"d_model": 16, "n_heads": 2, "head_dim": 8, "n_layers": 1, "train_length": 8}
PATHS = sorted((conf_dir() / "encoding").glob("*.yaml"))

MODULE = """
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.rope import RoPE  # imported, so not one of this module's own

class {cls}(Encoding):
    name = "{name}"

    def __init__(self, shape: Shape, *, strength: float, start: float = 2.0) -> None:
        super().__init__(shape)
        if strength < 0:
            raise ValueError(f"strength={{strength}}: must not be negative")
        self.strength = strength

    def distance_bias(self, r, layer):
        return -self.strength * r.float().expand(self.shape.n_heads, -1)
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    module = f"posenc_test_plugin_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(MODULE.format(cls="Mine", name="mine"))
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
    made = build_encoding(path.stem, **SIZES)
    assert (cls.acts_on == "nothing") == (not made.hooks)
    assert set(made.derived) == {key for key, value in settings.items() if value is None}


@pytest.mark.parametrize("name", ["os", "base", "../x", "posenc.encodings.rope", ""])
def test_names_that_are_no_encodings_import_nothing(name, monkeypatch):
    def imported(*arguments):
        raise AssertionError(f"imported {arguments}")

    monkeypatch.setattr(registry.importlib, "import_module", imported)
    with pytest.raises(UserError, match="no such encoding"):
        resolve_encoding({"name": name})


def test_a_plugin_is_found_when_it_is_named(plugin):
    with pytest.raises(UserError, match="no such encoding"):
        encoding_class("mine")
    assert plugin not in sys.modules  # nothing is imported unless somebody names it
    assert "mine" in list_encodings([plugin])
    assert list(registry._plugin_classes([plugin])) == ["mine"]  # not the RoPE that it imports
    assert build_encoding("mine", plugins=[plugin], strength=2, **SIZES).strength == 2.0
    # a default of the class is a setting like another: it is stored, and part of the run's identity
    settings = {"name": "mine", "start": 2.0, "strength": 1.0}
    assert resolve_encoding({"name": "mine", "strength": 1}, [plugin]) == settings
    assert encoding_class("rope", [plugin]) is RoPE
    with pytest.raises(UserError, match="did you mean: mine"):
        encoding_class("mime", [plugin])
    with pytest.raises(UserError, match="must not be negative"):
        build_encoding("mine", plugins=[plugin], strength=-1.0, **SIZES)


def test_a_part_of_a_sum_may_come_from_a_plugin(plugin):
    parts = ["rope", {"name": "mine", "strength": 0.5}]
    made = build_encoding("sum", parts=parts, plugins=[plugin], **SIZES)
    assert made.distance_bias(torch.tensor([4]), 0).tolist() == [[-2.0], [-2.0]]
    with pytest.raises(UserError, match="mine"):
        build_encoding("sum", parts=parts, **SIZES)
    resolved = resolve_encoding({"name": "sum", "parts": parts}, [plugin])
    own, theirs = sources_of(resolved, [plugin])["parts"]
    assert own == {"revision": 1, "source": None} and re.fullmatch("[0-9a-f]{16}", theirs["source"])


BROKEN_PLUGINS = {
    "mine.py": (None, r"(?s)cannot be imported .*plugins=\[mine\]: a module in this folder"),
    "posenc_nameless": (MODULE.format(cls="Mine", name="").replace("name =", "nom ="), "defines no encoding"),
    "posenc_taken": (MODULE.format(cls="Mine", name="rope"), "its encoding rope has the name of another one"),
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
    assert build_encoding("theirs", strength=1.0, **SIZES).strength == 1.0

    for value in ("no_such_module_here:Mine", "json:loads"):
        install(monkeypatch, "theirs", value)
        with pytest.raises(UserError, match="theirs"):
            encoding_class("theirs")
        assert encoding_class("rope") is RoPE
