"""Conversations as tokens."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventrain.adapters.renderer import HuggingFaceRenderer
from eventrain.core.ports import Message, PromptRefused

CHATML = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ALTERNATING = (
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}"
    "{% endif %}{% if message['role'] == 'user' %}{{ '[ask] ' + message['content'] | trim + ' [/ask]' }}"
    "{% else %}{{ ' ' + message['content'] | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
MINIMAL = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=40)
PLAIN = TEXT.filter(lambda text: "<|" not in text)
ANSWER = PLAIN.filter(lambda text: not text[:1].isspace())
"""Sampled as a tokenizer would write it: a blank in front would be one token with the template's newline."""


def tokenizer(template: str | None, eos: str):
    """Return a small byte-level BPE tokenizer with a few merges and the special tokens of ChatML."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(
        ["user assistant system", "is it higher or lower than the number\n\n"] * 3, trainer
    )
    wrapped = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=eos, pad_token="<|endoftext|>")
    wrapped.add_special_tokens({"additional_special_tokens": SPECIAL[1:]})
    wrapped.chat_template = template
    return wrapped


@pytest.fixture(scope="module")
def renderers(tmp_path_factory):
    """Return a renderer for each kind of template, read from a real folder."""
    found = {}
    for name, template, eos in (
        ("chatml", CHATML, "<|im_end|>"),
        ("chatml, other eos", CHATML, "<|endoftext|>"),
        ("alternating", ALTERNATING, "<|endoftext|>"),
        ("minimal", MINIMAL, "<|endoftext|>"),
        ("none", None, "<|endoftext|>"),
    ):
        folder = tmp_path_factory.mktemp("tokenizer")
        tokenizer(template, eos).save_pretrained(folder)
        found[name] = HuggingFaceRenderer(folder)
    return found


def ids_of(renderer, text):
    return renderer._tokenizer.encode(text, add_special_tokens=False)


def whole(renderer, conversation):
    """Return the ids of a whole conversation, rendered and encoded at once."""
    messages = [{"role": message.role, "content": message.content} for message in conversation]
    text = renderer._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return ids_of(renderer, text)


@given(
    asked=PLAIN,
    answers=st.lists(st.tuples(ANSWER, PLAIN, st.booleans()), max_size=3),
    other_eos=st.booleans(),
)
def test_chatml_in_pieces_equals_chatml_as_a_whole(renderers, asked, answers, other_eos):
    """Opening, answers and replies joined are the tokens of the whole conversation, whether answers stopped or not."""
    renderer = renderers["chatml, other eos" if other_eos else "chatml"]
    end_of_turn = ids_of(renderer, "<|im_end|>")
    conversation = [Message("user", asked)]
    grown = renderer.opening(conversation)
    for answer, told, stopped in answers:
        told_message = Message("user", told)
        grown += ids_of(renderer, answer) + (end_of_turn if stopped else [])
        grown += renderer.reply([told_message], after_stop=stopped)
        conversation += [Message("assistant", answer), told_message]
    assert grown == whole(renderer, conversation)


@given(sampled=st.lists(st.integers(0, 300), max_size=20), told=PLAIN, stopped=st.booleans())
def test_any_sampled_ids_read_as_the_conversation(renderers, sampled, told, stopped):
    """However unusual the sampled tokens, all ids read as the opening, the sampled text and the reply in a row."""
    for renderer in renderers.values():
        decode = renderer._tokenizer.decode
        opening = renderer.opening([Message("user", "go")])
        reply = renderer.reply([Message("user", told)], after_stop=stopped)
        if "\ufffd" not in decode(sampled):  # half a character has no text of its own
            assert decode(opening + sampled + reply) == decode(opening) + decode(sampled) + decode(reply)
        assert told.strip() in decode(reply)


@pytest.mark.parametrize(
    ("name", "opening", "reply", "after_stop"),
    [
        (
            "chatml",
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
            "<|im_end|>\n<|im_start|>user\nlower<|im_end|>\n<|im_start|>assistant\n",
            "\n<|im_start|>user\nlower<|im_end|>\n<|im_start|>assistant\n",
        ),
        ("alternating", "[ask] hi [/ask]", " <|endoftext|>[ask] lower [/ask]", "[ask] lower [/ask]"),
        ("minimal", "user: hi\nassistant: ", "\nuser: lower\nassistant: ", "\nuser: lower\nassistant: "),
        ("none", "hi\n", "\nlower\n", "\nlower\n"),
    ],
)
def test_templates_are_followed_to_the_letter(renderers, name, opening, reply, after_stop):
    """What the policy reads, written out, for each kind of template."""
    renderer = renderers[name]
    lower = [Message("user", "lower")]
    decode = renderer._tokenizer.decode
    assert decode(renderer.opening([Message("user", "hi")])) == opening
    assert decode(renderer.reply(lower, after_stop=False)) == reply
    assert decode(renderer.reply(lower, after_stop=True)) == after_stop


def test_stop_tokens_are_the_end_of_turn_and_the_end_of_text(renderers):
    """An answer ends at the template's own end-of-turn token and at the tokenizer's end of text."""
    stops = {
        name: [renderer._tokenizer.decode([i]) for i in renderer.stop_token_ids]
        for name, renderer in renderers.items()
    }
    assert stops == {
        "chatml": ["<|im_end|>"],
        "chatml, other eos": ["<|im_end|>", "<|endoftext|>"],
        "alternating": ["<|endoftext|>"],
        "minimal": ["<|endoftext|>"],
        "none": ["<|endoftext|>"],
    }


def test_stop_tokens_of_the_generation_config_count(tmp_path):
    """A folder's generation_config.json may name more stop tokens."""
    tokenizer(MINIMAL, "<|endoftext|>").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    assert list(HuggingFaceRenderer(tmp_path).stop_token_ids) == [0, 2]


def test_text_is_read_without_special_tokens(renderers):
    """What an environment sees of an answer is its text, blanks kept, stop token left out."""
    renderer = renderers["chatml"]
    assert renderer.text(ids_of(renderer, " is it 4 ?<|im_end|>")) == " is it 4 ?"


def test_messages_that_the_template_refuses_are_a_refused_prompt(renderers):
    """A template's own complaint is a permanent, typed refusal with its words."""
    with pytest.raises(PromptRefused, match="roles must alternate"):
        renderers["alternating"].opening([Message("system", "x")])


def test_a_folder_without_a_tokenizer_is_refused_in_one_line(tmp_path):
    """A missing folder, one without tokenizer files, and one with a damaged tokenizer say what they are."""
    with pytest.raises(ValueError, match=r"model\.path: .*absent: no such folder"):
        HuggingFaceRenderer(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"^model\.path: .*: is no model folder: it holds no tokenizer$"):
        HuggingFaceRenderer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "tru')
    with pytest.raises(ValueError, match=r"model\.path: .*: no usable tokenizer: .*[^:]$") as caught:
        HuggingFaceRenderer(tmp_path)
    assert "\n" not in str(caught.value)
