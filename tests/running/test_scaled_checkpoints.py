"""Checkpoints on disk whose rotation is scaled: what is read, and what is said of the rotation."""

import hf_models
import pytest
import torch
import transformers
from hf_models import LONG

from posenc.evaluation.models.transformers import TransformersModel
from posenc.running.hf_checkpoint import load_hf_model, outline_of, read_hf_checkpoint
from posenc.running.rotation_notes import notes_on_rotation

EQUAL = {"mscale": 1.0, "mscale_all_dim": 1.0}
WINDOW = 2 * LONG


@pytest.fixture
def folder(kind, tmp_path):
    """The folder of a checkpoint, saved by transformers."""
    return hf_models.save(hf_models.scaled(kind), tmp_path)


@pytest.fixture
def checkpoint(folder):
    """The same as posenc reads it."""
    return read_hf_checkpoint(str(folder), "main", trust_remote_code=False)


@pytest.mark.parametrize("kind", hf_models.SCALED)
def test_a_checkpoint_is_measured_as_transformers_loads_it(kind, folder, checkpoint):
    subject = TransformersModel(load_hf_model(checkpoint, torch.float32, None), LONG)
    tokens = torch.randint(250, (2, WINDOW), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = transformers.AutoModelForCausalLM.from_pretrained(folder)(tokens).logits
    torch.testing.assert_close(subject(tokens, WINDOW), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", [kind for kind in hf_models.SCALED if kind != "dynamic"])
def test_the_rotation_is_known_before_the_weights_are_read(kind, checkpoint):
    outlined = TransformersModel(outline_of(checkpoint), LONG).rotation
    loaded = TransformersModel(load_hf_model(checkpoint, torch.float32, None), LONG).rotation
    torch.testing.assert_close(outlined.theta, loaded.theta, atol=0, rtol=0)


@pytest.fixture
def notes(tmp_path):
    """Return a function that gives the notes on a kind of checkpoint, without weights."""

    def notes_on(kind, *, is_extended=False, **rope):
        architecture, changes = hf_models.SCALED[kind]
        sizes = hf_models.SIZES | hf_models.LLAMA | changes
        sizes["rope_parameters"] = sizes["rope_parameters"] | rope
        transformers.AutoConfig.for_model(architecture, **sizes).save_pretrained(tmp_path)
        checkpoint = read_hf_checkpoint(str(tmp_path), "main", trust_remote_code=False)
        return notes_on_rotation(checkpoint, is_extended=is_extended)

    return notes_on


@pytest.mark.parametrize(
    ("kind", "note"),
    [
        ("llama 3.1", "rotation   scaled already (llama3), from 32 to 128 tokens"),
        ("qwen yarn", "rotation   scaled already (yarn), from 32 to 128 tokens"),
        ("phi-3", "rotation   scaled already (longrope), from 32 to 128 tokens"),
        ("gemma 3", "rotation   scaled already (linear), by a factor of 4.0"),
    ],
)
def test_a_scaling_is_said_with_its_lengths(kind, note, notes):
    assert notes(kind) == (note,)


def test_a_rotation_that_is_not_scaled_needs_no_note(notes):
    assert notes("proportional") == ()


def test_layers_that_are_not_extended_are_counted(notes):
    assert (
        notes("gemma 3", is_extended=True)[-1] == "rotation   extended in 1 global layer, not in 1 local one"
    )


def test_temperatures_that_cancel_are_said(notes):
    (_, note) = notes("qwen yarn", **EQUAL)
    assert "no temperature: mscale = mscale_all_dim = 1" in note


def test_an_architecture_that_scales_its_logits_has_a_temperature(notes):
    assert len(notes("deepseek")) == 1


def test_a_temperature_of_its_own_is_no_equal_one(notes):
    assert len(notes("qwen yarn", **EQUAL, attention_factor=1.2)) == 1
