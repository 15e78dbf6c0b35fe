"""What can be wrong with a dataset."""

from __future__ import annotations


class DataError(ValueError):
    """The data cannot be used. The message is one line and names the file and line, or the key, at fault."""
