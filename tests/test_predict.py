"""predict: right samples, any chunking, joint functions, restored modes, bounded memory."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes._inputs import check_no_nan
from leanbayes._prefix import PrefixRunner, look_at
from tests.networks import LastState


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


class FirstOutput(nn.Module):
    """A layer that may give more than one output, or want its input three times, as one of one input and output."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.inputs = 3 if isinstance(layer, nn.MultiheadAttention) else 1

    def forward(self, x):
        y = self.layer(*[x] * self.inputs)
        return y[0] if isinstance(y, tuple) else y


X = torch.randn(10, 4, generator=torch.Generator().manual_seed(2))
METHODS = [
    lb.MeanField(init_std=0.3),
    lb.KTied(init_std=0.3),
    lb.VariationalDropout(init_log_alpha=0.0),
    lb.VarianceLayer(),
    lb.Rank1(init_std=0.5),
    lb.Rank1(posterior="cauchy"),
    lb.BatchEnsemble(random_sign=0.5),
    lb.EMP(init_std=0.3),
    lb.EMP(init_std=0.3, draw="example"),
    lb.ECMP(init_std=0.3),
    lb.MCDropout(p=0.5),
    lb.MCDropout(p=None),
    lb.DropConnect(p=0.5),
    lb.DeepEnsemble(members=3),
    lb.DeepEnsemble(members=3, of=lb.VarianceLayer()),
]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{type(m).__name__}-{METHODS.index(m)}")


@each_method
def test_a_seed_repeats_and_leaves_the_global_generator_alone(method):
    model = lb.bayesianize(net(), method)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = lb.predict(model, X, 6, seed=1).outputs
    assert torch.equal(torch.rand(3), expected)
    torch.randn(100)
    assert torch.equal(lb.predict(model, X, 6, seed=1).outputs, first)
    if first.shape[0] > 1 and not isinstance(method, (lb.BatchEnsemble, lb.DeepEnsemble)):
        assert not torch.equal(lb.predict(model, X, 6, seed=2).outputs, first)


@pytest.mark.parametrize(("method", "passes"), [(lb.BatchEnsemble(16), 1), (lb.MeanField(estimator="weight"), 16)])
def test_joint_samples_that_draw_no_weights_run_in_one_pass(method, passes, monkeypatch):
    """Scales of a wide layer take little memory for each sample, drawn weights take much."""
    model, seen, run = lb.bayesianize(nn.Linear(512, 512), method), [], PrefixRunner.run
    monkeypatch.setattr(PrefixRunner, "run", lambda self, n: seen.append(n) or run(self, n))
    lb.predict(model, torch.randn(1, 512), 16, seed=0, joint=True)
    assert len(seen) == passes


@each_method
def test_joint_samples_are_functions_whatever_the_chunks_and_rows(method):
    model = lb.bayesianize(net(), method)
    whole = lb.predict(model, X, 6, seed=1, joint=True, chunk=6).outputs
    for chunk in (1, 2, 4):
        torch.testing.assert_close(lb.predict(model, X, 6, seed=1, joint=True, chunk=chunk).outputs, whole)
    rows = torch.cat([lb.predict(model, X[i : i + 3], 6, seed=1, joint=True).outputs for i in (0, 3, 6, 9)], 1)
    torch.testing.assert_close(rows, whole)
    loader = DataLoader(TensorDataset(X), batch_size=4)
    torch.testing.assert_close(lb.predict(model, loader, 6, seed=1, joint=True).outputs, whole)
    # One function: equal inputs get equal outputs.
    same = lb.predict(model, X[:1].expand(4, -1), 6, seed=1, joint=True).outputs
    torch.testing.assert_close(same, same[:, :1].expand_as(same))


@each_method
def test_modes_are_restored_module_by_module(method):
    model = lb.bayesianize(net(), method).train()
    first = next(m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
    first.eval()
    before = [m.training for m in model.modules()]
    statistics = copy.deepcopy(model.state_dict())
    lb.predict(model, X, 5)
    assert [m.training for m in model.modules()] == before
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in statistics.items())


def test_modes_are_restored_after_an_error():
    model = lb.bayesianize(net(), lb.MeanField()).train()
    with pytest.raises(RuntimeError):
        lb.predict(model, torch.randn(3, 5))
    assert all(m.training for m in model.modules())


def test_samples_are_stratified_over_shared_components():
    model = lb.bayesianize(net(), lb.Rank1(components=4, init_std=1e-4, random_sign=0.5)).eval()
    outputs = lb.predict(model, X, 10).outputs
    assert outputs.shape[0] == 12
    for s in range(12):
        with lb.sampling(mean=True, component=s % 4):
            torch.testing.assert_close(outputs[s], model(X), atol=1e-2, rtol=1e-2)


def test_points_are_evaluated_once_each():
    members = lb.bayesianize(net(), lb.BatchEnsemble(components=4, random_sign=0.5)).eval()
    outputs = lb.predict(members, X, 20).outputs
    assert outputs.shape[0] == 4
    for k in range(4):
        torch.testing.assert_close(outputs[k], lb.point_estimate(members, component=k)(X))
    assert lb.predict(lb.bayesianize(net(), lb.DeepEnsemble(members=3)), X, 20).outputs.shape[0] == 3
    assert lb.predict(net(), X, 20).outputs.shape[0] == 1


def test_an_enclosing_sampling_is_obeyed():
    model = lb.bayesianize(net(), lb.Rank1(components=4, random_sign=0.5)).eval()
    with lb.sampling(mean=True, component=2):
        prediction = lb.predict(model, X, 5)
        torch.testing.assert_close(prediction.outputs[0], model(X))
    assert prediction.outputs.shape[0] == 1
    with lb.sampling(component=2):
        assert lb.predict(model, X, 5).outputs.shape[0] == 5
    noiseless = lb.Rank1(components=4, random_sign=0.5, init_std=1e-9)
    for method in (lb.BatchEnsemble(components=4, random_sign=0.5), noiseless):
        members = lb.bayesianize(net(), method).eval()
        with lb.sampling(component=torch.arange(len(X)) % 4):  # of each row
            outputs = lb.predict(members, X, 5).outputs
            torch.testing.assert_close(outputs, members(X).expand(outputs.shape))
    with lb.sampling(hold=True):
        assert torch.equal(lb.predict(model, X, 4).outputs, lb.predict(model, X, 4).outputs)
    mean_field = lb.bayesianize(net(), lb.MeanField(init_std=0.5)).eval()
    with lb.sampling(mean=lb.named("0")), lb.sampling(seed=0):
        partly = lb.predict(mean_field, X, 3).outputs
    assert float(partly.std(0).min()) > 0


@each_method
@pytest.mark.parametrize("likelihood", [None, lb.Categorical()], ids=["none", "categorical"])
def test_the_streamed_summary_equals_that_of_kept_outputs(method, likelihood):
    model = lb.bayesianize(net(), method)
    options = {"samples": 7, "likelihood": likelihood, "seed": 3, "chunk": 2}
    kept, streamed = lb.predict(model, X, **options), lb.predict(model, X, keep="summary", **options)
    for name in ("probs", "mean", "std", "entropy", "mutual_information", "aleatoric", "label", "confidence"):
        torch.testing.assert_close(getattr(streamed, name), getattr(kept, name))
    y = torch.randint(3, (10,))
    torch.testing.assert_close(streamed.log_prob(y), kept.log_prob(y), rtol=1e-4, atol=1e-5)
    for use in (lambda: streamed.outputs, lambda: streamed.quantile(0.5)):
        with pytest.raises(ValueError, match="keep='outputs'"):
            use()


def test_a_double_model_predicts_in_double():
    model = lb.bayesianize(net(), lb.MeanField()).double()
    y = torch.randint(3, (10,))
    for keep in ("outputs", "summary"):
        for x in (X.double(), DataLoader(TensorDataset(X.double(), y), batch_size=4)):
            prediction = lb.predict(model, x, 3, keep=keep)
            assert {getattr(prediction, name).dtype for name in ("probs", "mean", "std")} == {torch.float64}
            assert prediction.log_prob(y).dtype == torch.float64
    assert lb.predict(model.float(), X, 3, keep="summary").probs.dtype == torch.float32


def test_the_streamed_summary_takes_the_labels_that_kept_outputs_take():
    model = lb.bayesianize(net(), lb.MeanField())
    options = {"samples": 5, "seed": 3}
    kept, streamed = lb.predict(model, X, **options), lb.predict(model, X, keep="summary", **options)
    y = torch.randint(3, (10,), dtype=torch.int32)
    y[4] = -100
    torch.testing.assert_close(streamed.log_prob(y), kept.log_prob(y), rtol=1e-4, atol=1e-5)
    assert streamed.log_prob(y)[4] == 0
    for wrong in (y.masked_fill(y == -100, 3), y[:5]):
        for prediction in (kept, streamed):
            with pytest.raises(ValueError, match="labels"):
                prediction.log_prob(wrong)


def test_moments_of_predictions_equal_those_of_a_loop():
    model = lb.bayesianize(net(), lb.MeanField(init_std=0.2)).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        loop = torch.stack([model(X) for _ in range(2000)])
    folded = lb.predict(model, X, 2000, seed=1).outputs
    error = (loop.var(0) / 2000 + folded.var(0) / 2000).sqrt()
    assert ((loop.mean(0) - folded.mean(0)).abs() < 5 * error).all()


def test_large_inputs_are_cut_in_blocks_and_joined():
    model = lb.bayesianize(net(), lb.MeanField())
    many = torch.randn(2500, 4)
    whole = lb.predict(model, many, 3, seed=0, joint=True).outputs
    assert whole.shape == (3, 2500, 3)
    torch.testing.assert_close(whole[:, 2400:], lb.predict(model, many[2400:], 3, seed=0, joint=True).outputs)


def test_loaders_of_tuples_and_mappings_with_a_progress_bar(capsys):
    model = lb.bayesianize(net(), lb.MeanField(init_std=1e-8)).eval()
    y = torch.randint(3, (10,))
    pairs = lb.predict(model, DataLoader(TensorDataset(X, y), batch_size=4), 3)
    with lb.sampling(mean=True):
        torch.testing.assert_close(pairs.outputs[1], model(X), atol=1e-5, rtol=1e-5)
    mapped = lb.predict(model, DataLoader([{"input": row, "labels": 0} for row in X], batch_size=4), 2)
    assert mapped.outputs.shape == (2, 10, 3)
    assert pairs.log_prob(y).shape == (10,)
    # No terminal, no bar.
    assert capsys.readouterr() == ("", "")


def test_the_progress_bar_of_a_terminal_is_on_standard_error(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes anything for a terminal
    model = lb.bayesianize(net(), lb.MeanField())
    lb.predict(model, DataLoader(TensorDataset(X, torch.zeros(10)), batch_size=4), 2)
    written = capsys.readouterr()
    assert written.out == "" and "predict" in written.err


def test_gradients_on_request():
    model = lb.bayesianize(net(), lb.MeanField())
    assert not lb.predict(model, X, 2).outputs.requires_grad
    x = X.clone().requires_grad_()
    lb.predict(model, x, 2, grad=True).probs[:, 0].sum().backward()
    assert x.grad is not None and torch.isfinite(x.grad).all() and x.grad.abs().sum() > 0


def test_a_compiled_model_predicts():
    torch._dynamo.reset()
    model = lb.bayesianize(net(), lb.Rank1(components=2)).eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert lb.predict(compiled, X, 6, seed=0).outputs.shape == (6, 10, 3)
    expected = lb.predict(model, X, 6, seed=0, joint=True).outputs
    torch.testing.assert_close(lb.predict(compiled, X, 6, seed=0, joint=True).outputs, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 0}, "samples"),
        ({"samples": 2.5}, "samples"),
        ({"samples": "many"}, "whole number from 1 or 'auto', not 'many'"),
        ({"chunk": 0}, "chunk"),
        ({"keep": "all"}, "keep"),
        ({"joint": "yes"}, r"predict\(joint=...\) takes True or False, not 'yes'"),
        ({"grad": 1}, r"predict\(grad=...\) takes True or False, not 1"),
    ],
)
def test_bad_arguments_are_one_clear_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        lb.predict(lb.bayesianize(net(), lb.MeanField()), X, **arguments)


class Total(nn.Module):
    """Has one number for the whole batch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x).sum()


def test_bad_inputs_are_one_clear_error():
    model = lb.bayesianize(net(), lb.MeanField())
    broken = X.clone()
    broken[2] = float("nan")
    with pytest.raises(ValueError, match="NaN in 1 of 10 rows"):
        lb.predict(model, broken)
    with pytest.raises(ValueError, match="at least one example"):
        lb.predict(model, X[:0])
    with pytest.raises(ValueError, match="no batch"):
        lb.predict(model, DataLoader(TensorDataset(X[:0]), batch_size=4))
    with pytest.raises(ValueError, match="rows of a batch alike"):
        lb.predict(nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), X)
    with pytest.raises(ValueError, match=r"returned \(\) for 20 folded samples of 10 examples"):
        lb.predict(lb.bayesianize(Total(), lb.MeanField()), X)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_nan_is_found_among_infinities_which_are_not_taken_for_one(dtype):
    """Their sum is NaN as well, or infinite where the values are merely large."""
    x = torch.full((4, 5), torch.finfo(dtype).max, dtype=dtype)
    x[1, 2], x[2, 3] = float("inf"), -float("inf")
    check_no_nan(x)
    x[3, 0] = float("nan")
    with pytest.raises(ValueError, match="NaN in 1 of 4 rows"):
        check_no_nan(x)


@pytest.mark.parametrize("method", [lb.MeanField(estimator="weight"), lb.KTied(estimator="weight"), lb.Rank1()])
def test_scales_kept_for_a_prediction_are_those_of_the_moment(method):
    # Computed once per prediction: samples must be those of single passes, and scales not outlive a change.
    torch.manual_seed(0)
    model = lb.bayesianize(nn.Linear(6, 3), method)
    x = torch.randn(4, 6)
    for _ in range(2):
        torch.manual_seed(1)
        together = lb.predict(model, x, 8, chunk=4).outputs
        torch.manual_seed(1)
        # As in a prediction, factors serve all rows of a sample.
        with lb.sampling(n=4, component="all", joint=True), torch.no_grad():
            apart = torch.cat([lb.split(model(lb.fold(x, 4)), 4) for _ in range(2)])
        torch.testing.assert_close(together, apart)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "raw" in name or "log" in name:
                    parameter.add_(0.5)


@pytest.mark.parametrize(
    ("network", "method", "estimator"),
    [
        (lambda: nn.Conv1d(3, 2, 2), lb.MeanField(estimator="flipout", init_std=0.4), "flipout"),
        (lambda: nn.Conv1d(3, 2, 2), lb.Rank1(init_std=0.4), "rank1"),
        (lambda: nn.Conv1d(3, 2, 2), lb.Rank1(init_std=0.4, form="additive"), "rank1"),
        (lambda: nn.Conv1d(3, 2, 2), lb.MCDropout(0.3), "rank1"),
        (lambda: nn.Sequential(nn.Conv1d(3, 2, 2), nn.Dropout(0.3)), lb.MCDropout(None), "rank1"),
        (lambda: nn.MultiheadAttention(5, 1, batch_first=True), lb.Rank1(init_std=0.4), "rank1"),
        (lambda: nn.LSTM(5, 2, batch_first=True), lb.Rank1(init_std=0.4, estimator="rank1"), "rank1"),
        (lambda: nn.GRU(5, 2, batch_first=True), lb.MCDropout(0.3), "rank1"),
    ],
    ids=["flipout", "rank1", "additive", "mc-dropout", "own-dropout", "attention", "lstm", "gru"],
)
def test_rows_of_a_prediction_share_their_draws_where_that_is_quicker(network, method, estimator):
    torch.manual_seed(0)
    model = lb.bayesianize(FirstOutput(network()), method)
    x = torch.randn(1, 3, 5).expand(6, 3, 5)
    outputs = lb.predict(model, x, 4000, seed=0).outputs
    torch.testing.assert_close(outputs, outputs[:, :1].expand_as(outputs))
    with lb.sampling(estimator=estimator):
        asked = lb.predict(model, x, 4000, seed=0).outputs
    assert not torch.allclose(asked, asked[:, :1].expand_as(asked))
    # Each example's distribution is the same: 4000 against 24000 draws, of a standard error of 2 % of the spread.
    for one, other in ((outputs[:, 0].std(0), asked.std((0, 1))), (outputs[:, 0].mean(0), asked.mean((0, 1)))):
        assert (one - other).abs().max() < 5 * 0.02 * asked.std((0, 1)).max()


def test_joint_samples_come_from_the_generator_of_the_context():
    model = lb.bayesianize(net(), lb.MeanField(init_std=0.3))

    def outputs(seed):
        with lb.sampling(generator=torch.Generator().manual_seed(seed)):
            return lb.predict(model, X, 4, joint=True).outputs

    assert torch.equal(outputs(1), outputs(1)) and not torch.equal(outputs(1), outputs(2))


@pytest.mark.parametrize("joint", [False, True])
def test_a_seed_goes_before_the_generator_of_the_context(joint):
    model = lb.bayesianize(net(), lb.MeanField(init_std=0.3))
    with lb.sampling(generator=torch.Generator().manual_seed(1)):
        first, second = (lb.predict(model, X, 4, seed=1, joint=joint).outputs for _ in range(2))
    assert torch.equal(first, second) and torch.equal(first, lb.predict(model, X, 4, seed=1, joint=joint).outputs)


class Noisy(nn.Module):
    """Has randomness of its own, whatever the mode."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.second(nn.functional.dropout(self.first(x), 0.5))


def test_the_first_prediction_of_a_model_with_randomness_of_its_own_is_repeatable():
    model = lb.bayesianize(Noisy(), lb.MeanField())
    first, second = (lb.predict(model, X, 5, seed=0).outputs for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("chunk", [None, 1, 2, 7])
def test_all_components_of_patched_layers_take_turns_whatever_the_chunks(chunk):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3))
    model = lb.bayesianize(net, {lb.norms(): lb.EMP(2, init_std=0.5), "3": lb.EMP(3, init_std=0.5)}).eval()
    x = torch.randn(5, 4)
    with lb.sampling(component="all"):
        outputs = lb.predict(model, x, 4, chunk=chunk).outputs  # in whole rounds: 6
        with torch.no_grad(), lb.sampling(n=6):
            expected = lb.split(model(lb.fold(x, 6)), 6)
    torch.testing.assert_close(outputs, expected)


def test_all_components_of_one_patched_layer_are_the_exact_mixture():
    torch.manual_seed(0)
    model = lb.bayesianize(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), lb.EMP(5, init_std=0.5)).eval()
    x = torch.randn(700, 4)
    with lb.sampling(component="all"):
        exact = lb.predict(model, x, 5)
    torch.testing.assert_close(
        exact.probs, torch.stack([lb.point_estimate(model, component=k)(x).softmax(-1) for k in range(5)]).mean(0)
    )
    drawn = lb.predict(model, x, 4000, seed=0, keep="summary").probs
    spread = exact.outputs.softmax(-1).std(0).max()
    assert (drawn - exact.probs).abs().max() < 5 * spread / 4000**0.5


def test_loaders_give_packed_sequences():
    torch.manual_seed(0)
    model = lb.bayesianize(LastState(), lb.MeanField(init_std=0.1)).eval()
    packed = nn.utils.rnn.pack_sequence([torch.randn(length, 4) for length in (2, 5, 4)], enforce_sorted=False)
    expected = lb.predict(model, packed, 4, seed=0, joint=True).outputs
    for batch in (packed, (packed, torch.zeros(3))):
        outputs = lb.predict(model, iter([batch]), 4, seed=0, joint=True).outputs
        torch.testing.assert_close(outputs, expected)


@pytest.mark.parametrize("chunk", [1, 2])
def test_rows_and_classes_of_equal_number_are_not_exchanged_in_sequence_first_models(chunk):
    torch.manual_seed(0)
    model = lb.bayesianize(LastState(), lb.MeanField(init_std=0.1)).eval()
    x = torch.randn(6, 3, 4)
    with lb.sampling(batch_dim=1):
        outputs = lb.predict(model, x, 2, seed=0, joint=True, chunk=chunk).outputs
        for row in range(3):
            alone = lb.predict(model, x[:, row : row + 1], 2, seed=0, joint=True).outputs
            torch.testing.assert_close(outputs[:, row : row + 1], alone)


def test_the_axis_of_the_examples_may_change_between_predictions():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    model = lb.bayesianize(network, lb.MeanField(init_std=0.1), where=lb.named("2")).eval()
    x = torch.randn(5, 5, 4)
    for batch_dim in (0, 1):
        with lb.sampling(batch_dim=batch_dim):
            fresh = lb.predict(copy.deepcopy(model), x, 4, seed=0, joint=True).outputs
            torch.testing.assert_close(lb.predict(model, x, 4, seed=0, joint=True).outputs, fresh)


class PositionsFirst(nn.Module):
    """It moves the examples from the first axis to the second, or behind the positions of one axis."""

    def __init__(self, flat):
        super().__init__()
        self.flat, self.first, self.second = flat, nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        h = x.transpose(0, 1)
        h = self.second(self.first(h.flatten(0, 1) if self.flat else h).tanh())
        return h.view(x.shape[1], x.shape[0], 4).transpose(0, 1)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("positions", [4, 5, 6])
@pytest.mark.parametrize(
    "method", [lb.MeanField(init_std=0.3), lb.Rank1(2, init_spread=0.3), lb.EMP(2), lb.MCDropout()], ids=str
)
def test_samples_are_not_mixed_where_a_model_moves_the_examples(method, positions, flat):
    torch.manual_seed(0)
    model = lb.bayesianize(PositionsFirst(flat), method).eval()
    x = torch.randn(3, positions, 6)
    expected = lb.predict(model, x, 4, seed=0, joint=True, chunk=1).outputs
    for chunk in (None, 2, 4):
        outputs = lb.predict(model, x, 4, seed=0, joint=True, chunk=chunk).outputs
        torch.testing.assert_close(outputs, expected)


@pytest.mark.parametrize("of", [lb.MeanField(init_std=0.3), lb.Rank1(2, init_spread=0.3)], ids=str)
def test_samples_of_one_member_are_not_mixed_either(of):
    torch.manual_seed(0)
    model = lb.bayesianize(PositionsFirst(flat=True), lb.DeepEnsemble(2, of=of)).eval()
    x = torch.randn(3, 4, 6)
    expected = lb.predict(model, x, 12, seed=0, joint=True, chunk=1).outputs
    torch.testing.assert_close(lb.predict(model, x, 12, seed=0, joint=True).outputs, expected)


class Queries(nn.Module):
    """A layer runs on learned queries, which are no examples and change the outputs little."""

    def __init__(self):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(4, 8))
        self.ask, self.answer, self.head = nn.Linear(8, 8), nn.Linear(6, 16), nn.Linear(8, 3)

    def forward(self, x):
        keys, values = self.answer(x).chunk(2, -1)
        weights = (0.1 * self.ask(self.queries) @ keys.transpose(1, 2)).softmax(-1)
        return self.head((weights @ values).mean(1))


class Experts(nn.Module):
    """Every example goes through the layer that a random one picks for it."""

    def __init__(self):
        super().__init__()
        self.route, self.head = nn.Linear(6, 3), nn.Linear(8, 3)
        self.experts = nn.ModuleList([nn.Linear(6, 8) for _ in range(3)])

    def forward(self, x):
        picked = self.route(x).argmax(-1)
        h = x.new_zeros(len(x), 8)
        for number, expert in enumerate(self.experts):
            rows = (picked == number).nonzero().squeeze(-1)
            if len(rows):
                h = h.index_add(0, rows, expert(x[rows]))
        return self.head(h.relu())


@pytest.mark.parametrize("samples", [2, 4, 12])
@pytest.mark.parametrize(
    ("make", "size"), [(Queries, (5, 10, 6)), (Experts, (7, 6))], ids=lambda value: getattr(value, "__name__", "")
)
@pytest.mark.parametrize(
    "method", [lb.MeanField(init_std=0.3), lb.Rank1(2, init_spread=0.3), lb.VarianceLayer(), lb.MCDropout()], ids=str
)
def test_samples_are_not_mixed_where_layers_see_other_rows(method, make, size, samples):
    torch.manual_seed(0)
    model = lb.bayesianize(make(), method).eval()
    lb.predict(model, torch.randn(1, *size[1:]), 2)  # one row does not tell how others are routed
    x = torch.randn(size)
    expected = lb.predict(model, x, samples, seed=0, joint=True, chunk=1).outputs
    torch.testing.assert_close(lb.predict(model, x, samples, seed=0, joint=True).outputs, expected)


@pytest.mark.parametrize("source", ["seed", "generator"])
def test_the_first_prediction_is_repeated_although_its_folded_samples_did_not_work_out(source):
    torch.manual_seed(0)
    model = lb.bayesianize(Routed(), lb.MeanField(init_std=0.15), where=lambda name, module: True)

    def outputs():
        if source == "seed":
            return lb.predict(model, X, 4, seed=0).outputs
        with lb.sampling(generator=torch.Generator().manual_seed(0)):
            return lb.predict(model, X, 4).outputs

    folds = look_at(model, X).folds
    first = outputs()
    assert (folds, look_at(model, X).folds) == (True, False)
    assert torch.equal(outputs(), first)


class OnePositionRow(nn.Module):
    """It looks up its positions once for all rows, as one row."""

    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(20, 8), nn.Embedding(16, 8)

    def forward(self, x):
        return self.words(x) + self.positions(torch.arange(x.shape[1]).unsqueeze(0))


@pytest.mark.parametrize("method", [lb.MeanField(init_std=0.3), lb.EMP(3), lb.MeanField(estimator="local")], ids=str)
def test_positions_that_all_rows_share_are_no_reason_to_draw_one_by_one(method):
    torch.manual_seed(0)
    model = lb.bayesianize(OnePositionRow(), method, where=lb.types(nn.Embedding)).eval()
    x = torch.randint(20, (5, 7))
    together = lb.predict(model, x, 6, seed=0, joint=True, chunk=6).outputs
    assert look_at(model, x).folds
    torch.testing.assert_close(together, lb.predict(model, x, 6, seed=0, joint=True, chunk=1).outputs)


def test_as_many_positions_as_folded_rows_are_predicted_one_sample_at_a_time():
    torch.manual_seed(0)
    model = lb.bayesianize(OnePositionRow(), lb.MeanField(init_std=0.3), where=lb.types(nn.Embedding)).eval()
    x = torch.randint(20, (4, 12))
    together = lb.predict(model, x, 3, seed=0, joint=True, chunk=3).outputs
    torch.testing.assert_close(together, lb.predict(model, x, 3, seed=0, joint=True, chunk=1).outputs)


class Positions(nn.Module):
    """It looks up its positions once for all rows, without an axis for them."""

    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(20, 8), nn.Embedding(16, 8)
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = self.words(x) + self.positions(torch.arange(x.shape[1]))
        return self.head(self.body(h).tanh()).mean(1)


@pytest.mark.parametrize("length", [5, 12])
@pytest.mark.parametrize("method", [lb.MeanField(init_std=0.3), lb.VarianceLayer()], ids=str)
def test_samples_are_not_mixed_by_positions(method, length):
    torch.manual_seed(0)
    model = lb.bayesianize(Positions(), method, where=lb.types(nn.Embedding, nn.Linear)).eval()
    x = torch.randint(20, (5, length))
    expected = lb.predict(model, x, 6, seed=0, joint=True, chunk=1).outputs
    torch.testing.assert_close(lb.predict(model, x, 6, seed=0, joint=True).outputs, expected)


@pytest.mark.parametrize("likelihood", [lb.Categorical, "categorical"], ids=str)
def test_a_likelihood_is_an_object(likelihood):
    with pytest.raises(TypeError, match=r"likelihood takes one such as lb.Categorical\(\), not"):
        lb.predict(lb.bayesianize(nn.Linear(4, 3), lb.MeanField()), torch.randn(5, 4), likelihood=likelihood)


@pytest.mark.parametrize("joint", [True, False])
def test_a_seed_is_a_whole_number(joint):
    model = lb.bayesianize(nn.Linear(4, 3), lb.MeanField())
    with pytest.raises(ValueError, match="seed takes a whole number of up to 64 bits, not 0.5"):
        lb.predict(model, torch.randn(5, 4), seed=0.5, joint=joint)


def test_arrays_are_refused():
    model = lb.bayesianize(nn.Linear(4, 3), lb.MeanField())
    with pytest.raises(TypeError, match=r"ndarray gave ndarray; convert arrays with torch.as_tensor"):
        lb.predict(model, torch.randn(5, 4).numpy())


class Routed(nn.Module):
    """Two experts, each for the rows that a random layer gives it."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 4)
        self.experts = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])

    def forward(self, x):
        h = self.gate(x)
        first = h[:, 0] > 0
        output = h.new_zeros(len(h), 3)
        for expert, chosen in zip(self.experts, (first, ~first)):
            output[chosen] = expert(h[chosen])
        return output


@pytest.mark.parametrize("method", [lb.MeanField(init_std=0.15), lb.EMP(3, init_std=0.15), lb.MCDropout()], ids=str)
def test_rows_that_are_chosen_by_a_random_layer_keep_to_their_sample(method):
    # Some choices divide into the samples by chance, most do not.
    for seed in range(12):
        torch.manual_seed(seed)
        model = lb.bayesianize(Routed(), method, where=lambda name, module: True)
        together = lb.predict(model, X, 4, seed=0, joint=True).outputs
        torch.testing.assert_close(together, lb.predict(model, X, 4, seed=0, joint=True, chunk=1).outputs)


def test_training_says_where_it_is_unclear_which_sample_a_row_belongs_to():
    torch.manual_seed(0)
    model = lb.bayesianize(Routed(), lb.MeanField(init_std=0.3))
    x, y = torch.randn(31, 4), torch.zeros(31, dtype=torch.long)
    with pytest.raises(ValueError, match="unclear which of the 2 folded samples a row belongs to; draw one"):
        for _ in range(20):
            lb.ELBO(model, 100, samples=2)(x, y)
    lb.ELBO(model, 100)(x, y).loss.backward()


class Refined(nn.Module):
    """Calls its second layer as often as it is told."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.output = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x, steps):
        h = self.first(x)
        for _ in range(steps):
            h = self.second(h)
        return self.output(h)


@pytest.mark.parametrize(
    "method", [lb.MeanField(init_std=0.3, estimator="flipout"), lb.EMP(3, init_std=0.3), lb.MCDropout(0.3)], ids=str
)
def test_a_model_may_call_a_layer_more_often_than_when_it_was_looked_at(method):
    torch.manual_seed(0)
    model = lb.bayesianize(Refined(), method, where=lb.named("second"))
    fresh = copy.deepcopy(model)
    lb.predict(model, {"x": X, "steps": 1}, 4)
    for steps in (2, 0):
        inputs = {"x": X, "steps": steps}
        expected = lb.predict(copy.deepcopy(fresh), inputs, 4, seed=0, joint=True, chunk=1).outputs
        torch.testing.assert_close(lb.predict(model, inputs, 4, seed=0, joint=True, chunk=2).outputs, expected)
        lb.predict(model := copy.deepcopy(fresh), {"x": X, "steps": 1}, 4)
