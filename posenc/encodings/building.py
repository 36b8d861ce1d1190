"""Build encodings from the settings of the group `encoding`: check their parameters, then construct them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from posenc.core.errors import UserError
from posenc.core.paths import choice_file, mapping_in
from posenc.core.plugins import source_hash
from posenc.encodings.registry import encoding_class, list_encodings, plugin_parameters
from posenc.settings.base import without_name
from posenc.settings.signature import check_arguments, defaults_of, parameters_of
from posenc.settings.tree import EncodingSettings

# torch takes 1.5 s or more to import, and a list of names must not wait for it. So the functions below import
# `Encoding` and `Shape` where they use them.
if TYPE_CHECKING:
    from posenc.encodings.base import Encoding, Shape


def default_parameters(name: str) -> dict[str, Any]:
    """Return the parameters in `encoding/<name>.yaml`, of posenc or an installed package.

    They are {} without such a file. Raises UserError for a file that holds no parameters.
    """
    path = choice_file("encoding", name)
    if path is None:
        return {}
    return without_name(mapping_in(path, "encoding", name))


def part_parameters(cls: type[Encoding]) -> list[str]:
    """Return the names of the parameters that take encodings: those declared as list[Encoding]."""
    from posenc.encodings.base import Encoding

    return [key for key, kind in parameters_of(cls).items() if kind == list[Encoding]]


def resolve_encoding(settings: EncodingSettings, plugins: Sequence[str] = ()) -> EncodingSettings:
    """Return the settings as a run stores them: typed (base=10000 is 10000.0), and parts in full.

    Parts stay plain data, as the parameters of any choice.
    """
    cls = encoding_class(settings.name, plugins)
    # The defaults of the signature, which a class without a YAML file has.
    parameters = {**defaults_of(cls), **settings.parameters}
    parts = {key: parameters[key] for key in part_parameters(cls) if key in parameters}
    # The signature asks for built encodings, but the settings have names or mappings. So the signature is
    # checked with empty lists in their place, and the parts are checked one by one below.
    without_parts = parameters | {key: [] for key in parts}
    checked = check_arguments(cls, without_parts, "encoding")
    for key, value in parts.items():
        checked[key] = _resolve_parts(value, f"encoding.{key}", plugins)
    return _from_plain({"name": settings.name, **checked})


def _from_plain(plain: Mapping[Any, Any]) -> EncodingSettings:
    """Return the settings of an encoding from plain data with its name."""
    # A YAML may have numbers as keys. No parameter has such a name, and the signature says so.
    return EncodingSettings.model_validate({str(key): value for key, value in plain.items()})


def _resolve_parts(parts: object, key: str, plugins: Sequence[str]) -> list[dict[str, Any]]:
    """Return the settings of encodings that are parts of another one, each in full. Raises UserError."""
    if not isinstance(parts, list):
        raise UserError(key, parts, "wrong type", allowed="a list, each a name or a mapping")
    resolved: list[dict[str, Any]] = []
    for i, part in enumerate(parts):
        key_of_part = f"{key}[{i}]"
        plain = {"name": part} if isinstance(part, str) else part
        if not (isinstance(plain, Mapping) and isinstance(plain.get("name"), str)):
            allowed = "a name, or a mapping such as {name: rope, base: 500000.0}"
            raise UserError(key_of_part, part, "not an encoding", allowed=allowed)
        try:
            settings = _with_defaults(_from_plain(plain), plugins)
            resolved.append(resolve_encoding(settings, plugins).plain())
        except UserError as error:
            # Parts may have parts, so each level adds where in its list the wrong one stands.
            raise error.within(f"in {key_of_part}") from None
    return resolved


def _with_defaults(settings: EncodingSettings, plugins: Sequence[str]) -> EncodingSettings:
    """Return the settings; those that are missing have the values of the YAML."""
    name = settings.name
    encoding_class(name, plugins)  # refuses an unknown name before it becomes part of a path
    return _from_plain({**default_parameters(name), **plugin_parameters(name, plugins), **settings.plain()})


def build_encoding(
    name: str,
    *,
    d_model: int,
    n_heads: int,
    head_dim: int,
    n_layers: int,
    train_length: int,
    **parameters: Any,
) -> Encoding:
    """Build an encoding for a model of this shape. Parameters left out have the values of its YAML.

    `plugins`, a list, may be among the parameters. Raises UserError.
    """
    from posenc.encodings.base import Shape

    plugins = parameters.pop("plugins", ())
    if not isinstance(name, str):
        raise UserError("encoding.name", name, "must be a name", allowed=list_encodings(plugins))
    shape = Shape(d_model, n_heads, head_dim, n_layers, train_length)
    return build_of_shape(shape, EncodingSettings(name=name, **parameters), plugins)


def build_of_shape(shape: Shape, settings: EncodingSettings, plugins: Sequence[str] = ()) -> Encoding:
    """Build an encoding from its settings. Those left out have the values of its YAML. Raises UserError."""
    complete_settings = resolve_encoding(_with_defaults(settings, plugins), plugins)
    return _build(shape, complete_settings, plugins)


def _build(shape: Shape, settings: EncodingSettings, plugins: Sequence[str]) -> Encoding:
    """Build an encoding, and before it the encodings that are its parts, from complete settings."""
    from posenc.encodings.hook_arguments import check_hook_arguments

    cls = encoding_class(settings.name, plugins)
    check_hook_arguments(cls)
    parameters = settings.parameters
    for key in part_parameters(cls):
        # From the inside out: a class takes built encodings as its parts.
        parameters[key] = [
            _build_part(shape, _from_plain(part), plugins, f"encoding.{key}[{number}]")
            for number, part in enumerate(parameters[key])
        ]
    try:
        return cls(shape, **parameters)
    except ValueError as error:
        raise UserError("encoding", settings.name, str(error)) from error


def _build_part(shape: Shape, settings: EncodingSettings, plugins: Sequence[str], place: str) -> Encoding:
    """Build an encoding that is a part of another one. Raises UserError, which says where it stands."""
    try:
        return _build(shape, settings, plugins)
    except UserError as error:
        raise error.within(f"in {place}") from None


def sources_of(settings: EncodingSettings, plugins: Sequence[str] = ()) -> dict[str, Any]:
    """Return what identifies the code of an encoding and of its parts, for a run's hash.

    For posenc's own classes it is the revision. For all others it is also a hash of the text of their module
    and its helpers, since nobody raises a revision while trying things out.
    """
    cls = encoding_class(settings.name, plugins)
    # Of posenc's own code a hash would change with every comment, and no run would be found again.
    source = source_hash(cls) if _is_foreign(cls) else None
    # The revision of foreign code as well, which its author may raise when a helper elsewhere changes.
    sources: dict[str, Any] = {"revision": cls.revision, "source": source}
    parts = _settings_of_parts(cls, settings)
    if parts:
        sources["parts"] = [sources_of(part, plugins) for part in parts]
    return sources


def has_foreign_code(settings: EncodingSettings, plugins: Sequence[str] = ()) -> bool:
    """Tell whether the class of an encoding, or of one of its parts, is not one of posenc's."""
    cls = encoding_class(settings.name, plugins)
    parts = _settings_of_parts(cls, settings)
    return _is_foreign(cls) or any(has_foreign_code(part, plugins) for part in parts)


def _settings_of_parts(cls: type[Encoding], settings: EncodingSettings) -> list[EncodingSettings]:
    """Return the settings of the encodings that are parts of another one; most have none."""
    parts: list[EncodingSettings] = []
    for key in part_parameters(cls):
        parts += map(_from_plain, settings.parameters[key])
    return parts


def _is_foreign(cls: type[Encoding]) -> bool:
    return not cls.__module__.startswith("posenc.encodings.")
