"""The text of an encoding's module and of the modules beside it that it imports, for the hash of a run."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType


def text_with_helpers(module: ModuleType) -> str:
    """Return the text of a module, then those of the modules in its folder that it imports, by name.

    What lies elsewhere is somebody else's package, with a version of its own.
    """
    texts = {module.__name__: inspect.getsource(module)}
    folder = _folder_of(module)
    waiting = [module]
    while waiting:
        importer = waiting.pop()
        for name in _imported_names(importer, texts[importer.__name__]):
            helper = sys.modules.get(name)
            if helper is None or name in texts or _folder_of(helper) != folder:
                continue
            texts[name] = Path(str(helper.__file__)).read_text(encoding="utf-8")
            waiting.append(helper)
    text = texts.pop(module.__name__)
    return "".join([text, *(texts[name] for name in sorted(texts))])


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
