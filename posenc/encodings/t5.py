"""T5's relative bias: a learned scalar for each head and bucket of distances.

Formula: score_ij + b[h, bucket(i - j)].
  b       a learned table (H, buckets), shared by the layers
  bucket  each of the first buckets/2 holds one distance. The others widen logarithmically up to max_distance,
          and the last one also holds every longer distance.
Setting:
  max_distance  null: min(128, T), but at least buckets/2 + 1. If positions are drawn with gaps, T stands for
                the limit of the distances.
Departures: scores keep 1/sqrt(D), which T5 leaves out. b starts at zero. The published max_distance of 128
would leave buckets untrained at T < 128. But with max_distance = T more and more keys of a longer text share
the last bucket. That costs 0.2 nats at 2T and 1.4 at 8T (docs/study.md).
"""

import math

import torch
from torch import Tensor, nn

from posenc.encodings.base import LONGEST_OF_LAWS, Encoding, Shape, StepCost, float64

PUBLISHED_MAX_DISTANCE = 128


def bucket(r: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Return the bucket in [0, buckets) of distances r >= 0, (R,) int64."""
    exact = buckets // 2  # this many distances have a bucket of their own
    # clamped, since the logarithm is also taken of distances for which `where` below does not use it
    ratio = (float64(r.clamp_min(exact)) / exact).log() / math.log(max_distance / exact)
    # 1e-9: a distance at the border of two buckets, such as max_distance, must not be rounded into the lower
    far = exact + (ratio * (buckets - exact) + 1e-9).long().to(r.device)
    return torch.where(r < exact, r, far.clamp_max(buckets - 1))  # (R,)


class T5(Encoding):
    name = "t5"
    paper = "Raffel et al. 2019, arXiv 1910.10683"
    formula = "score_ij + b[h, bucket(i - j)]"
    acts_on = "bias"
    past_training = "every distance from max_distance on shares the last bucket"
    learned = "buckets*H"
    relative = True
    cost = StepCost(at_64=1.06, at_512=1.17)

    def __init__(self, shape: Shape, *, buckets: int, max_distance: int | None) -> None:
        super().__init__(shape)
        if buckets < 2 or buckets % 2:
            raise ValueError(f"buckets={buckets}: must be even and at least 2")
        if max_distance is None:
            # At T = 64 a prototype with 128 lost 0.5 nats at 2T by untrained buckets alone.
            max_distance = max(min(PUBLISHED_MAX_DISTANCE, shape.distances), buckets // 2 + 1)
            self.derived["max_distance"] = max_distance
        if max_distance <= buckets // 2:
            raise ValueError(f"max_distance={max_distance}: must exceed buckets/2={buckets // 2}")
        self.buckets = buckets
        self.max_distance = max_distance
        # Zeros, so that training begins without a bias.
        self.table = nn.Parameter(torch.zeros(shape.n_heads, buckets))  # b, (H, buckets)
        # At a short T, such as 32, some logarithmic buckets are narrower than one token and hold no distance.
        farthest = min(LONGEST_OF_LAWS * shape.distances - 1, max_distance)
        # On the CPU, since the model may be built on the meta device, which has no values.
        r = torch.arange(farthest + 1, device="cpu")
        if len(bucket(r, buckets, max_distance).unique()) < buckets:
            self.inert = {"table": "some buckets hold no distance"}

    def learned_parameters(self) -> int:
        return self.shape.n_heads * self.buckets

    def warnings(self) -> list[str]:
        farthest = self.shape.distances - 1
        reached = int(bucket(torch.tensor([farthest]), self.buckets, self.max_distance))
        unreached = self.buckets - 1 - reached
        if unreached <= 0:
            return []
        return [
            f"{unreached} of {self.buckets} buckets lie beyond the farthest distance of training, "
            f"{farthest}, and keep their initial value (max_distance={self.max_distance})"
        ]

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        return self.table.float()[:, bucket(r, self.buckets, self.max_distance)]  # (H, R)
