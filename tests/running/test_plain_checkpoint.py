"""Configurations that a dry run reads without transformers: they say what transformers says."""

import hf_models
import pytest
import transformers
from fake_runs import edit_json, read_json

from posenc.core.errors import UserError
from posenc.evaluation.models.configurations import rope_settings, trained_length
from posenc.running.hf_checkpoint import read_hf_checkpoint, stored_dtype
from posenc.running.plain_checkpoint import PLAIN_TYPES, STATED, read_plainly
from posenc.running.stored_tensors import StoredTensor
from posenc.running.unloaded_model import model_sizes

WEIGHT = StoredTensor("layers.0.mlp.up", (32, 64), 8192)


def saved(folder, architecture="llama", **changes):
    """Save the configuration of an architecture and a tokenizer in a folder; return its path as text."""
    sizes = hf_models.SIZES | hf_models.LLAMA | changes
    transformers.AutoConfig.for_model(architecture, **sizes).save_pretrained(folder)
    hf_models.tokenizer(bos=False).save_pretrained(folder)
    return str(folder)


def facts_of(checkpoint):
    """Return what a plan takes from a checkpoint's configuration."""
    config = checkpoint.text_config
    return {
        "architecture": config.model_type,
        "length": trained_length(config),
        "dtype": stored_dtype(checkpoint),
        "rotation": rope_settings(config),
        "is_quantised": checkpoint.is_quantised,
        "sizes": model_sizes(config, [WEIGHT], 4.0),
    }


@pytest.mark.parametrize("architecture", PLAIN_TYPES)
def test_a_plain_configuration_says_what_transformers_says(architecture, tmp_path):
    path = saved(tmp_path, architecture, dtype="bfloat16")
    assert facts_of(read_plainly(path)) == facts_of(read_hf_checkpoint(path, "main", False))


def test_an_older_configuration_is_read(tmp_path):
    """Before transformers 5 a configuration had `rope_theta`, `rope_scaling` and `torch_dtype`."""
    path = saved(tmp_path)
    older = {"rope_theta": 1234.0, "rope_scaling": None, "torch_dtype": "bfloat16"}
    edit_json(tmp_path / "config.json", rope_parameters=None, dtype=None, **older)
    assert facts_of(read_plainly(path)) == facts_of(read_hf_checkpoint(path, "main", False))


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "gemma2"},  # its class has a head_dim of its own
        {"model_type": "gemma3_text"},
        {"model_type": "gpt_oss"},
        {"model_type": "gpt2"},
        {"hidden_size": 33},
        {"num_hidden_layers": 0},
        {"rope_parameters": hf_models.LLAMA3},
        {"rope_parameters": None},  # the class has a base
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"quantization_config": {"quant_method": "bitsandbytes"}},
        {"auto_map": {"AutoConfig": "code.Config"}},
    ],
    ids=str,
)
def test_transformers_reads_what_is_not_plain(changes, tmp_path):
    path = saved(tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    assert read_plainly(path) is None


@pytest.mark.parametrize("key", STATED)
def test_transformers_fills_in_what_is_not_stated(key, tmp_path):
    path = saved(tmp_path)
    edit_json(tmp_path / "config.json", **{key: None})
    assert read_plainly(path) is None


def test_transformers_is_asked_for_a_tokenizer_of_another_kind(tmp_path):
    path = saved(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert read_plainly(path) is None


def test_a_file_is_refused_as_by_an_evaluation(tmp_path):
    saved(tmp_path)
    with pytest.raises(UserError, match="is a file"):
        read_plainly(str(tmp_path / "config.json"))


def test_sizes_that_no_model_has_are_refused(tmp_path):
    path = saved(tmp_path)
    config = tmp_path / "config.json"
    edit_json(config, rope_parameters=read_json(config)["rope_parameters"] | {"rope_theta": 0.5})
    with pytest.raises(UserError, match="rope_theta"):
        read_plainly(path)
