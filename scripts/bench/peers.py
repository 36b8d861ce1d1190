"""Time models of the same size from other packages beside posenc's, in turns: the JSON of `posenc bench`.

    python scripts/bench/peers.py encoding=rope context_length=64,256,512 > peers.json
Peers have the same shape, batch, precision, clipping and fused AdamW, tied embeddings, their own loss and
positions, and of their ways to attend the one that is faster here before compilation. Beside the figures of a
step each cell has those of a forward pass, the logits of a step's batch without gradients.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.core.errors import first_line
from posenc.model.decoder import ModelShape
from posenc.running.bench.case import BenchCase, TableTitle, make_cases
from posenc.running.bench.document import BenchRow, measure_all, measure_case
from posenc.running.bench.timing import Figures, measure_figures
from posenc.running.bench.work import Work, bytes_of, random_batch, training_work
from posenc.training.device import autocast, compiled_blocks
from posenc.training.memory import keep_freed_memory

REPEATS = 7  # pairs of timings for each figure
TRIALS = 3  # steps, the fastest of which chooses how a peer attends
PACKAGES = ("transformers", "x-transformers")


class NanoGPTBlock(nn.Module):
    """Attention and MLP as in karpathy/nanoGPT's model.py, without biases and dropout."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        width = shape.d_model
        self.heads = shape.n_heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, shape.mlp_ratio * width, bias=False)
        self.down = nn.Linear(shape.mlp_ratio * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the vectors after the block, (B, T, d_model) as x."""
        parts = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)  # (B, H, T, D)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class NanoGPT(nn.Module):
    """Maps tokens (B, T) to logits (B, T, V)."""

    def __init__(self, kind: str, shape: ModelShape, length: int, vocab_size: int, attention: str) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, shape.d_model)
        self.positions = nn.Embedding(length, shape.d_model)
        self.blocks = nn.Sequential(*(NanoGPTBlock(shape) for _ in range(shape.n_layers)))
        self.norm = nn.LayerNorm(shape.d_model, bias=False)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        pos = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(pos)
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)


def _transformers(kind: str, shape: ModelShape, length: int, vocab_size: int, attention: str) -> nn.Module:
    import transformers

    mlp_width = shape.mlp_ratio * shape.d_model
    if kind == "Llama":  # its MLP is gated: three maps, so two thirds of the width have as many parameters
        mlp_width = 8 * round(mlp_width / 12)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=vocab_size,
        tie_word_embeddings=True,
        hidden_size=shape.d_model,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        max_position_embeddings=length,
        intermediate_size=mlp_width,
        activation_function="gelu_pytorch_tanh",  # of GPT-2: one kernel; its default is five
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        **dict.fromkeys(("bos_token_id", "eos_token_id"), 0),
        use_cache=False,
        attn_implementation=attention,
    )
    suffix = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    model: nn.Module = getattr(transformers, kind + suffix)(config)
    return model


def _x_transformers(kind: str, shape: ModelShape, length: int, vocab_size: int, attention: str) -> nn.Module:
    """No biases, squared ReLU and tied embeddings, as in posenc; LayerNorm, which torch has as one kernel."""
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=shape.d_model,
        depth=shape.n_layers,
        heads=shape.n_heads,
        attn_dim_head=shape.head_dim,
        attn_flash=attention == "flash",
        ff_mult=shape.mlp_ratio,
        ff_relu_squared=True,
        ff_no_bias=True,
        rotary_pos_emb=kind == "rotary",
        verbose=False,
    )
    sizes = {"num_tokens": vocab_size, "max_seq_len": length, "use_abs_pos_emb": kind != "rotary"}
    model: nn.Module = TransformerWrapper(**sizes, attn_layers=layers, tie_embedding=True)
    return model


class PeerModel(nn.Module):
    """Maps tokens to logits, and has the one method that a step of posenc calls besides."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        output = self.model(tokens)
        return output if isinstance(output, Tensor) else output.logits

    def positions(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.empty(0)


class PeerLoss(nn.Module):
    """The loss as the peers' training scripts have it: all logits, then the cross entropy."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor, pos: Tensor, weights: Tensor | None = None) -> Tensor:
        assert weights is None  # nothing is planted
        return F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())


@dataclass(frozen=True)
class Peer:
    """A model of a package, in each way to attend that it has."""

    package: str
    kind: str
    attentions: Sequence[str]

    @property
    def name(self) -> str:
        return f"{self.package} {self.kind}".strip()

    def model(self, attention: str, shape: ModelShape, length: int, vocab_size: int) -> PeerModel:
        """Return the model of these sizes with the package's initial values."""
        return PeerModel(BUILD[self.package](self.kind, shape, length, vocab_size, attention))


BUILD = {"nanoGPT-like": NanoGPT, "transformers": _transformers, "x-transformers": _x_transformers}
PEERS = (
    Peer("nanoGPT-like", "", ("sdpa",)),
    *(Peer("transformers", kind, ("eager", "sdpa")) for kind in ("GPT2", "Llama", "GPTNeoX")),
    *(Peer("x-transformers", kind, ("einsum", "flash")) for kind in ("table", "rotary")),
)


def installed() -> dict[str, str | None]:
    """Return the version of each package that peers come from, None where it is not installed."""
    versions: dict[str, str | None] = {}
    for package in PACKAGES:
        is_there = find_spec(package.replace("-", "_")) is not None
        versions[package] = version(package) if is_there else None
    return versions


@dataclass(frozen=True)
class PeerCase:
    """A peer beside posenc's row of one table."""

    peer: Peer
    beside: BenchCase

    @property
    def label(self) -> str:
        return self.peer.name

    @property
    def title(self) -> TableTitle:
        return self.beside.title


def forward(case: BenchCase, model: nn.Module) -> Work:
    """Return the logits of a step's batch, without gradients."""
    inputs, _ = random_batch(case)

    @torch.no_grad()
    def run() -> None:
        model.eval()
        with autocast(case.step.precision, case.step.device):
            model(inputs)

    return Work(model, case.step.device, run, inputs.numel(), bytes_of(model))


def measured(case: BenchCase | PeerCase, base: BenchCase, repeats: int) -> BenchRow:
    """Measure a row, of posenc or of a peer, with the figures of a forward pass."""
    base_model = base.model()
    if isinstance(case, PeerCase):
        return measured_peer(case.peer, base, base_model, repeats)
    model = case.model()
    with compiled_blocks(model, case.title.compile), compiled_blocks(base_model, base.title.compile):
        forward_figures = measure_figures(
            partial(forward, case, model), partial(forward, base, base_model), repeats
        )
    return dataclasses.replace(measure_case(case, base, repeats), forward=forward_figures)


def measured_peer(peer: Peer, base: BenchCase, base_model: nn.Module, repeats: int) -> BenchRow:
    """Measure a peer, in turns with posenc's row."""
    seconds: dict[str, float] = {}
    try:
        for attention in peer.attentions:
            work = training_work(base, peer_model(peer, attention, base), PeerLoss)
            seconds[attention] = min(work.seconds(1) for _ in range(TRIALS))
        fastest = min(seconds, key=seconds.__getitem__)
        # A new model: that of the trials has trained for some steps already.
        model = peer_model(peer, fastest, base)
    except Exception as error:  # a package may raise anything
        failed = Figures(reason=first_line(error))
        return BenchRow(peer.name, base.label, base.title, failed, {}, groups={}, forward=failed)
    with compiled_blocks(base_model, base.title.compile):
        if base.title.compile:  # the whole model, as users of other packages do
            model.compile()
        training_of_peer = partial(training_work, base, model, PeerLoss)
        training_of_base = partial(training_work, base, base_model)
        training_figures = measure_figures(training_of_peer, training_of_base, repeats)
        forward_figures = measure_figures(
            partial(forward, base, model), partial(forward, base, base_model), repeats
        )
    return BenchRow(
        label=f"{peer.name}, {fastest}",
        base=base.label,
        title=base.title,
        training=training_figures,
        evaluation={},
        groups={},
        parameters={"total": sum(parameter.numel() for parameter in model.parameters())},
        forward=forward_figures,
    )


def peer_model(peer: Peer, attention: str, case: BenchCase) -> PeerModel:
    """Return the peer's model of the case's size."""
    torch.manual_seed(case.step.settings.seed)
    length = case.step.settings.context_length
    return peer.model(attention, case.step.shape, length, case.vocab_size).to(case.step.device)


def main() -> None:
    command_line = replace(parse(sys.argv[1:]), multirun=True)
    cases = make_cases(compose_jobs("train", command_line).jobs, "none")
    versions = installed()
    # nanoGPT's model is written out here, so that it needs no package
    peers = [peer for peer in PEERS if peer.package not in versions or versions[peer.package] is not None]
    # Backwards, so that of the rows of a table the first one stays.
    first_of_table = {case.title: case for case in reversed(cases)}
    rows: list[BenchCase | PeerCase] = [*cases]
    for base in first_of_table.values():
        rows += [PeerCase(peer, base) for peer in peers]
    keep_freed_memory()
    document = measure_all(rows, REPEATS, cases[0].step.device, measured)
    plain = document.plain() | {"peers": versions}
    print(json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False))


if __name__ == "__main__":
    main()
