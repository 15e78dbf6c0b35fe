"""The settings of a run as a table: those that somebody chose first, and then those that are as they come."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pydantic_core import PydanticUndefined

from ...core.config import RunConfig

LONG = 300
"""Characters of a value that are shown."""


class Setting(NamedTuple):
    """One setting."""

    key: str
    value: str
    default: str
    """Empty where there is none."""
    chosen: bool
    """Whether it differs from its default, or has none."""


def settings_rows(config: RunConfig) -> list[Setting]:
    """Return all settings of `config`; those that were chosen stand first."""
    rows = []
    for section_name in type(config).model_fields:
        section = getattr(config, section_name)
        for name, field in type(section).model_fields.items():
            value, default = getattr(section, name), field.get_default(call_default_factory=True)
            required = default is PydanticUndefined
            rows.append(
                Setting(
                    f"{section_name}.{name}",
                    _text(value),
                    "" if required else _text(default),
                    required or value != default,
                )
            )
    return sorted(rows, key=lambda row: not row.chosen)


def _text(value: Any) -> str:
    text = "none" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONG else f"{text[: LONG - 4]} ..."
