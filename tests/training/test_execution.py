"""What "auto" comes to, by device and size of the work."""

import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.training import TrainConfig, fit
from leanbayes.training.execution import Tf32Products, choose_execution
from leanbayes.training.graphs import settings_of

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
NET = nn.Linear(1000, 1000, bias=False)  # a million parameters


def choose(device=GPU, world=1, examples=50_000, **settings):
    return choose_execution(TrainConfig(**settings), device, world, NET, examples)


def test_the_cpu_runs_as_ever():
    chosen = choose(CPU, epochs=10_000)
    assert chosen.precision == "32" and not chosen.compile and not chosen.record


def test_a_gpu_records_and_compiles_what_is_long():
    assert choose(epochs=999).record and not choose(epochs=999).compile and choose(epochs=1000).compile
    assert choose().precision == "tf32" and not choose().must
    assert not choose(examples=None, epochs=10_000).compile


@pytest.mark.parametrize(
    ("method", "rows"),
    [
        (lb.Rank1(4), 4),
        (lb.EMP(5), 1),
        (lb.DeepEnsemble(3), 1),
        (lb.DeepEnsemble(3, of=lb.Rank1(2)), 2),
    ],
)
def test_rows_of_all_components_count(method, rows):
    model = lb.bayesianize(nn.Sequential(nn.Linear(100, 100), nn.LayerNorm(100), nn.Linear(100, 2)), method)
    elbo = lb.ELBO(model, 50_000)
    parameters = sum(parameter.numel() for parameter in elbo.parameters() if parameter.requires_grad)
    enough = math.ceil(5e13 / 50_000 / parameters)
    for tile, samples, times in ((True, 1, rows), (False, 1, 1), (True, 3, 3 * rows)):
        for epochs, worth in ((enough // times + 1, True), (enough // times - 1, False)):
            config = TrainConfig(epochs=epochs, tile=tile, samples=samples)
            assert choose_execution(config, GPU, 1, elbo, 50_000).compile is worth


def test_what_is_said_by_name_is_done():
    chosen = choose(precision="bf16-mixed", compile=False, cuda_graph=False, epochs=10_000)
    assert (chosen.precision, chosen.compile, chosen.record, chosen.must) == ("bf16-mixed", False, False, False)
    assert choose(cuda_graph=True).must and choose(compile=True).must and choose(CPU, compile=True).compile


def test_several_processes_and_accumulation_are_not_recorded():
    assert not choose(accumulate=2).record
    assert not choose(world=2, epochs=10_000).record and not choose(world=2, epochs=10_000).compile


def test_how_steps_ran_is_said():
    x, y = torch.randn(16, 2), torch.randint(2, (16,))
    assert fit(nn.Linear(2, 2), (x, y), TrainConfig(epochs=1, device="cpu")).how == "float32, eager"
    assert choose().describe(compiled=True, recorded=True) == "float32 with TF32 products, compiled and recorded"


def test_the_setting_of_the_process_comes_back_with_the_last_to_leave():
    before = torch.get_float32_matmul_precision()
    first, second = Tf32Products(), Tf32Products()
    first.__enter__(), second.__enter__()
    first.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == "high"
    second.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == before


def test_settings_tell_what_a_recording_depends_on():
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    before = settings_of(net)
    assert settings_of(net) == before
    net[1].p = 0.1
    assert settings_of(net) != before
    net[1].p = 0.5
    net[0].bias.requires_grad_(False)
    assert settings_of(net) != before
