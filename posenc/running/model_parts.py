"""Build a run's model from its settings, and check what one training step computes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from posenc.core.errors import UserError
from posenc.encodings import list_encodings
from posenc.encodings.base import Shape
from posenc.encodings.building import build_of_shape, resolve_encoding, sources_of
from posenc.encodings.options import build_options
from posenc.encodings.positions import check_positions, position_limits
from posenc.encodings.registry import encoding_class
from posenc.evaluation.extensions import build_extension, resolve_extend
from posenc.model.attention import ATTENTIONS, own_parameters, resolve_attention
from posenc.model.decoder import Decoder, ModelShape, count_parameters, initialize, training_flops
from posenc.running.checks import check_model
from posenc.settings.tree import (
    NONE,
    AttentionSettings,
    ExtendSettings,
    OptimSettings,
    PositionsSettings,
    RunSettings,
)
from posenc.training.device import resolve_compile, resolve_cuda_graph, resolve_device, resolve_precision
from posenc.training.optimizer import Optimization

VOCABULARY = 17  # tokens of a model that reads no text
LARGEST_MODEL = 10**11  # parameters; beyond it a typo is likelier than a wish


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Hold what one training step computes, checked without reading a corpus."""

    settings: RunSettings  # with the parameters of every choice checked, and nothing left to `auto`
    shape: ModelShape
    outline: Decoder  # on the meta device
    optimization: Optimization
    batch_windows: int  # of context_length tokens
    device: torch.device

    @property
    def precision(self) -> str:
        """Return fp32 or bf16."""
        return self.settings.train.precision

    @property
    def steps(self) -> int:
        """Return the number of updates."""
        batch_tokens = self.batch_windows * self.settings.context_length
        return number_of_steps(self.settings.train.tokens, batch_tokens)


def check_step(settings: RunSettings) -> StepPlan:
    """Return what a step of a training computes. Raises UserError."""
    train = settings.train
    device = resolve_device(settings.device)
    _check_tokens(settings)
    settings = check_parts(settings)
    shape = check_model(settings.model)
    outline = build_outline(settings, shape)  # values out of range show when it is built
    parameters = count_parameters(outline).total
    # The outline takes no memory, so even such a model is counted and refused in a moment.
    if parameters > LARGEST_MODEL:
        problem = f"its model would have {parameters:.1e} parameters"
        raise UserError("model", shape.name, problem, allowed=f"up to {LARGEST_MODEL:.0e}")
    length = settings.context_length
    # A batch has whole windows, so it may hold fewer tokens than `train.batch_tokens` says.
    batch_windows = train.batch_tokens // length
    batch_tokens = batch_windows * length
    step_flops = training_flops(outline, length) * batch_tokens
    steps = number_of_steps(train.tokens, batch_tokens)
    # What `auto` comes to may decide the numbers, so the run stores it, and not the word.
    resolved = train.with_changes(
        precision=resolve_precision(train.precision, device),
        compile=resolve_compile(train.compile, device, steps=steps, step_flops=step_flops),
        cuda_graph=resolve_cuda_graph(train.cuda_graph, device),
    )
    return StepPlan(
        settings=settings.with_changes(train=resolved, model=settings.model.with_changes(name=shape.name)),
        shape=shape,
        outline=outline,
        optimization=optimization_of(settings.optim, resolved.lr),
        batch_windows=batch_windows,
        device=device,
    )


def number_of_steps(tokens: int, batch_tokens: int) -> int:
    """Return the number of updates of a training, at least one."""
    return max(1, round(tokens / batch_tokens))


def _check_tokens(settings: RunSettings) -> None:
    """Check that an update holds a window, and the training an update. Raises UserError."""
    train = settings.train
    length = settings.context_length
    if train.batch_tokens < length:
        problem = f"holds no window of context_length={length}"
        allowed = f"a whole number from {length}"
        # Both at once, or the next error would ask for the second.
        hint = f"train.tokens={train.tokens}, too, must be at least that" if train.tokens < length else ""
        raise UserError("train.batch_tokens", train.batch_tokens, problem, allowed=allowed, hint=hint)
    if train.tokens < train.batch_tokens:
        problem = f"is less than one update, train.batch_tokens={train.batch_tokens}"
        allowed = f"a whole number from {train.batch_tokens}"
        raise UserError("train.tokens", train.tokens, problem, allowed=allowed)


def optimization_of(optim: OptimSettings, lr: float | str) -> Optimization:
    """Return the optimizer's settings with the peak learning rate."""
    assert isinstance(lr, float)  # `tuned` was replaced by a number
    return Optimization(
        name=optim.name,
        lr=lr,
        betas=(optim.beta1, optim.beta2),
        eps=optim.eps,
        weight_decay=optim.weight_decay,
        grad_clip=optim.grad_clip,
        warmup_fraction=optim.warmup_fraction,
        final_lr_fraction=optim.final_lr_fraction,
    )


def check_parts(settings: RunSettings) -> RunSettings:
    """Return the settings with the parameters of encoding, attention, positions and extension checked.

    In the result each choice has all its parameters, with those of its YAML and its class filled in. Raises
    UserError.
    """
    return settings.with_changes(
        encoding=resolve_encoding(settings.encoding, settings.plugins),
        attention=AttentionSettings.model_validate(resolve_attention(settings.attention.plain())),
        positions=PositionsSettings.model_validate(check_positions(settings.positions.plain())),
        extend=ExtendSettings.model_validate(resolve_extend(settings.extend.plain())),
    )


def build_outline(settings: RunSettings, shape: ModelShape, vocab_size: int = 2) -> Decoder:
    """Return the decoder on the meta device, where nothing is allocated. Raises UserError."""
    with torch.device("meta"):
        return build_decoder(settings, shape, vocab_size)


def build_model(settings: RunSettings, shape: ModelShape, vocab_size: int) -> Decoder:
    """Return the decoder of checked settings with its initial values."""
    model = build_decoder(settings, shape, vocab_size)
    initialize(model, settings.seed)
    return model


def build_decoder(settings: RunSettings, shape: ModelShape, vocab_size: int) -> Decoder:
    """Return the decoder before its parameters have values.

    Raises UserError for values out of range and for parts that make no sense together.
    """
    attention_settings = settings.attention.plain()
    attention = ATTENTIONS[settings.attention.name]
    parameters = own_parameters(attention_settings)
    positions = settings.positions.plain()
    position_limit, distance_limit = position_limits(positions, _length_of_weights(settings))
    if position_limit is not None and position_limit < settings.context_length:
        problem = "a window has more tokens"
        allowed = f"from context_length={settings.context_length}"
        raise UserError("positions.max", position_limit, problem, allowed=allowed)
    try:
        sizes = Shape(
            d_model=shape.d_model,
            n_heads=shape.n_heads,
            # Latent attention gives the encoding a separate part of each head.
            head_dim=attention.encoded_width(shape.head_dim, **parameters),
            n_layers=shape.n_layers,
            train_length=_length_of_weights(settings),
            position_limit=position_limit,
            distance_limit=distance_limit,
        )
        encoding = build_of_shape(sizes, settings.encoding, settings.plugins)
        if attention.is_decoupled and not encoding.decouples:
            raise _not_decoupled(settings)
        options = build_options(
            sizes,
            encoding,
            positions=positions,
            attention=attention_settings,
            is_decoupled=attention.is_decoupled,
        )
        model = Decoder(shape, vocab_size, encoding, options, partial(attention, **parameters))
    # Parts check each other where they are built, and know nothing of settings and their keys.
    except ValueError as error:
        raise UserError("attention", settings.attention.name, str(error)) from error
    if settings.extend.name != NONE:
        _train_extended(model, settings)
    return model


def _length_of_weights(settings: RunSettings) -> int:
    """Return the length that the encoding is built for.

    For weights that an extension stretches, that is the length which they were first trained at.
    """
    began = settings.train.began
    if settings.extend.name != NONE and began is not None:
        return began.context_length
    return settings.context_length


def _not_decoupled(settings: RunSettings) -> UserError:
    """Return the error for an encoding that cannot be limited to the rotary part of the heads."""
    decoupling = [name for name in list_encodings() if encoding_class(name).decouples]
    problem = (
        f"has no place for encoding={settings.encoding.name}: it encodes a separate part of each head only, "
        "so the encoding must be able to act on that part alone"
    )
    return UserError("attention", settings.attention.name, problem, allowed=decoupling)


def _train_extended(model: Decoder, settings: RunSettings) -> None:
    """Make the model train with an extension, as it acts at windows of the training length."""
    with torch.device("cpu"):  # an extension computes with positions, even if the model is on the meta device
        extension = build_extension(settings.extend.plain(), model)
        assert extension is not None
        extended = extension.effective_encoding(settings.context_length)
    changes_nothing = extended is model.effective_encoding
    # The run would be named after an extension that does nothing.
    if changes_nothing and settings.context_length > _length_of_weights(settings):
        problem = f"changes nothing at {settings.context_length} tokens"
        hint = ""
        distances = model.encoding.shape.distances
        if distances >= settings.context_length:
            problem += f": positions={settings.positions.name} shows distances below {distances}"
            hint = "set its factor: extend.factor=N" if "factor" in extension.settings else ""
        raise UserError("extend", settings.extend.name, problem, hint=hint)
    model.replace_effective_encoding(extended)


OPTIONS = "options"  # key of the code of options in what `code_of` returns


def code_of(settings: RunSettings, model: Decoder) -> dict[str, Any]:
    """Return which code the numbers depend on, for the run's hash, and to be stored with the weights."""
    code = sources_of(settings.encoding, settings.plugins)
    options = [f"{getattr(option, 'name', '')} {option.revision}" for option in model.options]
    # A run without options keeps the hash that it had before there were any.
    return {**code, OPTIONS: options} if options else code
