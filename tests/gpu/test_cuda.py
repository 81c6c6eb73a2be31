"""Every family on a GPU: draws, seeds, joint predictions, half precision, and compiled with inductor."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

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


@each_method
def test_a_layer_called_twice_is_drawn_once(method):
    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = net()

        def forward(self, x):
            return self.a(x) - self.a(x)

    model = lb.bayesianize(Again(), method).cuda().eval()
    outputs = lb.predict(model, X.cuda(), 4, seed=0).outputs
    torch.testing.assert_close(outputs, torch.zeros_like(outputs), rtol=0, atol=1e-4)


@pytest.mark.parametrize("training", [False, True])
def test_eight_threads_on_one_model_give_the_bits_of_one(training):
    for method in (lb.MeanField(init_std=0.1), lb.EMP(), lb.DeepEnsemble(2, of=lb.Rank1(components=2))):
        model, x = lb.bayesianize(net(), method).cuda().train(training), X.cuda()

        def job(seed, model=model, x=x):
            return [lb.predict(model, x, 6, seed=seed, chunk=2).outputs for _ in range(4)]

        alone = [job(seed) for seed in range(8)]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(job, range(8)))
        for mine, expected in zip(found, alone, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, expected, strict=True))
        assert all(module.training == training for module in model.modules())


@pytest.mark.parametrize("options", [{}, {"n": 2}, {"n": 2, "joint": True}, {"seed": 3}], ids=str)
def test_second_runs_of_checkpointed_blocks_find_the_draws_in_autograds_own_thread(options):
    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight
            self.checkpoints = False

        def forward(self, x):
            for block in (self.first, self.second):
                if self.checkpoints:
                    x = checkpoint(block, x, use_reentrant=False, context_fn=lb.checkpoint_contexts)
                else:
                    x = block(x)
            return x

    torch.manual_seed(0)
    x = torch.randn(3, 4, device="cuda")
    for method in (lb.MeanField(init_std=0.3), lb.Rank1(components=2, init_std=0.3)):
        model, found = lb.bayesianize(Blocks(), method).cuda(), []
        for model.checkpoints in (False, True):
            torch.manual_seed(1)
            with lb.sampling(**options):
                loss = model(lb.fold(x, options.get("n", 1))).square().sum()
            found.append(torch.autograd.grad(loss, list(model.parameters())))
        for ours, plain in zip(*found, strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)


def test_seeds_repeat_in_compiled_code_and_leave_torchs_generators_alone():
    torch._dynamo.reset()
    model = lb.bayesianize(net(), lb.MeanField(init_std=0.1)).cuda().eval()
    compiled, x = torch.compile(model, fullgraph=True), X.cuda()
    with torch.no_grad():
        compiled(x)
        state = torch.cuda.get_rng_state()
        outputs = []
        for seed in (1, 1, 2):
            with lb.sampling(seed=seed):
                outputs.append(compiled(x))
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])
    assert torch.equal(torch.cuda.get_rng_state(), state)


@pytest.mark.parametrize("method", [lb.MeanField(estimator="weight"), lb.KTied(estimator="weight")], ids=str)
def test_samples_and_layers_of_compiled_code_have_their_own_noise(method):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)

        def forward(self, x):
            return torch.stack([self.one(x), self.other(x)], 1)

    torch._dynamo.reset()
    model = lb.bayesianize(Two(), method).cuda()
    x = torch.eye(64, device="cuda")
    with torch.no_grad(), lb.sampling(n=3):
        drawn = lb.split(torch.compile(model, fullgraph=True)(lb.fold(x, 3)), 3)
        means = torch.stack([layer.weight.mean().mT for layer in (model.one, model.other)], 1)
    noise = (drawn - means).movedim(2, 1).flatten(2).flatten(0, 1)  # [samples and layers, weights]
    assert (noise.corrcoef() - torch.eye(6, device="cuda")).abs().max() < 0.1


def test_a_chunk_that_does_not_fit_the_memory_is_halved():
    model = lb.bayesianize(nn.Linear(1024, 1024), lb.MeanField(init_std=0.1)).cuda().eval()
    x = torch.randn(4096, 1024, device="cuda")
    expected = lb.predict(model, x, 64, seed=0, joint=True, keep="summary", chunk=2).mean
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    limit = torch.cuda.memory_allocated() + 2**30
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        found = lb.predict(model, x, 64, seed=0, joint=True, keep="summary", chunk=64).mean
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
