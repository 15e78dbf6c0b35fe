"""Datasets behind the `PromptSource` port: JSON Lines, Parquet, reasoning-gym tasks, and numbers."""

from .errors import DataError
from .selection import eval_prompt_source, prompt_source
from .source import OrderedSource, Rows

__all__ = ["DataError", "OrderedSource", "Rows", "eval_prompt_source", "prompt_source"]
