"""The demo's policy: a model folder like any other, made on the spot, so small that two cores train it in a minute.

One token per word: the numbers, and the words of the game. A whole game is about a dozen tokens.
"""

from __future__ import annotations

from pathlib import Path

from ..wording import require

WORDS = ("guess", "to", "higher", "lower", "found", "invalid")
"""What `environments.number_hunt` says, besides numbers."""

_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% if not loop.last %} {% endif %}{% endfor %}"
)
"""No role markers: in this game it is always clear whose turn it is."""


def build_model_folder(path: Path, numbers: int = 12) -> None:
    """Write a model folder to `path`: tokenizer, chat template and config.json of a small Llama, without weights.

    The folder is for ``model.init = "random"``: the learner draws the weights.
    `numbers` is the largest number with a token of its own. Raises `MissingExtra` without transformers.
    """
    vocabulary = ["<unk>", "<pad>", *map(str, range(1, numbers + 1)), *WORDS]
    path.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(path, vocabulary)
    transformers = require("transformers", "torch")
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # of 32: the least that vLLM's kernels for CPUs take
        num_key_value_heads=2,
        max_position_embeddings=64,
        # At a large model's 0.02 so narrow a one hardly tells its inputs apart, and learns far more slowly.
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=vocabulary.index("<pad>"),
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(path)


def _write_tokenizer(path: Path, vocabulary: list[str]) -> None:
    tokenizers = require("tokenizers", "torch")
    transformers = require("transformers", "torch")
    words = tokenizers.models.WordLevel(
        {word: index for index, word in enumerate(vocabulary)}, unk_token="<unk>"
    )
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", chat_template=_TEMPLATE
    )
    wrapped.save_pretrained(path)
