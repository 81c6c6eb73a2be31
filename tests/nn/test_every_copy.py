"""Samples of a patched layer that share their input pick among the outputs of its copies."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import leanbayes as lb

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution")
SPREAD = {"init_std": 0.5}
METHODS = [
    lb.EMP(4, **SPREAD),
    lb.EMP(4, draw="example", **SPREAD),
    lb.EMP(3, mixing=(0.5, 0.3, 0.2), **SPREAD),
    lb.EMP(3, learn_mixing=True, **SPREAD),
    lb.EMP(3, zero=True, **SPREAD),
    lb.Patch(3, **SPREAD),
]


def name_of(method):
    return "-".join(map(str, (method.components, method.mixing or method.learn_mixing, method.wanted_estimator)))


def dense():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 7)).eval()


def convolutional():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Counted(TorchDispatchMode):
    """How many samples' worth of products ran, by the number of rows of their inputs."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in PRODUCTS:
            self.calls.append(name)
            x = args[1] if name in ("addmm", "baddbmm") else args[0]
            self.rows += x.shape[:-1].numel() if name != "convolution" else x.shape[0]
        return func(*args, **(kwargs or {}))


def counted(model, *args, **kwargs):
    lb.predict(model, *args, **kwargs)  # what is found out of a model is found once
    with Counted() as found:
        lb.predict(model, *args, **kwargs)
    return found


def drawn_one_by_one(model, x, samples, **options):
    """What drawn weights give: those who differentiate predictions get them."""
    return lb.predict(model, x, samples, grad=True, **options).outputs.detach()


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=name_of)
@pytest.mark.parametrize(("make", "head", "x"), [(dense, "3", X), (convolutional, "2", IMAGES)], ids=["dense", "conv"])
def test_samples_are_those_of_drawn_weights(make, head, x, method, joint):
    model = lb.bayesianize(make(), method, where=lb.named(head)).eval()
    for chunk in (None, 1, 3):
        found = lb.predict(model, x, 10, seed=0, joint=joint, chunk=chunk).outputs
        expected = drawn_one_by_one(model, x, 10, seed=0, joint=joint, chunk=chunk)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        streamed = lb.predict(model, x, 10, seed=0, joint=joint, chunk=chunk, keep="summary")
        if make is dense:
            torch.testing.assert_close(streamed.probs, expected.softmax(-1).mean(0))


@pytest.mark.parametrize("draw", ["batch", "example"])
def test_every_sample_has_the_output_of_one_copy(draw):
    model = lb.bayesianize(dense(), lb.EMP(4, draw=draw, **SPREAD), where=lb.named("3")).eval()
    with torch.no_grad():
        copies = []
        for k in range(4):
            with lb.sampling(component=k):
                copies.append(model(X))
    outputs = lb.predict(model, X, 50, seed=0).outputs
    distance, which = (outputs.unsqueeze(0) - torch.stack(copies)[:, None]).abs().amax(-1).min(0)  # [50, 6]
    assert distance.max() < 1e-5
    assert (which == which[:, :1]).all() == (draw == "batch")
    assert which.unique().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("draw", ["batch", "example"])
@pytest.mark.parametrize("chunk", [None, 1, 4])
def test_a_head_costs_one_batched_product_of_its_copies(draw, chunk):
    model = lb.bayesianize(dense(), lb.EMP(4, draw=draw), where=lb.named("3")).eval()
    found = counted(model, X, 40, chunk=chunk)
    assert found.calls == ["addmm", "baddbmm"]  # the body, and 4 copies at once
    assert found.rows == len(X) * (1 + 4)


def test_a_convolutional_head_costs_one_convolution_for_each_copy():
    model = lb.bayesianize(convolutional(), lb.EMP(4), where=lb.named("2")).eval()
    found = counted(model, IMAGES, 40, chunk=5)
    assert found.calls == ["convolution"] * (1 + 4)


def test_fewer_samples_than_copies_cost_no_more_products_than_samples():
    model = lb.bayesianize(dense(), lb.EMP(8), where=lb.named("3")).eval()
    assert counted(model, X, 3).rows == len(X) * (1 + 3)


@pytest.mark.parametrize("components", [(2, 2), (4, 3)])
def test_patched_norms_before_the_head_leave_it_to_each_sample(components):
    rules = {lb.named("1"): lb.EMP(components[0], **SPREAD), lb.named("3"): lb.EMP(components[1], **SPREAD)}
    model = lb.bayesianize(dense(), rules).eval()
    found = lb.predict(model, X, 10, seed=0, chunk=5).outputs
    torch.testing.assert_close(found, drawn_one_by_one(model, X, 10, seed=0, chunk=5), rtol=1e-5, atol=1e-6)


def test_a_patched_layer_before_others_shares_its_input_too():
    model = lb.bayesianize(dense(), lb.EMP(3, **SPREAD), where=lb.types(nn.Linear)).eval()
    found = lb.predict(model, X, 12, seed=0).outputs
    torch.testing.assert_close(found, drawn_one_by_one(model, X, 12, seed=0), rtol=1e-5, atol=1e-6)
    assert counted(model, X, 12).rows == len(X) * (3 + 12)


class Twice(nn.Module):
    """Applies its head to two inputs."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x):
        return torch.stack([self.head(self.body(x)), self.head(x)], -1)


def test_a_head_that_is_called_twice_keeps_its_inputs_apart():
    torch.manual_seed(0)
    model = lb.bayesianize(Twice(), lb.EMP(3, **SPREAD), where=lb.named("head")).eval()
    found = lb.predict(model, X, 9, seed=0).outputs
    torch.testing.assert_close(found, drawn_one_by_one(model, X, 9, seed=0), rtol=1e-5, atol=1e-6)


def test_hooks_see_all_samples():
    model = lb.bayesianize(dense(), lb.EMP(3), where=lb.named("3")).eval()
    seen = []
    model[3].register_forward_hook(lambda module, args, output: seen.append((len(args[0]), len(output))))
    lb.predict(model, X, 12, chunk=12)
    assert seen[-1] == (12 * len(X), 12 * len(X))


def test_means_noise_and_one_component_are_what_they_were():
    model = lb.bayesianize(dense(), lb.EMP(3, **SPREAD), where=lb.named("3")).eval()
    with lb.sampling(zero_mean=True):
        found = lb.predict(model, X, 8, seed=0).outputs
        torch.testing.assert_close(found, drawn_one_by_one(model, X, 8, seed=0), rtol=1e-5, atol=1e-6)
    with torch.no_grad(), lb.sampling(component=1):
        torch.testing.assert_close(lb.predict(model, X, 8).outputs, model(X).expand(8, -1, -1))
    with lb.sampling(mean=True):
        assert lb.predict(model, X, 8).outputs.shape[0] == 1


def test_samples_auto_apply_the_copies_once():
    model = lb.bayesianize(dense(), lb.EMP(4, **SPREAD), where=lb.named("3")).eval()
    found = counted(model, X, "auto", seed=0)
    assert found.calls == ["addmm", "baddbmm"]


def test_a_held_draw_is_held():
    model = lb.bayesianize(dense(), lb.EMP(4, **SPREAD), where=lb.named("3")).eval()
    with torch.no_grad(), lb.sampling(n=8, hold=True, seed=0):
        expected = lb.split(model(lb.fold(X, 8)), 8)
        torch.testing.assert_close(lb.predict(model, X, 8).outputs, expected)


def test_training_after_a_prediction_is_not_touched():
    model = lb.bayesianize(dense(), lb.EMP(3, learn_mixing=True, **SPREAD), where=lb.named("3")).eval()
    lb.predict(model, X, 10)
    lb.predict(model, X, 10, grad=True).outputs.square().sum().backward()
    assert model[3].weight.posterior.copies.grad.abs().sum() > 0 and model[3].mixing.logits.grad is not None
    assert "forward" not in vars(model[3])
