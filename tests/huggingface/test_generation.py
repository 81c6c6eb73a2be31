"""generate: held functions, averaged probabilities, one token for all samples."""

import pytest
import torch

import leanbayes as lb
from leanbayes.huggingface import generate

transformers = pytest.importorskip("transformers")
tiny = pytest.importorskip("tests.huggingface.tiny")

METHODS = {
    "rank1": lb.Rank1(components=2, init_std=0.3),
    "mean-field": lb.MeanField(init_std=0.1),
    "emp": lb.EMP(components=3, init_std=0.3),
    "dropout": lb.MCDropout(p=0.2),
}


def make(method, network="gpt2"):
    torch.manual_seed(0)
    plain = getattr(tiny, network)()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(4)  # sure enough for texts that differ
    return lb.bayesianize(plain, METHODS[method]).eval()


def options(**changes):
    return {"max_new_tokens": 5, "eos_token_id": None, "pad_token_id": 0} | changes


@pytest.mark.parametrize("method", METHODS)
def test_the_uncertainty_is_that_of_held_functions(method):
    # The head is tied to the embedding: both uses meet one draw. Without a cache all positions are computed at once.
    model, prompts = make(method), tiny.tokens(2, 3)
    text = generate(model, prompts, samples=4, seed=3, **options())
    assert torch.equal(text.sequences[:, :3], prompts)
    assert torch.equal(text.sequences[:, 3:], text.tokens)
    whole = generate(model, prompts, samples=4, seed=3, use_cache=False, **options())
    assert torch.equal(whole.sequences, text.sequences)
    torch.testing.assert_close(whole.mutual_information, text.mutual_information, rtol=1e-4, atol=1e-6)


def test_against_a_loop_over_functions():
    # One prompt, so that a sample of the mean-field posterior is one function in predict(joint=True) as well.
    model, prompts = make("mean-field"), tiny.tokens(2, 3)
    text = generate(model, prompts, samples=3, seed=3, **options())
    with lb.sampling(n=3, hold=True, seed=3), torch.no_grad():
        logits = lb.split(model(lb.fold(text.sequences, 3)).logits, 3)[:, :, 2:-1]  # [3, 2, 5, V]
    prediction = lb.Prediction(logits, lb.Categorical(class_dim=-1))
    torch.testing.assert_close(text.entropy, prediction.entropy, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(text.mutual_information, prediction.mutual_information, rtol=1e-4, atol=1e-6)
    assert torch.equal(text.tokens, prediction.label)
    chosen = prediction.probs.gather(-1, text.tokens.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(text.log_prob, chosen.log(), rtol=1e-4, atol=1e-5)
    assert (text.mutual_information > 0).all()


def test_every_component_takes_part():
    model = make("rank1")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("raw_std"):
                parameter.fill_(-30)  # two functions are left, one of each component
    prompts = tiny.tokens(1, 3)
    text = generate(model, prompts, samples=3, seed=0, **options(max_new_tokens=1))
    functions = [lb.point_estimate(model, component=k) for k in range(2)]
    with torch.no_grad():
        probs = torch.stack([function(prompts).logits[:, -1].softmax(-1) for function in functions]).mean(0)
    wanted = torch.special.entr(probs).sum(-1, keepdim=True)
    torch.testing.assert_close(text.entropy, wanted, rtol=1e-4, atol=1e-5)


def test_drawn_tokens_are_the_same_for_all_samples_and_repeatable():
    model, prompts = make("mean-field"), tiny.tokens(2, 3)
    settings = {"seed": 1, "do_sample": True, "temperature": 1.5}
    text = generate(model, prompts, samples=3, **settings, **options())
    assert torch.equal(text.sequences, generate(model, prompts, samples=3, **settings, **options()).sequences)
    best = generate(model, prompts, samples=3, **(settings | {"top_k": 1}), **options())
    assert torch.equal(best.sequences, generate(model, prompts, samples=3, seed=1, **options()).sequences)
    narrow = generate(model, prompts, samples=3, **(settings | {"top_p": 1e-6}), **options())
    assert torch.equal(narrow.sequences, best.sequences)


def test_nothing_is_known_after_the_end():
    model, prompts = make("mean-field"), tiny.tokens(2, 3)
    free = generate(model, prompts, samples=3, seed=3, **options())
    end = int(free.tokens[0, 1])
    text = generate(model, prompts, samples=3, seed=3, **options(eos_token_id=end))
    last = free.tokens[0].tolist().index(end)
    assert text.entropy[0, : last + 1].isfinite().all()
    assert text.entropy[0, last + 1 :].isnan().all()
    torch.testing.assert_close(text.log_prob[0, : last + 1], free.log_prob[0, : last + 1])


def test_padded_prompts_and_encoders_with_decoders():
    prompts = tiny.tokens(2, 4)
    prompts[0, :2] = 0
    inputs = {"input_ids": prompts, "attention_mask": (prompts != 0).long()}
    model = make("mean-field", "llama")
    both = generate(model, inputs, samples=2, seed=0, **options())
    alone = generate(model, prompts[:1, 2:], samples=2, seed=0, **options())
    torch.testing.assert_close(both.entropy[:1], alone.entropy, rtol=1e-3, atol=1e-5)
    text = generate(make("rank1", "t5"), inputs, samples=2, seed=0, **options())
    assert text.tokens.shape == text.entropy.shape == (2, 5)


def test_the_model_is_left_as_it_was():
    model = make("mean-field").train()
    before = torch.get_rng_state()
    generate(model, tiny.tokens(1, 3), samples=2, seed=0, do_sample=True, **options())
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)


def test_settings_of_the_model_do_not_change_what_comes_back():
    model, prompts = make("mean-field"), tiny.tokens(1, 3)
    wanted = generate(model, prompts, samples=2, seed=0, **options())
    model.generation_config.return_dict_in_generate = True
    assert torch.equal(generate(model, prompts, samples=2, seed=0, **options()).tokens, wanted.tokens)


def test_wrong_arguments():
    model, prompts = make("mean-field"), tiny.tokens(1, 3)
    with pytest.raises(ValueError, match="samples is a whole number"):
        generate(model, prompts, samples=0)
    with pytest.raises(ValueError, match="one text per prompt"):
        generate(model, prompts, num_beams=2)
    with pytest.raises(TypeError, match="has no generate"):
        generate(torch.nn.Linear(2, 2), prompts)
