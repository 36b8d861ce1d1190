"""Replace the rotation and the attention of a model of transformers for a pass, and put them back."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from posenc.encodings.base import Encoding
from posenc.encodings.shared.rotary import Rotary
from posenc.evaluation.models.rotations import ModelRotation
from posenc.evaluation.models.transformers_attention import (
    AttentionParts,
    attention,
    changes_distances,
    score_options,
)

# The name of the attention function in the registry of transformers. No user gives this name to a function of
# their own, which a pass of another model would replace.
ATTENTION_NAME = "_posenc_extension"


@contextmanager
def copied_rotations(
    model: nn.Module,
    rotations: Mapping[str, nn.Module],
    rotation: ModelRotation | None,
    parts: Sequence[Encoding] | None,
) -> Iterator[None]:
    """Replace each rotation by a copy, with the frequencies of an extension's parts if there are any.

    `rotation` is the one that extensions change.
    """
    for name, original in rotations.items():
        # Also for the model as trained: a `dynamic` rotation keeps the scale of the longest text so far.
        copied: Any = copy.deepcopy(original)
        if rotation is not None and parts is not None:
            _set_rotation(rotation, copied, parts)
        model.set_submodule(name, copied)
    try:
        yield
    finally:
        for name, original in rotations.items():
            model.set_submodule(name, original)


def _set_rotation(rotation: ModelRotation, copied: Any, parts: Sequence[Encoding]) -> None:
    """Let a copy of the rotation's module turn as the parts of an extension do."""
    if changes_distances(parts):
        rotation.stop(copied)  # the attention function turns queries and keys
        return
    rotary = next((part for part in parts if isinstance(part, Rotary)), None)  # None: `drop` removed it
    rotation.write(copied, rotary)


@contextmanager
def replaced_attention(
    model: Any, rotation: ModelRotation | None, parts: Sequence[Encoding]
) -> Iterator[None]:
    """Replace the model's attention function by posenc's, if the parts of an encoding need that.

    They act in the layers that turn by `rotation`; None: in all of them.
    """
    attention_parts = AttentionParts.of(parts)
    if not attention_parts:
        yield
        return
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    config = model.config.get_text_config()
    as_trained = AttentionParts.of(())

    def attend(
        module: nn.Module,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention_mask: Tensor | None = None,
        **layer_options: Any,
    ) -> tuple[Tensor, None]:
        """Compute the attention of a layer, as trained if it turns by another rotation."""
        options = score_options(module, q, k, layer_options)
        is_extended = rotation is None or rotation.acts_in(options.layer, config)
        acting_parts = attention_parts if is_extended else as_trained
        output = attention(acting_parts, q, k, v, attention_mask, options)
        return output.contiguous(), None  # JetMoe views it with another shape

    AttentionInterface.register(ATTENTION_NAME, attend)
    # It makes no mask where only later tokens are hidden. One for all pairs of 16,384 tokens took 1 GB.
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
    # As it was before this pass, since a user may have chosen `eager` for the model.
    implementation = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION_NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)
