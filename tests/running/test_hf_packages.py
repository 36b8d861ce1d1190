"""Checkpoints that need more packages: quantised weights, and layers that are spread over devices.

A test is skipped where its package is not installed: `accelerate`, `compressed-tensors`, `torchao`,
`bitsandbytes`, or `gptqmodel` with `optimum`.
"""

import hf_models
import pytest
import torch
import transformers
from hf_loops import loss_by_hand, target_windows

import posenc as px

BITS = 8
T = hf_models.T
# GPTQ packs maps whose sizes are multiples of 32 alone.
WIDE_LLAMA = hf_models.LLAMA | {"hidden_size": 128, "num_key_value_heads": 4}


@pytest.fixture
def settings(working_folder, corpus):
    """The settings of an evaluation."""
    evaluation = {"lengths": ["1x", "2x"], "max_targets": 200, "protocols": ["fixed-target"]}
    return {"data": "files", "data.paths": corpus, "eval": evaluation, "device": "cpu"}


def losses(path, settings, extend=None, **changes):
    """Evaluate a checkpoint; return its losses in the order of windows, as trained or with an extension."""
    extension = {} if extend is None else {"extend": extend}
    run = px.evaluate("hf", **{"subject.path": path, **settings, **extension, **changes})
    records = [record for record in run.records if record["protocol"] == "fixed-target"]
    return [record["nats"] for record in records if (record["extend"] or {}).get("name") == extend]


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


def torchao_weights():
    """Return how transformers packs weights as eight bits with torchao."""
    quantization = pytest.importorskip("torchao.quantization")
    return transformers.TorchAoConfig(quantization.Int8WeightOnlyConfig())


def eight_bit_weights():
    """Return how transformers packs weights as eight bits with bitsandbytes."""
    pytest.importorskip("bitsandbytes")
    return transformers.BitsAndBytesConfig(load_in_8bit=True)


def four_bit_weights():
    """Return how transformers packs weights as four bits with bitsandbytes."""
    pytest.importorskip("bitsandbytes")
    return transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)


def gptq_weights():
    """Return how transformers packs weights as four bits by GPTQ, which needs texts to choose them by."""
    pytest.importorskip("optimum")
    pytest.importorskip("gptqmodel")
    texts = ["the quick brown fox jumps over the lazy dog " * 10] * 8
    return transformers.GPTQConfig(
        bits=4, group_size=32, dataset=texts, tokenizer=hf_models.tokenizer(bos=False)
    )


PACKINGS = {
    "gptq": gptq_weights,
    "torchao, eight bits": torchao_weights,
    "bitsandbytes, eight bits": eight_bit_weights,
    "bitsandbytes, four bits": four_bit_weights,
}


@pytest.fixture(params=PACKINGS.values(), ids=PACKINGS.keys())
def packed(request, tmp_path):
    """Return the folder of a Llama that transformers has saved with packed weights."""
    quantization = request.param()
    pytest.importorskip("accelerate")
    plain = hf_models.save(hf_models.random_model("llama", **WIDE_LLAMA), tmp_path / "plain")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        plain, quantization_config=quantization, device_map="cpu"
    )
    return hf_models.save(model, tmp_path / "packed")


def test_packed_weights_have_the_losses_of_a_loop_over_the_model(packed, settings, corpus):
    settings["eval"]["lengths"] = ["1x", "2x", "8x"]
    model = transformers.AutoModelForCausalLM.from_pretrained(packed, device_map="cpu")
    expected = [loss_by_hand(model, target_windows(packed, corpus, window)) for window in (T, 2 * T, 8 * T)]
    assert losses(packed, settings) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("extend", ["yarn", "self_extend"])
def test_an_extension_acts_on_packed_weights(extend, packed, settings):
    as_trained = losses(packed, settings)
    extended = losses(packed, settings, extend=extend)
    assert extended[0] == pytest.approx(as_trained[0], abs=1e-4)  # at T it changes nothing
    assert abs(extended[-1] - as_trained[-1]) > 1e-3


def test_layers_that_accelerate_places_have_the_same_losses(tmp_path, settings):
    pytest.importorskip("accelerate")
    folder = hf_models.save(hf_models.random_model("llama", **hf_models.LLAMA), tmp_path / "model")
    placed = losses(folder, settings, **{"subject.device_map": "auto"})
    assert placed == pytest.approx(losses(folder, settings, **{"subject.runs_dir": "other"}), abs=1e-6)
