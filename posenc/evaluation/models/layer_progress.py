"""Tell how far a pass of a model of transformers is, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from posenc.evaluation.models.callables import OnLayer


@dataclass(frozen=True)
class LayerProgress:
    """Report the share of a pass that is done, after each layer."""

    layers: nn.ModuleList | None  # None: no list of layers was found, so that nothing is reported
    on_layer: OnLayer | None

    @classmethod
    def of(cls, model: nn.Module, n_layers: int, on_layer: OnLayer | None) -> LayerProgress:
        """Take the layers of a model: its first list of so many modules."""
        lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
        layers = next((layers for layers in lists if len(layers) == n_layers), None)
        return cls(layers, on_layer)

    @contextmanager
    def reported(self, before: float = 0.0, size: float = 1.0) -> Iterator[None]:
        """Report while a part of the pass is made, a whole pass by default.

        `before` is the share of the pass that is done before it, `size` the share that the part is.
        """
        on_layer = self.on_layer
        if on_layer is None or self.layers is None:
            yield
            return
        handles = []
        for number, layer in enumerate(self.layers, start=1):
            share = before + size * number / len(self.layers)
            # `share=share` binds the number of this layer. Without it all hooks would report the last one.
            handles.append(layer.register_forward_hook(lambda *_, share=share: on_layer(share)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
