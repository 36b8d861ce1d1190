"""key-tokens: the loss on those fixed targets for which far text matters, window by window (LongPPL).

A target is a key token where a reference model, trained at 8T, predicts it clearly better from far text: its
loss in a window of 8T is GAIN nats below that in a window of T, and its probability above exp(-CLEAR). The
reference is fixed, so all models are measured on the same tokens; what it calls key is kept in a file, as
bits over the targets of `fixed-target`: beside this module for a corpus and settings that ship, else in a
run directory (`eval.key_tokens`), where scripts/key_tokens.py writes it.

Source: Fang et al. 2024, arXiv 2410.23771; it asks for 2 nats a token of an LLM, of about four bytes. Of
bytes 2 nats leave 43 of SymPy's 30,384 targets, 1 nat leaves 235.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from posenc.core.errors import UserError
from posenc.evaluation import fixed_target
from posenc.evaluation.forward_cache import (
    EvalContext,
    LossSums,
    NotApplicableError,
    sums_by_document,
    text_losses,
)
from posenc.evaluation.plans import Blocks, EvalRequest

NAME = "key-tokens"
GAIN, CLEAR = 1.0, 2.0  # nats
FILE = "key-tokens.json"  # in a run directory
SHIPPED = Path(__file__).with_name("key_tokens.json")
KEY = "eval.key_tokens"
# What a reference is of; longest and block in tokens, base the T of its near window.
OF = ("fingerprint", "split", "base", "block", "longest", "max_targets")


@dataclass(frozen=True, kw_only=True)
class KeyBlocks(Blocks):
    """The blocks of fixed-target, whose passes these are, and which of their targets count."""

    keys: np.ndarray  # (N, block) bool


def plan(request: EvalRequest) -> KeyBlocks:
    """Choose fixed-target's blocks and the reference's keys of them; none without a reference."""
    blocks = fixed_target.plan(request)
    keys = None if request.key_tokens is None else request.key_tokens(blocks)
    if keys is None:
        keys = np.zeros((len(blocks.ends), blocks.block), dtype=bool)
    digest = request.digest(NAME, blocks.hash, keys)
    return KeyBlocks(blocks.documents, blocks.ends, blocks.block, digest, keys=keys)


def measure(context: EvalContext, plan: KeyBlocks, window: int) -> LossSums:
    """Sum the loss of every key token. Raises NotApplicableError where there is none."""
    if not plan.keys.any():
        raise NotApplicableError("n/a: the reference has no key token among these targets")
    ends = context.starts[plan.documents] + plan.ends
    nats = text_losses(context, ends, window, plan.block)
    row, column = np.nonzero(plan.keys)
    places = ends[row] - plan.block + column
    sizes = context.store.bytes_between(places, places + 1)
    return sums_by_document(plan.documents[row], nats[row, column], np.ones(len(row)), sizes)


# --- the file


def read_reference(run: str | None) -> list[dict[str, Any]]:
    """Return the entries of a run's file, or of the one that ships. Raises UserError."""
    path = SHIPPED if run is None else Path(run) / FILE
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["entries"]
        return [entry for entry in entries if {*OF, "tokenizer", "targets_hash", "keys"} <= set(entry)]
    except FileNotFoundError:
        hint = "of a run trained at 8T: python scripts/key_tokens.py RUN_DIR"
        raise UserError(KEY, run, f"there is no {FILE} in it", hint=hint) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(KEY, run, f"{path} cannot be read ({error})") from error


def check_reference(run: str | None, tokenizer: str, **of: Any) -> None:
    """Raise UserError where no reference is of these targets; `of` has the keys of OF."""
    entries = read_reference(run)
    same = [entry for entry in entries if all(entry[key] == of[key] for key in OF)]
    if any(entry["tokenizer"] == tokenizer or tokenizer == "hf" for entry in same):
        return
    known = [key for key in OF if key != "fingerprint"]
    asked = ", ".join(f"{key} {of[key]}" for key in known)
    here = [entry for entry in entries if entry["fingerprint"] == of["fingerprint"]]
    there = "; ".join(", ".join(f"{key} {entry[key]}" for key in known) for entry in here)
    problem, allowed = f"no reference for this corpus as {tokenizer}, {asked}", there or "none of this corpus"
    hint = "train a run at 8T on it, python scripts/key_tokens.py RUN_DIR, then eval.key_tokens=RUN_DIR"
    raise UserError(KEY, run, problem, allowed=allowed, hint=hint)


def stored_keys(run: str | None, blocks: Blocks) -> np.ndarray | None:
    """Return the reference's keys of these blocks: (N, block) bool; None where it has none of them."""
    shape, count = (len(blocks.ends), blocks.block), len(blocks.ends) * blocks.block
    for entry in read_reference(run):
        if entry["targets_hash"] == blocks.hash:
            try:
                packed = np.frombuffer(zlib.decompress(base64.b64decode(entry["keys"])), dtype=np.uint8)
                if len(packed) != -(-count // 8):
                    raise ValueError(f"{len(packed)} bytes for {count} targets")
                return np.unpackbits(packed, count=count).astype(bool).reshape(shape)
            except (ValueError, TypeError, zlib.error) as error:
                raise UserError(KEY, run, f"its keys are damaged ({error})") from error
    return None
