"""Every class gives its function's value on all batches together, however they are spread over ranks."""

import copy
import socket
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torchmetrics import MetricCollection

import leanbayes as lb
from leanbayes import metrics
from leanbayes.metrics import functional as F

BATCHES = [slice(0, 17), slice(17, 20), slice(20, 50)]
REFERENCE = {"fog": [0.5, 0.6], "snow": [0.7, 0.9]}


@dataclass
class Case:
    """A metric, its batches as arguments of `update`, and the value on all of them together."""

    metric: Any
    batches: list
    expected: Any
    kwargs: list = field(default_factory=lambda: [{}] * len(BATCHES))


def generator():
    return torch.Generator().manual_seed(0)


def class_cases():
    logits, labels = torch.randn(50, 4, generator=generator()), torch.randint(4, (50,), generator=generator())
    probs = logits.softmax(1)
    batches = [(probs[rows], labels[rows]) for rows in BATCHES]
    pairs = [
        (metrics.Accuracy(), F.accuracy(probs, labels)),
        (metrics.Accuracy(top_k=2), F.accuracy(probs, labels, 2)),
        (metrics.NLL(), F.nll(probs, labels)),
        (metrics.NLL(eps=0.2), F.nll(probs, labels, 0.2)),
        (metrics.Brier(), F.brier(probs, labels)),
        (metrics.Brier("tfp"), F.brier(probs, labels, "tfp")),
        (metrics.ECE(), F.expected_calibration_error(probs, labels)),
        (metrics.ECE(20, min_count=6), F.expected_calibration_error(probs, labels, 20, min_count=6)),
        (metrics.MCE(), F.max_calibration_error(probs, labels)),
        (metrics.MCE(20, min_count=6), F.max_calibration_error(probs, labels, 20, min_count=6)),
        (metrics.ACE(), F.adaptive_calibration_error(probs, labels)),
        (metrics.ACE(4, min_count=2), F.adaptive_calibration_error(probs, labels, 4, min_count=2)),
        (metrics.TCE(), F.thresholded_calibration_error(probs, labels)),
        (
            metrics.TCE(5, threshold=0.2, adaptive=False),
            F.thresholded_calibration_error(probs, labels, 5, threshold=0.2, adaptive=False),
        ),
        (metrics.Reliability(), F.reliability_table(probs, labels)),
    ]
    return [Case(metric, batches, expected) for metric, expected in pairs]


def member_cases():
    members = torch.randint(3, (5, 50), generator=generator())
    labels = torch.randint(3, (50,), generator=generator())
    batches = [(members[:, rows], labels[rows]) for rows in BATCHES]
    return [
        Case(metrics.Disagreement(), batches, F.disagreement(members)),
        Case(metrics.NormalisedDisagreement(), batches, F.normalised_disagreement(members, labels)),
    ]


def value_cases():
    outputs, targets = torch.randn(6, 50, 1, generator=generator()), torch.randn(50, generator=generator())
    whole = lb.Prediction(outputs, lb.Gaussian(1.0))
    batches = [(lb.Prediction(outputs[:, rows], lb.Gaussian(1.0)), targets[rows]) for rows in BATCHES]
    lower, upper = F.central_interval(whole, 0.5)
    intervals = [((lower[rows], upper[rows]), targets[rows]) for rows in BATCHES]
    return [
        Case(metrics.LogPredictiveDensity(), batches, F.log_predictive_density(whole, targets)),
        Case(metrics.RMSE(), batches, F.rmse(whole, targets)),
        Case(metrics.Coverage(0.5), batches, F.coverage(lower, upper, targets)),
        Case(metrics.Coverage(), intervals, F.coverage(lower, upper, targets)),
        Case(metrics.IntervalWidth(0.5), batches, F.interval_width(lower, upper)),
        Case(metrics.IntervalWidth(), intervals, F.interval_width(lower, upper)),
    ]


def ranking_cases():
    logits = torch.randn(4, 50, 3, generator=generator())
    outside = torch.arange(50) % 3 == 0
    prediction = lb.Prediction(logits)
    entropy, confidence = prediction.entropy, 1 - prediction.confidence
    tensors = [(entropy[rows], outside[rows]) for rows in BATCHES]
    predictions = [(lb.Prediction(logits[:, rows]), outside[rows]) for rows in BATCHES]
    sides = entropy[~outside], entropy[outside]
    return [
        Case(metrics.AUCPR(), tensors, F.average_precision(entropy, outside)),
        Case(metrics.OODAUROC(), tensors, F.ood_auroc(*sides)),
        Case(metrics.OODAUROC("confidence"), predictions, F.ood_auroc(confidence[~outside], confidence[outside])),
        Case(metrics.OODFPR(), predictions, F.ood_fpr(*sides)),
        Case(metrics.OODFPR(tpr=0.5, positive="in"), tensors, F.ood_fpr(*sides, 0.5, positive="in")),
    ]


def corruption_cases():
    probs = torch.randn(60, 4, generator=generator()).softmax(1)
    labels = torch.randint(4, (60,), generator=generator())
    where = [(None, 0), ("fog", 1), ("fog", 2), ("snow", 1), ("snow", 2), ("fog", 1)]
    rows = [slice(10 * i, 10 * i + 10) for i in range(6)]
    batches = [(probs[each], labels[each]) for each in rows]
    kwargs = [{"corruption": name, "severity": severity} for name, severity in where]
    wrong = (probs.argmax(1) != labels).double()
    errors = {
        "fog": [torch.cat([wrong[rows[1]], wrong[rows[5]]]).mean().item(), wrong[rows[2]].mean().item()],
        "snow": [wrong[rows[3]].mean().item(), wrong[rows[4]].mean().item()],
    }
    clean = wrong[rows[0]].mean().item()
    relative = F.relative_mean_corruption_error(errors, REFERENCE, clean, 0.3)
    return [
        Case(metrics.MeanCorruptionError(REFERENCE, 2), batches, F.mean_corruption_error(errors, REFERENCE), kwargs),
        Case(metrics.RelativeMeanCorruptionError(REFERENCE, 0.3, 2), batches, relative, kwargs),
    ]


def all_cases():
    return class_cases() + member_cases() + value_cases() + ranking_cases() + corruption_cases()


CASES = all_cases()
each_case = pytest.mark.parametrize(
    "case", CASES, ids=[f"{i}-{type(case.metric).__name__}" for i, case in enumerate(CASES)]
)


def fed(metric, case, which):
    for index in which:
        metric.update(*case.batches[index], **case.kwargs[index])
    return metric


def close(found, expected):
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-6, atol=1e-7)


def test_every_class_is_here():
    exported = {getattr(metrics, name) for name in metrics.__all__ if name != "functional"}
    assert exported == {type(case.metric) for case in CASES}


@each_case
def test_batches_add_up(case):
    metric = copy.deepcopy(case.metric)
    close(fed(metric, case, range(len(case.batches))).compute(), case.expected)
    metric.reset()
    close(fed(metric, case, reversed(range(len(case.batches)))).compute(), case.expected)


@each_case
def test_merging_two_ranks(case):
    one = fed(copy.deepcopy(case.metric), case, range(2))
    other = fed(copy.deepcopy(case.metric), case, range(2, len(case.batches)))
    one.merge_state(other)
    close(one.compute(), case.expected)


@each_case
def test_forward_gives_the_batch_and_keeps_the_sum(case):
    metric = copy.deepcopy(case.metric)
    for index in range(len(case.batches)):
        found = metric(*case.batches[index], **case.kwargs[index])
        close(found, fed(copy.deepcopy(case.metric), case, [index]).compute())
    close(metric.compute(), case.expected)


@each_case
def test_no_examples_give_nan(case):
    metric = copy.deepcopy(case.metric)
    with pytest.warns(UserWarning, match="before the ``update``"):
        found = metric.compute()
    assert (found.accuracy if isinstance(metric, metrics.Reliability) else found).isnan().all()


@each_case
def test_casting_a_model_leaves_the_sums_exact(case):
    metric = copy.deepcopy(case.metric).to(torch.bfloat16)
    close(fed(metric, case, range(len(case.batches))).compute(), case.expected)


def sent(metric):
    """The tensors that a rank would give to the others."""
    tensors = []
    with metric.sync_context(
        dist_sync_fn=lambda tensor, group: tensors.append(tensor) or [tensor], distributed_available=lambda: True
    ):
        return tensors


@each_case
@pytest.mark.parametrize("share", [0, 2])
def test_syncing_two_ranks(case, share):
    # With nothing on the first rank, what it sends must still fit; moving a metric must not change that.
    one = fed(copy.deepcopy(case.metric).to("cpu"), case, range(share))
    other = fed(copy.deepcopy(case.metric), case, range(share, len(case.batches)))
    received = [iter(sent(one)), iter(sent(other))]

    def gather(_, group):
        tensors = [next(each) for each in received]
        assert len({(tensor.dtype, tensor.dim()) for tensor in tensors}) == 1
        return tensors

    other.dist_sync_fn, other.distributed_available_fn = gather, lambda: True
    close(other.compute(), case.expected)


def two_ranks(rank, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for case in all_cases():
        halves = range(2) if rank == 0 else range(2, len(case.batches))
        close(fed(copy.deepcopy(case.metric), case, halves).compute(), case.expected)
        uneven = range(len(case.batches)) if rank == 0 else []
        close(fed(copy.deepcopy(case.metric), case, uneven).compute(), case.expected)
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_one_of_them_without_examples():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(two_ranks, (port,), nprocs=2)


def test_a_collection_keeps_apart_what_only_looks_alike():
    # After the first batch, everything is right and certain: many sums agree.
    first = torch.eye(4), torch.arange(4)
    second = torch.tensor([[0.4, 0.3, 0.2, 0.1]]), torch.tensor([1])
    members = {
        "top1": metrics.Accuracy(),
        "top2": metrics.Accuracy(top_k=2),
        "nll": metrics.NLL(),
        "rough": metrics.NLL(eps=0.5),
        "brier": metrics.Brier(),
        "tfp": metrics.Brier("tfp"),
        "tce": metrics.TCE(threshold=0.35),
        "all": metrics.TCE(threshold=0.05),
    }
    together = MetricCollection(copy.deepcopy(members))
    for batch in (first, second):
        together.update(*batch)
        for metric in members.values():
            metric.update(*batch)
    found = together.compute()
    for name, metric in members.items():
        close(found[name], metric.compute())


def test_a_collection_takes_references_in_any_order():
    one, other = ({name: REFERENCE[name] for name in names} for names in (sorted(REFERENCE), sorted(REFERENCE)[::-1]))
    together = MetricCollection({str(k): metrics.MeanCorruptionError(r, 2) for k, r in enumerate((one, other))})
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    together.update(probs, torch.tensor([0, 1]))  # without corruption
    for name, labels in zip(sorted(REFERENCE), ([0, 0], [1, 0], [1, 1])):
        for severity in (1, 2):
            together.update(probs, torch.tensor(labels), corruption=name, severity=severity)
    found = together.compute()
    assert found["0"].isfinite() and found["0"] == found["1"]


def test_a_collection_shares_bins():
    together = MetricCollection([metrics.ECE(), metrics.MCE(), metrics.Reliability()])
    for batch in class_cases()[0].batches:
        together.update(*batch)
    assert len(together.compute_groups) == 1


def test_predictions_are_taken():
    logits, labels = torch.randn(5, 20, 3), torch.randint(3, (20,))
    collection = MetricCollection([metrics.Accuracy(), metrics.NLL(), metrics.ECE(), metrics.Disagreement()])
    collection.update(lb.Prediction(logits), labels)
    found = collection.compute()
    close(found["NLL"], F.nll(logits.softmax(-1).mean(0), labels))
    close(found["Disagreement"], F.disagreement(logits))


def test_one_flag_for_a_whole_batch():
    inside, outside = torch.rand(10), torch.rand(10) + 0.5
    for metric, function in ((metrics.OODAUROC(), F.ood_auroc), (metrics.OODFPR(), F.ood_fpr)):
        metric.update(inside, outside=False)
        metric.update(outside, outside=True)
        close(metric.compute(), function(inside, outside))


def test_missing_severities_give_nan():
    metric = metrics.MeanCorruptionError(REFERENCE, 2)
    metric.update(torch.tensor([[0.9, 0.1]]), torch.tensor([1]), corruption="fog", severity=1)
    assert metric.compute().isnan()


@pytest.mark.parametrize(
    "build, words",
    [
        (lambda: metrics.Accuracy(top_k=0), "top_k"),
        (lambda: metrics.NLL(eps=2), "eps"),
        (lambda: metrics.Brier("mean"), "convention"),
        (lambda: metrics.ECE(bins=-1), "bins"),
        (lambda: metrics.ACE(min_count=0), "min_count"),
        (lambda: metrics.TCE(threshold=1), "threshold"),
        (lambda: metrics.Coverage(95), "level"),
        (lambda: metrics.IntervalWidth(0), "level"),
        (lambda: metrics.OODAUROC("variance"), "score is one of"),
        (lambda: metrics.OODFPR(tpr=0), "tpr"),
        (lambda: metrics.OODFPR(positive="ood"), "positive"),
        (lambda: metrics.MeanCorruptionError({}), "mapping"),
        (lambda: metrics.MeanCorruptionError({"fog": 40.0}), "divide percentages"),
        (lambda: metrics.MeanCorruptionError(REFERENCE, 0), "severities"),
        (lambda: metrics.MeanCorruptionError(REFERENCE, 1), "at 2 severities, but the metric is over 1"),
        (lambda: metrics.RelativeMeanCorruptionError(REFERENCE, 30), "reference_clean"),
    ],
)
def test_bad_arguments(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_bad_tensors():
    probs, labels = torch.tensor([[0.9, 0.1]]), torch.tensor([1])
    metric = metrics.MeanCorruptionError(REFERENCE, 2)
    with pytest.raises(ValueError, match=r"'rain' has no reference error; there are \('fog', 'snow'\)"):
        metric.update(probs, labels, corruption="rain", severity=1)
    with pytest.raises(ValueError, match="from 1 to 2, not 3"):
        metric.update(probs, labels, corruption="fog", severity=3)
    with pytest.raises(ValueError, match="3 scores do not fit flags"):
        metrics.OODAUROC().update(torch.rand(3), torch.tensor([True, False]))
