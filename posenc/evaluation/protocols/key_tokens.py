"""key-tokens: the loss on those fixed targets for which far text matters, window by window (LongPPL).

A reference model, trained at 8T, decides which targets are key tokens: loss(T) - loss(8T) > GAIN and
loss(8T) < CLEAR, where loss(W) is its loss on the target in a window of W tokens. The reference is fixed, so
that all models are measured on the same tokens.

A file holds its decisions, one bit for each target of `fixed-target`. One file ships beside this module, for
the default corpus at default settings. For any other, scripts/key_tokens.py writes the file into the run
directory of a reference, and `eval.key_tokens` names this directory.

Source: Fang et al. 2024, arXiv 2410.23771. The paper asks for a gain of 2 nats, with tokens of about four
bytes. With byte tokens 2 nats leave 43 of SymPy's 30,384 targets, and 1 nat leaves 235.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from posenc.core.errors import UserError
from posenc.evaluation.blocks import Blocks
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.protocols.base import MeasurementFacts, Protocol, ProtocolSettings
from posenc.evaluation.protocols.fixed_target import FixedTarget, block_size
from posenc.evaluation.request import EvalRequest
from posenc.evaluation.sums import LossSums, sums_by_document
from posenc.settings.numbers import AbsolutePath, Share

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext

GAIN = 1.0  # nats: far text must lower the loss by more than this
CLEAR = 2.0  # nats: with far text the loss must be below this
FILE = "key-tokens.json"  # in a run directory
SHIPPED = Path(__file__).with_name("key_tokens.json")
SETTING = "eval.key_tokens"


class ReferenceTargets(BaseModel):
    """What targets a reference was made for: it applies to exactly these."""

    # Strict, since a file in a run directory may have been written by hand.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    fingerprint: str
    split: str
    base: int  # tokens: T, the near window
    block: int  # targets in each window
    longest: int  # tokens: the longest window
    max_targets: int

    def described(self) -> str:
        """Return all of it except the fingerprint, as text."""
        fields = self.model_dump(exclude={"fingerprint"})
        return ", ".join(f"{key} {value}" for key, value in fields.items())


class Reference(ReferenceTargets):
    """An entry of the file: its targets, and which of them are key tokens."""

    tokenizer: str
    targets_hash: str
    count: int  # key tokens
    keys: str  # packed: a bit for each target, compressed by zlib, as base64

    @property
    def targets(self) -> ReferenceTargets:
        """Return what the reference was made for."""
        return ReferenceTargets.model_validate(self.model_dump())  # it ignores the other fields


@dataclass(frozen=True, kw_only=True)
class KeyBlocks(Blocks):
    """The blocks of fixed-target, so that the two protocols share forward passes, and their key tokens."""

    is_key: np.ndarray  # (N, block) bool
    has_reference: bool  # whether the reference has these targets
    blocks_hash: str  # of the blocks alone

    @property
    def passes_key(self) -> Hashable:
        """Return that of fixed-target, whose passes it shares."""
        # Not the plan's own hash, which also covers the keys and so differs from fixed-target's.
        return self.blocks_hash, None

    def count_targets(self, window: int) -> int:
        # A dry run may not know the tokens of a text, by which the entry of the reference is found.
        return int(self.is_key.sum()) if self.has_reference else super().count_targets(window)


class KeyTokens(Protocol[KeyBlocks]):
    name = "key-tokens"
    title = "targets that far text makes clear"
    explain = "the fixed targets that far text makes clear"
    note = "the fixed targets that a model trained at 8T predicts clearly better from far text"
    reason_against_transformers = "needs a reference with this model's tokenizer"

    class Settings(ProtocolSettings):
        key_tokens: AbsolutePath | None  # null: the reference that ships
        target_fraction: Share

    settings: Settings

    def check(self, lengths: EvalLengths) -> None:
        FixedTarget.of(self.settings.target_fraction).check(lengths)

    def check_text(self, facts: MeasurementFacts) -> None:
        """Raise UserError if there is no reference for the targets of this text."""
        targets = ReferenceTargets(
            fingerprint=facts.fingerprint,
            split=facts.split,
            base=facts.lengths.base_length,
            block=block_size(self.settings.target_fraction, facts.lengths.base_length),
            longest=facts.lengths.longest,
            max_targets=facts.max_targets,
        )
        check_reference(self.settings.key_tokens, facts.tokenizer, targets)

    def plan(self, request: EvalRequest) -> KeyBlocks:
        """Choose the blocks of fixed-target, and mark the targets that the reference calls key tokens."""
        blocks = FixedTarget.of(self.settings.target_fraction).plan(request)
        is_key = stored_keys(self.settings.key_tokens, blocks)
        has_reference = is_key is not None
        if is_key is None:
            is_key = np.zeros((len(blocks.ends), blocks.block), dtype=bool)
        return KeyBlocks(
            # The keys are in it, since another reference chooses other tokens of the same blocks.
            hash=request.digest(self.name, blocks.hash, is_key),
            documents=blocks.documents,
            ends=blocks.ends,
            block=blocks.block,
            is_key=is_key,
            has_reference=has_reference,
            blocks_hash=blocks.hash,
        )

    def measure(self, context: EvalContext, plan: KeyBlocks, window: int) -> LossSums:
        """Sum the loss of every key token. Raises NotApplicableError if there is none."""
        if not plan.is_key.any():
            reason = "the reference has no key token among these targets"
            if not plan.has_reference:
                reason = "the reference has other targets, as with another tokenizer"
            raise NotApplicableError(f"n/a: {reason}")
        stops = plan.stops(context)
        nats = context.text_losses(stops, window, plan.block)  # (N, block)
        block_numbers, columns = np.nonzero(plan.is_key)  # (keys,) each
        tokens = stops[block_numbers] - plan.block + columns  # (keys,) positions in the store
        return sums_by_document(
            documents=plan.documents[block_numbers],
            nats=nats[block_numbers, columns],
            targets=np.ones(len(block_numbers)),
            byte_counts=context.store.bytes_between(tokens, tokens + 1),
        )


def find_keys(context: EvalContext, blocks: Blocks, near: int, far: int) -> np.ndarray:
    """Return which targets are key tokens by the losses in windows `near` and `far`: (N, block) bool."""
    stops = blocks.stops(context)
    near_nats = context.text_losses(stops, near, blocks.block)  # (N, block)
    far_nats = context.text_losses(stops, far, blocks.block)  # (N, block)
    # The second condition leaves out tokens that stay a surprise: there the far text helped by chance.
    is_key: np.ndarray = (near_nats - far_nats > GAIN) & (far_nats < CLEAR)
    return is_key


# --- the file of a reference


def read_references(run: str | None) -> list[Reference]:
    """Return the entries of a run's file, or of the one that ships. Raises UserError."""
    path = SHIPPED if run is None else Path(run) / FILE
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["entries"]
        return [Reference.model_validate(entry) for entry in entries]
    except FileNotFoundError:
        hint = "of a run trained at 8T: python scripts/key_tokens.py RUN_DIR"
        raise UserError(SETTING, run, f"there is no {FILE} in it", hint=hint) from None
    except (OSError, ValidationError, ValueError, KeyError, TypeError) as error:
        raise UserError(SETTING, run, f"{path} cannot be read ({error})") from error


def check_reference(run: str | None, tokenizer: str, targets: ReferenceTargets) -> None:
    """Raise UserError if the file has no entry for these targets."""
    references = read_references(run)
    for reference in references:
        # `hf` says that the tokenizer is from the hub, not which one. If it is another than the reference's,
        # `plan` finds no entry with the hash of the targets.
        may_be_same_tokenizer = tokenizer == "hf" or tokenizer == reference.tokenizer
        if reference.targets == targets and may_be_same_tokenizer:
            return
    same_corpus = [reference for reference in references if reference.fingerprint == targets.fingerprint]
    allowed = "; ".join(reference.targets.described() for reference in same_corpus)
    problem = f"no reference for this corpus as {tokenizer}, {targets.described()}"
    hint = "train a run at 8T on it, python scripts/key_tokens.py RUN_DIR, then eval.key_tokens=RUN_DIR"
    raise UserError(SETTING, run, problem, allowed=allowed or "none of this corpus", hint=hint)


def stored_keys(run: str | None, blocks: Blocks) -> np.ndarray | None:
    """Return which targets of these blocks are key tokens, (N, block) bool.

    None if no entry has their hash, which `check_reference` cannot rule out for a tokenizer `hf`.
    """
    for reference in read_references(run):
        if reference.targets_hash == blocks.hash:
            return unpacked_keys(run, reference, (len(blocks.ends), blocks.block))
    return None


def packed_keys(is_key: np.ndarray) -> str:
    """Pack is_key (N, block) as `Reference.keys` holds it; `unpacked_keys` undoes it."""
    # Most bits are 0, so zlib makes a few hundred bytes of 30,384 targets.
    bits = np.packbits(is_key).tobytes()
    return base64.b64encode(zlib.compress(bits, level=9)).decode()


def unpacked_keys(run: str | None, reference: Reference, shape: tuple[int, int]) -> np.ndarray:
    """Return the bits of a reference, (N, block) bool. Raises UserError if they are damaged."""
    count = math.prod(shape)
    try:
        content = zlib.decompress(base64.b64decode(reference.keys))
    except (ValueError, zlib.error) as error:
        raise UserError(SETTING, run, f"its keys are damaged ({error})") from error
    bits = np.frombuffer(content, dtype=np.uint8)
    # `unpackbits` would fill up what is missing with zeros and leave key tokens out in silence.
    if len(bits) != math.ceil(count / 8):
        raise UserError(SETTING, run, f"its keys are damaged ({len(bits)} bytes for {count} targets)")
    return np.unpackbits(bits, count=count).astype(bool).reshape(shape)
