"""``python -m eventrain.adapters.cli`` is the same as ``eventrain``."""

from .main import main

main()
