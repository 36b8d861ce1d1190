import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from posenc.core.errors import UserError
from posenc.encodings import build_encoding, encoding_class, list_encodings, registry, resolve_encoding
from posenc.encodings.rope import RoPE

SIZES = {"d_model": 16, "n_heads": 2, "head_dim": 8, "n_layers": 1, "train_length": 8}

MODULE = """
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.rope import RoPE  # imported, so not one of this module's own

class {cls}(Encoding):
    name = "{name}"
    paper = formula = acts_on = past_training = "mine"

    def __init__(self, shape: Shape, *, strength: float) -> None:
        super().__init__(shape)
        if strength < 0:
            raise ValueError(f"strength={{strength}}: must not be negative")
        self.strength = strength
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    module = f"posenc_test_plugin_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(MODULE.format(cls="Mine", name="mine"))
    monkeypatch.syspath_prepend(str(tmp_path))
    return module


def test_own_encodings() -> None:
    assert encoding_class("rope") is RoPE
    assert "base" not in list_encodings() and "registry" not in list_encodings()


@pytest.mark.parametrize(
    "name, nearest",
    [("rop", "rope"), ("ALiBi", "alibi"), ("NoPE", "nope"), ("sinusodial", "sinusoidal"), ("xyzzy", None)],
)
def test_unknown_names_give_the_nearest(name: str, nearest: str | None) -> None:
    with pytest.raises(UserError) as caught:
        build_encoding(name, **SIZES)
    assert caught.value.nearest == nearest
    assert "rope" in str(caught.value) and name in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "os",
        "base",
        "registry",
        "build",
        "../x",
        "posenc.encodings.rope",
        "encodings.rope",
        "__init__",
        "",
        ".",
        "rope.py",
    ],
)
def test_names_that_are_no_encodings_import_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def imported(*arguments: object) -> None:
        raise AssertionError(f"imported {arguments}")

    monkeypatch.setattr(registry.importlib, "import_module", imported)
    with pytest.raises(UserError, match="no such encoding"):
        encoding_class(name)
    with pytest.raises(UserError):
        resolve_encoding({"name": name})


@pytest.mark.parametrize("name", [None, 3, ["rope", "alibi"], {"name": "rope"}])
def test_a_name_is_text(name: object) -> None:
    with pytest.raises(UserError, match=r"encoding\.name"):
        resolve_encoding({"name": name})


def test_a_plugin_is_found_when_it_is_named(plugin: str) -> None:
    with pytest.raises(UserError, match="no such encoding"):
        encoding_class("mine")
    assert plugin not in sys.modules  # nothing is imported unless somebody names it
    assert "mine" in list_encodings([plugin])
    assert list(registry._plugin_classes([plugin])) == ["mine"]  # not the RoPE that it imports
    assert build_encoding("mine", plugins=[plugin], strength=2, **SIZES).strength == 2.0
    assert resolve_encoding({"name": "mine", "strength": 1}, [plugin]) == {"name": "mine", "strength": 1.0}
    assert encoding_class("rope", [plugin]) is RoPE
    with pytest.raises(UserError, match="did you mean: mine"):
        encoding_class("mime", [plugin])


def test_a_plugin_is_held_to_its_signature(plugin: str) -> None:
    with pytest.raises(UserError, match=r"encoding\.strength: missing"):
        resolve_encoding({"name": "mine"}, [plugin])
    with pytest.raises(UserError, match=r"did you mean: encoding\.strength"):
        resolve_encoding({"name": "mine", "strenght": 1.0}, [plugin])
    with pytest.raises(UserError, match="must not be negative"):
        build_encoding("mine", plugins=[plugin], strength=-1.0, **SIZES)


MISTAKES = """
from posenc.encodings.base import Encoding


class Positional(Encoding):
    name = "positional"

    def __init__(self, shape, start):
        super().__init__(shape)


class Defaulted(Encoding):
    name = "defaulted"

    def __init__(self, shape, *, start: float = 2.0):
        super().__init__(shape)
        self.start = start


class Forgetful(Encoding):
    name = "forgetful"

    def __init__(self, shape):
        self.scale = {}["scale"]
"""


def test_frequent_mistakes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "posenc_frequent_mistakes.py").write_text(MISTAKES)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = ["posenc_frequent_mistakes"]
    with pytest.raises(UserError, match=r"(?s)encoding\.start=1\.0: .*not keyword-only.*self, shape, \*"):
        resolve_encoding({"name": "positional", "start": 1.0}, module)
    with pytest.raises(UserError, match=r"raises KeyError: 'scale' \(posenc_frequent_mistakes\.py:24\)"):
        build_encoding("forgetful", plugins=module, **SIZES)
    # a default of the class is a setting like another: it is stored, and part of the run's identity
    assert resolve_encoding({"name": "defaulted"}, module) == {"name": "defaulted", "start": 2.0}
    assert encoding_class("defaulted", module).paper == "not said"


@pytest.mark.parametrize("plugin_name", ["no_such_module_here", "../x", ".x", "", "a b"])
def test_plugins_that_cannot_be_imported(plugin_name: str) -> None:
    with pytest.raises(UserError, match="cannot be imported") as caught:
        encoding_class("mine", [plugin_name])
    assert caught.value.key == "plugins"


def test_a_plugin_with_a_mistake_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "posenc_broken_plugin.py").write_text("def :\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"cannot be imported.*SyntaxError"):
        encoding_class("mine", ["posenc_broken_plugin"])


def test_entry_points(plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("theirs", f"{plugin}:Mine", registry.ENTRY_POINTS)

    def installed(group: str) -> list[EntryPoint]:
        assert group == "posenc.encodings"
        return [point]

    monkeypatch.setattr(registry, "entry_points", installed)
    assert "theirs" in list_encodings()
    assert plugin not in sys.modules
    assert encoding_class("theirs").__module__ == plugin
    assert build_encoding("theirs", strength=1.0, **SIZES).strength == 1.0
    with pytest.raises(UserError, match="did you mean: theirs"):
        encoding_class("their")


def point_of(value: str) -> EntryPoint:
    return EntryPoint("mine", value, registry.ENTRY_POINTS)


def test_no_plugin_takes_a_name_that_is_taken(
    plugin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{plugin}_2.py").write_text(MODULE.format(cls="Other", name="mine"))
    assert encoding_class("mine", [plugin, plugin]).name == "mine"
    with pytest.raises(UserError, match=f"name of one of the plug-in {plugin}"):
        encoding_class("mine", [plugin, f"{plugin}_2"])
    (tmp_path / f"{plugin}_whole.py").write_text(f"from {plugin} import Mine\n")
    for value in (f"{plugin}:Mine", f"{plugin}_whole:Mine"):  # the very one, named twice
        monkeypatch.setattr(registry, "_entry_points", lambda value=value: {"mine": point_of(value)})
        assert encoding_class("mine", [plugin]).__module__ == plugin
    monkeypatch.setattr(registry, "_entry_points", lambda: {"mine": point_of(f"{plugin}_2:Other")})
    with pytest.raises(UserError, match=f"the installed {plugin}_2:Other"):
        encoding_class("mine", [plugin])


@pytest.mark.parametrize("value", ["no_such_module_here:Mine", "json:loads", "json:no_such_name"])
def test_entry_points_that_lead_nowhere(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("theirs", value, registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    with pytest.raises(UserError, match="theirs"):
        encoding_class("theirs")
    assert encoding_class("rope") is RoPE


def test_a_plugin_that_ends_the_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "posenc_quitting_plugin.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"cannot be imported \(SystemExit: 0\)"):
        encoding_class("mine", ["posenc_quitting_plugin"])
