"""Small distributions of one kind are drawn and measured together, each as if it were alone."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import leanbayes as lb
from leanbayes import noise
from leanbayes._owners import derived, note_move, owners, sorted_owners
from leanbayes._sampling import Sampling, current_sampling, one_pass, own_frame
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors import mean_field
from leanbayes.posteriors._joined import Apart, SideBySide, joined, pieces, places
from leanbayes.posteriors.mean_field import MeanFieldPosterior

METHODS = [lb.MeanField(bias="same"), lb.MeanField(estimator="weight"), lb.Rank1(3), lb.Rank1(2, posterior="cauchy"),
           lb.BatchEnsemble(3), lb.EMP(3), lb.ECMP(3), lb.KTied(bias="same")]  # fmt: skip


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 2), nn.BatchNorm2d(5), nn.Flatten(),
        nn.Linear(5 * 9, 4),
    ).to(memory_format=torch.channels_last)  # fmt: skip


def weights(model):
    return [each for each in model.modules() if isinstance(each, RandomParameter)]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_divergence_of_all_is_the_sum_of_each(method):
    model = lb.bayesianize(network(), method).double()
    alone = sum(each.kl() for each in weights(model))
    constants = [
        t for o in owners(model, "kl_terms") if not isinstance(o, RandomParameter) for t in o.kl_terms("mean", None)
    ]
    torch.testing.assert_close(lb.kl(model).double(), alone.double() + sum(constants), rtol=1e-6, atol=1e-6)
    if not lb.kl(model).requires_grad:
        return  # points count 0
    together = torch.autograd.grad(lb.kl(model), list(model.parameters()), allow_unused=True)
    apart = torch.autograd.grad(sum(each.kl() for each in weights(model)), list(model.parameters()), allow_unused=True)
    for one, other in zip(together, apart):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "method", [lb.MeanField(init_std=0.3), lb.EMP(3, init_std=0.3), lb.ECMP(3, init_std=0.3)], ids=str
)
def test_draws_together_have_the_moments_of_draws_alone(method):
    posteriors = [each.posterior for each in weights(lb.bayesianize(network(), method))]
    n = 4000
    with torch.no_grad(), lb.sampling(seed=0) as spec, own_frame():
        together = posteriors[0].draw_together(posteriors, "draw", n, spec)
    for drawn, posterior in zip(together, posteriors, strict=True):
        with torch.no_grad(), lb.sampling(seed=1) as spec:
            alone = posterior.rsample(n, spec)
        assert drawn.shape == alone.shape
        spread = alone.std(0).clamp_min(1e-6)
        # Two means of n draws differ by sqrt(2 / n) of the spread, two spreads by less than that; of 500 elements each.
        assert ((drawn.mean(0) - alone.mean(0)) / spread).abs().max() < 5 * (2 / n) ** 0.5
        assert (drawn.std(0) / spread - 1).abs().max() < 5 * (2 / n) ** 0.5


def test_layers_of_emp_choose_on_their_own_when_drawn_together():
    posteriors = [each.posterior for each in weights(lb.bayesianize(network(), lb.EMP(2, init_std=0.5)))]
    with torch.no_grad(), lb.sampling(seed=0) as spec, own_frame():
        drawn = posteriors[0].draw_together(posteriors, "draw", 2000, spec)
    picked = [
        (each[:, 0] == p.copies[1].flatten()[0]).float() for each, p in zip((d.flatten(1) for d in drawn), posteriors)
    ]
    table = torch.corrcoef(torch.stack(picked))
    for a, one in enumerate(posteriors):
        for b, other in enumerate(posteriors):
            # A scale and its shift share the layer's index; other layers have another.
            expected = 1.0 if one.group is other.group else 0.0
            assert abs(table[a, b] - expected) < 5 / 2000**0.5


def test_a_draw_is_laid_out_as_its_weight():
    parts = [MeanFieldPosterior(torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last), 0.1),
             MeanFieldPosterior(torch.randn(5), 0.1), MeanFieldPosterior(torch.randn(2, 6), 0.1)]  # fmt: skip
    whole = joined(parts)
    for got, part in zip(pieces(whole.loc.unsqueeze(0), whole.laid_out["loc"]), parts, strict=True):
        torch.testing.assert_close(got[0], part.loc)
        assert got[0].stride() == part.loc.stride()
    whole.scale().sum().backward()
    assert all(part.raw_std.grad is not None and part.loc.grad is None for part in parts)


def test_weights_of_one_pass_are_drawn_in_one_call(monkeypatch):
    model = lb.bayesianize(network(), lb.Rank1(2))
    calls = []
    original = MeanFieldPosterior.rsample_rows
    monkeypatch.setattr(MeanFieldPosterior, "rsample_rows", lambda self, *a: calls.append(1) or original(self, *a))
    model(torch.randn(2, 3, 6, 6))
    assert len(calls) == 1  # all factors, of outputs and of inputs


def test_a_seed_gives_the_same_draws_in_a_copy():
    model = lb.bayesianize(network(), lb.ECMP(2))
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad(), lb.sampling(seed=3):
        first = model.eval()(x)
    with torch.no_grad(), lb.sampling(seed=3):
        assert torch.equal(first, copy.deepcopy(model)(x))


@pytest.mark.parametrize("method", [lb.MeanField(estimator="weight"), lb.Rank1(2), lb.EMP(2), lb.ECMP(2)], ids=str)
def test_draws_of_a_seed_do_not_depend_on_passes_before_a_change_of_dtype(method):
    model, x = lb.bayesianize(network(), method).eval(), torch.randn(2, 3, 6, 6)
    model(x)
    model, x = model.double(), x.double()
    with torch.no_grad(), lb.sampling(seed=3):
        expected = copy.deepcopy(model)(x)
    with torch.no_grad(), lb.sampling(seed=3):
        assert torch.equal(model(x), expected)


def test_owners_are_found_again_after_a_change():
    model = lb.bayesianize(network(), lb.MeanField())
    first = owners(model, "kl_terms")
    assert owners(model, "kl_terms") == first
    model[6] = nn.Identity()
    assert len(owners(model, "kl_terms")) == len(first) - 1
    model[6] = lb.nn.BayesianLayer(nn.Linear(45, 4), lb.MeanField())
    assert owners(model, "kl_terms")[-1] is model[6].weight
    kinds = sorted_owners(model, "kl_terms", type)
    assert kinds == {RandomParameter: owners(model, "kl_terms")}


def test_the_objective_notices_a_changed_model():
    model = lb.bayesianize(network(), lb.MeanField(estimator="weight"))
    elbo = lb.ELBO(model, 100)
    x, y = torch.randn(4, 3, 6, 6), torch.randint(4, (4,))
    elbo(x, y)
    model[6] = lb.bayesianize(nn.Linear(5 * 9, 4), lb.MeanField(estimator="weight", init_std=0.5))
    torch.testing.assert_close(elbo(x, y).kl, lb.kl(model))
    with torch.no_grad():
        model[6].weight.posterior.loc += 1
    torch.testing.assert_close(elbo(x, y).kl, lb.kl(model))


def test_a_held_context_holds_draws_but_no_divergence():
    model = lb.bayesianize(network(), lb.MeanField(estimator="weight"))
    elbo = lb.ELBO(model, 100)
    x, y = torch.randn(4, 3, 6, 6), torch.randint(4, (4,))
    with lb.sampling(hold=True):
        elbo(x, y)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1
        torch.testing.assert_close(elbo(x, y).kl, lb.kl(copy.deepcopy(model)))


@pytest.mark.parametrize("method", [lb.MeanField(estimator="weight"), lb.EMP(3), lb.ECMP(3)], ids=str)
def test_draws_and_divergence_share_what_is_side_by_side(method, monkeypatch):
    model = lb.bayesianize(network(), method)
    elbo = lb.ELBO(model, 100)
    x, y = torch.randn(4, 3, 6, 6), torch.randint(4, (4,))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        shared = torch.autograd.grad(elbo(x, y).loss, list(model.parameters()))
    monkeypatch.setattr("leanbayes._kl.joined_in_pass", joined)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        apart = torch.autograd.grad(elbo(x, y).loss, list(model.parameters()))
    for one, other in zip(shared, apart, strict=True):
        # Gradients are added before or after they go through the softplus, which rounds otherwise.
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


def test_gradients_of_what_is_side_by_side_are_those_of_cat():
    parts = [torch.randn(3, size, dtype=torch.float64, requires_grad=True) for size in (2, 5, 1)]
    weight = torch.randn(3, 8, dtype=torch.float64)
    where = places(parts, 1)
    got = torch.autograd.grad((SideBySide.apply(where, *parts).square() * weight).sum(), parts)
    expected = torch.autograd.grad((torch.cat(parts, -1).square() * weight).sum(), parts)
    assert all(torch.equal(a, b) and a.is_contiguous() for a, b in zip(got, expected, strict=True))
    assert torch.autograd.gradgradcheck(lambda *each: SideBySide.apply(where, *each).pow(3), parts)


LAYOUTS = {
    "plain": lambda: [torch.randn(2, 3, 2, 2), torch.randn(4)],
    "channels last": lambda: [torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last), torch.randn(3, 2)],
    "with gaps": lambda: [torch.randn(2, 6)[:, ::2], torch.randn(3, 2).mT],
    "of one position": lambda: [torch.randn(2, 3, 1, 1).to(memory_format=torch.channels_last), torch.randn(1, 2)],
}


@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_joined_and_taken_apart_is_what_it_was(layout, rows):
    originals = LAYOUTS[layout]()
    where = places(originals)
    values = originals if rows is None else [torch.randn(rows, *each.shape) for each in originals]
    values = [value.double().requires_grad_() for value in values]

    def both(*each):
        return Apart.apply(where, False, SideBySide.apply(where, *each))

    for value, again in zip(values, both(*values), strict=True):
        assert torch.equal(value, again)
    assert torch.autograd.gradcheck(lambda *each: [one.pow(3) for one in both(*each)], values)
    assert torch.autograd.gradgradcheck(lambda *each: [one.pow(3) for one in both(*each)], values)


def test_transformations_see_joined_parameters_as_autograd_does():
    parts = [MeanFieldPosterior(torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last), 0.1),
             MeanFieldPosterior(torch.randn(5), 0.1)]  # fmt: skip

    def squares(*locs):
        for part, loc in zip(parts, locs):
            part._parameters["loc"] = loc
        whole = joined(parts)
        drawn = pieces(whole.loc.unsqueeze(0), whole.laid_out["loc"])
        return sum((number + 1) * each.pow(2).sum() for number, each in enumerate(drawn))

    locs = [part.loc.detach() for part in parts]
    for number, (got, loc) in enumerate(zip(torch.func.grad(squares, argnums=(0, 1))(*locs), locs, strict=True)):
        torch.testing.assert_close(got, 2 * (number + 1) * loc)


def test_gradients_of_joined_parameters_are_taken_as_they_are():
    parts = [MeanFieldPosterior(torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last), 0.1),
             MeanFieldPosterior(torch.randn(5), 0.1)]  # fmt: skip
    joined(parts).loc.square().sum().backward()
    first, second = (part.loc.grad for part in parts)
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()  # nothing was copied
    assert first.stride() == parts[0].loc.stride()


@pytest.mark.parametrize("method", [lb.MeanField(estimator="weight"), lb.MeanField(estimator="flipout"), lb.Rank1(2),
                                    lb.BatchEnsemble(2)], ids=str)  # fmt: skip
def test_a_part_without_gradients_leaves_them_to_later_parts(method):
    class FrozenBody(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            with torch.no_grad():
                hidden = self.body(x)
            return self.head(hidden)

    model = lb.bayesianize(FrozenBody(), method)
    model(torch.randn(5, 3)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.head.parameters())
    body = [parameter.grad for parameter in model.body.parameters()]
    assert all(grad is None or not grad.any() for grad in body)


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_means_and_variances_that_are_seen_together_are_those_of_each(estimator, low, monkeypatch):
    model = lb.bayesianize(network(), lb.MeanField(estimator=estimator, init_std=0.2))
    elbo = lb.ELBO(model, 100)
    x, y = torch.randn(4, 3, 6, 6), torch.randint(4, (4,))

    def gradients():
        with torch.random.fork_rng(), torch.autocast("cpu", torch.bfloat16, enabled=low):
            torch.manual_seed(1)
            loss = elbo(x, y).loss
        return [loss, *torch.autograd.grad(loss, list(model.parameters()))]

    seen = []
    original = MeanFieldPosterior.view_together.__func__
    monkeypatch.setattr(
        MeanFieldPosterior, "view_together", classmethod(lambda cls, *a: seen.append(1) or original(cls, *a))
    )
    together = gradients()
    assert len(seen) == 1
    monkeypatch.setattr(RandomParameter, "_seen_with_others", lambda self, view, by: None)
    for one, other in zip(together, gradients(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2 if low else 1e-5, atol=1e-3 if low else 1e-6)


def test_layers_in_a_checkpoint_see_their_means_alone(monkeypatch):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.block = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
            self.checkpoints = False

        def forward(self, x):
            x = self.first(x)
            return checkpoint(self.block, x, use_reentrant=False) if self.checkpoints else self.block(x)

    model = lb.bayesianize(Net(), lb.MeanField(estimator="local"))
    x, found = torch.randn(3, 4), []
    for model.checkpoints in (True, False):
        torch.manual_seed(5)
        found.append(torch.autograd.grad(model(x).square().sum(), list(model.parameters())))
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("method", [lb.MeanField(estimator="weight"), lb.ECMP(3), lb.Rank1(2)], ids=str)
def test_a_step_has_no_more_nodes_per_layer_than_it_needs(method):
    """Each node of autograd is host time, forwards and back; what is joined must not be taken apart by autograd."""

    def nodes(layers):
        body = [part for _ in range(layers) for part in (nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3))]
        model = lb.bayesianize(nn.Sequential(*body, nn.Flatten(), nn.Linear(48, 4)), method)
        loss = lb.ELBO(model, 100, tile=False)(torch.randn(2, 3, 4, 4), torch.tensor([0, 1])).loss
        found, todo = set(), [loss.grad_fn]
        while todo:
            node = todo.pop()
            if node is not None and node not in found:
                found.add(node)
                todo += [each for each, _ in node.next_functions]
        return sum("AccumulateGrad" not in node.name() for node in found)

    # A convolution and a norm; and two products of rank-1 layers.
    assert nodes(5) - nodes(4) == (4 if isinstance(method, lb.Rank1) else 2)


def flipout_network():
    return lb.bayesianize(network(), lb.MeanField(estimator="flipout", init_std=0.3))


def test_signs_of_all_layers_are_drawn_in_one_go(monkeypatch):
    drawn = []
    real = noise.signs
    monkeypatch.setattr(noise, "signs", lambda shape, *rest: drawn.append(shape) or real(shape, *rest))
    flipout_network()(torch.randn(6, 3, 6, 6))
    # Two convolutions 3 -> 4 -> 5 and a dense layer 45 -> 4.
    assert drawn == [(6, 3 + 4 + 4 + 5 + 45 + 4)]


def test_signs_that_are_drawn_together_are_independent():
    model = flipout_network()
    rows = 4000
    with one_pass(Sampling(), rows, model):
        found = [
            each.signs(axis, size, rows, current_sampling()) for each in weights(model) for axis, size in each.features
        ]
    table = torch.cat(found, 1)
    assert set(table.unique().tolist()) == {-1.0, 1.0}
    # Means and covariances of so many signs have a standard error of 1 / sqrt(rows).
    covariance = table.T @ table / rows - torch.eye(table.shape[1])
    assert table.mean(0).abs().max() < 5 * rows**-0.5
    assert covariance.abs().max() < 5 * rows**-0.5


def test_a_layer_with_other_rows_draws_signs_of_its_own():
    model = flipout_network()
    first, *_ = weights(model)
    with one_pass(Sampling(), 6, model):
        six = first.signs(0, 4, 6, current_sampling())
        eight = first.signs(0, 4, 8, current_sampling())
        assert (six.shape, eight.shape) == ((6, 4), (8, 4))
        assert first.signs(0, 4, 6, current_sampling()) is six


@pytest.mark.parametrize(
    "shapes", [[(3,), (4,), (2,)], [(3,), (2, 2), (4,)], [(2, 3), (3, 2), (4, 1), (2, 2)]], ids=str
)
@pytest.mark.parametrize("rows", [(), (3,)])
def test_tensors_taken_apart_have_the_gradients_of_slices(shapes, rows):
    torch.manual_seed(0)
    originals = [torch.randn(*shape) for shape in shapes]
    whole = torch.randn(*rows, sum(each.numel() for each in originals), dtype=torch.double, requires_grad=True)
    found = pieces(whole, places(originals))
    start, expected = 0, []
    for each in originals:
        expected.append(whole[..., start : start + each.numel()].reshape(*rows, *each.shape))
        start += each.numel()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    scores = [torch.randn_like(each) for each in expected[:-1]]  # the last one is not used
    ours = torch.autograd.grad(found[:-1], whole, scores)
    torch.testing.assert_close(ours, torch.autograd.grad(expected[:-1], whole, scores))


def wide_network(**options):
    """Of layers that are large enough for standard deviations to be shared within a pass."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 170), nn.Tanh(), nn.Linear(170, 3))
    return lb.bayesianize(net, lb.MeanField(init_std=0.1, **options))


WIDE = torch.randn(7, 200, generator=torch.Generator().manual_seed(0)), torch.arange(7) % 3


@pytest.fixture
def softplus_calls(monkeypatch):
    """Sizes of what standard deviations are computed of."""
    found = []
    real = mean_field.F.softplus
    monkeypatch.setattr(mean_field.F, "softplus", lambda raw, *rest: found.append(raw.numel()) or real(raw, *rest))
    return found


@pytest.mark.parametrize("estimator", ["local", "weight", "flipout", "auto"])
def test_standard_deviations_are_computed_once_in_a_step(estimator, softplus_calls):
    elbo = lb.ELBO(wide_network(estimator=estimator), 100)
    elbo(*WIDE).loss.backward()
    assert sum(softplus_calls) == 200 * 200 + 200 * 170 + 170 * 3 * (2 if estimator == "auto" else 1)


@pytest.mark.parametrize("estimator", ["local", "weight", "flipout"])
def test_shared_standard_deviations_have_the_gradients_of_their_own(estimator, monkeypatch):
    model = wide_network(estimator=estimator)
    elbo = lb.ELBO(model, 100)

    def gradients():
        with lb.sampling(seed=3):
            return torch.autograd.grad(elbo(*WIDE).loss, list(model.parameters()))

    shared = gradients()
    monkeypatch.setattr(mean_field, "_scale", lambda raw: torch.nn.functional.softplus(raw))
    monkeypatch.setattr(mean_field, "_SHARED_FROM", 1 << 40)
    for one, other in zip(shared, gradients(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


def test_likelihood_and_divergence_can_be_differentiated_one_after_the_other():
    model = wide_network()
    terms = lb.ELBO(model, 100)(*WIDE)
    raw = model[0].weight.posterior.raw_std
    (by_nll,) = torch.autograd.grad(terms.nll, raw, retain_graph=False)
    (by_kl,) = torch.autograd.grad(terms.kl, raw)
    torch.testing.assert_close(by_kl, torch.autograd.grad(model[0].weight.kl(), raw)[0])
    assert by_nll.abs().sum() > 0


def test_second_derivatives_of_shared_standard_deviations():
    raw = torch.randn(5, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(mean_field._scale, raw)
    assert torch.autograd.gradgradcheck(mean_field._scale, raw)


def test_a_step_before_the_backward_pass_is_an_error():
    model = wide_network()
    terms = lb.ELBO(model, 100)(*WIDE)
    with torch.no_grad():
        model[0].weight.posterior.raw_std += 1
    with pytest.raises(RuntimeError, match="backward"):
        terms.kl.backward()


def test_what_is_derived_may_be_cleared_by_another_thread_at_any_time():
    model = lb.bayesianize(network(), lb.MeanField())

    def make():
        note_move()  # as if another thread had moved a model, and asked for this one's owners
        owners(model, "kl_terms")
        return [1]

    assert derived(model, "something", make) == [1]
    assert derived(model, "something", lambda: [2]) == [1]
    note_move()
    assert derived(model, "something", lambda: [2]) == [2]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_draws_predictions_and_divergence_work_in_inference_mode(method):
    model = lb.bayesianize(network(), method).eval()
    x, y = torch.randn(4, 3, 6, 6), torch.randint(4, (4,))
    with torch.inference_mode():
        assert model(x).isfinite().all()
        assert lb.predict(model, x, 6).probs.isfinite().all()
        assert lb.kl(model).isfinite()
        assert lb.ELBO(model, 100)(x, y).loss.isfinite()
        assert lb.ELBO(wide_network(), 100)(*WIDE).loss.isfinite()
