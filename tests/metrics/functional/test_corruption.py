"""Mean corruption error on tables made by hand and on published ones."""

import statistics

import pytest
import torch

from leanbayes.metrics.functional import (
    corruption_errors,
    intensity_table,
    mean_corruption_error,
    relative_mean_corruption_error,
)

OURS = {
    "gaussian_noise": [0.20, 0.25, 0.30, 0.40, 0.55],
    "fog": [0.10, 0.12, 0.15, 0.20, 0.30],
    "brightness": [0.08, 0.08, 0.09, 0.10, 0.12],
}
REFERENCE = {
    "brightness": [0.10, 0.11, 0.12, 0.14, 0.18],
    "gaussian_noise": [0.30, 0.40, 0.50, 0.60, 0.70],
    "fog": [0.12, 0.15, 0.20, 0.28, 0.40],
}
CLEAN, REFERENCE_CLEAN = 0.07, 0.09
# Corruption errors in percent of the patched ResNet-18, the first row of the ensemble model patching paper's Table 7.
PUBLISHED = [98.4, 98.2, 98.5, 97.9, 98.8, 96.9, 98.3, 99.6, 101.1, 99.8, 97.9, 100, 95.4, 91.3, 94.2]


def tensor(errors):
    return torch.tensor([errors[name] for name in OURS])


def test_mean_by_hand():
    # Sums over severities: 1.70 / 2.50, 0.87 / 1.15 and 0.47 / 0.65.
    ratios = [1.70 / 2.50, 0.87 / 1.15, 0.47 / 0.65]
    torch.testing.assert_close(corruption_errors(OURS, REFERENCE), torch.tensor(ratios))
    assert mean_corruption_error(OURS, REFERENCE).item() == pytest.approx(sum(ratios) / 3, rel=1e-6)


def test_relative_by_hand():
    # Less five times 0.07 above and five times 0.09 below.
    ratios = [1.35 / 2.05, 0.52 / 0.70, 0.12 / 0.20]
    found = corruption_errors(OURS, REFERENCE, clean=CLEAN, reference_clean=REFERENCE_CLEAN)
    torch.testing.assert_close(found, torch.tensor(ratios))
    relative = relative_mean_corruption_error(OURS, REFERENCE, CLEAN, REFERENCE_CLEAN)
    assert relative.item() == pytest.approx(sum(ratios) / 3, rel=1e-6)


def test_tensors_and_means_over_severities_say_the_same():
    means = {name: sum(row) / 5 for name, row in REFERENCE.items()}
    expected = mean_corruption_error(OURS, REFERENCE)
    torch.testing.assert_close(mean_corruption_error(OURS, means), expected)
    torch.testing.assert_close(mean_corruption_error(tensor(OURS), tensor(REFERENCE)), expected)
    torch.testing.assert_close(mean_corruption_error(tensor(OURS), tensor(REFERENCE).mean(1)), expected)


def test_published_row_gives_the_published_mean():
    reference = torch.linspace(0.3, 0.9, 15).unsqueeze(1).expand(15, 5)
    errors = reference * torch.tensor(PUBLISHED).unsqueeze(1) / 100
    assert round(100 * mean_corruption_error(errors, reference).item(), 1) == 97.8


def test_the_reference_itself_is_one():
    assert mean_corruption_error(REFERENCE, REFERENCE).item() == 1
    own = relative_mean_corruption_error(REFERENCE, REFERENCE, REFERENCE_CLEAN, REFERENCE_CLEAN)
    assert own.item() == pytest.approx(1)


def test_intensities_over_types():
    table = intensity_table(OURS)
    columns = list(zip(*OURS.values()))
    torch.testing.assert_close(table.mean, torch.tensor([statistics.mean(c) for c in columns]))
    torch.testing.assert_close(table.std, torch.tensor([statistics.pstdev(c) for c in columns]))
    unbiased = intensity_table(tensor(OURS), correction=1)
    torch.testing.assert_close(unbiased.std, torch.tensor([statistics.stdev(c) for c in columns]))


def test_one_type_has_no_deviation():
    assert intensity_table({"fog": [1.5, 2.5]}).std.tolist() == [0, 0]


def test_a_faultless_reference_gives_infinity():
    assert mean_corruption_error(torch.full((1, 5), 0.1), torch.zeros(1, 5)).isinf()


def test_bad_input():
    with pytest.raises(ValueError, match="differ in these corruption types: fog, snow"):
        mean_corruption_error({"fog": [0.1]}, {"snow": [0.1]})
    with pytest.raises(ValueError, match="divide percentages by 100"):
        mean_corruption_error({"fog": [50.0]}, {"fog": [0.5]})
    with pytest.raises(ValueError, match="same number of severities"):
        mean_corruption_error({"fog": [0.1], "snow": [0.1, 0.2]}, {"fog": 0.1, "snow": 0.1})
    with pytest.raises(ValueError, match="do not fit reference errors"):
        mean_corruption_error(torch.full((2, 5), 0.1), torch.full((3,), 0.1))
    with pytest.raises(ValueError, match="do not fit reference errors"):
        mean_corruption_error({}, {})
    with pytest.raises(TypeError, match="both mappings or both tensors"):
        mean_corruption_error(OURS, tensor(REFERENCE))
    with pytest.raises(ValueError, match="needs both clean and reference_clean"):
        corruption_errors(OURS, REFERENCE, clean=0.1)
    with pytest.raises(ValueError, match="reference_clean is an error from 0 to 1, not 9"):
        corruption_errors(OURS, REFERENCE, clean=0.1, reference_clean=9)
    with pytest.raises(ValueError, match=r"\[C, S\]"):
        intensity_table(torch.ones(3))
