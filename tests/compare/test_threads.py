"""Small networks get one thread, for as long as it takes."""

import pytest
import torch

from leanbayes.compare.networks import build_network
from leanbayes.compare.threads import suitable_threads
from leanbayes.data import Schema


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("schema", "hidden", "threads"),
    [
        (Schema("regression", "table", (5,)), None, 1),
        (Schema("regression", "table", (5,)), [1000, 1000], 2),
        (Schema("classification", "image", (1, 28, 28), ("a", "b")), None, 2),
    ],
)
def test_small_perceptrons_run_in_one_thread(schema, hidden, threads, two_threads):
    with suitable_threads(build_network(schema, hidden=hidden)):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 2


def test_the_number_is_as_it_was_after_an_error(two_threads):
    with pytest.raises(KeyError), suitable_threads(build_network(Schema("regression", "table", (5,)))):
        raise KeyError
    assert torch.get_num_threads() == 2
