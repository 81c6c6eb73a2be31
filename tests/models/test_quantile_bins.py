"""Quantile bins: the code against its definition, the edges against numpy."""

import numpy as np
import pytest
import torch

from leanbayes.models import QuantileBins


def code(x, edges):
    """The definition, bin by bin, for one number."""
    values = []
    for low, high in zip(edges, edges[1:]):
        values.append(0.0 if high <= low else min(max((x - low) / (high - low), 0.0), 1.0))
    return values


@pytest.fixture
def rows():
    return torch.randn(201, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_code_is_its_definition(rows):
    bins = QuantileBins(3, bins=5).double().fit_(rows)
    x = torch.cat([rows[:20], torch.tensor([[-9.0, 0.0, 9.0]])])
    encoded = bins(x)
    assert encoded.shape == (21, bins.out_features) == (21, 18)
    torch.testing.assert_close(encoded[:, :3], x)
    expected = [[code(value, edges) for value, edges in zip(row, bins.edges.tolist())] for row in x.tolist()]
    torch.testing.assert_close(encoded[:, 3:].reshape(21, 3, 5), torch.tensor(expected, dtype=torch.float64))


def test_edges_are_the_quantiles_of_the_rows(rows):
    bins = QuantileBins(3, bins=7).double().fit_(rows)
    expected = np.quantile(rows.numpy(), np.linspace(0, 1, 8), axis=0).T
    np.testing.assert_allclose(bins.edges.numpy(), expected, rtol=1e-12)


def test_edges_start_at_the_quantiles_of_a_standard_normal():
    below = torch.special.ndtr(QuantileBins(2, bins=3).edges)
    torch.testing.assert_close(below, torch.tensor([0.2, 0.4, 0.6, 0.8]).repeat(2, 1))


def test_a_dense_layer_on_top_interpolates_any_values_at_the_edges(rows):
    """What the code is for: with steps of the wanted values as weights, the sum goes through all of them."""
    bins = QuantileBins(1, bins=6).double().fit_(rows[:, :1])
    wanted = torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    codes = bins(bins.edges.T)[:, 1:]
    torch.testing.assert_close(wanted[0] + codes @ wanted.diff(), wanted)


def test_few_values_are_the_edges():
    """A yes-or-no column has one bin, which is the column, and empty ones."""
    flags = torch.tensor([[0.0], [1.0], [1.0], [1.0]])
    bins = QuantileBins(1, bins=4).fit_(flags)
    assert bins.edges.tolist() == [[0, 1, 1, 1, 1]]
    assert bins(flags).tolist() == [[0, 0, 0, 0, 0]] + [[1, 1, 0, 0, 0]] * 3


def test_repeated_quantiles_leave_bins_empty():
    column = torch.cat([torch.zeros(90), torch.arange(1.0, 11.0)]).unsqueeze(1)
    bins = QuantileBins(1, bins=5).fit_(column)
    assert (bins.edges.diff() >= 0).all()
    assert bins(column).isfinite().all()
    assert bins(torch.tensor([[0.0], [10.0]]))[:, 1:].sum(1).tolist() == [0, bins.edges.diff().gt(0).sum().item()]


def test_constant_columns_have_a_code_of_zero_everywhere():
    bins = QuantileBins(2, bins=3).fit_(torch.full((5, 2), 7.0))
    assert bins(torch.tensor([[7.0, 8.0], [-1.0, 7.0]]))[:, 2:].eq(0).all()


def test_columns_of_tiny_numbers_have_a_finite_code():
    column = torch.tensor([[0.0], [1e-40], [3e-39]])
    assert QuantileBins(1, bins=3).fit_(column)(column).isfinite().all()


def test_values_that_float32_hardly_tells_apart_share_an_edge():
    column = torch.tensor([[0.0], [1.0], [1.0 + 1e-6], [2.0]], dtype=torch.float64)
    assert QuantileBins(1, bins=3).double().fit_(column).edges.tolist() == [[0, 1, 2, 2]]


def test_long_columns_are_sorted_and_not_refused():
    column = torch.arange(2.0**24 + 1).unsqueeze(1)
    assert QuantileBins(1, bins=2).fit_(column).edges.tolist() == [[0, 2.0**23, 2.0**24]]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_missing_and_infinite_values_are_refused(value):
    rows = torch.randn(4, 2)
    rows[1, 1] = value
    bins = QuantileBins(2, bins=3)
    before = bins.edges.clone()
    with pytest.raises(ValueError, match="missing or infinite values; impute them"):
        bins.fit_(rows)
    assert torch.equal(bins.edges, before)


@pytest.mark.parametrize("shape", [(4, 3), (4,), (0, 2)])
def test_rows_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"rows of shape \(N, 2\), not"):
        QuantileBins(2).fit_(torch.zeros(shape))


def test_edges_travel_with_the_state(rows):
    bins = QuantileBins(3, bins=5).fit_(rows)
    other = QuantileBins(3, bins=5)
    other.load_state_dict(bins.state_dict())
    assert torch.equal(other.edges, bins.edges)
    assert bins.to("meta").edges.is_meta and bins.to(torch.float64).edges.dtype == torch.float64
