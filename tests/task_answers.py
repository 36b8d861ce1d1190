"""Answers of tasks by another route: from what is given, as text, to what is asked."""

import itertools
import re

import numpy as np

from posenc.data.tasks.base import MANY_SYMBOLS


def answer_previous(text):
    """The letters that are given stand at every second place; the last one is not asked for."""
    return text[0:-2:2]


def answer_copy(given):
    return given.replace(">", ".")


def answer_reverse(given):
    return "".join(reversed(given.removesuffix(">"))) + "."


def answer_addition(given):
    """Add column by column with a carry; the hints are followed by the symbol."""
    first, second = given.removesuffix(">").split("+")
    digits = [
        {hint: int(digit) for hint, digit in re.findall("(.)([0-9])", text)} for text in (first, second)
    ]
    begin = MANY_SYMBOLS.index(first[0])
    carry = 0
    answer = ""
    for hint in MANY_SYMBOLS[begin : begin + len(first) // 2 + 1]:
        carry, digit = divmod(digits[0].get(hint, 0) + digits[1].get(hint, 0) + carry, 10)
        answer += f"{hint}{digit}"
    return answer + "."


def answer_plain_addition(given):
    total = sum(map(int, re.findall("[0-9]+", given)))
    return str(total).rjust(len(given) // 2, "0") + "."


def answer_parity(given):
    bits = given.removesuffix(">")
    return "".join([str(bits[: end + 1].count("1") % 2) for end in range(len(bits))])


def answer_one_parity(given):
    return "01"[given.count("1") % 2]


def answer_s5(given):
    """Multiply permutation matrices. The elements are the neutral one and the swaps of neighbours."""
    matrix = np.eye(5)
    for factor in given.removesuffix(">"):
        swap = np.eye(5)
        number = MANY_SYMBOLS.index(factor)
        if number:
            # sorted by where things go, a swap of the last two comes first
            left = 4 - number
            swap[[left, left + 1]] = swap[[left + 1, left]]
        matrix = matrix @ swap
    images = tuple(int(row.argmax()) for row in matrix)
    by_disorder = sorted(
        itertools.permutations(range(5)),
        key=lambda images: (sum(a > b for a, b in itertools.combinations(images, 2)), images),
    )
    return MANY_SYMBOLS[by_disorder.index(images)]


def answer_mod_sum(given):
    return MANY_SYMBOLS[sum(MANY_SYMBOLS.index(factor) for factor in given.removesuffix(">")) % 5]


def answer_flip_flop(text):
    reads = [match.start() for match in re.finditer("r", text)]
    return "".join([re.findall("w([01])", text[:read])[-1] for read in reads])


def answer_mqar(text):
    pairs, asked = text[: len(text) // 2], text[len(text) // 2 + 1 :]
    return "".join([pairs[pairs.index(key, 0) + 1] for key in asked[::2]])


def answer_sort(given):
    string = given.removesuffix(">")
    return "".join([letter * string.count(letter) for letter in "abcdefgh"]) + "."


def answer_count(given):
    string, _, letter = given.partition(">")
    return f"{len(string) - len(string.replace(letter, ''))}."


def answer_mode(given):
    string = given.removesuffix(">")
    return max(string, key=string.count)


def answer_dyck(given):
    """Take pairs away until none is left; what remains is open."""
    remaining = given.removesuffix("|")
    while re.search(r"\(\)|\[\]", remaining):
        remaining = re.sub(r"\(\)|\[\]", "", remaining)
    return remaining[::-1].translate(str.maketrans("([", ")]")) + "."


# task, options -> the answer from the given text; where pieces take turns, from the whole text
CASES = {
    "previous": ("previous", {}, answer_previous),
    "copy": ("copy", {}, answer_copy),
    "copy_unique": ("copy", {"unique": True}, answer_copy),
    "reverse": ("reverse", {}, answer_reverse),
    "addition": ("addition", {}, answer_addition),
    "addition_plain": ("addition", {"hints": False, "backwards": False}, answer_plain_addition),
    "parity": ("parity", {}, answer_parity),
    "parity_end": ("parity", {"scratchpad": False}, answer_one_parity),
    "s5": ("s5", {}, answer_s5),
    "mod_sum": ("s5", {"group": "mod_sum"}, answer_mod_sum),
    "flip_flop": ("flip_flop", {"ignored": 0.5}, answer_flip_flop),
    "mqar": ("mqar", {}, answer_mqar),
    "sort": ("sort", {}, answer_sort),
    "count": ("sort", {"ask": "count"}, answer_count),
    "mode": ("sort", {"ask": "mode"}, answer_mode),
    "dyck": ("dyck", {}, answer_dyck),
}
# pieces that are given and pieces of the answer take turns, so the answers follow from the whole text
INTERLEAVED = ("previous", "flip_flop", "mqar")


# --- the next character, from the text so far


def next_of_flip_flop(text):
    return re.findall("w([01])", text)[-1]


def next_of_mqar(text):
    return text[text.index(text[-1]) + 1]


NEXT = {"previous": lambda text: text[-3], "flip_flop": next_of_flip_flop, "mqar": next_of_mqar}


def next_character(case, text):
    """Return the next character of an instance after the text so far; None where it does not follow yet."""
    name, options, answer_of = CASES[case]
    try:
        if name in NEXT:
            return NEXT[name](text)
        mark = text.index("|" if name == "dyck" else ">") + 1
        given = text[: mark + 1] if options.get("ask") == "count" else text[:mark]
        return answer_of(given)[len(text) - len(given)]
    except (AttributeError, IndexError, ValueError):
        return None
