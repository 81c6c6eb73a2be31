"""Every family on a GPU: draws, seeds, joint predictions, half precision, and compiled with inductor."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

METHODS = [
    lb.MeanField(init_std=0.1),
    lb.MeanField(init_std=0.1, estimator="weight"),
    lb.MeanField(init_std=0.1, estimator="flipout", bias="same"),
    lb.KTied(init_std=0.1),
    lb.VariationalDropout(),
    lb.VariationalDropout(share="neuron", prior=lb.ARD()),
    lb.VarianceLayer(),
    lb.VarianceLayer(noise="uniform"),
    lb.Rank1(),
    lb.Rank1(posterior="cauchy"),
    lb.Rank1(form="additive"),
    lb.BatchEnsemble(),
    lb.EMP(),
    lb.EMP(draw="example", learn_mixing=True),
    lb.ECMP(learn_mixing=True),
    lb.MCDropout(),
    lb.DropConnect(),
    lb.DeepEnsemble(members=2),
    lb.DeepEnsemble(members=2, of=lb.Rank1(components=2)),
]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{type(m).__name__}-{METHODS.index(m)}")


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, groups=2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 5),
    )


X = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
Y = torch.randint(5, (6,), generator=torch.Generator().manual_seed(2))


@each_method
def test_cpu_and_gpu_agree_on_means_and_kl(method):
    model = lb.bayesianize(net(), method).eval()
    with lb.sampling(mean=True):
        expected = model(X)
    kl = lb.kl(model)
    model.cuda()
    with lb.sampling(mean=True):
        torch.testing.assert_close(model(X.cuda()).cpu(), expected, rtol=1e-2, atol=1e-3)
    found = lb.kl(model)
    assert found.device.type == "cuda"
    torch.testing.assert_close(found.cpu(), kl, rtol=1e-4, atol=1e-3)


@each_method
def test_seeds_and_joint_predictions(method):
    model = lb.bayesianize(net(), method).cuda()
    x = X.cuda()
    state = torch.cuda.get_rng_state()
    first = lb.predict(model, x, 6, seed=0).outputs
    assert torch.equal(lb.predict(model, x, 6, seed=0).outputs, first)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    whole = lb.predict(model, x, 6, seed=0, joint=True, chunk=6).outputs
    parts = lb.predict(model, x, 6, seed=0, joint=True, chunk=2).outputs
    torch.testing.assert_close(parts, whole, rtol=1e-2, atol=1e-3)


@each_method
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_and_half_precision_train(method, dtype):
    model = lb.bayesianize(net(), method).cuda()
    elbo = lb.ELBO(model, 100)
    with torch.autocast("cuda", dtype):
        terms = elbo(X.cuda(), Y.cuda())
    terms.loss.backward()
    assert torch.isfinite(terms.loss) and terms.kl.dtype == torch.float32
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    if isinstance(method, lb.Rank1) and method.posterior == "cauchy" and dtype == torch.float16:
        return  # a product of two heavy-tailed factors can leave float16's range
    small = copy.deepcopy(model).to(dtype)
    out = small(X.cuda().to(dtype))
    out.float().sum().backward()
    assert torch.isfinite(out).all()


@pytest.mark.inductor
@each_method
def test_inductor_compiles_a_training_step_and_prediction(method):
    torch._dynamo.reset()
    model = lb.bayesianize(net(), method).cuda()
    elbo = torch.compile(lb.ELBO(model, 100), fullgraph=True)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        optimiser.zero_grad()
        terms = elbo(X.cuda(), Y.cuda())
        terms.loss.backward()
        optimiser.step()
        losses.append(float(terms.loss.detach()))
    assert all(torch.isfinite(torch.tensor(losses)))
    prediction = lb.predict(torch.compile(model.eval(), fullgraph=True), X.cuda(), 4, seed=0)
    assert torch.isfinite(prediction.outputs).all()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU], ids=lambda k: k.__name__)
def test_recurrent_layers_use_cudnn_quietly(kind, recwarn):
    layer = lb.bayesianize(kind(4, 5, 2, bidirectional=True), lb.MeanField(init_std=0.2)).cuda()
    x = torch.randn(7, 3, 4, device="cuda")
    with lb.sampling(n=2):
        layer(lb.fold(x, 2, batch_dim=1))[0].sum().backward()
    assert not [w for w in recwarn if "contiguous" in str(w.message)]
