"""Peaks of GPUs: which names are known, and in which precision."""

import re

import pytest
import torch

from posenc.core.device_peaks import DEVICE_PEAKS, peak_flops, peak_of_name

# as torch.cuda.get_device_name gives them
NAMES = [
    ("NVIDIA H100 80GB HBM3", 989e12),
    ("NVIDIA H100 PCIe", 756e12),
    ("NVIDIA H200", 989e12),
    ("NVIDIA A100-SXM4-80GB", 312e12),
    ("NVIDIA A100 80GB PCIe", 312e12),
    ("A100-SXM4-40GB", 312e12),
    ("NVIDIA L4", 121e12),
    ("NVIDIA L40S", 362e12),
    ("NVIDIA A10", 125e12),
    ("NVIDIA GeForce RTX 4090", 165.2e12),
    ("NVIDIA GeForce RTX 3090", 71e12),
]


@pytest.mark.parametrize(("name", "peak"), NAMES)
def test_peaks_in_bf16_are_dense_ones(name, peak):
    assert peak_of_name(name, "bf16") == peak


def test_fp32_has_a_peak_of_its_own():
    assert peak_of_name("NVIDIA H100 80GB HBM3", "fp32") == 67e12


@pytest.mark.parametrize("name", ["Tesla V100-SXM2-16GB", "Tesla T4"])
def test_a_gpu_without_bf16_has_a_peak_in_fp32_alone(name):
    assert peak_of_name(name, "bf16") is None
    assert peak_of_name(name, "fp32") > 8e12


@pytest.mark.parametrize(
    "name", ["NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 4090 D", "NVIDIA A10G", "Radeon"]
)
def test_a_part_of_a_gpu_and_a_relative_are_unknown(name):
    assert peak_of_name(name, "bf16") is None


@pytest.mark.parametrize(("name", "peak"), NAMES)
def test_a_name_has_a_single_entry(name, peak):
    assert len([peaks for peaks in DEVICE_PEAKS if re.fullmatch(peaks.name, name)]) == 1


def test_a_cpu_has_no_peak():
    assert peak_flops(torch.device("cpu"), "fp32") is None


def test_a_gpu_is_looked_up_by_the_name_that_torch_gives(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA L4")
    assert peak_flops(torch.device("cuda"), "bf16") == 121e12
