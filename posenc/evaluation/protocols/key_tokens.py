"""key-tokens: the loss on those fixed targets for which far text matters, window by window (LongPPL).

A target is a key token where a reference model, trained at 8T, predicts it clearly better from far text:
its loss in a window of 8T is GAIN nats below that in a window of T, and its probability above exp(-CLEAR).
The reference is fixed, so all models are measured on the same tokens. Which tokens it calls key is kept in
a file, as bits over the targets of `fixed-target`: beside this module for a corpus and settings that ship,
else in the directory of a run (`eval.key_tokens`), where scripts/key_tokens.py writes it.

Source: Fang et al. 2024, arXiv 2410.23771. The paper asks for 2 nats a token of an LLM, whose tokens are
about four bytes. Of bytes 2 nats leave 43 of SymPy's 30,384 targets, 1 nat leaves 235.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from posenc.core.errors import UserError
from posenc.core.paths import expanded
from posenc.evaluation.blocks import Blocks
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.protocols.base import Protocol, ProtocolSettings, TextFacts
from posenc.evaluation.protocols.fixed_target import FixedTarget, block_size
from posenc.evaluation.request import EvalRequest
from posenc.evaluation.sums import LossSums, sums_by_document
from posenc.settings.numbers import Share, Text

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext

GAIN = 1.0  # nats that far text must win
CLEAR = 2.0  # nats: the loss from far text is below
FILE = "key-tokens.json"  # in a run directory
SHIPPED = Path(__file__).with_name("key_tokens.json")
KEY = "eval.key_tokens"


class ReferenceTargets(BaseModel):
    """The targets that a reference speaks of: it is of no use for any other."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    fingerprint: str
    split: str
    base: int  # T of the near window, tokens
    block: int  # targets of a window
    longest: int  # window, tokens
    max_targets: int

    def described(self) -> str:
        """Return all but the fingerprint in words."""
        sizes = self.model_dump(exclude={"fingerprint"})
        return ", ".join(f"{key} {value}" for key, value in sizes.items())


class Reference(ReferenceTargets):
    """An entry of the file: which of its targets are key tokens."""

    tokenizer: str
    targets_hash: str
    count: int  # key tokens
    keys: str  # a bit for each target; zlib, then base64

    @property
    def targets(self) -> ReferenceTargets:
        return ReferenceTargets(**self.model_dump(include=set(ReferenceTargets.model_fields)))


@dataclass(frozen=True, kw_only=True)
class KeyBlocks(Blocks):
    """The blocks of fixed-target, whose passes are used again, and which of their targets count."""

    is_key: np.ndarray  # (N, block) bool


def absolute_path(run: str) -> str:
    """Return the path of a run as it is stored: it must mean the same wherever the next command starts."""
    return str(expanded(run).absolute())


class KeyTokens(Protocol[KeyBlocks]):
    name = "key-tokens"
    title = "loss on the targets that far text makes clear"
    explain = "the fixed targets that far text makes clear"
    note = "the fixed targets that a model trained at 8T predicts clearly better from far text"
    refuses_transformers = "needs a reference with this model's tokenizer"

    class Settings(ProtocolSettings):
        key_tokens: Annotated[Text, AfterValidator(absolute_path)] | None  # null: the reference that ships
        target_fraction: Share

    settings: Settings

    def check(self, lengths: EvalLengths) -> None:
        self._fixed_target().check(lengths)

    def check_text(self, text: TextFacts) -> None:
        """Raise UserError if no reference speaks of the targets of this text."""
        targets = ReferenceTargets(
            fingerprint=text.fingerprint,
            split=text.split,
            base=text.lengths.base_length,
            block=block_size(self.settings.target_fraction, text.lengths.base_length),
            longest=text.lengths.longest,
            max_targets=text.max_targets,
        )
        check_reference(self.settings.key_tokens, text.tokenizer, targets)

    def plan(self, request: EvalRequest) -> KeyBlocks:
        """Choose fixed-target's blocks and the reference's keys of them; no keys without a reference."""
        blocks = self._fixed_target().plan(request)
        is_key = stored_keys(self.settings.key_tokens, blocks)
        if is_key is None:
            is_key = np.zeros((len(blocks.ends), blocks.block), dtype=bool)
        return KeyBlocks(
            hash=request.digest(self.name, blocks.hash, is_key),
            documents=blocks.documents,
            ends=blocks.ends,
            block=blocks.block,
            is_key=is_key,
        )

    def measure(self, context: EvalContext, plan: KeyBlocks, window: int) -> LossSums:
        """Sum the loss of every key token. Raises NotApplicableError if there is none."""
        if not plan.is_key.any():
            raise NotApplicableError("n/a: the reference has no key token among these targets")
        stops = plan.stops(context)
        nats = context.text_losses(stops, window, plan.block)  # (N, block)
        row, column = np.nonzero(plan.is_key)
        places = stops[row] - plan.block + column  # in the tokens of the store
        byte_counts = context.store.bytes_between(places, places + 1)
        return sums_by_document(plan.documents[row], nats[row, column], np.ones(len(row)), byte_counts)

    def _fixed_target(self) -> FixedTarget:
        return FixedTarget(FixedTarget.Settings(target_fraction=self.settings.target_fraction))


def find_keys(context: EvalContext, blocks: Blocks, near: int, far: int) -> np.ndarray:
    """Return which targets a model predicts clearly better from `far` tokens: (N, block) bool."""
    stops = blocks.stops(context)
    near_nats = context.text_losses(stops, near, blocks.block)  # (N, block)
    far_nats = context.text_losses(stops, far, blocks.block)  # (N, block)
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
        raise UserError(KEY, run, f"there is no {FILE} in it", hint=hint) from None
    except (OSError, ValidationError, ValueError, KeyError, TypeError) as error:
        raise UserError(KEY, run, f"{path} cannot be read ({error})") from error


def check_reference(run: str | None, tokenizer: str, targets: ReferenceTargets) -> None:
    """Raise UserError if no entry of the file speaks of these targets."""
    references = read_references(run)
    for reference in references:
        # `hf` is any tokenizer of the hub: whether it is the same one, only the hash of the targets tells.
        if reference.targets == targets and tokenizer in (reference.tokenizer, "hf"):
            return
    same_corpus = [reference for reference in references if reference.fingerprint == targets.fingerprint]
    raise UserError(
        KEY,
        run,
        f"no reference for this corpus as {tokenizer}, {targets.described()}",
        allowed="; ".join(reference.targets.described() for reference in same_corpus)
        or "none of this corpus",
        hint="train a run at 8T on it, python scripts/key_tokens.py RUN_DIR, then eval.key_tokens=RUN_DIR",
    )


def stored_keys(run: str | None, blocks: Blocks) -> np.ndarray | None:
    """Return which targets of these blocks are key tokens, (N, block) bool; None without an entry."""
    for reference in read_references(run):
        if reference.targets_hash == blocks.hash:
            return unpacked_keys(run, reference, (len(blocks.ends), blocks.block))
    return None


def packed_keys(is_key: np.ndarray) -> str:
    """Return the bits is_key (N, block) as text."""
    return base64.b64encode(zlib.compress(np.packbits(is_key).tobytes(), 9)).decode()


def unpacked_keys(run: str | None, reference: Reference, shape: tuple[int, int]) -> np.ndarray:
    """Return the bits of a reference, (N, block) bool. Raises UserError if they are damaged."""
    count = math.prod(shape)
    try:
        packed = np.frombuffer(zlib.decompress(base64.b64decode(reference.keys)), dtype=np.uint8)
        if len(packed) != math.ceil(count / 8):
            raise ValueError(f"{len(packed)} bytes for {count} targets")
    except (ValueError, zlib.error) as error:
        raise UserError(KEY, run, f"its keys are damaged ({error})") from error
    return np.unpackbits(packed, count=count).astype(bool).reshape(shape)
