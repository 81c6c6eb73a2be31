"""Events of records: sums of embeddings, padding and lengths."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.models import EventLSTM


@pytest.fixture
def model():
    torch.manual_seed(0)
    return EventLSTM(vocabulary=12, embedding=6, hidden=5, dense=4)


@pytest.fixture
def ids():
    return torch.randint(0, 13, (4, 7, 3), generator=torch.Generator().manual_seed(0))


def test_embeddings_are_looked_up_and_added(model, ids):
    table = nn.Embedding(13, 6, padding_idx=0)
    with torch.no_grad():
        table.weight[1:] = model.embedding.weight.T
    outputs, _ = model.lstm(table(ids).sum(2))
    expected = model.output(model.dense(outputs[:, -1]).relu())
    torch.testing.assert_close(model(ids), expected)


def test_the_order_of_events_within_an_hour_does_not_matter(model, ids):
    torch.testing.assert_close(model(ids.flip(2)), model(ids))
    assert not torch.allclose(model(ids.flip(1)), model(ids))


def test_padding_adds_nothing(model, ids):
    torch.testing.assert_close(model(nn.functional.pad(ids, (0, 2))), model(ids))


def test_given_lengths_cut_the_record(model, ids):
    lengths = torch.tensor([7, 3, 1, 5])
    expected = torch.cat([model(row[None, :steps]) for row, steps in zip(ids, lengths.tolist())])
    torch.testing.assert_close(model(ids, lengths), expected)


def test_an_example_meets_one_draw_of_the_embeddings(model, ids):
    """The same event moves every hour of an example alike."""
    converted = lb.bayesianize(model, {"embedding": lb.MeanField(init_std=0.5), "*": None})
    seen = []
    converted.get_submodule("embedding").register_forward_hook(lambda module, args, output: seen.append(output))
    same = ids[:, :1].expand(-1, 7, -1)
    converted(same)
    torch.testing.assert_close(seen[0], seen[0][:, :1].expand_as(seen[0]))
    converted(same)
    assert not torch.allclose(seen[0], seen[1])
