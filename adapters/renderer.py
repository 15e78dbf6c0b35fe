"""Messages to tokens and back, with the model's own chat template.

A conversation grows only at its end. What the policy sampled is kept token by token; between two answers this
module makes the ids that the template would put there, and they are appended. So an answer that was sampled in an
unusual tokenisation is trained as it was sampled, and never as a tokenizer would write it again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..core.ports import Message, PromptRefused
from .wording import require

_PLACEHOLDER = "eventrain-answer-placeholder"
"""Stands for an answer while the template is asked what comes behind one. No template changes it."""

_QUESTION = Message("user", "?")

_REMEMBERED = 1024
"""Openings and replies whose ids are kept."""


class HuggingFaceRenderer:
    """The `Renderer` of a Hugging Face model folder.

    Without a chat template, contents are joined with newlines, roles are left out, and every answer begins on a
    line of its own: for small models trained from nothing, whose environment writes the whole text.

    Ids behind an answer are right for every template that writes a conversation message by message. Where the
    closing of an answer starts with a special token, as in ChatML, they are exactly those of the whole rendered
    conversation.

    Code that comes with a model is never run. Raises ValueError with one line when the folder has no usable
    tokenizer, and `MissingExtra` without transformers.
    """

    stop_token_ids: Sequence[int]

    def __init__(self, model_path: Path) -> None:
        self._path = model_path
        self._tokenizer = _load_tokenizer(model_path)
        self._has_template = bool(self._tokenizer.chat_template)
        self._special_ids = {i for i, token in self._tokenizer.added_tokens_decoder.items() if token.special}
        self._special_ids.add(self._tokenizer.eos_token_id)
        self._end_of_turn = self._find_end_of_turn() if self._has_template else None
        self.stop_token_ids = self._find_stop_tokens()
        # A group asks for the same opening n times, and many environments give few different answers; a template
        # costs a hundred times what looking it up does.
        self._opening_ids = lru_cache(maxsize=_REMEMBERED)(self._render_opening)
        self._reply_ids = lru_cache(maxsize=_REMEMBERED)(self._render_reply)

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of the opening messages and of the start of the first answer.

        Raises `PromptRefused` when the template does not accept the messages.
        """
        return list(self._opening_ids(tuple(messages)))

    def reply(self, messages: Sequence[Message], *, after_stop: bool) -> list[int]:
        """Return the ids to append behind an answer: its closing, `messages`, and the start of the next answer.

        With `after_stop` the answer ended with the template's own end-of-turn token, which is then not repeated.
        Raises `PromptRefused` when the template does not accept the messages.
        """
        return list(self._reply_ids(tuple(messages), after_stop))

    def _render_opening(self, messages: tuple[Message, ...]) -> list[int]:
        if self._has_template:
            return self._ids(self._rendered(messages, open_answer=True))
        return self._beginning() + self._ids(_lines(messages))

    def _render_reply(self, messages: tuple[Message, ...], after_stop: bool) -> list[int]:
        if not self._has_template:
            return self._ids("\n" + _lines(messages))
        answer = Message("assistant", _PLACEHOLDER)
        ids = self._ids(_behind_answer(self._rendered([_QUESTION, answer, *messages], open_answer=True)))
        if after_stop and self._end_of_turn in ids:
            # Encoded whole and cut afterwards: what follows a special token is not always encoded as it would be
            # at the start of a text.
            return ids[ids.index(self._end_of_turn) + 1 :]
        return ids

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of sampled tokens, without special tokens."""
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def _rendered(self, messages: Sequence[Message], *, open_answer: bool) -> str:
        conversation = [{"role": message.role, "content": message.content} for message in messages]
        exceptions = require("jinja2.exceptions", "torch")
        try:
            text: str = self._tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=open_answer
            )
        except exceptions.TemplateError as error:
            raise PromptRefused(f"the chat template of {self._path} refuses the messages: {error}") from error
        return text

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _beginning(self) -> list[int]:
        """Return the token that the tokenizer itself puts before a text, if it does."""
        first = self._tokenizer.bos_token_id
        return [first] if first is not None and self._tokenizer.encode("?")[:1] == [first] else []

    def _find_end_of_turn(self) -> int | None:
        """Return the first special token that the template puts behind an answer, or None."""
        answer = Message("assistant", _PLACEHOLDER)
        closing = _behind_answer(self._rendered([_QUESTION, answer], open_answer=False))
        return next((index for index in self._ids(closing) if index in self._special_ids), None)

    def _find_stop_tokens(self) -> list[int]:
        stops: list[int | None] = [self._end_of_turn, self._tokenizer.eos_token_id]
        generation = self._path / "generation_config.json"
        if generation.is_file():
            named = json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id")
            stops += named if isinstance(named, list) else [named]
        return list(dict.fromkeys(index for index in stops if index is not None))


def _lines(messages: Sequence[Message]) -> str:
    return "".join(f"{message.content}\n" for message in messages)


def _behind_answer(rendered: str) -> str:
    _, placeholder, behind = rendered.partition(_PLACEHOLDER)
    if not placeholder:
        raise ValueError(
            "the chat template leaves out the assistant's answer: no conversation can go on with it"
        )
    return behind


def _load_tokenizer(path: Path) -> Any:
    if not path.is_dir():
        raise ValueError(f"model.path: {path}: no such folder")
    transformers = require("transformers", "torch")
    try:
        return transformers.AutoTokenizer.from_pretrained(
            str(path), trust_remote_code=False, local_files_only=True
        )
    except Exception as error:
        if not any(file.name.startswith(("tokenizer", "vocab")) for file in path.iterdir()):
            raise ValueError(f"model.path: {path}: is no model folder: it holds no tokenizer") from error
        # Tokenizer libraries raise many types, even bare Exception; for us they all say: not this folder.
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"model.path: {path}: no usable tokenizer: {first_line}") from error
