"""The text classifier: padding, lengths and initial values."""

import pytest
import torch

from leanbayes.models import TextLSTM


@pytest.fixture
def model():
    torch.manual_seed(0)
    return TextLSTM(vocabulary=40, embedding=6, hidden=5)


def test_padding_after_the_text_changes_nothing(model):
    texts = [torch.randint(1, 40, (steps,)) for steps in (7, 3, 1)]
    padded = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    alone = torch.cat([model(text.unsqueeze(0)) for text in texts])
    torch.testing.assert_close(model(padded), alone)
    longer = torch.cat([padded, torch.zeros(3, 4, dtype=torch.long)], dim=1)
    torch.testing.assert_close(model(longer), alone)


def test_gradients_are_those_of_the_text_alone(model):
    model(torch.tensor([[4, 9, 2, 0, 0]])).sum().backward()
    padded = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model(torch.tensor([[4, 9, 2]])).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(padded[name], parameter.grad, msg=name)


def test_padding_inside_a_text_does_not_end_it(model):
    ids = torch.tensor([[4, 0, 9], [4, 0, 0]])
    torch.testing.assert_close(model(ids), model(ids, torch.tensor([3, 1])))
    assert model(ids)[0] != model(ids)[1]


def test_given_lengths_cut_the_text(model):
    ids = torch.randint(1, 40, (2, 6))
    torch.testing.assert_close(model(ids, torch.tensor([4, 4])), model(ids[:, :4]))


def test_lengths_serve_folded_samples(model):
    ids, lengths = torch.randint(1, 40, (2, 6)), torch.tensor([6, 2])
    torch.testing.assert_close(model(ids.repeat(3, 1), lengths), model(ids, lengths).repeat(3, 1))


def test_lengths_that_do_not_fit(model):
    with pytest.raises(ValueError, match=r"one entry for each of the 3 rows, not shape \(2,\)"):
        model(torch.ones(3, 4, dtype=torch.long), torch.tensor([4, 4]))


def test_an_empty_text_gives_a_finite_logit(model):
    assert model(torch.zeros(1, 4, dtype=torch.long)).isfinite().all()


def test_forward_against_the_gate_equations(model):
    ids = torch.tensor([[3, 8, 1, 7]])
    h = c = torch.zeros(5)
    lstm = model.lstm
    for x in model.embedding(ids)[0]:
        gates = lstm.weight_ih_l0 @ x + lstm.bias_ih_l0 + lstm.weight_hh_l0 @ h + lstm.bias_hh_l0
        i, f, g, o = gates.chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    torch.testing.assert_close(model(ids)[0], model.output.weight @ h + model.output.bias)


def test_initial_values():
    torch.manual_seed(0)
    model = TextLSTM()
    assert not model.embedding.weight[0].any()
    assert model.embedding.weight.abs().max() <= 0.05
    std, draws = 0.125, 512 * 128
    assert abs(model.lstm.weight_ih_l0.std().item() - std) < 4 * std / (2 * draws) ** 0.5
    for gate in model.lstm.weight_hh_l0.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(128), atol=1e-5, rtol=0)
    assert model.lstm.bias_ih_l0.view(4, 128).mean(dim=1).tolist() == [0, 1, 0, 0]
    assert not model.lstm.bias_hh_l0.any()
