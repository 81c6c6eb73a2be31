import numpy as np
import torch

from leanbayes.compare.alarms import fpr_interval
from leanbayes.metrics import functional as F


def test_the_interval_covers_the_true_rate_about_as_often_as_it_says():
    """Scores of two normal distributions, 60 examples each: the rate of infinitely many is known."""
    gap, z95 = 1.5, 1.6448536
    truth = float(torch.special.ndtr(torch.tensor(z95 - gap)))
    generator = torch.Generator().manual_seed(0)
    hits = []
    for _ in range(100):
        inside, outside = torch.randn(60, generator=generator), torch.randn(60, generator=generator) + gap
        low, high = fpr_interval(inside, outside)
        assert 0 <= low <= high <= 1
        hits.append(low <= truth <= high)
    assert 0.85 <= np.mean(hits) <= 1


def test_it_gets_narrower_with_more_examples_and_holds_the_figure():
    generator = torch.Generator().manual_seed(0)
    widths = []
    for count in (40, 400, 4000):
        inside, outside = torch.randn(count, generator=generator), torch.randn(count, generator=generator) + 1
        low, high = fpr_interval(inside, outside)
        assert low <= float(F.ood_fpr(inside, outside)) <= high
        widths.append(high - low)
    assert widths[0] > 2 * widths[1] > 4 * widths[2]


def test_it_is_the_same_every_time_and_leaves_torchs_generator_alone():
    state = torch.get_rng_state()
    inside, outside = torch.linspace(0, 1, 30), torch.linspace(0.3, 2, 30)
    assert fpr_interval(inside, outside) == fpr_interval(inside, outside)
    assert torch.equal(state, torch.get_rng_state())
