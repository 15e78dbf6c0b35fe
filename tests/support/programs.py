"""Programs that some tests need besides Python; scripts/test_tools.sh gets them."""

from __future__ import annotations

import os
import shutil

import pytest

PACKAGES = {"prometheus": "prometheus", "promtool": "prometheus", "chromium": "chromium"}
"""The Debian package of each."""


def find(name: str) -> str | None:
    """Return the path of program `name`: of EVENTRAIN_PROMETHEUS_DIR, else of PATH, or None."""
    places = (os.environ.get("EVENTRAIN_PROMETHEUS_DIR"), os.environ.get("PATH"))
    return shutil.which(name, path=os.pathsep.join(filter(None, places)))


def needs(*names: str) -> pytest.MarkDecorator:
    """Return the mark of a test that needs these programs: it is skipped where one is missing.

    Where EVENTRAIN_REQUIRE names the package, as it does in CI, the test runs, and fails, instead.
    """
    required = os.environ.get("EVENTRAIN_REQUIRE", "").split()
    missing = [name for name in names if find(name) is None and PACKAGES[name] not in required]
    return pytest.mark.skipif(
        bool(missing), reason=f"{', '.join(missing)} not installed: scripts/test_tools.sh gets it"
    )
