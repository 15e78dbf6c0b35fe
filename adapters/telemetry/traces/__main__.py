"""``python -m eventrain.adapters.telemetry.traces RUN_FOLDER --otlp URL``."""

from __future__ import annotations

from .following import main

if __name__ == "__main__":
    main()
