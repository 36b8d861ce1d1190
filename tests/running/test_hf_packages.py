"""Checkpoints that need more packages: quantised weights, and layers that are spread over devices.

They are skipped where `accelerate` or `compressed-tensors` is not installed.
"""

import hf_models
import pytest
import torch

import posenc as px

BITS = 8


@pytest.fixture
def settings(working_folder, corpus):
    """The settings of an evaluation."""
    evaluation = {"lengths": ["1x", "2x"], "max_targets": 200, "protocols": ["fixed-target"]}
    return {"data": "files", "data.paths": corpus, "eval": evaluation, "device": "cpu"}


def losses(path, settings, **changes):
    """Evaluate a checkpoint; return its losses in the order of windows."""
    run = px.evaluate("hf", **{"subject.path": path, **settings, **changes})
    return [record["nats"] for record in run.records if record["protocol"] == "fixed-target"]


def save_both(folder):
    """Save a Llama whose weights are multiples of a step a row, as numbers and as packed integers."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    model = hf_models.random_model("llama", **hf_models.LLAMA)
    steps = {}
    for name, module in model.model.named_modules():
        if isinstance(module, torch.nn.Linear):
            step = module.weight.detach().abs().amax(1, keepdim=True) / (2 ** (BITS - 1) - 1)
            module.weight.data = (module.weight.detach() / step).round() * step
            steps[f"model.{name}"] = step
    hf_models.save(model, folder / "plain")
    weights = {"num_bits": BITS, "type": "int", "strategy": "channel", "symmetric": True}
    quantization = QuantizationConfig(
        config_groups={"all": {"targets": ["Linear"], "weights": weights}},
        ignore=["lm_head"],
        format="pack-quantized",
        quantization_status="frozen",
    )
    apply_quantization_config(model, quantization)
    for name, step in steps.items():
        model.get_submodule(name).weight_scale.data.copy_(step)
    compressor = ModelCompressor.from_pretrained_model(model, quantization_format="pack-quantized")
    compressor.compress_model(model)
    hf_models.save(model, folder / "quantised")
    compressor.update_config(folder / "quantised")
    return folder / "plain", folder / "quantised"


def test_a_quantised_checkpoint_has_the_losses_of_its_numbers(tmp_path, settings):
    plain, quantised = save_both(tmp_path)
    assert losses(quantised, settings) == pytest.approx(losses(plain, settings), abs=1e-5)


def test_layers_that_accelerate_places_have_the_same_losses(tmp_path, settings):
    pytest.importorskip("accelerate")
    folder = hf_models.save(hf_models.random_model("llama", **hf_models.LLAMA), tmp_path / "model")
    placed = losses(folder, settings, **{"subject.device_map": "auto"})
    assert placed == pytest.approx(losses(folder, settings, **{"subject.runs_dir": "other"}), abs=1e-6)
