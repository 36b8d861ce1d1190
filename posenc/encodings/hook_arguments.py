"""Compare the arguments of the hooks that a class overrides with those that the model calls them with."""

from __future__ import annotations

import inspect

from posenc.core.errors import UserError
from posenc.encodings.base import HOOKS, Encoding

# Arguments that authors give the hooks of a bias, which only know positions.
CONTENT = {"q", "k", "x", "query", "key", "queries", "keys"}
HOOKS_OF_BIASES = {"distance_bias", "bias"}


def check_hook_arguments(cls: type[Encoding]) -> None:
    """Raise UserError for the first hook that cannot be called with the arguments of the base class.

    Hooks are called by position, so that an author may choose other names.
    """
    for hook in HOOKS:
        function = inspect.getattr_static(cls, hook)
        # Python cannot tell the arguments of everything that can be called.
        if not inspect.isfunction(function):
            continue
        expected = _arguments(getattr(Encoding, hook))
        try:
            inspect.signature(function).bind(*expected)
        except TypeError:
            raise _refusal(cls, hook, expected, _arguments(function)) from None


def _arguments(function: object) -> list[str]:
    """Return the names of a function's arguments."""
    assert callable(function)
    return list(inspect.signature(function).parameters)


def _refusal(cls: type[Encoding], hook: str, expected: list[str], arguments: list[str]) -> UserError:
    """Return the error for a hook with other arguments."""
    problem = f"its hook {hook} takes ({', '.join(arguments)})"
    hint = ""
    if hook in HOOKS_OF_BIASES and CONTENT & set(arguments):
        hint = "a bias knows positions alone: what depends on queries, keys or the text belongs in `scores`"
    allowed = f"{hook}({', '.join(expected)})"
    return UserError("encoding", cls.name, problem, allowed=allowed, hint=hint)
