"""The decoder, in this process, with a real tiny model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from eventrain.adapters.torch.decoding import Decoder
from eventrain.adapters.torch.proving import ModelNotServed, plain_logprobs, prove
from eventrain.adapters.torch.rows import Finished, Sequence
from eventrain.adapters.torch.weights import WeightsUnusable

CONTEXT = 64
VOCABULARY = 64


def decoder_of(model, *, slots: int = 4, keep_cache: bool = False, context: int = CONTEXT) -> Decoder:
    """Return a decoder at version 0 without a clock."""
    return Decoder(
        model, version=0, slots=slots, context_tokens=context, keep_cache=keep_cache, clock=lambda: 0.0
    )


def prompt_of(seed: int, size: int) -> np.ndarray:
    """Return `size` random tokens."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, size)


def ask(name: str, prompt, max_tokens: int = 8, *, temperature=1.0, top_p=1.0, stop=(), seed=0) -> Sequence:
    """Return a request."""
    return Sequence(name, np.asarray(prompt), max_tokens, temperature, top_p, tuple(stop), seed, 0.0)


def run_out(decoder: Decoder) -> dict[str, Finished]:
    """Step until nothing is left; return what finished, by request."""
    finished: dict[str, Finished] = {}
    while decoder.active or decoder.waiting:
        finished |= {one.sequence.request: one for one in decoder.step()}
    return finished


def alone(model, sequence: Sequence) -> Finished:
    """Return what the request gives in a batch of its own."""
    decoder = decoder_of(model)
    decoder.add(sequence)
    return run_out(decoder)[sequence.request]


def assert_same(one: Finished, other: Finished) -> None:
    """Check equal tokens and, to float tolerance, log-probs."""
    assert one.tokens.tolist() == other.tokens.tolist()
    assert np.abs(one.logprobs - other.logprobs).max() < 1e-4
    assert one.reason == other.reason


def test_logprobs_equal_a_plain_forward_pass(tiny) -> None:
    """Rows of unequal length that join at different times have the log-probs of the model itself."""
    model = tiny(0)
    decoder = decoder_of(model)
    finished: dict[str, Finished] = {}
    for number in range(9):
        decoder.add(ask(f"{number}/0", prompt_of(number, 1 + 5 * number), 4 + number, seed=number))
        finished |= {one.sequence.request: one for one in decoder.step()}
    finished |= run_out(decoder)
    assert len(finished) == 9
    for one in finished.values():
        expected = plain_logprobs(model, one.sequence.prompt, one.tokens)
        assert np.abs(expected - one.logprobs).max() < 1e-4


def test_logprobs_are_after_temperature_and_top_p(tiny) -> None:
    """The reported log-prob is of the sharpened, cut and renormalised distribution."""
    model = tiny(0)
    one = alone(model, ask("0/0", prompt_of(0, 9), 20, temperature=0.7, top_p=0.6))
    with torch.inference_mode():
        logits = model(torch.tensor([[*one.sequence.prompt, *one.tokens]])).logits[0, 8:-1]
    probabilities = (logits / 0.7).softmax(-1)
    for row, token, logprob in zip(probabilities, one.tokens, one.logprobs, strict=True):
        likelier = row[row > row[token]]
        assert likelier.sum() < 0.6
        ordered = row.sort(descending=True).values
        nucleus = ordered[: int((ordered.cumsum(0) < 0.6).sum()) + 1].sum()
        assert abs(torch.log(row[token] / nucleus).item() - logprob) < 1e-4


@given(st.data())
@settings(deadline=None, max_examples=12)
def test_what_shares_the_batch_changes_nothing(tiny, data) -> None:
    """With requests that join, leave and are aborted at random, each gives what it gives alone."""
    model = tiny(0)
    decoder = decoder_of(model, slots=3)
    asked: list[Sequence] = []
    finished: dict[str, Finished] = {}
    aborted: set[str] = set()
    for number in range(data.draw(st.integers(2, 10), label="actions")):
        action = data.draw(st.sampled_from(["add", "add", "repeat", "step", "abort"]), label="action")
        if action == "add" or not asked:
            size = data.draw(st.integers(1, 20), label="prompt")
            asked.append(ask(f"{number}/0", prompt_of(number, size), size, seed=number))
            decoder.add(asked[-1])
        elif action == "repeat":
            asked.append(ask(f"{number}/0", asked[-1].prompt, 6, seed=number, stop=[3, 4]))
            decoder.add(asked[-1])
        elif action == "abort":
            victim = data.draw(st.sampled_from(asked), label="victim")
            decoder.abort(victim)
            aborted.add(victim.request)
        else:
            finished |= {one.sequence.request: one for one in decoder.step()}
    finished |= run_out(decoder)
    assert decoder.active == decoder.waiting == 0
    for sequence in asked:
        if sequence.request in finished:
            assert_same(finished[sequence.request], alone(model, sequence))
        else:
            assert sequence.request in aborted


def test_a_group_computes_its_prompt_once(tiny) -> None:
    """Equal prompts that join together share one prefill, and sample independently."""
    model = tiny(0)
    seen: list[int] = []
    decoder = decoder_of(model)
    model.register_forward_pre_hook(
        lambda _, __, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    group = [ask(f"7/{number}/0", prompt_of(0, 30), 5, seed=number) for number in range(4)]
    for sequence in group:
        decoder.add(sequence)
    finished = run_out(decoder)
    assert seen[0] == 30
    assert len({tuple(one.tokens) for one in finished.values()}) > 1
    for sequence in group:
        assert_same(finished[sequence.request], alone(model, sequence))


def test_the_next_turn_starts_from_the_cache_of_the_turn_before(tiny) -> None:
    """A prompt that continues its trajectory computes only what is new, and gives the same."""
    model = tiny(0)
    decoder = decoder_of(model)
    decoder.add(ask("7/0/0", prompt_of(0, 20), 6))
    first = run_out(decoder)["7/0/0"]
    conversation = [*first.sequence.prompt, *first.tokens, *prompt_of(1, 3)]
    seen: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _, __, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    decoder.add(ask("7/0/1", conversation, 6, seed=1))
    second = run_out(decoder)["7/0/1"]
    hook.remove()
    assert seen[0] == 4  # the last sampled token was never fed
    assert_same(second, alone(model, ask("7/0/1", conversation, 6, seed=1)))
    decoder.add(ask("7/0/2", prompt_of(2, 40), 6, seed=2))  # does not continue it
    assert_same(run_out(decoder)["7/0/2"], alone(model, ask("7/0/2", prompt_of(2, 40), 6, seed=2)))


def test_a_stop_token_is_the_last_token(tiny) -> None:
    """Sampling ends with the first stop token, which is part of the answer."""
    model = tiny(0)
    free = alone(model, ask("0/0", prompt_of(0, 5), 30)).tokens.tolist()
    stop = free[10]
    one = alone(
        model,
        ask("0/0", prompt_of(0, 5), 30, stop=[VOCABULARY - 1, stop] if stop != VOCABULARY - 1 else [stop]),
    )
    assert one.tokens.tolist() == free[: len(one.tokens)]
    assert one.tokens[-1] in (stop, VOCABULARY - 1)
    assert one.reason == "stop"


def test_the_context_and_max_tokens_end_an_answer(tiny) -> None:
    """What reaches the end of the context, or of its allowance, ends with `length`."""
    model = tiny(0)
    assert len(alone(model, ask("0/0", prompt_of(0, 5), 7)).tokens) == 7
    for size in (CONTEXT - 1, CONTEXT - 6):
        one = alone(model, ask("0/0", prompt_of(0, size), 50))
        assert (len(one.tokens), one.reason) == (CONTEXT - size, "length")


def test_an_abort_frees_the_slot(tiny) -> None:
    """With one slot taken, the next in line gets it when its holder is aborted; a waiting one just goes."""
    decoder = decoder_of(tiny(0), slots=1)
    holder, waiting, heir = (ask(f"{number}/0", prompt_of(number, 4), 40) for number in range(3))
    for sequence in (holder, waiting, heir):
        decoder.add(sequence)
    decoder.step()
    assert (decoder.active, decoder.waiting) == (1, 2)
    decoder.abort(waiting)
    decoder.abort(holder)
    decoder.abort(holder)
    assert (decoder.active, decoder.waiting) == (0, 1)
    assert set(run_out(decoder)) == {"2/0"}


@pytest.mark.parametrize("keep", [False, True])
def test_every_token_comes_from_the_weights_it_is_recorded_with(tiny, keep) -> None:
    """After an update in flight, tokens have the new weights' log-probs if the cache is computed again."""
    old, new = tiny(0), tiny(1)
    model = tiny(0)
    decoder = decoder_of(model, keep_cache=keep)
    for number in range(3):
        decoder.add(ask(f"{number}/0", prompt_of(number, 6 + number), 10, seed=number))
    for _ in range(4):
        decoder.step()
    decoder.load(new.state_dict(), 1)
    decoder.add(ask("9/0", prompt_of(9, 5), 3))
    finished = run_out(decoder)
    assert finished["9/0"].version_spans == ((1, 3),)
    for number in range(3):
        one = finished[f"{number}/0"]
        assert one.version_spans == ((0, 4), (1, 6))
        by_old, by_new = (plain_logprobs(weights, one.sequence.prompt, one.tokens) for weights in (old, new))
        assert np.abs(by_old - one.logprobs)[:4].max() < 1e-4
        assert np.abs(by_old - one.logprobs)[4:].max() > 1e-2
        recomputed = np.abs(by_new - one.logprobs)[4:].max()
        assert recomputed > 1e-2 if keep else recomputed < 1e-4


@pytest.mark.parametrize("keep", [False, True])
def test_new_weights_end_the_reuse_of_old_caches_unless_they_are_kept(tiny, keep) -> None:
    """A next turn after an update is computed from its start, except with kv_after_sync = keep."""
    model = tiny(0)
    decoder = decoder_of(model, keep_cache=keep)
    decoder.add(ask("7/0/0", prompt_of(0, 20), 6))
    first = run_out(decoder)["7/0/0"]
    decoder.load(tiny(1).state_dict(), 1)
    seen: list[int] = []
    model.register_forward_pre_hook(
        lambda _, __, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    decoder.add(ask("7/0/1", [*first.sequence.prompt, *first.tokens, 1, 2], 1))
    run_out(decoder)
    assert seen == [3 if keep else 28]


def test_foreign_weights_are_refused_and_change_nothing(tiny) -> None:
    """A tensor that is missing, unknown or of another shape raises, and the model decodes as before."""
    model = tiny(0)
    decoder = decoder_of(model)
    before = alone(tiny(0), ask("0/0", prompt_of(0, 4)))
    state = tiny(1).state_dict()
    wrong = [
        {name: tensor for name, tensor in state.items() if "layers.1" not in name},
        {**state, "extra": torch.zeros(1)},
        {**state, "model.norm.weight": torch.zeros(7)},
    ]
    for tensors in wrong:
        with pytest.raises(WeightsUnusable):
            decoder.load(tensors, 1)
    decoder.add(ask("0/0", prompt_of(0, 4)))
    after = run_out(decoder)["0/0"]
    assert_same(after, before)
    assert after.version_spans == ((0, 8),)


def test_weights_that_give_nan_are_an_error_and_not_a_token(tiny) -> None:
    """A request whose log-prob is not finite ends in an error that names the weights."""
    decoder = decoder_of(tiny(0))
    state = {name: torch.full_like(tensor, torch.nan) for name, tensor in tiny(0).state_dict().items()}
    decoder.load(state, 3)
    decoder.add(ask("0/0", prompt_of(0, 4)))
    assert run_out(decoder)["0/0"].error == "weights 3 gave a log-prob that is not finite"
    decoder.load(tiny(0).state_dict(), 4)
    assert_same(alone(tiny(0), ask("1/0", prompt_of(0, 4))), _after(decoder))


def _after(decoder: Decoder) -> Finished:
    decoder.add(ask("1/0", prompt_of(0, 4)))
    return run_out(decoder)["1/0"]


SHAPES = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None}
LLAMA_LIKE = {
    **SHAPES,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "initializer_range": 0.3,
}


@pytest.mark.parametrize(
    "model",
    [
        Qwen2ForCausalLM(Qwen2Config(**LLAMA_LIKE, tie_word_embeddings=True)),
        GPT2LMHeadModel(GPT2Config(**SHAPES, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3)),
        MistralForCausalLM(MistralConfig(**LLAMA_LIKE, sliding_window=None)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_other_models_with_ordinary_attention_are_served(model) -> None:
    """Qwen2, GPT-2 and Mistral without a window pass the proof that an engine makes at its start."""
    prove(model.eval(), lambda **rest: Decoder(model, keep_cache=False, clock=lambda: 0.0, **rest), 64)


def test_a_model_that_would_be_computed_wrongly_is_not_served() -> None:
    """Attention over a window shorter than the context is refused at the start."""
    model = MistralForCausalLM(MistralConfig(**LLAMA_LIKE, sliding_window=4)).eval()
    with pytest.raises(ModelNotServed):
        prove(model, lambda **rest: Decoder(model, keep_cache=False, clock=lambda: 0.0, **rest), 64)
