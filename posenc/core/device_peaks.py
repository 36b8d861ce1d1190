"""Look up how many FLOPs a second a GPU can do at most: MFU is a share of that.

The figures are from the data sheets, for dense products. Many sheets print twice as much, for matrices of
which half is zero. bf16 accumulates in float32, as torch does. fp32 is the rate of the plain cores, because
torch uses TF32 only on request, and posenc does not request it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

TERA = 1e12


@dataclass(frozen=True)
class DevicePeaks:
    """Hold the peaks of a GPU, in 10^12 FLOPs a second."""

    name: str  # a regular expression that matches the whole name by which CUDA calls it
    bf16: float | None  # None: it has no bf16 in hardware
    fp32: float
    source: str


# A name has to match as a whole. A part of a GPU ("... MIG 1g.10gb") and relatives ("RTX 4090 D", "A10G")
# have other peaks.
DEVICE_PEAKS = (
    DevicePeaks(r"NVIDIA B200", 2250, 75, "NVIDIA HGX B200 data sheet, 1/8 of the board"),
    DevicePeaks(r"NVIDIA H200", 989, 67, "NVIDIA H200 data sheet, SXM"),
    DevicePeaks(r"NVIDIA H200 NVL", 836, 60, "NVIDIA H200 data sheet, NVL"),
    DevicePeaks(r"NVIDIA GH200 \d+GB.*", 989, 67, "NVIDIA GH200 data sheet"),
    DevicePeaks(r"NVIDIA H100 80GB HBM3", 989, 67, "NVIDIA H100 data sheet, SXM"),
    DevicePeaks(r"NVIDIA H100 PCIe", 756, 51, "NVIDIA H100 data sheet, PCIe"),
    DevicePeaks(r"NVIDIA H100 NVL", 836, 60, "NVIDIA H100 data sheet, NVL"),
    DevicePeaks(
        r"(NVIDIA )?A100-(SXM4|PCIE)-[48]0GB|NVIDIA A100 80GB PCIe", 312, 19.5, "NVIDIA A100 data sheet"
    ),
    DevicePeaks(r"NVIDIA A40", 149.7, 37.4, "NVIDIA A40 data sheet"),
    DevicePeaks(r"NVIDIA A10", 125, 31.2, "NVIDIA A10 data sheet"),
    DevicePeaks(r"NVIDIA L4", 121, 30.3, "NVIDIA L4 data sheet"),
    DevicePeaks(r"NVIDIA L40S", 362, 91.6, "NVIDIA L40S data sheet"),
    DevicePeaks(r"NVIDIA GeForce RTX 4090", 165.2, 82.6, "NVIDIA Ada architecture paper, appendix A"),
    DevicePeaks(r"NVIDIA GeForce RTX 3090", 71, 35.6, "NVIDIA GA102 architecture paper, appendix A"),
    DevicePeaks(r"(NVIDIA )?Tesla V100-SXM2-.*", None, 15.7, "NVIDIA V100 data sheet, SXM2"),
    DevicePeaks(r"(NVIDIA )?Tesla V100-PCIE-.*", None, 14, "NVIDIA V100 data sheet, PCIe"),
    DevicePeaks(r"(NVIDIA )?Tesla T4", None, 8.1, "NVIDIA T4 data sheet"),
)


def peak_of_name(device_name: str, precision: str) -> float | None:
    """Return the dense FLOPs a second of a GPU in `bf16` or `fp32`; None if they are not known."""
    for peaks in DEVICE_PEAKS:
        if re.fullmatch(peaks.name, device_name) is None:
            continue
        rate = peaks.bf16 if precision == "bf16" else peaks.fp32
        return None if rate is None else rate * TERA
    return None


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Return the dense FLOPs a second of a device in `bf16` or `fp32`; None for a CPU or an unknown GPU."""
    if device.type != "cuda":
        return None
    import torch

    return peak_of_name(torch.cuda.get_device_name(device), precision)
