"""The classifier of records: padding and lengths."""

import pytest
import torch

from leanbayes.models import RecordLSTM


@pytest.fixture
def model():
    torch.manual_seed(0)
    return RecordLSTM(features=4, hidden=5, layers=2)


def test_each_record_is_read_to_its_own_end(model):
    x, lengths = torch.randn(3, 6, 4), torch.tensor([6, 2, 4])
    alone = torch.cat([model(row[:steps].unsqueeze(0)) for row, steps in zip(x, lengths.tolist(), strict=True)])
    torch.testing.assert_close(model(x, lengths), alone)


def test_all_steps_count_without_lengths(model):
    x = torch.randn(2, 6, 4)
    torch.testing.assert_close(model(x), model(x, torch.tensor([6, 6])))


def test_missing_values_after_the_end_reach_neither_output_nor_gradient(model):
    x = torch.randn(1, 6, 4)
    x[:, 3:] = torch.nan
    model(x, torch.tensor([3])).sum().backward()
    padded = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model(x[:, :3]).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(padded[name], parameter.grad, msg=name)


def test_lengths_serve_folded_samples(model):
    x, lengths = torch.randn(2, 6, 4), torch.tensor([6, 2])
    torch.testing.assert_close(model(x.repeat(3, 1, 1), lengths), model(x, lengths).repeat(3, 1))


def test_lengths_that_do_not_fit(model):
    with pytest.raises(ValueError, match="one entry for each of the 3 rows"):
        model(torch.zeros(3, 4, 4), torch.tensor([4, 4]))
