import torch

from posenc.encodings import build_encoding
from posenc.model.decoder import Decoder, ModelShape, initialize


def logits_of_last(layers: int, tokens: list[int]) -> torch.Tensor:
    encoding = build_encoding("nope", d_model=16, n_heads=2, head_dim=8, n_layers=layers, train_length=8)
    assert encoding.hooks == frozenset()
    model = Decoder(ModelShape("m", 16, layers, 2, 2), 11, encoding)
    initialize(model, 0)
    with torch.no_grad():
        return model(torch.tensor([tokens]), torch.arange(len(tokens)), 1)[0, 0]


def test_one_causal_layer_ignores_the_order_of_the_past_and_two_do_not() -> None:
    here, there = [1, 2, 3, 4, 5, 6], [4, 2, 5, 1, 3, 6]
    assert torch.allclose(logits_of_last(1, here), logits_of_last(1, there), atol=1e-6)
    assert not torch.allclose(logits_of_last(2, here), logits_of_last(2, there), atol=1e-3)
