"""Runs as objects, and the jobs of `posenc train` and `posenc eval` as functions: errors as exceptions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.api.runs import Runs
from posenc.config.checks import check_evaluation, check_length
from posenc.config.compose import compose_jobs
from posenc.config.overrides import CommandLine, group_of, value_text
from posenc.core.errors import RunError, UserError, safe_name, visible
from posenc.core.paths import choice_files
from posenc.core.seeds import generator_for
from posenc.core.signature import between, whole
from posenc.data.tokenizers import Tokenizer
from posenc.evaluation.foreign import Foreign, NotApplicableError
from posenc.evaluation.forward_cache import n_inputs
from posenc.model.decoder import Decoder
from posenc.results.load import Run, load_run
from posenc.results.schema import Record
from posenc.running.eval_job import StoredRun, directory_of, load_model, stored_run
from posenc.running.invocation import Invocation
from posenc.running.jobs import new_job
from posenc.running.measure import Outcome, run_eval
from posenc.running.subjects import given_job, kept_tokenizer
from posenc.running.train_job import run_train, train_job
from posenc.training.device import resolve_device

BATCH_TOKENS = 8192  # in one forward pass
MODEL = ("context_length", "tokenizer", "device", "seed", "name")
ASKED = (*MODEL, "data", "eval", "experiment_name", "runs_dir")  # what may be said of a given function


def train(**overrides: Any) -> LoadedRun:
    """Train and evaluate a run, or continue it, or find it finished; return it.

    Overrides are those of the command: `encoding="rope"`, `train={"tokens": 1e6}`,
    `**{"eval.lengths": ["1x", "8x"]}`. Raises UserError before anything is written, RunError for what
    fails while running, KeyboardInterrupt once a stopped run is saved.
    """
    words = list(_words(overrides))
    job = train_job(_settings("train", words))
    _check_end(run_train(job, words, Invocation.read()))
    return load(job.directory, plugins=job.settings["plugins"])


def evaluate(subject: Any, /, **overrides: Any) -> LoadedRun:
    """Measure a run again, given by its directory, name or object; return it with all its records.

    Overrides are those of `posenc eval`: `extend="yarn"`, `eval={"lengths": ["1x", "16x"]}`. Any other model,
    a module or a function from tokens (B, W) to logits (B, W, V): see `measure_given`. One of transformers:
    `evaluate("hf", subject={"path": DIR_OR_NAME})`. Raises what `train` raises.
    """
    if callable(subject):
        directory, outcome = measure_given(subject, **overrides)
        _check_end(outcome)
        return load(directory)
    if isinstance(subject, LoadedRun):
        overrides, subject = {"plugins": subject.plugins, **overrides}, subject.path
    group = "subject" if str(subject) in choice_files("subject") else "run"
    words = [*_words({group: str(subject)}), *_words(overrides)]
    job = new_job("eval", _settings("eval", words))
    _check_end(run_eval(job, Invocation.read()))
    return load(job.directory, plugins=overrides.get("plugins", ()))


def measure_given(
    subject: Callable[[torch.Tensor], Any], *, tokenizer: Any = "bytes", **overrides: Any
) -> tuple[Path, Outcome]:
    """Measure a module or function, tokens (B, W) -> logits (B, W, V); return its run directory.

    `context_length` is T, the length that the others are multiples of; `tokenizer` "bytes", a tokenizer.json,
    or an object of `tokenizers` or `transformers`; `data`, `eval` and so on as in `posenc train`. Every
    cell is measured anew. The text has no token in front (no BOS). Raises UserError, RunError.
    """
    for key in overrides:
        if group_of(key) not in ASKED:
            problem = "does not apply to a model that is given as it is"
            raise UserError(key, None, problem, allowed=", ".join(ASKED))
    if "context_length" not in overrides:
        raise UserError("context_length", None, "is needed: T, the length that others are compared with")
    name = str(overrides.pop("name", None) or getattr(subject, "__name__", type(subject).__name__))
    settings = _settings("train", [*_words(overrides), *_words(_tokenizer(tokenizer))])
    length = check_length(settings["context_length"])
    model = Foreign(subject, 0, length)
    training = {one: one.training for one in model.modules()}
    try:
        job = given_job(
            model,
            safe_name(name),
            {**settings, "seed": whole("seed", settings["seed"], least=0)},
            check_evaluation(settings["eval"], length),
            device=resolve_device(settings["device"]),
            tokenizer=settings["tokenizer"],
            own={},
        )
        return job.directory, run_eval(job, Invocation.read())
    finally:  # it may be in the middle of a training of its own: no dropout would be left
        for one, mode in training.items():
            one.training = mode


def _tokenizer(given: Any) -> dict[str, Any]:
    """Return the overrides that choose a tokenizer."""
    if isinstance(given, str | os.PathLike):
        return {"tokenizer": given} if given == "bytes" else {"tokenizer": "hf", "tokenizer.path": str(given)}
    settings = given if isinstance(given, Mapping) else kept_tokenizer(given)
    inside = {f"tokenizer.{key}": value for key, value in settings.items() if key != "name"}
    return {"tokenizer": settings["name"], **inside}


def _check_end(outcome: Outcome) -> None:
    if outcome.exit_code == 130:
        raise KeyboardInterrupt
    if outcome.exit_code:
        raise RunError("stopped by a signal; what is finished is saved: the same call continues")


def _settings(command: str, words: list[str]) -> dict[str, Any]:
    """Return the composed settings of one job. Raises UserError."""
    composed = compose_jobs(command, CommandLine(words))
    if composed.sweep:
        raise UserError("overrides", None, "make a sweep", hint="a loop over calls does the same")
    return composed.jobs[0].settings


def _words(overrides: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield KEY=VALUE for each; a mapping below a key sets the keys inside it."""
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            yield from _words(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={value_text(value)}"


# --- a run as an object


def load(run: str | Path, *, plugins: Sequence[str] = ()) -> LoadedRun:
    """Return the run in a directory, or with this name or hash below runs/.

    Code that its settings name is never imported: an encoding of your own needs `plugins`, as in the
    commands. Raises UserError for what is no run, and for one that cannot be read.
    """
    found = load_run(directory_of(str(run)))
    if found.problem is not None:
        raise UserError("run", run, found.problem)
    return LoadedRun(found, plugins)


class LoadedRun:
    """A run. `model` and `tokenizer` are read when first used, the weights verified by their sha256."""

    def __init__(self, run: Run, plugins: Sequence[str] = ()) -> None:
        self.run, self.plugins = run, list(plugins)
        self.path, self.name, self.state = run.path, run.name, run.state
        self.config: dict[str, Any] = run.config or {}
        self.records: list[Record] = run.records

    def __repr__(self) -> str:
        return f"<run {visible(self.name)}: {self.state}, {len(self.records)} records>"

    @property
    def train_length(self) -> int:
        """T, in tokens."""
        return int(self.config["context_length"])

    @cached_property
    def _stored(self) -> StoredRun:
        return stored_run(str(self.path), self.plugins)

    @cached_property
    def model(self) -> Decoder:
        """The model with the weights of the newest intact checkpoint, on the CPU, in evaluation mode."""
        return load_model(self._stored, self._stored.checkpoint).eval()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """What makes its tokens: `encode(text)`, `decode(ids)`."""
        definition = self._stored.checkpoint.path / "tokenizer.json"
        if definition.is_file():
            return Tokenizer("hf", definition.read_text(encoding="utf-8"))
        return Tokenizer("bytes")

    def nll(self, text: str, context: int | None = None) -> np.ndarray:
        """Return the loss in nats of every token of the text but the first.

        With `context` each is predicted from at most so many tokens; without, from all before it.
        """
        return token_nats(self.model, self._ids("text", text), context)

    def generate(self, prompt: str, context: int | None = None, **how: Any) -> str:
        """Return how the model goes on: `tokens` of them, at a `temperature`, drawn from a `seed`.

        It sees the last `context` tokens; without, the whole text.
        """
        ids, tokenizer = self._ids("prompt", prompt), self.tokenizer
        return tokenizer.decode(continuation(self.model, ids, tokenizer.vocab_size, context=context, **how))

    def _ids(self, key: str, text: str) -> list[int]:
        if not isinstance(text, str):
            raise UserError(key, type(text).__name__, "is no text", allowed="a str")
        return self.tokenizer.encode(text)

    def runs(self) -> Runs:
        """Return a collection of this run alone, for `to_frame`, `compare` and `plot`."""
        return Runs([self.run])


def window_of(model: Decoder, context: int | None, length: int) -> int:
    """Return how many tokens the model is given at most, for a text of `length`. Raises UserError."""
    asked = length if context is None else min(length, whole("context", context, least=1))
    try:
        window = n_inputs(model.effective_encoding, asked, 1)
    except NotApplicableError as error:
        allowed = f"up to {model.effective_encoding.shape.positions} tokens"
        raise UserError("context", asked, str(error), allowed=allowed) from error
    if (limit := model.effective_encoding.ends_at) is not None and window > limit:
        raise UserError("context", asked, f"no encoding of positions from {limit} on", allowed=f"to {limit}")
    return window


@torch.no_grad()
def token_nats(model: Decoder, ids: Sequence[int], context: int | None = None) -> np.ndarray:
    """Return the loss in nats of every token but the first: (len(ids) - 1,) float64.

    Each has all tokens before it, or with `context` at most so many, in a window of its own.
    """
    count = len(ids) - 1
    if count < 1:
        raise UserError("text", None, "has no second token to score")
    window = window_of(model.eval(), context, count)
    windows = torch.tensor(ids).unfold(0, window + 1, 1)  # (count - window + 1, window + 1)
    batches = windows[1:].split(max(1, BATCH_TOKENS // window))
    losses = [
        _losses(model, windows[:1], window),
        *(_losses(model, batch, 1) for batch in batches if len(batch)),
    ]
    return torch.cat(losses).double().cpu().numpy()


def _losses(model: Decoder, windows: Tensor, n_targets: int) -> Tensor:
    """Return the losses of the last targets of windows (B, W + 1), one after the other: (B n_targets,)."""
    windows = windows.to(model.embedding.weight.device)
    logits = model(windows[:, :-1], n_targets=n_targets)  # (B, T, V)
    targets = windows[:, -n_targets:].flatten()
    return F.cross_entropy(logits.float().flatten(0, 1), targets, reduction="none")


@torch.no_grad()
def continuation(
    model: Decoder,
    ids: Sequence[int],
    vocab_size: int,
    *,
    context: int | None = None,
    tokens: int = 200,
    temperature: float = 0.8,
    seed: int = 0,
) -> list[int]:
    """Return the tokens drawn after `ids`, each from at most `context` tokens before it (None: all).

    The same seed draws with the same random numbers, whatever the context; temperature 0 takes the likeliest.
    """
    if not ids:
        raise UserError("prompt", None, "is empty")
    tokens = whole("tokens", tokens, least=1)
    between("temperature", temperature, 0, 100)
    generator, found = generator_for(whole("seed", seed, least=0), "sample"), list(ids)
    for _ in range(tokens):
        window = window_of(model.eval(), context, len(found))
        given = torch.tensor([found[-window:]], device=model.embedding.weight.device)
        logits = model(given, n_targets=1)[0, 0, :vocab_size].float().cpu()
        if not logits.isfinite().all():
            raise UserError("context", window, "its logits are not finite there")
        if temperature == 0:
            found.append(int(logits.argmax()))
        else:
            shares = (logits / temperature).softmax(0)
            found.append(int(torch.multinomial(shares, 1, generator=generator)))
    return found[len(ids) :]
