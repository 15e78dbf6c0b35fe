"""Say what is wrong with a configuration: the key, the value, what is allowed, and the nearest known key."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ...core.config import RunConfig

_TYPE_WORDS: dict[Any, str] = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}

_BOUNDS: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (annotated_types.Ge, ">=", lambda bound: bound.ge),
    (annotated_types.Gt, ">", lambda bound: bound.gt),
    (annotated_types.Le, "<=", lambda bound: bound.le),
    (annotated_types.Lt, "<", lambda bound: bound.lt),
)


def problem_lines(error: ValidationError, source: str, overridden: Collection[str] = ()) -> list[str]:
    """Return one line for each problem that pydantic found in a configuration.

    A line begins with `source` (the file's name), or with ``--set`` where the key is among `overridden`.
    """
    lines = []
    for problem in error.errors(include_url=False):
        loc = [str(part) for part in problem["loc"]]
        key = ".".join(loc)
        if not loc:
            lines.append(f"{source}: {problem['msg'].removeprefix('Value error, ')}")
            continue
        prefix = "--set" if key in overridden else f"{source}:"
        lines.append(f"{prefix} {_sentence(problem['type'], loc, problem['input'], problem['msg'])}")
    return lines


def allowed_text(field: FieldInfo) -> str:
    """Return in words what `field` takes: ``an integer >= 1``, ``'pretrained' or 'random'``, ``a table``."""
    words, optional = _annotation_words(field.annotation)
    bounds = [
        f"{sign} {value(bound):g}" if isinstance(value(bound), float) else f"{sign} {value(bound)}"
        for cls, sign, value in _BOUNDS
        for bound in field.metadata
        if isinstance(bound, cls)
    ]
    text = f"{words} {' and '.join(bounds)}" if bounds else words
    if field.examples:
        text += f" such as {show_value(field.examples[0])}"
    return f"{text}, or left out" if optional else text


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the entry of `known` that `name` most likely was meant to be, or None when none is near."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def known_keys() -> Iterator[str]:
    """Yield every setting as ``section.key``, in the order of the configuration."""
    for section, field in RunConfig.model_fields.items():
        for key in _section_class(field).model_fields:
            yield f"{section}.{key}"


def show_value(value: Any) -> str:
    """Return `value` about as the user wrote it in TOML, shortened to what fits a line."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _sentence(kind: str, loc: list[str], value: Any, message: str) -> str:
    key = ".".join(loc)
    if kind == "extra_forbidden":
        return _unknown(loc, value)
    field = _field_at(loc)
    if field is None:
        several = _field_at(loc[:-1])
        if several is None or get_origin(several.annotation) is not tuple:
            return f"{key} = {show_value(value)}: {message}"
        key, field = ".".join(loc[:-1]), FieldInfo.from_annotation(get_args(several.annotation)[0])
    if kind == "missing":
        about = f" ({field.description.rstrip('.')})" if field.description else ""
        return f"{key} is missing: must be {allowed_text(field)}{about}"
    sentence = f"{key} = {show_value(value)}: must be {allowed_text(field)}"
    if kind == "model_type":
        return f"{sentence}, written as [{key}]"
    if kind == "literal_error" and isinstance(value, str):
        meant = nearest(value, [str(option) for option in _literals(field.annotation)])
        return f'{sentence}; did you mean "{meant}"?' if meant else sentence
    return sentence


def _unknown(loc: list[str], value: Any) -> str:
    key = ".".join(loc)
    shown = f"[{key}]" if isinstance(value, dict) else f"{key} = {show_value(value)}"
    sections = list(RunConfig.model_fields)
    what = "unknown section" if len(loc) == 1 and isinstance(value, dict) else "unknown key"
    meant = _meant(loc, isinstance(value, dict))
    if meant:
        return f"{shown}: {what}; did you mean {meant}?"
    if loc[0] in sections:
        keys = ", ".join(_section_class(RunConfig.model_fields[loc[0]]).model_fields)
        return f"{shown}: {what}; {loc[0]} has: {keys}"
    return f"{shown}: {what}; there are: {', '.join(sections)}"


def _meant(loc: list[str], is_table: bool) -> str | None:
    """Return the nearest known key: in the same section first, then the same word elsewhere, then anything near."""
    sections = list(RunConfig.model_fields)
    keys = list(known_keys())
    if len(loc) == 1:
        if is_table:
            return nearest(loc[0], sections)
        same_word = [key for key in keys if key.split(".")[1] == loc[0]]
        return same_word[0] if same_word else nearest(loc[0], sections) or nearest(loc[0], keys)
    section, word = loc[0], loc[1]
    here = {key.split(".")[1]: key for key in keys if key.startswith(f"{section}.")}
    inside = nearest(word, here)
    if inside:
        return here[inside]
    elsewhere = [key for key in keys if key.split(".")[1] == word]
    return elsewhere[0] if elsewhere else nearest(".".join(loc), keys)


def _field_at(loc: list[str]) -> FieldInfo | None:
    """Return the field that `loc` leads to, or None where it leads into a free table."""
    fields: dict[str, FieldInfo] = RunConfig.model_fields
    field: FieldInfo | None = None
    for part in loc:
        field = fields.get(part)
        if field is None:
            return None
        fields = _section_class(field).model_fields if _is_section(field.annotation) else {}
    return field


def _section_class(field: FieldInfo) -> type[BaseModel]:
    annotation = field.annotation
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        raise TypeError(f"a field of RunConfig is not a section: {annotation!r}")
    return annotation


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _literals(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _annotation_words(annotation: Any) -> tuple[str, bool]:
    """Return the words for a type, and whether None is allowed too."""
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [part for part in get_args(annotation) if part is not type(None)]
        words = " or ".join(_annotation_words(part)[0] for part in inner)
        return words, len(inner) < len(get_args(annotation))
    options = _literals(annotation)
    if options:
        shown = [f'"{option}"' for option in options]
        return (shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"), False
    if annotation in _TYPE_WORDS:
        return _TYPE_WORDS[annotation], False
    if _is_section(annotation) or get_origin(annotation) is dict:
        return "a table", False
    if get_origin(annotation) is tuple:
        one = FieldInfo.from_annotation(get_args(annotation)[0])
        return f"a list, each of it {allowed_text(one)}", False
    return str(annotation), False
