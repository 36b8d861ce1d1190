"""List what other tools and papers call posenc's settings and values, for hints at unknown ones.

The names are from nanoGPT, transformers' configurations and Trainer, Lightning, lm-evaluation-harness, and
papers. Other names of encodings are in posenc.encodings.other_names.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class ForeignNames:
    """Hold other tools' names of one setting of posenc."""

    setting: str
    names: tuple[str, ...]  # in any case
    # What to type, such as `data.paths={value}`, where the value means something else in posenc. Without it
    # the hint is SETTING=VALUE.
    replacement: str | None = None


# --- names of settings with many names

# fmt: off
LENGTH = (
    "T", "block_size", "seq_len", "seq_length", "sequence_length", "max_seq_len", "max_seq_length",
    "max_length", "max_len", "n_ctx", "ctx", "ctx_len", "context", "context_size", "train_length",
    "n_positions", "max_position_embeddings",
)
STEPS = (
    "steps", "max_steps", "n_steps", "num_steps", "train_steps", "total_steps", "iters", "max_iters",
    "iterations", "updates",
)
EPOCHS = (
    "epoch", "epochs", "n_epochs", "num_epochs", "max_epochs", "num_train_epochs",
)
BATCH = (
    "batch", "bs", "batch_size", "train_batch_size", "micro_batch_size", "global_batch_size",
    "per_device_train_batch_size",
)
RESUME = (
    "resume", "resume_from_checkpoint", "checkpoint", "ckpt", "ckpt_path", "init_from", "pretrained",
    "from_pretrained", "load",
)
ENCODING = (
    "pe", "pos_enc", "pos_emb", "pos_encoding", "pos_embedding", "position_encoding", "position_embedding",
    "positional_encoding", "positional_embedding", "position_embedding_type",
)
# fmt: on

SETTINGS = (
    ForeignNames("context_length", LENGTH),
    ForeignNames(
        "train.tokens",
        STEPS,
        replacement="train.tokens=4e6, which counts tokens: updates times train.batch_tokens",
    ),
    ForeignNames(
        "train.tokens", EPOCHS, replacement="train.tokens=4e6, which counts tokens instead of epochs"
    ),
    ForeignNames(
        "train.batch_tokens",
        BATCH,
        replacement="train.batch_tokens=2048, which counts tokens: windows times context_length",
    ),
    ForeignNames("train.lr", ("lr", "learning_rate", "max_lr", "peak_lr", "step_size")),
    ForeignNames(
        "train.precision",
        ("dtype", "torch_dtype", "amp", "mixed_precision", "fp16", "bf16", "half"),
        replacement="train.precision=bf16",
    ),
    ForeignNames(
        "train.init",
        RESUME,
        replacement="the same command again, which resumes a run; "
        "train.init=RUN begins another one with its weights",
    ),
    ForeignNames("optim", ("optimizer", "optimiser"), replacement="optim=adamw"),
    ForeignNames("optim.weight_decay", ("wd", "decay")),
    ForeignNames(
        "optim.grad_clip", ("clip", "clip_grad", "gradient_clip", "gradient_clip_val", "max_grad_norm")
    ),
    ForeignNames(
        "optim.warmup_fraction",
        ("warmup", "warmup_steps", "warmup_iters", "num_warmup_steps", "warmup_ratio"),
        replacement="optim.warmup_fraction=0.02, a share of the training",
    ),
    ForeignNames("model", ("size", "model_size", "model_name"), replacement="model=nano"),
    ForeignNames(
        "model.d_model", ("dim", "width", "hidden_size", "hidden_dim", "n_embd", "embed_dim", "emb_dim")
    ),
    ForeignNames(
        "model.n_layers", ("depth", "layers", "n_layer", "num_layers", "num_hidden_layers", "n_blocks")
    ),
    ForeignNames("model.n_heads", ("heads", "n_head", "num_heads", "num_attention_heads")),
    ForeignNames("encoding", ENCODING),
    ForeignNames("encoding.base", ("theta", "rope_theta", "rotary_base", "rope_base")),
    ForeignNames("extend", ("extension", "scaling", "rope_scaling", "interpolation")),
    ForeignNames(
        "eval.lengths",
        ("length", "lengths", "eval_length", "eval_lengths", "test_length", "test_lengths", "eval_seq_len"),
        replacement="'eval.lengths=[1x,16x]'",
    ),
    ForeignNames("eval.protocols", ("protocol", "task", "tasks"), replacement="'eval.protocols=[sliding]'"),
    ForeignNames("seed", ("random_seed", "rng_seed", "manual_seed")),
    ForeignNames("seed", ("seeds", "n_seeds", "num_seeds"), replacement="-m seed=0,1,2"),
    ForeignNames("data", ("dataset", "dataset_name", "corpus", "text")),
    ForeignNames(
        "data.paths",
        ("data_dir", "data_path", "train_file", "train_data", "input", "files", "file", "path"),
        replacement="data=files data.paths={value}",
    ),
    ForeignNames("device", ("gpu", "gpus", "cuda", "accelerator", "devices"), replacement="device=cuda"),
    ForeignNames("tracking", ("report_to", "logger", "log_with", "tracker")),
    ForeignNames("tracking", ("wandb", "use_wandb", "wandb_log"), replacement="tracking=wandb"),
    ForeignNames(
        "tracking.project", ("wandb_project",), replacement="tracking=wandb tracking.project={value}"
    ),
    ForeignNames(
        "runs_dir", ("out", "out_dir", "output", "output_dir", "save_dir", "log_dir", "logdir", "run_dir")
    ),
    ForeignNames("name", ("run_name", "wandb_run_name")),
    ForeignNames("experiment_name", ("exp", "exp_name", "group")),
    ForeignNames(
        "sweep.jobs", ("workers", "num_workers", "n_jobs", "parallel"), replacement="-m sweep.jobs={value}"
    ),
)

# settings that have another meaning in `posenc eval`, where a run has its T already
SETTINGS_OF_EVAL = (
    ForeignNames("eval.lengths", LENGTH, replacement="'eval.lengths=[{value}]'"),
    ForeignNames("eval.batch_tokens", (*BATCH, "eval_batch_size"), replacement="eval.batch_tokens=8192"),
    ForeignNames("run", (*RESUME, "run_dir", "runs", "path")),
    ForeignNames(
        "subject", ("hf", "model_name", "model_name_or_path"), replacement="subject=hf subject.path={value}"
    ),
)

VALUES = {
    # Where there is no fp16, the same names stand for bf16.
    "fp16": ("float16", "half", "16", "16-mixed"),
    "bf16": ("fp16", "float16", "half", "bfloat16", "16", "16-mixed", "bf16-mixed", "bf16-true", "mixed"),
    "fp32": ("float32", "float", "full", "single", "32", "32-true", "tf32"),
    "ppl": ("perplexity",),
    "nats": ("loss", "nll", "ce", "cross_entropy", "log_loss"),
    "bpb": ("bits", "bpc", "bits_per_byte", "bits_per_character"),
    "validation": ("val", "valid", "dev"),
    "none": ("off", "null", "false", "no"),
    "hf": ("huggingface", "transformers", "hub"),
    "bytes": ("byte", "utf8", "utf-8", "char", "characters"),
    "markdown": ("md",),
    "latex": ("tex",),
    "wandb": ("weights_and_biases", "weights-and-biases", "w&b"),
}


def instead_of_setting(command: str, key: str, value: str | None) -> str:
    """Return what to type in posenc for a setting of another tool, or nothing: `context_length=128`.

    A group before the name does not matter: `train.learning_rate`.
    """
    entry = _entry(command, key)
    if entry is None:
        return ""
    if entry.replacement is not None:
        return entry.replacement.replace("{value}", value or "...")
    return f"{entry.setting}={value or '...'}"


def setting_called(command: str, key: str) -> str | None:
    """Return the setting of posenc that other tools give this name; None if there is none."""
    entry = _entry(command, key)
    return None if entry is None else entry.setting


def _entry(command: str, key: str) -> ForeignNames | None:
    """Return the entry with the name that stands last in a dotted key; None if there is none."""
    name = key.rpartition(".")[2].casefold()
    entries = (*SETTINGS_OF_EVAL, *SETTINGS) if command == "eval" else SETTINGS
    for entry in entries:
        names = [foreign_name.casefold() for foreign_name in entry.names]
        is_what_was_typed = entry.setting == key  # `context_length` is no hint at `context_length`
        if name in names and not is_what_was_typed:
            return entry
    return None


def instead_of_value(value: str, choices: Collection[str]) -> str | None:
    """Return the choice that other tools give this name, if it is one of `choices`."""
    for choice, names in VALUES.items():
        if value.casefold() in names and choice in choices:
            return choice
    return None
