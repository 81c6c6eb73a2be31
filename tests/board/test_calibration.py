"""Whether calibration errors differ beyond chance."""

import pytest
import torch

from leanbayes.board import calibration
from leanbayes.metrics.functional.calibration import expected_calibration_error_of


def drawn(count, generator, over=0.0):
    """Confidences, and whether each was right: less often than they say, by `over`."""
    confidence = 0.5 + 0.5 * torch.rand(count, generator=generator, dtype=torch.float64)
    return confidence, (torch.rand(count, generator=generator) < confidence - over).double()


def test_resampled_errors_are_those_of_the_examples_drawn():
    confidence, right = drawn(200, torch.Generator().manual_seed(1))
    found = calibration.resampled_errors(confidence, right)
    generator = torch.Generator().manual_seed(0)
    for number, index in enumerate(torch.randint(200, (100, 200), generator=generator)[:5]):
        truth = expected_calibration_error_of(confidence[index], right[index])
        assert float(found[number]) == pytest.approx(float(truth), abs=1e-6)
    assert found.shape == (500,)


def test_the_same_classifier_does_not_differ_from_itself():
    one = calibration.Calibration.of(*(part[None] for part in drawn(200, torch.Generator().manual_seed(2))))
    assert calibration.calibration_test(one, one) == (0, 0)


def test_a_worse_calibration_is_seen_and_equal_ones_are_not():
    generator = torch.Generator().manual_seed(3)
    good, other, bad = (
        calibration.Calibration.of(*(part.view(2, 2000) for part in drawn(4000, generator, over)))
        for over in (0.0, 0.0, 0.15)
    )
    found = calibration.calibration_test(bad, good)
    # The error of the bad one is at least its bias, that of the good one at most chance in ten bins.
    assert 0.05 < float(found.difference) < 0.16 and float(found.z) > 5
    assert abs(float(calibration.calibration_test(other, good).z)) < 3
