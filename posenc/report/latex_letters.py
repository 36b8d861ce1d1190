"""Write the letters and signs that are not ASCII as commands of LaTeX, which every engine and font knows."""

from __future__ import annotations

import unicodedata

# By hand: pandas escapes neither Unicode nor < > | " (which old font encodings print as others), and among
# pylatexenc's commands are some that plain LaTeX lacks (\mathbb) or most of its fonts (\k).
ESCAPED = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
}
SIGNS = {
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "·": r"\ensuremath{\cdot}",
    "÷": r"\ensuremath{\div}",
    "≤": r"\ensuremath{\le}",
    "≥": r"\ensuremath{\ge}",
    "≠": r"\ensuremath{\ne}",
    "≈": r"\ensuremath{\approx}",
    "∞": r"\ensuremath{\infty}",
    "√": r"\ensuremath{\surd}",
    "∑": r"\ensuremath{\sum}",
    "∆": r"\ensuremath{\Delta}",
    "→": r"\ensuremath{\to}",
    "←": r"\ensuremath{\leftarrow}",
    "∘": r"\ensuremath{\circ}",
    "⊕": r"\ensuremath{\oplus}",
    "⊗": r"\ensuremath{\otimes}",
    "°": r"\ensuremath{^\circ}",
    "²": r"\ensuremath{^2}",
    "³": r"\ensuremath{^3}",
    "µ": r"\ensuremath{\mu}",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "‘": r"\textquoteleft{}",
    "’": r"\textquoteright{}",
    "“": r"\textquotedblleft{}",
    "”": r"\textquotedblright{}",
    "…": r"\ldots{}",
    "ß": r"{\ss}",
    "æ": r"{\ae}",
    "Æ": r"{\AE}",
    "œ": r"{\oe}",
    "Œ": r"{\OE}",
    "ø": r"{\o}",
    "Ø": r"{\O}",
    "ł": r"{\l}",
    "Ł": r"{\L}",
    "ı": r"{\i}",
}
# combining mark -> accent. The ogonek is not among them: the fonts that LaTeX begins with have none.
ACCENTS = {
    "\u0300": r"\`",
    "\u0301": r"\'",
    "\u0302": r"\^",
    "\u0303": r"\~",
    "\u0304": r"\=",
    "\u0306": r"\u",
    "\u0307": r"\.",
    "\u0308": r"\"",
    "\u030a": r"\r",
    "\u030b": r"\H",
    "\u030c": r"\v",
    "\u0327": r"\c",
}
# LaTeX has no command for those that look like Latin letters.
CAPITALS = {"GAMMA", "DELTA", "THETA", "LAMDA", "XI", "PI", "SIGMA", "UPSILON", "PHI", "PSI", "OMEGA"}
NAMES = {"lamda": "lambda", "final sigma": "varsigma"}  # Unicode's name of a letter -> LaTeX's


def latex_character(character: str) -> str | None:
    """Return a character as LaTeX, or None if no command stands for it."""
    if character in ESCAPED:
        return ESCAPED[character]
    if character.isascii():
        return character
    return SIGNS.get(character) or _accented(character) or _greek(character)


def _accented(character: str) -> str | None:
    """Return a Latin letter with an accent; None for any other character."""
    parts = unicodedata.normalize("NFD", character)
    if len(parts) != 2:
        return None
    letter = parts[0]
    mark = parts[1]
    if not letter.isascii() or mark not in ACCENTS:
        return None
    # The dot of an i would stand below its accent.
    base = r"\i" if letter == "i" else letter
    return f"{ACCENTS[mark]}{{{base}}}"


def _greek(character: str) -> str | None:
    """Return a Greek letter; None for any other character."""
    name = unicodedata.name(character, "")
    size, is_letter, letter = name.removeprefix("GREEK ").partition(" LETTER ")
    if not (name.startswith("GREEK ") and is_letter):
        return None
    if size == "CAPITAL" and letter in CAPITALS:
        return rf"\ensuremath{{\{_latex_name(letter.lower()).capitalize()}}}"
    is_plain = letter.isalpha() or letter == "FINAL SIGMA"  # not `ALPHA WITH TONOS`
    if size == "SMALL" and is_plain and letter != "OMICRON":
        return rf"\ensuremath{{\{_latex_name(letter.lower())}}}"
    return None


def _latex_name(letter: str) -> str:
    return NAMES.get(letter, letter)
