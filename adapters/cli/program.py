"""How a person calls this program from where they stand."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def program() -> str:
    """Return ``eventrain``, or its path when the shell would not find it: in a virtual environment not activated."""
    called = Path(sys.argv[0])
    if called.name != "eventrain" or shutil.which("eventrain") is not None:
        return "eventrain"
    return os.path.relpath(called)
