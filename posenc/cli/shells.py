"""Completion in bash, zsh and fish: the scripts, where they go, and the answer to a TAB.

A script asks the very posenc that is on the command line, with the words so far; every line of the answer is
a word. Bash breaks words at `=`, so it is given what belongs behind the last one.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from posenc.core.errors import RunError, UserError

VARIABLE = "_POSENC_COMPLETE"
BASH = """\
# completion of posenc for bash
_posenc_completion() {
    local IFS=$'\\n'
    COMPREPLY=($(_POSENC_COMPLETE=bash COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" \\
        COMP_WORDBREAKS="$COMP_WORDBREAKS" "$1" 2>/dev/null))
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=./] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -o bashdefault -o default -F _posenc_completion posenc
"""
ZSH = """\
#compdef posenc
# completion of posenc for zsh
_posenc() {
    local -a before answer open whole
    local word
    before=("${(@Q)words[2,CURRENT-1]}")
    answer=(${(f)"$(_POSENC_COMPLETE=zsh "${(Q)words[1]}" "${before[@]}" "${(Q)PREFIX}" 2>/dev/null)"})
    for word in $answer; do
        if [[ $word == *[=./] ]]; then open+=("$word"); else whole+=("$word"); fi
    done
    if (( ${#open} + ${#whole} == 0 )); then
        [[ $PREFIX == *=* ]] && compset -P '*='
        _files
        return
    fi
    (( ${#open} )) && compadd -S '' -- $open
    (( ${#whole} )) && compadd -- $whole
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _posenc "$@"; else compdef _posenc posenc; fi
"""
FISH = """\
# completion of posenc for fish
function __posenc_completion
    set -l before (commandline -opc)
    _POSENC_COMPLETE=fish $before (commandline -ct) 2>/dev/null
end
complete -c posenc -a '(__posenc_completion)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
# where the script goes, the file that a shell reads when it starts, and the lines that it needs
PLACES = {
    "bash": (".bash_completions/posenc.sh", ".bashrc", "source ~/.bash_completions/posenc.sh"),
    "zsh": (".zfunc/_posenc", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": (".config/fish/completions/posenc.fish", None, None),
}


def shell_of(named: str | None) -> str:
    """The shell that is named, else the one that runs this. Raises UserError for one without a script."""
    shell = named
    if shell is None:
        try:
            import shellingham  # type: ignore[import-untyped]

            shell = shellingham.detect_shell()[0]
        except Exception:  # of several kinds, and none of them tells more
            shell = Path(os.environ.get("SHELL", "")).name
    if shell not in SCRIPTS:
        raise UserError("SHELL", shell, "there is no completion for it", allowed=list(SCRIPTS))
    return shell


def install(shell: str, home: Path) -> str:
    """Put the script where the shell finds it; what was done, in words. Raises RunError."""
    place, start, line = PLACES[shell]
    try:
        script = home / place
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(SCRIPTS[shell], encoding="utf-8")
        said = f"written: {script}"
        if start is not None and line is not None:
            file = home / start
            text = file.read_text(encoding="utf-8") if file.exists() else ""
            if line not in text.splitlines():
                gap = "" if not text or text.endswith("\n") else "\n"
                with file.open("a", encoding="utf-8") as out:
                    out.write(f"{gap}{line}\n")
                said += f"\nadded to {file}: {line}"
    except (OSError, ValueError) as error:
        raise RunError(f"completion for {shell} could not be installed: {error}") from error
    return f"{said}\na new shell completes posenc"


def print_completion(named: str | None, put: bool) -> None:
    """The script for a shell on stdout, or put in its place."""
    shell = shell_of(named)
    print(install(shell, Path.home()) if put else SCRIPTS[shell], end="\n" if put else "")


def print_answer(arguments: Sequence[str]) -> None:
    """The answer to a TAB on stdout; nothing where it goes wrong, as nobody wants to read that there."""
    with contextlib.suppress(Exception):
        sys.stdout.write(answer(arguments))


def answer(arguments: Sequence[str]) -> str:
    """The words that fit, one a line, for the shell that the environment names."""
    from posenc.cli.completion import candidates

    if os.environ[VARIABLE] != "bash":
        words = list(arguments) or [""]
        return "".join(f"{one}\n" for one in candidates(words[:-1], words[-1]))
    point = int(os.environ.get("COMP_POINT", "0") or 0)
    line = os.environ.get("COMP_LINE", "").encode()[:point].decode(errors="replace")
    words, current, quoted = split(line)
    found = candidates(words[1:], current)
    breaks = "" if quoted else os.environ.get("COMP_WORDBREAKS", "")
    kept = max((current.rfind(sign) for sign in "=:" if sign in breaks), default=-1) + 1
    return "".join(f"{one[kept:]}\n" for one in found)


def split(line: str) -> tuple[list[str], str, bool]:
    """Whole words, the one at the end (perhaps empty), and whether a quote is open in it."""
    words: list[str] = []
    word, begun, quote = "", False, ""
    signs = iter(line)
    for sign in signs:
        if quote:
            if sign == quote:
                quote = ""
            else:
                word += sign
        elif sign in "'\"":
            quote, begun = sign, True
        elif sign.isspace():
            if begun:
                words.append(word)
            word, begun = "", False
        else:
            word, begun = word + (next(signs, "") if sign == "\\" else sign), True
    return words, word, bool(quote)
