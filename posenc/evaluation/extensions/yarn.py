"""YaRN: NTK-by-parts, and a temperature of the softmax."""

import math
from dataclasses import dataclass
from typing import ClassVar

from posenc.evaluation.extensions.ntk_by_parts import NTKByParts


@dataclass(eq=False, kw_only=True)
class YaRN(NTKByParts):
    """NTK-by-parts and a temperature, here without the fine-tuning of the paper.

    With m(a) = 0.1 a ln s + 1, cos and sin are multiplied by m(`mscale`) / m(`mscale_all_dim`), and logits by
    m(`mscale_all_dim`)^2. The two are 1 and 0 in the released code and transformers, 1 and 1 in the paper and
    DeepSeek-V3, 0.707 and 0.707 in DeepSeek-V2.

    Two knobs are those of transformers: `truncate: false` does not round the borders of the ramp (gpt-oss),
    and `attention_factor` is the factor of cos and sin itself.
    """

    name = "yarn"
    paper = "Peng, Quesnelle, Fan, Shippole 2023, arXiv 2309.00071; mscale: DeepSeek-V2, arXiv 2405.04434"
    formula = "ntk_by_parts; turned q and k times 0.1 ln s + 1 (mscale, mscale_all_dim: other temperatures)"

    mscale: float
    mscale_all_dim: float
    truncate: bool
    attention_factor: float | None

    # Records with YaRN were stored before these two knobs came.
    later: ClassVar = {"truncate": True, "attention_factor": None}

    def __post_init__(self) -> None:
        super().__post_init__()
        # A temperature is one of the softmax, so without a softmax the second half of YaRN means nothing.
        self.check_softmax()
        self.check_range("mscale", self.mscale, 0)
        self.check_range("mscale_all_dim", self.mscale_all_dim, 0)
        if self.attention_factor is not None:
            self.check_range("attention_factor", self.attention_factor, 0, above=True)

    def borders(self) -> tuple[float, float]:
        if self.truncate:
            return super().borders()
        return self.within_pairs(self.index_of(self.beta_fast), self.index_of(self.beta_slow))

    def gain(self, s: float) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return temperature(s, self.mscale) / temperature(s, self.mscale_all_dim)

    def logits(self, s: float) -> float:
        return temperature(s, self.mscale_all_dim) ** 2


def temperature(s: float, scale: float) -> float:
    """Return m(a) = 0.1 a ln s + 1 at the factor s, a = `scale`."""
    return 0.1 * scale * math.log(s) + 1
