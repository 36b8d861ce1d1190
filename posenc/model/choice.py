"""The `attention` group: which attention, and the options that act in any of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posenc.core.errors import UserError
from posenc.core.signature import check_arguments
from posenc.encodings.options import Scale
from posenc.model.attention import Attention
from posenc.model.mla import LatentAttention

ATTENTIONS: dict[str, type[Attention] | type[LatentAttention]] = {"mha": Attention, "mla": LatentAttention}


@dataclass(frozen=True)
class AttentionChoice:
    """Which attention and its own parameters; window and scale act beside the encoding."""

    name: str = "mha"
    params: Mapping[str, Any] | None = None
    window: int | None = None
    scale: Scale = "none"

    @property
    def attention(self) -> type[Attention] | type[LatentAttention]:
        return ATTENTIONS[self.name]

    def build(self, d_model: int, n_heads: int, layer: int) -> Attention | LatentAttention:
        """One layer's attention. Raises ValueError for a parameter out of range."""
        return self.attention(d_model, n_heads, layer, **(self.params or {}))

    def encoded_width(self, head_dim: int) -> int:
        """The head width that an encoding sees."""
        return self.attention.encoded_width(head_dim, **(self.params or {}))


def resolve_attention(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The `attention` group as a run stores it. Raises UserError for unknown names and wrong types."""
    name = settings.get("name")
    if not isinstance(name, str) or name not in ATTENTIONS:
        raise UserError("attention", name, "there is no such attention", allowed=sorted(ATTENTIONS))
    given = {key: value for key, value in settings.items() if key != "name"}
    options = {key: value for key, value in given.items() if key in ("window", "scale")}
    own = {key: value for key, value in given.items() if key not in options}
    return {
        "name": name,
        **check_arguments(ATTENTIONS[name], own, "attention"),
        **check_arguments(_options, options, "attention"),
    }


def attention_choice(settings: Mapping[str, Any]) -> AttentionChoice:
    """The choice of resolved settings."""
    params = {key: value for key, value in settings.items() if key not in ("name", "window", "scale")}
    return AttentionChoice(settings["name"], params, settings["window"], settings["scale"])


def _options(*, window: int | None, scale: Scale) -> None:
    """Only its signature is used: what every attention takes."""
