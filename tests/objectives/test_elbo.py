"""The ELBO: one scale, right for any batch size, accumulation, samples and targets per example."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.models import create
from leanbayes.objectives import steps


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def data(count=24):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 4, generator=generator), torch.randint(3, (count,), generator=generator)


METHODS = [
    lb.MeanField(),
    lb.KTied(),
    lb.VariationalDropout(),
    lb.VarianceLayer(),
    lb.Rank1(),
    lb.BatchEnsemble(),
    lb.EMP(),
    lb.ECMP(),
    lb.MCDropout(),
    lb.DropConnect(),
    lb.DeepEnsemble(members=3),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_loss_per_example_is_the_same_for_any_batch_size_and_accumulation(method):
    model = lb.bayesianize(small_net(), method)
    x, y = data()
    elbo = lb.ELBO(model, dataset_size=24)
    with lb.sampling(mean=True):
        whole = elbo(x, y)
        for size in (1, 4, 12):
            parts = [elbo(a, b) for a, b in zip(x.split(size), y.split(size))]
            torch.testing.assert_close(torch.stack([p.loss for p in parts]).mean(), whole.loss)
            assert all(torch.equal(p.kl, whole.kl) for p in parts)
    torch.testing.assert_close(whole.loss, whole.nll + whole.kl / 24)
    torch.testing.assert_close(whole.kl, lb.kl(model))


def test_gradient_accumulation_gives_the_gradient_of_the_whole_batch():
    model = lb.bayesianize(small_net(), lb.MeanField())
    elbo, (x, y) = lb.ELBO(model, 24), data()
    with lb.sampling(mean=True):
        elbo(x, y).loss.backward()
        whole = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        for a, b in zip(x.split(6), y.split(6)):
            (elbo(a, b).loss / 4).backward()
    for expected, parameter in zip(whole, (p for p in model.parameters() if p.grad is not None)):
        torch.testing.assert_close(parameter.grad, expected)


def test_token_targets_are_summed_within_an_example_and_do_not_inflate_it():
    model = lb.bayesianize(nn.Linear(4, 3), lb.MeanField())
    x, y = torch.randn(5, 7, 4), torch.randint(3, (5, 7))
    elbo = lb.ELBO(model, dataset_size=5)
    with lb.sampling(mean=True):
        terms = elbo(x, y)
        logits = model(x)
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / 5
    torch.testing.assert_close(terms.nll, expected)
    torch.testing.assert_close(terms.loss, expected + lb.kl(model) / 5)


def test_masks_ignored_targets_and_example_weights():
    model = lb.bayesianize(nn.Linear(4, 3), lb.MeanField())
    x, y = torch.randn(5, 7, 4), torch.randint(3, (5, 7))
    mask = torch.rand(5, 7) < 0.5
    elbo = lb.ELBO(model, dataset_size=5)
    with lb.sampling(mean=True):
        torch.testing.assert_close(elbo(x, y, mask=mask).nll, elbo(x, y.masked_fill(~mask, -100)).nll)
        twice = torch.tensor([2.0, 0.0, 1.0, 1.0, 1.0])
        expected = elbo(x[[0, 0, 2, 3, 4]], y[[0, 0, 2, 3, 4]]).nll
        torch.testing.assert_close(elbo(x, y, weights=twice).nll, expected)


@pytest.mark.parametrize("shape", [(5, 1), (1,), (), (5, 7)], ids=str)
def test_example_weights_that_would_spread_over_other_examples_are_an_error(shape):
    elbo = lb.ELBO(lb.bayesianize(nn.Linear(4, 3), lb.MeanField()), dataset_size=5)
    with pytest.raises(ValueError, match=r"weights of shape .* do not fit 5 examples"):
        elbo(torch.randn(5, 4), torch.randint(3, (5,)), weights=torch.ones(shape))


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_example_weights_below_zero_or_without_end_are_an_error_before_the_model_runs(wrong):
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    elbo = lb.ELBO(lb.bayesianize(net, lb.MeanField()), dataset_size=5)
    with pytest.raises(ValueError, match="finite numbers from 0"):
        elbo(torch.randn(5, 4), torch.randint(3, (5,)), weights=torch.tensor([1.0, 0.0, wrong, 2.0, 1.0]))
    assert int(elbo.model[0].num_batches_tracked) == 0


@pytest.mark.parametrize("name", ["y", "weights", "mask"])
def test_what_is_no_tensor_is_named(name):
    elbo = lb.ELBO(lb.bayesianize(nn.Linear(4, 3), lb.MeanField()), dataset_size=5)
    given = {"y": torch.randint(3, (5,)), "weights": torch.ones(5), "mask": torch.ones(5)}
    given[name] = given[name].tolist()
    with pytest.raises(TypeError, match=f"{name} must be a tensor, not list"):
        elbo(torch.randn(5, 4), **given)


def test_what_a_mask_leaves_out_may_overflow():
    model = lb.bayesianize(nn.Linear(4, 2), lb.MeanField())
    elbo = lb.ELBO(model, 5, lb.Gaussian(1.0))
    x, y = torch.randn(5, 4), torch.randn(5, 2)
    mask = torch.tensor([[1, 0]] * 5)
    with lb.sampling(mean=True):
        expected = elbo(x, y, mask=mask)
        terms = elbo(x, y.where(mask == 1, 1e30), mask=mask)
    torch.testing.assert_close(terms.nll, expected.nll)
    for own, other in zip(*(torch.autograd.grad(each.loss, list(model.parameters())) for each in (terms, expected))):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_kl_weight_keeps_its_precision_in_any_dtype(dtype):
    elbo = lb.ELBO(lb.bayesianize(nn.Linear(4, 3), lb.MeanField()), 10, kl_weight=lambda step: (step + 1) / 3).to(dtype)
    for weight in (1 / 3, 2 / 3):
        assert float(elbo.weight_now) == pytest.approx(weight, rel=1e-7)
        elbo.advance()


@pytest.mark.parametrize("likelihood", [lb.Gaussian(1.0), lb.Bernoulli()], ids=lambda each: type(each).__name__)
def test_a_mask_that_would_spread_over_other_examples_is_an_error(likelihood):
    elbo = lb.ELBO(lb.bayesianize(nn.Linear(4, 1), lb.MeanField()), 5, likelihood)
    x, y = torch.randn(5, 4), torch.rand(5, 1)
    with pytest.raises(ValueError, match=r"a mask of shape \(5,\) does not fit target elements of shape \(5, 1\)"):
        elbo(x, y, mask=torch.ones(5))
    with lb.sampling(mean=True):
        torch.testing.assert_close(elbo(x, y, mask=torch.ones(5, 1)).nll, elbo(x, y).nll)


def test_a_mask_of_targets_that_are_probabilities_has_no_class_axis():
    elbo = lb.ELBO(lb.bayesianize(nn.Linear(4, 3), lb.MeanField()), 5, lb.Categorical(class_dim=-1))
    x, y, mask = torch.randn(5, 7, 4), torch.rand(5, 7, 3).softmax(-1), torch.rand(5, 7) < 0.5
    with lb.sampling(mean=True):
        expected = elbo(x, y * mask.unsqueeze(-1)).nll
        torch.testing.assert_close(elbo(x, y, mask=mask).nll, expected)


def test_a_batch_without_examples_is_an_error():
    elbo = lb.ELBO(lb.bayesianize(small_net(), lb.MeanField()), 24)
    with pytest.raises(ValueError, match="the batch is empty"):
        elbo(torch.empty(0, 4), torch.empty(0, dtype=torch.long))


def test_folding_is_tried_on_the_first_batch_alone():
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    calls = []
    net.register_forward_hook(lambda *_: calls.append(1))
    model = lb.bayesianize(nn.Sequential(net, nn.Linear(3, 3)), {"1": lb.MeanField()})
    elbo = lb.ELBO(model, 6, samples=2)
    counts = []
    for length in (5, 7, 5, 6):  # sequences of other lengths are no reason to try it again
        before = len(calls)
        elbo(torch.randn(6, length, 4), torch.randint(3, (6, length)))
        counts.append(len(calls) - before)
    assert counts[0] > 1 and counts[1:] == [1, 1, 1]


@pytest.mark.parametrize("size", [0, -5, 2.5, True, math.inf, math.nan, "24"])
def test_a_dataset_size_that_is_no_positive_count_is_an_error(size):
    with pytest.raises(ValueError, match="dataset_size is a positive number"):
        lb.ELBO(small_net(), dataset_size=size)


def test_a_missing_dataset_size_is_an_error():
    with pytest.raises(TypeError, match="needs dataset_size"):
        lb.ELBO(small_net())


def test_a_dataset_size_under_the_batch_is_an_error():
    with pytest.raises(ValueError, match="smaller than the batch of 24"):
        lb.ELBO(lb.bayesianize(small_net(), lb.MeanField()), dataset_size=23)(*data())


def test_labels_of_32_bits_and_weights_of_64():
    x, y = data()
    elbo = lb.ELBO(lb.bayesianize(small_net(), lb.MeanField()).double(), 24)
    with lb.sampling(mean=True):
        terms, wanted = elbo(x.double(), y.int()), elbo(x.double(), y)
    assert torch.equal(terms.loss, wanted.loss)
    assert (terms.loss.dtype, terms.nll.dtype) == (torch.float64, torch.float64)


def test_an_evaluation_takes_any_batch():
    elbo = lb.ELBO(lb.bayesianize(small_net(), lb.MeanField()), dataset_size=23).eval()
    x, y = data()
    assert elbo(x, y).outputs.shape[1] == 24
    with pytest.raises(ValueError, match="the input has 24 examples"):
        elbo(x, y[:23])


def test_average_and_mixture_of_components():
    model = lb.bayesianize(small_net(), lb.BatchEnsemble(components=3, random_sign=0.5))
    x, y = data()
    members = torch.stack([lb.point_estimate(model, component=k)(x) for k in range(3)])
    scores = lb.Categorical().log_prob(members, y)
    average = lb.ELBO(model, 24)(x, y)
    torch.testing.assert_close(average.outputs, members)
    torch.testing.assert_close(average.nll, -scores.mean())
    mixture = lb.ELBO(model, 24, components="mixture")(x, y)
    torch.testing.assert_close(mixture.nll, -(scores.logsumexp(0) - math.log(3)).mean())
    assert mixture.nll < average.nll


def test_without_tiling_each_example_has_one_component_shared_by_all_layers():
    model = lb.bayesianize(small_net(), lb.BatchEnsemble(components=3, random_sign=0.5))
    x, y = data()
    members = torch.stack([lb.point_estimate(model, component=k)(x) for k in range(3)])
    torch.manual_seed(3)
    outputs = lb.ELBO(model, 24, tile=False)(x, y).outputs[0]
    distance = (members - outputs).abs().amax(-1)  # [K, B]
    assert distance.amin(0).max() < 1e-5
    assert len(distance.argmin(0).unique()) == 3


def test_without_tiling_ensembles_and_recurrent_layers_take_components_per_example():
    ensemble = lb.bayesianize(small_net(), lb.DeepEnsemble(members=3))
    x, y = data()
    members = torch.stack([lb.point_estimate(ensemble, component=k)(x) for k in range(3)])
    outputs = lb.ELBO(ensemble, 24, tile=False)(x, y).outputs[0]
    assert (members - outputs).abs().amax(-1).amin(0).max() < 1e-5

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 6, batch_first=True)
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.lstm(x)[0])

    tagger = lb.bayesianize(Tagger(), lb.BatchEnsemble(components=3, random_sign=0.5))
    x, y = torch.randn(9, 5, 4), torch.randint(3, (9, 5))
    members = torch.stack([lb.point_estimate(tagger, component=k)(x) for k in range(3)])
    outputs = lb.ELBO(tagger, 9, tile=False)(x, y).outputs[0]
    assert (members - outputs).abs().flatten(2).amax(-1).amin(0).max() < 1e-5


@pytest.mark.parametrize("samples", [1, 3])
def test_samples_are_folded_and_averaged(samples):
    model = lb.bayesianize(small_net(), lb.MeanField(init_std=0.3))
    x, y = data()
    terms = lb.ELBO(model, 24, samples=samples)(x, y)
    assert terms.outputs.shape == (samples, 24, 3)
    torch.testing.assert_close(terms.nll, -lb.Categorical().log_prob(terms.outputs, y).mean())


def test_kl_weight_and_schedules_count_optimiser_steps():
    model = lb.bayesianize(small_net(), lb.MeanField())
    elbo, (x, y) = lb.ELBO(model, 24, kl_weight=lb.LinearAnneal(4)), data()
    optimiser = torch.optim.SGD(elbo.parameters(), lr=0.0)
    for step in range(6):
        for _ in range(3):  # three micro-batches make one step
            terms = elbo(x, y)
            terms.loss.backward()
        weight = min(1.0, step / 4)
        torch.testing.assert_close(terms.loss, terms.nll + weight * terms.kl / 24)
        optimiser.step()
    assert int(elbo.step) == 6


def test_two_optimisers_of_one_model_count_once():
    model = lb.bayesianize(small_net(), lb.MeanField())
    elbo, (x, y) = lb.ELBO(model, 24, kl_weight=lb.LinearAnneal(10)), data()
    parameters = list(elbo.parameters())
    first, second = torch.optim.SGD(parameters[:2], lr=0.1), torch.optim.SGD(parameters[2:], lr=0.1)
    foreign = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    for _ in range(3):
        elbo(x, y).loss.backward()
        first.step(), second.step(), foreign.step()
    assert int(elbo.step) == 3


def test_an_optimiser_that_takes_over_is_counted_although_the_first_is_still_there():
    elbo, (x, y) = lb.ELBO(lb.bayesianize(small_net(), lb.MeanField()), 24, kl_weight=lb.LinearAnneal(100)), data()
    adam, sgd = torch.optim.Adam(elbo.parameters(), lr=0.01), torch.optim.SGD(elbo.parameters(), lr=0.01)

    def train(optimiser, count, passes=1):
        before = int(elbo.step)
        for _ in range(count):
            for _ in range(passes):
                elbo(x, y).loss.backward()
            optimiser.step()
        return int(elbo.step) - before

    assert train(adam, 3) == 3
    # Its first step passes for another accumulated pass of the optimiser known until then.
    assert train(sgd, 5) == 4
    assert train(sgd, 5, passes=3) == 5
    # A recurring number of accumulated passes is no reason to look at all optimisers again.
    elbo(x, y), elbo(x, y)
    assert not any(searching() is elbo._counter for searching in steps._SEARCHING)
    assert train(adam, 6) == 5


def test_the_step_count_is_saved_and_restored():
    elbo = lb.ELBO(lb.bayesianize(small_net(), lb.MeanField()), 24, kl_weight=lb.LinearAnneal(10))
    for _ in range(5):
        elbo.advance()
    other = lb.ELBO(lb.bayesianize(small_net(), lb.MeanField()), 24, kl_weight=lb.LinearAnneal(10))
    other.load_state_dict(elbo.state_dict())
    assert int(other.step) == 5 and float(other.weight_now) == 0.5


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies_count_their_own_steps(copier):
    elbo = copier(lb.ELBO(lb.bayesianize(small_net(), lb.MeanField()), 24, kl_weight=lb.LinearAnneal(10)))
    elbo(*data()).loss.backward()
    torch.optim.SGD(elbo.parameters(), lr=0.1).step()
    assert int(elbo.step) == 1


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_bad_kl_weight_is_an_error(weight):
    with pytest.raises(ValueError, match="KL weight"):
        lb.ELBO(small_net(), 10, kl_weight=weight)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kl_weight": "small"}, "kl_weight takes a number from 0 or a schedule, not 'small'"),
        ({"tile": "yes"}, "tile is True or False, not 'yes'"),
        ({"dataset_size": [24]}, r"dataset_size is a positive number of examples, not \[24\]"),
        ({"dataset_size": torch.ones(2)}, "dataset_size is a positive number of examples"),
    ],
    ids=str,
)
def test_arguments_of_other_types_are_errors_that_say_what_is_taken(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        lb.ELBO(small_net(), **{"dataset_size": 24, **arguments})


def test_targets_left_out_are_missed_in_words():
    with pytest.raises(TypeError, match="takes y, a tensor, not None"):
        lb.ELBO(small_net(), 24)(data()[0], None)


def normed_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("bad", ["label", "negative", "nan", "later"])
def test_bad_values_leave_the_model_as_it_was(bad):
    model = lb.bayesianize(normed_net(), lb.MeanField())
    elbo, (x, y) = lb.ELBO(model, 24), data()
    if bad == "later":
        elbo(x, y)
    before = copy.deepcopy(model.state_dict())
    if bad == "nan":
        x = x.clone()
        x[3, 2] = float("nan")
    else:
        y = y.clone()
        y[5] = -1 if bad == "negative" else 3
    with pytest.raises(ValueError, match="NaN in 1 of 24" if bad == "nan" else "labels must be from 0 to 2"):
        elbo(x, y)
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_several_samples_move_batch_statistics_once():
    model = lb.bayesianize(normed_net(), lb.MeanField(init_std=0.5), where=lb.named("0")).train()
    elbo, (x, y) = lb.ELBO(model, 24, samples=5), data()
    elbo(x, y)
    assert int(model[1].num_batches_tracked) == 1


def test_mappings_and_tuples_of_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(2, 3)

        def forward(self, left, right=None):
            return {"logits": self.a(left) + self.b(right)}

    model = lb.bayesianize(Two(), lb.Rank1(components=2))
    left, right, y = torch.randn(6, 4), torch.randn(6, 2), torch.randint(3, (6,))
    elbo = lb.ELBO(model, 6)
    with lb.sampling(mean=True):
        torch.testing.assert_close(elbo({"left": left, "right": right}, y).loss, elbo((left, right), y).loss)
    assert elbo({"left": left, "right": right}, y).outputs.shape == (2, 6, 3)


def test_sequence_first_models():
    torch.manual_seed(0)
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 1, enable_nested_tensor=False)
    model = lb.bayesianize(nn.Sequential(net, nn.Linear(8, 3)), lb.MeanField(init_std=0.1))
    x, y = torch.randn(5, 4, 8), torch.randint(3, (5, 4))  # [T, B, ...]
    elbo = lb.ELBO(model, 4, samples=2)
    with lb.sampling(batch_dim=1):
        assert elbo(x, y).outputs.shape == (2, 4, 5, 3)
        with lb.sampling(mean=True):
            terms = elbo(x, y)
    with lb.sampling(mean=True):
        expected = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") / 4
    torch.testing.assert_close(terms.nll, expected)


@pytest.mark.parametrize("method", [lb.MeanField(), lb.Rank1(), lb.EMP()], ids=lambda m: type(m).__name__)
def test_the_whole_objective_compiles(method):
    torch._dynamo.reset()
    model = lb.bayesianize(normed_net(), method)
    elbo = torch.compile(lb.ELBO(model, 24, kl_weight=lb.LinearAnneal(3)), fullgraph=True, backend="aot_eager")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        terms = elbo(*data())
        torch.testing.assert_close(terms.loss, terms.nll + step / 3 * terms.kl / 24)
        optimiser.zero_grad()
        terms.loss.backward()
        optimiser.step()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("rows", [3, 4])
@pytest.mark.parametrize(
    ("likelihood", "target"),
    [(lb.Categorical(), lambda rows: torch.arange(rows) % 3), (lb.Gaussian(2.0), lambda rows: torch.randn(rows, 3))],
    ids=["classes", "values"],
)
def test_pooled_outputs_of_sequence_first_models(rows, likelihood, target):
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x).mean(0)

    torch.manual_seed(0)
    model = lb.bayesianize(Pooled(), lb.MeanField())
    x, y = torch.randn(6, rows, 4), target(rows)
    with lb.sampling(mean=True, batch_dim=1):
        nll = lb.ELBO(model, 10, likelihood)(x, y).nll
        outputs = model(x)
    torch.testing.assert_close(nll, -likelihood.log_prob(outputs.unsqueeze(0), y).mean())


class MovesExamples(nn.Module):
    """Layers see positions where they look for examples."""

    def __init__(self, batched=True):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)
        self.moved = batched

    def forward(self, x):
        x = x.transpose(0, 1) if self.moved else x
        x = self.b(self.a(x).tanh())
        return x.mean(0) if self.moved else x.mean(1)


@pytest.mark.parametrize("seed", [3, 5, 27, 35])
def test_rounding_is_not_taken_for_samples_that_mix(seed):
    # One far value among ordinary ones: large hidden units that cancel in the output.
    torch.manual_seed(seed)
    x = torch.randn(64, 6)
    x[0] *= 10
    model = create("tabular_mlp", in_features=6, outputs=1).fit_bins_(x)
    model = lb.bayesianize(model, lb.BatchEnsemble(components=16, random_sign=0.5, init_spread=0.0))
    assert lb.ELBO(model, 64, lb.Gaussian(1.0))(x, torch.zeros(64)).loss.isfinite()


@pytest.mark.parametrize(
    "method", [lb.BatchEnsemble(4, init_spread=0.5), lb.Rank1(4), lb.MeanField(estimator="weight")], ids=str
)
@pytest.mark.parametrize("positions", [6, 8])  # as many as can be divided among the samples, and not
def test_folded_samples_that_would_mix_are_an_error(method, positions):
    x, y = torch.randn(3, positions, 6), torch.zeros(3, dtype=torch.long)
    samples = 1 if hasattr(method, "components") else 4
    with pytest.raises(ValueError, match="folded samples mix in this model"):
        lb.ELBO(lb.bayesianize(MovesExamples(), method), 100, samples=samples)(x, y)
    lb.ELBO(lb.bayesianize(MovesExamples(False), method), 100, samples=samples)(x, y).loss.backward()


def test_components_can_be_trained_in_turn_where_folded_samples_would_mix():
    x, y = torch.randn(3, 6, 6), torch.zeros(3, dtype=torch.long)
    elbo = lb.ELBO(lb.bayesianize(MovesExamples(), lb.BatchEnsemble(2, init_spread=0.5)), 100)
    with pytest.raises(ValueError, match=r"one component at a time: with lb.sampling\(component=k\)"):
        elbo(x, y)
    for component in range(2):
        with lb.sampling(component=component):
            torch.testing.assert_close(elbo(x, y).outputs[0], elbo.model(x))


def test_the_look_at_the_first_batch_leaves_a_training_as_it_was(monkeypatch):
    x, y = torch.randn(8, 6), torch.randint(3, (8,))

    def first_step(dropout):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(dropout), nn.Linear(8, 3))
        elbo = lb.ELBO(lb.bayesianize(net, lb.Rank1(2)), 100)
        return elbo(x, y).loss, elbo.state_dict(), torch.get_rng_state()

    for dropout in (0.0, 0.3):
        looked = first_step(dropout)
        with monkeypatch.context() as patch:
            patch.setattr(lb.ELBO, "_check_apart", lambda *_: None)
            blind = first_step(dropout)
        torch.testing.assert_close(looked, blind, rtol=0, atol=0)


@pytest.mark.parametrize("components", ["average", "mixture"])
@pytest.mark.parametrize("method", [lb.EMP(learn_mixing=True), lb.ECMP(learn_mixing=True)], ids=str)
def test_learned_mixing_is_evaluated_with_a_single_sample(method, components):
    model = lb.bayesianize(small_net(), method)
    terms = lb.ELBO(model, 24, components=components).eval()(*data())
    torch.testing.assert_close(terms.loss, terms.nll + terms.kl / 24)
    assert terms.outputs.shape == (1, 24, 3) and terms.loss.isfinite()
