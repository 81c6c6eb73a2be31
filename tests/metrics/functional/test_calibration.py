"""Calibration errors against torchmetrics, loops, and tables made by hand."""

import math

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

import leanbayes as lb
from leanbayes.metrics.functional import (
    adaptive_calibration_error,
    expected_calibration_error,
    max_calibration_error,
    reliability_table,
    thresholded_calibration_error,
)

ALL = [
    expected_calibration_error,
    max_calibration_error,
    adaptive_calibration_error,
    thresholded_calibration_error,
]


def classes(n=300, c=4):
    return torch.randn(n, c, dtype=torch.float64).mul(2).softmax(1), torch.randint(c, (n,))


def two_classes(confidences, right):
    """Examples of given confidence in class 0, right or wrong."""
    confidence = torch.tensor(confidences)
    labels = torch.tensor([0 if each else 1 for each in right])
    return torch.stack([confidence, 1 - confidence], 1), labels


def loop_over_bins(probs, labels, bins):
    """Count and gap of each bin (lower, upper], one example at a time."""
    rows = [[] for _ in range(bins)]
    for row, label in zip(probs.tolist(), labels.tolist()):
        confidence = max(row)
        place = next(b for b in range(bins) if confidence <= (b + 1) / bins)
        rows[place].append((confidence, row.index(confidence) == label))
    return [(len(row), abs(sum(c - r for c, r in row) / max(len(row), 1))) for row in rows]


@pytest.mark.parametrize("bins", [1, 10, 15, 20])
def test_ece_and_mce_are_torchmetrics(bins):
    probs, labels = classes()
    for metric, norm in ((expected_calibration_error, "l1"), (max_calibration_error, "max")):
        expected = multiclass_calibration_error(probs, labels, num_classes=4, n_bins=bins, norm=norm)
        torch.testing.assert_close(metric(probs, labels, bins), expected.float())


def test_class_wise_is_torchmetrics_for_each_class():
    probs, labels = classes()
    each = [binary_calibration_error(probs[:, c].contiguous(), (labels == c).long(), n_bins=15) for c in range(4)]
    found = thresholded_calibration_error(probs, labels, threshold=0, adaptive=False)
    torch.testing.assert_close(found, torch.stack(each).mean().float())


@pytest.mark.parametrize("bins, min_count", [(15, 1), (20, 6), (20, 20)])
def test_small_bins_are_dropped_and_still_counted_in_n(bins, min_count):
    probs, labels = classes()
    kept = [(count, gap) for count, gap in loop_over_bins(probs, labels, bins) if count >= min_count]
    assert kept
    assert min_count == 1 or len(kept) < bins
    ece = expected_calibration_error(probs, labels, bins, min_count=min_count).item()
    assert ece == pytest.approx(sum(count * gap for count, gap in kept) / len(labels), rel=1e-6)
    mce = max_calibration_error(probs, labels, bins, min_count=min_count).item()
    assert mce == pytest.approx(max(gap for _, gap in kept), rel=1e-6)


def test_at_most_five_samples_are_too_few_with_six_asked_for():
    # Five wrong ones at 0.975 and six at 0.725, of which three are right.
    probs, labels = two_classes([0.975] * 5 + [0.725] * 6, [False] * 5 + [True] * 3 + [False] * 3)
    assert max_calibration_error(probs, labels, 20).item() == pytest.approx(0.975)
    assert max_calibration_error(probs, labels, 20, min_count=6).item() == pytest.approx(0.225)
    assert expected_calibration_error(probs, labels, 20, min_count=6).item() == pytest.approx(6 / 11 * 0.225)


def test_table_by_hand():
    probs, labels = two_classes([0.55, 0.95, 0.92, 0.99, 0.72], [True, True, False, True, False])
    table = reliability_table(probs, labels, bins=10)
    assert table.count.tolist() == [0, 0, 0, 0, 0, 1, 0, 1, 0, 3]
    torch.testing.assert_close(table.confidence[[5, 7, 9]], torch.tensor([0.55, 0.72, 2.86 / 3]))
    torch.testing.assert_close(table.accuracy[[5, 7, 9]], torch.tensor([1.0, 0.0, 2 / 3]))
    assert table.confidence[table.count == 0].isnan().all()
    assert table.accuracy[table.count == 0].isnan().all()
    torch.testing.assert_close(table.lower, torch.arange(10) / 10)
    torch.testing.assert_close(table.upper, torch.arange(1, 11) / 10)
    expected = (0.45 + 0.72 + 0.86) / 5
    assert expected_calibration_error(probs, labels, 10).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bins", [5, 10, 20, 100])
def test_ends_belong_to_the_bin_below(dtype, bins):
    values = [k / bins for k in range(bins // 2, bins + 1) if k / bins >= 0.5]
    event = torch.tensor(values, dtype=dtype)
    # One class with the confidence and many that share the rest, so that rounding of 1 - p plays no part.
    probs = torch.cat([event[:, None], ((1 - event) / 4)[:, None].expand(-1, 4)], 1)
    table = reliability_table(probs, torch.zeros(len(values), dtype=torch.long), bins)
    places = torch.cat([torch.full((int(c),), i) for i, c in enumerate(table.count)])
    assert places.tolist() == [round(v * bins) - 1 for v in values]


def test_certainty_is_in_the_last_bin():
    table = reliability_table(torch.eye(3), torch.tensor([0, 1, 0]))
    assert table.count[-1] == 3
    assert table.confidence[-1] == 1
    assert table.accuracy[-1] == pytest.approx(2 / 3)


def test_equal_mass_bins_are_chunks_of_the_sorted_examples():
    probs, labels = classes(300)
    order = np.argsort(probs.amax(1).numpy())
    confidence = probs.amax(1).numpy()[order]
    right = (probs.argmax(1) == labels).numpy()[order]
    chunks = zip(np.split(confidence, 15), np.split(right, 15))
    expected = np.mean([abs(c.mean() - r.mean()) for c, r in chunks])
    assert adaptive_calibration_error(probs, labels).item() == pytest.approx(expected, rel=1e-6)
    table = reliability_table(probs, labels, adaptive=True)
    assert table.count.tolist() == [20] * 15
    torch.testing.assert_close(table.upper[:-1], torch.from_numpy(confidence[19:-1:20]).float())


def test_equal_mass_bins_when_the_examples_do_not_divide():
    probs, labels = classes(17)
    assert reliability_table(probs, labels, 5, adaptive=True).count.tolist() == [4, 3, 4, 3, 3]
    assert reliability_table(probs, labels, 40, adaptive=True).count.sum() == 17


def test_ties_do_not_depend_on_the_order():
    probs, labels = two_classes([0.6] * 7 + [0.8] * 3, [True, False] * 5)
    shuffled = torch.randperm(10)
    table = reliability_table(probs, labels, 4, adaptive=True)
    assert sorted(table.count.tolist()) == [0, 0, 3, 7]
    for metric in ALL:
        torch.testing.assert_close(metric(probs, labels, 4), metric(probs[shuffled], labels[shuffled], 4))
    assert adaptive_calibration_error(probs, labels, 4).item() == pytest.approx((0.2 + 1.4) / 10, rel=1e-5)


def test_thresholded_by_a_loop_over_classes():
    probs, labels = classes(200)
    errors = []
    for c in range(4):
        kept = probs[:, c] >= 0.3
        order = probs[kept, c].argsort()
        p, y = probs[kept, c][order].numpy(), (labels[kept] == c)[order].numpy()
        # Bin b ends with the ceil(b n / 5)-th value.
        ends = [math.ceil(b * len(p) / 5) for b in range(6)]
        gaps = [abs(p[i:j].sum() - y[i:j].sum()) for i, j in zip(ends, ends[1:])]
        errors.append(sum(gaps) / len(p))
    found = thresholded_calibration_error(probs, labels, 5, threshold=0.3)
    assert found.item() == pytest.approx(np.mean(errors), rel=1e-6)


def test_classes_below_the_threshold_do_not_count():
    probs, labels = classes(50)
    wider = torch.cat([probs, torch.zeros(50, 100, dtype=torch.float64)], 1)
    torch.testing.assert_close(
        thresholded_calibration_error(wider, labels), thresholded_calibration_error(probs, labels)
    )


def test_perfect_calibration_is_zero():
    probs, labels = two_classes([0.75] * 4, [True, True, True, False])
    for metric in ALL:
        assert metric(probs, labels, 10).item() == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("metric", ALL)
def test_one_example(metric):
    assert metric(torch.tensor([[0.2, 0.8]]), torch.tensor([1])).item() == pytest.approx(0.2, rel=1e-6)


@pytest.mark.parametrize("metric", ALL)
def test_nan_where_no_bin_is_left(metric):
    assert metric(torch.tensor([[0.2, 0.8]]), torch.tensor([1]), min_count=2).isnan()
    assert metric(torch.empty(0, 2), torch.empty(0, dtype=torch.long)).isnan()


def test_a_table_of_no_examples():
    for adaptive in (False, True):
        table = reliability_table(torch.empty(0, 2), torch.empty(0, dtype=torch.long), 4, adaptive=adaptive)
        assert table.count.tolist() == [0] * 4


def test_events_by_the_likelier_answer():
    event = torch.tensor([0.1, 0.7])
    table = reliability_table(event, torch.tensor([0, 0]), 10)
    assert table.count.nonzero().flatten().tolist() == [6, 8]
    assert table.accuracy[[6, 8]].tolist() == [0, 1]


def test_predictions():
    logits, labels = torch.randn(5, 40, 3), torch.randint(3, (40,))
    for metric in ALL:
        expected = metric(logits.softmax(-1).mean(0), labels)
        torch.testing.assert_close(metric(lb.Prediction(logits), labels), expected)


def test_bad_arguments():
    probs, labels = classes(5)
    for metric in ALL:
        with pytest.raises(ValueError, match="bins is a whole number from 1, not 0"):
            metric(probs, labels, 0)
        with pytest.raises(ValueError, match="min_count is a whole number from 1, not 2.5"):
            metric(probs, labels, min_count=2.5)
    with pytest.raises(ValueError, match="threshold"):
        thresholded_calibration_error(probs, labels, threshold=1.5)
