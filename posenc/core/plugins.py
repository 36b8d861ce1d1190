"""Import plug-ins, and read their text with that of their helpers for the hash of a run.

A plug-in is a module or a Python file of the user's, with encodings or tasks. It must be named on the command
line: nothing is imported because a file of a run names it.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from posenc.core.errors import UserError
from posenc.core.paths import expanded, is_file, missing_path

_imported: dict[str, _Imported] = {}  # by the name of the module
_asked_for: list[str] = []  # names of modules, the latest last


def import_plugins(plugins: Sequence[str]) -> None:
    """Import plug-ins, so that what they define is known. Raises UserError."""
    for plugin in plugins:
        plugin_module(plugin)


def plugin_module(plugin: str) -> ModuleType:
    """Import a plug-in: a module, or a Python file. Raises UserError.

    A module is imported once in a process, as Python does it, and so are the helpers of a file. If their text
    has changed since then, they are refused: what runs would not be what the hash of a run says.
    """
    is_named_by_file = plugin.endswith(".py")
    if is_named_by_file and not is_file(plugin):
        raise missing_path("plugins", plugin, "file")
    try:
        module = user_module(plugin)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        problem = f"cannot be imported ({type(error).__name__}: {error})"
        hint = "" if is_named_by_file else f"plugins=[{plugin}]: a module in this folder or on PYTHONPATH"
        raise UserError("plugins", plugin, problem, hint=hint) from error
    _refuse_changed(plugin, module)
    # The latest goes to the end: of two imports of a changed file, the later one counts (data/tasks).
    if module.__name__ in _asked_for:
        _asked_for.remove(module.__name__)
    _asked_for.append(module.__name__)
    return module


@dataclass(frozen=True)
class _Imported:
    """The text of a module when it was imported."""

    spec: ModuleSpec | None  # another one once the module is reloaded
    text: str


def _refuse_changed(plugin: str, module: ModuleType) -> None:
    """Raise UserError for a plug-in whose text, or that of a helper, is not what this process runs."""
    if _folder_of(module) is None:  # such as one of C
        return
    changed = []
    for name, text in texts_with_helpers(module).items():
        spec = sys.modules[name].__spec__
        imported = _imported.get(name)
        # A reload gives a module a new spec, and from then on the process runs the new text.
        if imported is None or imported.spec is not spec:
            _imported[name] = _Imported(spec, text)
        elif imported.text != text:
            changed.append(name)
    if changed:
        problem = "it, or a file that it imports, has changed since it was imported"
        raise UserError("plugins", plugin, problem, hint="restart Python, in a notebook its kernel")


def modules_asked_for() -> list[str]:
    """Return the names of the plug-ins that were asked for, the latest last."""
    return list(_asked_for)


def user_module(name: str) -> ModuleType:
    """Import a module or a Python file.

    The working folder stays on the path, so that it may import its neighbours.
    """
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)  # last: it must not take the place of an installed module
    return file_module(name) if name.endswith(".py") else importlib.import_module(name)


def named_classes_in(module: ModuleType, base: type[Any]) -> dict[str, type[Any]]:
    """Return the classes derived from `base` that a module defines (and does not import), by their `name`.

    Raises UserError if two of them have one name.
    """
    classes: dict[str, type[Any]] = {}
    for value in vars(module).values():
        is_defined_here = inspect.isclass(value) and value.__module__ == module.__name__
        if is_defined_here and issubclass(value, base) and hasattr(value, "name"):
            first = classes.get(value.name, value)
            classes[value.name] = value
            # A class may have two names in its module, and one that inherits its name is a helper.
            are_two = first is not value and "name" in vars(first) and "name" in vars(value)
            if are_two:
                problem = f"its classes {first.__name__} and {value.__name__} both have the name {value.name}"
                raise UserError("plugins", module.__name__, problem, hint="give one of them another name")
    return classes


def file_module(file: str) -> ModuleType:
    """Import a Python file, anew once its text has changed; its folder need not be on the path."""
    path = expanded(file).resolve()
    # By its content, so that two files of one name are two modules, and a changed file is imported as a new
    # one.
    name = f"{path.stem}_{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        # It is registered before it runs, since a dataclass looks up its own module to read its annotations.
        module = sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        # A module that failed halfway must not be taken for a complete one at the next try.
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def source_hash(kind: type) -> str:
    """Return 16 hex digits of the text of a class's module and its helpers."""
    text = text_with_helpers(sys.modules[kind.__module__])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def text_with_helpers(module: ModuleType) -> str:
    """Return the text of a module, then those of the modules in its folder that it imports, by name."""
    texts = texts_with_helpers(module)
    text = texts.pop(module.__name__)
    return "".join([text, *(texts[name] for name in sorted(texts))])


def texts_with_helpers(module: ModuleType) -> dict[str, str]:
    """Return the texts of a module and of the modules in its folder that it imports, by their names.

    What lies elsewhere is somebody else's package, with a version of its own.
    """
    texts = {module.__name__: inspect.getsource(module)}
    folder = _folder_of(module)
    waiting = [module]
    # Helpers of helpers, too: what any of them changes, the run would compute otherwise under the same hash.
    while waiting:
        importer = waiting.pop()
        for name in _imported_names(importer, texts[importer.__name__]):
            helper = sys.modules.get(name)
            if helper is None or name in texts or _folder_of(helper) != folder:
                continue
            texts[name] = Path(str(helper.__file__)).read_text(encoding="utf-8")
            waiting.append(helper)
    return texts


def _imported_names(module: ModuleType, text: str) -> Iterator[str]:
    """Yield the names of the modules that a module may import: of `from a import b`, `a` and `a.b`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            dotted = "." * node.level + (node.module or "")
            # a file that tries both ways imports relatively only as a part of a package
            with suppress(ImportError):
                source = importlib.util.resolve_name(dotted, module.__package__ or None)
                yield source
                yield from (f"{source}.{alias.name}" for alias in node.names)


def _folder_of(module: ModuleType) -> Path | None:
    """Return the folder of a module's Python file; None for a module without one."""
    file = getattr(module, "__file__", None)
    if file is None or not file.endswith(".py"):
        return None
    return Path(file).resolve().parent
