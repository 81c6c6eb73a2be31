"""Deep ensembles: members as slices of one stacked model."""

import copy
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import leanbayes as lb
from leanbayes._rows import join_rows
from leanbayes.models import create
from leanbayes.nn.reinitialise import reinitialise
from tests.networks import NETWORKS, Cells, LastState, SmallNet, build

X = torch.randn(6, 2, 4, 4, generator=torch.Generator().manual_seed(0))


def make(**options):
    torch.manual_seed(0)
    return lb.bayesianize(SmallNet(), lb.DeepEnsemble(**{"members": 3, **options}))


def test_every_parameter_has_a_leading_axis_of_members():
    plain, model = SmallNet(), make()
    stacked = dict(model.member.named_parameters())
    assert list(stacked) == [name for name, _ in plain.named_parameters()]
    for name, parameter in plain.named_parameters():
        assert stacked[name].shape == (3, *parameter.shape)


def test_no_parameter_is_unused_whichever_member_is_drawn():
    model = make(of=lb.MeanField())
    model(X).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_gradients_are_the_members():
    model = make()
    member = lb.point_estimate(model, component=1)
    with lb.sampling(component=1):
        model(X).square().sum().backward()
    member(X).square().sum().backward()
    for name, parameter in model.member.named_parameters():
        torch.testing.assert_close(parameter.grad[1], member.get_parameter(name).grad, rtol=1e-5, atol=1e-6)
        assert parameter.grad[0].abs().sum() == parameter.grad[2].abs().sum() == 0


def test_statistics_move_for_the_member_that_ran():
    model = make().train()
    member = lb.point_estimate(model, component=2).train()
    with lb.sampling(component=2):
        model(X)
    member(X)
    norm = model.member.norm
    assert norm.num_batches_tracked.tolist() == [0, 0, 1]
    torch.testing.assert_close(norm.running_mean[2], member.norm.running_mean)
    torch.testing.assert_close(norm.running_var[2], member.norm.running_var)
    assert norm.running_mean[:2].abs().sum() == 0


def test_a_component_per_row():
    model = make().eval()
    components = [2, 0, 0, 1, 2, 1]
    with torch.no_grad(), lb.sampling(component=torch.tensor(components)):
        mixed = model(X)
    for row, k in enumerate(components):
        with torch.no_grad(), lb.sampling(component=k):
            torch.testing.assert_close(mixed[row], model(X)[row], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("of", [lb.MeanField(estimator="weight"), lb.Rank1(components=2), lb.MeanField()])
def test_a_component_per_row_of_several_samples(of):
    model = make(of=of).eval()
    components = torch.tensor([2, 0, 0, 1, 2, 1, 0, 0, 0, 0, 0, 2])
    x = X[:4]
    with torch.no_grad(), lb.sampling(n=3, component=components):
        assert model(lb.fold(x, 3)).shape == (12, 3)
    with torch.no_grad(), lb.sampling(n=3, component=components, mean=True):
        mixed = model(lb.fold(x, 3))
    for row, k in enumerate(components.tolist()):
        with torch.no_grad(), lb.sampling(component=k, mean=True):
            torch.testing.assert_close(mixed[row], model(x)[row % 4], rtol=1e-5, atol=1e-6)


def test_samples_of_one_member_have_draws_of_their_own():
    model = make(of=lb.MeanField(init_std=0.5, estimator="weight")).eval()
    with torch.no_grad(), lb.sampling(n=2, component=torch.tensor([1, 0, 1, 1])):
        y = model(lb.fold(X[:1].expand(2, -1, -1, -1), 2))
    assert not torch.equal(y[0], y[2]) and torch.equal(y[2], y[3])


def test_components_that_do_not_divide_into_the_samples():
    with pytest.raises(ValueError, match="7 rows does not divide into 2 samples"):
        with lb.sampling(n=2, component=torch.zeros(7, dtype=torch.long)):
            make(of=lb.MeanField())(torch.randn(7, 2, 4, 4))


def test_all_members_in_one_pass():
    model = make().eval()
    with torch.no_grad(), lb.sampling(n=6, component="all"):
        folded = lb.split(model(lb.fold(X, 6)), 6)
    for s in range(6):
        with torch.no_grad(), lb.sampling(component=s % 3):
            torch.testing.assert_close(folded[s], model(X), rtol=1e-5, atol=1e-6)


class Outputs(nn.Module):
    """A model with mappings and tuples on both sides."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, *, batch, scale=1.0):
        y = self.layer(batch["x"]) * scale
        return {"logits": y, "more": (y.sum(1), [y * 2]), "name": "text"}


def test_keywords_mappings_and_tuples():
    model = lb.bayesianize(Outputs(), lb.DeepEnsemble(members=2))
    x = torch.randn(5, 4)
    with torch.no_grad(), lb.sampling(n=2, component="all"):
        folded = model(batch={"x": lb.fold(x, 2)}, scale=2.0)
    assert folded["name"] == "text"
    for k in range(2):
        with torch.no_grad(), lb.sampling(component=k):
            alone = model(batch={"x": x}, scale=2.0)
        torch.testing.assert_close(folded["logits"].view(2, 5, 3)[k], alone["logits"])
        torch.testing.assert_close(folded["more"][0].view(2, 5)[k], alone["more"][0])
        torch.testing.assert_close(folded["more"][1][0].view(2, 5, 3)[k], alone["more"][1][0])


def test_outputs_of_transformers_keep_their_type():
    plain, (tokens,) = build("gpt2")
    model = lb.bayesianize(plain.model, lb.DeepEnsemble(members=2)).eval()
    with torch.no_grad(), lb.sampling(n=2, component="all"):
        output = model(input_ids=lb.fold(tokens, 2), use_cache=False)
    assert type(output).__name__ == "CausalLMOutputWithCrossAttentions"
    assert output.logits.shape == (6, 7, 23)


class Aliased(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = self.first
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.first.weight

    def forward(self, x):
        return self.tied(self.again(torch.tanh(self.first(x))))


@pytest.mark.parametrize("of", [None, lb.MeanField(), lb.Rank1(components=2), lb.EMP()])
def test_modules_in_two_places_and_tied_weights(of):
    torch.manual_seed(0)
    model = lb.bayesianize(Aliased(), lb.DeepEnsemble(members=2, of=of))
    x = torch.randn(5, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for k in range(2):
        member = lb.point_estimate(model, component=k)
        assert member.again is member.first
        assert member.tied.weight is member.first.weight
        with torch.no_grad(), lb.sampling(mean=True, component=k):
            for _ in range(2):
                torch.testing.assert_close(model(x), member(x), rtol=1e-5, atol=1e-6)
    assert all(isinstance(p, nn.Parameter) for m in model.modules() for p in m._parameters.values() if p is not None)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_the_members_kl_is_averaged_or_summed():
    model = make(of=lb.MeanField())
    alone = [lb.kl(model.member_module(k)) for k in range(3)]
    torch.testing.assert_close(lb.kl(model), sum(alone) / 3)
    torch.testing.assert_close(lb.kl(model, "sum"), sum(alone))
    assert lb.kl(make()) == 0


def test_a_member_that_does_not_exist():
    for call in (lambda: lb.point_estimate(make(), component=3), lambda: make().member_module(-1)):
        with pytest.raises(ValueError, match="does not exist"):
            call()
    with pytest.raises(ValueError, match="component=3 does not exist: the ensemble has 3 components, 0 to 2"):
        with lb.sampling(component=3):
            make()(X)
    with pytest.raises(ValueError, match="3 members of the ensemble differ; choose one with component="):
        lb.point_estimate(make())


@pytest.mark.parametrize("name", NETWORKS)
def test_fresh_members_differ_in_every_random_parameter(name):
    plain, _ = build(name)
    again = copy.deepcopy(plain)
    reinitialise(again)
    new = dict(again.named_parameters())
    for key, parameter in plain.named_parameters():
        assert not torch.equal(parameter, new[key]) or parameter.std() == 0, key
    buffers = dict(again.named_buffers())
    assert all(v.abs().sum() == 0 for k, v in buffers.items() if k.endswith(("running_mean", "num_batches_tracked")))
    assert all((v == 1).all() for k, v in buffers.items() if k.endswith("running_var"))


def test_a_model_of_this_package_is_built_again_by_its_recipe():
    """Its own initialisation, not the layers': the two have different spreads."""
    model = create("resnet18", classes=4, stem="cifar")
    spread = model.layer1[0].conv1.weight.std()
    nn.init.zeros_(model.layer1[0].conv1.weight)
    assert reinitialise(model) == []
    torch.testing.assert_close(model.layer1[0].conv1.weight.std(), spread, rtol=0.05, atol=0.0)
    model.fc = nn.Linear(512, 9)
    reinitialise(model)
    assert model.fc.out_features == 9


def test_a_transformer_is_initialised_by_its_own_rule():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(64, 2, 256)
    whole = nn.Transformer(64, 2, 1, 1, 256, batch_first=True)
    reinitialise(model), reinitialise(whole)
    limit = (6 / (64 + 256)) ** 0.5
    assert model.linear1.weight.abs().max() <= 1 / 8
    assert whole.encoder.layers[0].linear1.weight.abs().max() > 1 / 8
    assert whole.encoder.layers[0].linear1.weight.abs().max() <= limit


def test_transformers_initialise_their_own_parts_within_a_wrapper():
    plain, _ = build("vit")
    reinitialise(plain)
    dense = next(m for m in plain.modules() if isinstance(m, nn.Linear))
    assert dense.weight.std() < 0.04  # the library's 0.02, not torch's 0.2


def test_parameters_that_no_module_resets_are_listed():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(50) + 3)
            self.layer = nn.Linear(50, 2)

        def forward(self, x):
            return self.layer(x * self.scale)

    plain = Scaled()
    model = lb.bayesianize(plain, lb.DeepEnsemble(members=2))
    assert ("scale", "no reset_parameters of its own: redrawn with its mean and spread") in (
        model.leanbayes_report.notes
    )
    members = model.member.scale
    assert not torch.equal(members[0], members[1])
    torch.testing.assert_close(members.mean(1), plain.scale.mean().expand(2), rtol=0.3, atol=0.0)


def test_a_point_estimate_by_seed_picks_a_member():
    model = make()
    picked = {seed: lb.point_estimate(model, seed=seed).conv.weight for seed in range(12)}
    members = model.member.conv.weight
    assert all(any(torch.equal(weight, member) for member in members) for weight in picked.values())
    assert len({weight.sum().item() for weight in picked.values()}) > 1
    assert torch.equal(picked[3], lb.point_estimate(model, seed=3).conv.weight)


def test_a_point_estimate_of_a_member_with_components_of_its_own():
    model = make(of=lb.Rank1(components=2, init_spread=0.1))
    with pytest.raises(ValueError, match=r"2 components of .* in member 1 differ; .*model.member_module\(1\)"):
        lb.point_estimate(model, component=1)
    both = [lb.point_estimate(model.member_module(1), component=k) for k in range(2)]
    assert not torch.equal(both[0].output.weight, both[1].output.weight)
    assert type(lb.point_estimate(model, component=1, seed=0).output) is nn.Linear


def test_bad_requests():
    with pytest.raises(ValueError, match="where= chooses layers for the members' method"):
        lb.bayesianize(SmallNet(), lb.DeepEnsemble(), where=lb.norms())
    with pytest.raises(ValueError, match="already converted"):
        lb.bayesianize(lb.bayesianize(SmallNet(), lb.MeanField()), lb.DeepEnsemble())
    with pytest.raises(ValueError, match="no parameters to make an ensemble of"):
        lb.bayesianize(nn.ReLU(), lb.DeepEnsemble())
    with pytest.raises(ValueError, match="leaves nothing to train"):
        lb.bayesianize(SmallNet(), lb.DeepEnsemble(), freeze=True)
    with pytest.raises(ValueError, match="EMP finds no layer"):
        lb.bayesianize(Cells().gru, lb.DeepEnsemble(of=lb.EMP()))
    with pytest.raises(ValueError, match="'joint' is not offered for a deep ensemble"):
        lb.kl(make(of=lb.Rank1()), "joint")


class TestAtOnce:
    """Dense members run as batched products."""

    X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    class Choosy(nn.Module):
        """Looks at values, which batched products do not allow."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return self.linear(x) if x.sum() < 1e9 else x

    def model(self, net=None):
        torch.manual_seed(0)
        net = net or nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3))
        return lb.bayesianize(net.double(), lb.DeepEnsemble(3))

    def step(self, model):
        calls = []
        elbo = lb.ELBO(model, 100, samples=2)
        elbo(self.X, torch.arange(6) % 3)  # what is tried on the first batch is not counted
        for module in model.member.modules():
            module.register_forward_hook(lambda *_: calls.append(1))
        loss = elbo(self.X, torch.arange(6) % 3).loss
        loss.backward()
        return loss.detach(), [p.grad for p in model.parameters()], list(model.buffers()), len(calls)

    @pytest.mark.parametrize("kind", ["norms", "table"])
    def test_it_is_what_members_do_one_by_one(self, kind):
        def net():
            torch.manual_seed(1)
            return create("tabular_mlp", in_features=4, hidden=(5,), outputs=3).fit_bins_(self.X)

        together, in_turn = (self.model(net() if kind == "table" else None) for _ in range(2))
        in_turn._batches = False
        found, wanted = self.step(together), self.step(in_turn)
        assert wanted[3] == 3 * found[3] > 0
        torch.testing.assert_close(found[:3], wanted[:3])
        together.eval(), in_turn.eval()
        torch.testing.assert_close(lb.predict(together, self.X, 6).outputs, lb.predict(in_turn, self.X, 6).outputs)

    def test_what_looks_at_values_runs_one_by_one(self):
        model, other = self.model(self.Choosy()), self.model(self.Choosy())
        other._batches = False
        found, wanted = self.step(model), self.step(other)
        assert model._batches is False
        torch.testing.assert_close(found[:3], wanted[:3])

    def test_members_that_are_drawn_are_not_looked_at(self):
        drawn = [torch.tensor([k], device="meta") for k in range(3)]
        assert self.model()._at_once((self.X,), {}, lb.current_sampling(), drawn, [[0], [1], [2]]) is None

    def test_samples_in_another_order_are_put_back_without_an_index(self, monkeypatch):
        # An index would have to be copied to a GPU, which no recording of a step allows.
        monkeypatch.setattr(torch, "tensor", None)
        parts = [torch.arange(4.0).view(2, 2) + 10 * k for k in range(2)]
        assert join_rows(parts, 0, [0, 2, 1, 3]).tolist() == [[0, 1], [10, 11], [2, 3], [12, 13]]
        assert join_rows(parts, 0, [0, 1, 2, 3]).tolist() == [[0, 1], [2, 3], [10, 11], [12, 13]]

    def test_convolutions_run_one_by_one(self):
        assert not make()._batches


@pytest.mark.parametrize("of", [None, lb.MeanField(init_std=0.1), lb.Rank1(components=2)], ids=str)
def test_members_that_pool_sequences(of):
    torch.manual_seed(0)
    model = lb.bayesianize(LastState(), lb.DeepEnsemble(members=3, of=of)).eval()
    x, y = torch.randn(6, 4, 4), torch.tensor([0, 1, 2, 0])
    packed = nn.utils.rnn.pack_sequence(list(x.unbind(1)))
    with lb.sampling(batch_dim=1):
        outputs = lb.predict(model, x, 6, seed=0, joint=True).outputs
        for row in range(4):
            alone = lb.predict(model, x[:, row : row + 1], 6, seed=0, joint=True).outputs
            torch.testing.assert_close(outputs[:, row : row + 1], alone)
        for tile in (True, False):
            assert lb.ELBO(model, 10, tile=tile)(x, y).outputs.shape[1:] == (4, 3)
    torch.testing.assert_close(lb.predict(model, packed, 6, seed=0, joint=True).outputs, outputs)


def test_members_whose_examples_cannot_be_told_from_classes_are_an_error_in_training():
    model = lb.bayesianize(LastState(), lb.DeepEnsemble(members=3))
    x = torch.randn(6, 3, 4)
    with lb.sampling(batch_dim=1):
        with pytest.raises(ValueError, match="may be on either axis"):
            lb.ELBO(model, 10)(x, torch.arange(3))
        outputs = lb.predict(model, x, 3).outputs
        torch.testing.assert_close(outputs[:, :2], lb.predict(model, x[:, :2], 3).outputs)


def test_members_that_return_named_tuples():
    class Outputs(NamedTuple):
        logits: torch.Tensor
        hidden: torch.Tensor

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return Outputs(self.layer(x), x)

    model = lb.bayesianize(Net(), lb.DeepEnsemble(members=2)).eval()
    x = torch.randn(5, 4)
    outputs = lb.predict(model, x, 2).outputs
    for k in range(2):
        torch.testing.assert_close(outputs[k], lb.point_estimate(copy.deepcopy(model), component=k)(x).logits)


def test_components_for_another_number_of_rows_are_an_error():
    model = lb.bayesianize(nn.Linear(4, 3), lb.DeepEnsemble(members=2))
    with lb.sampling(component=torch.tensor([0, 1, 1])), pytest.raises(ValueError, match="given for 3 rows, .* sees 5"):
        model(torch.randn(5, 4))


def test_dense_members_with_activation_checkpointing_have_the_gradient_without_it():
    class Net(nn.Module):
        checkpointed = False

        def __init__(self):
            super().__init__()
            self.first, self.block = nn.Linear(4, 5), nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))

        def forward(self, x):
            h = self.first(x)
            if not self.checkpointed:
                return self.block(h)
            return checkpoint(self.block, h, use_reentrant=False, context_fn=lb.checkpoint_contexts)

    x, y = torch.randn(6, 4), torch.arange(6) % 3
    gradients = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        model = lb.bayesianize(Net(), lb.DeepEnsemble(members=3))
        model.member.checkpointed = checkpointed
        lb.ELBO(model, 10)(x, y).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_a_plain_checkpoint_that_is_assigned_gives_each_member_its_own_tensors():
    plain = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    model = lb.bayesianize(copy.deepcopy(plain), lb.DeepEnsemble(members=2))
    model.load_state_dict(plain.state_dict(), assign=True)
    with torch.no_grad():
        model.member[0].bias[0].zero_()
    assert not model.member[0].bias[0].any() and model.member[0].bias[1].equal(plain[0].bias)
