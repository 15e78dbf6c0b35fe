"""Programs that some tests need besides Python; scripts/test_tools.sh gets them."""

from __future__ import annotations

import os
import shutil

import pytest


def program(name: str, package: str) -> str:
    """Return the path of `name`, of the Debian package `package`; skip the test where it is not installed.

    Where EVENTRAIN_REQUIRE names the package, as it does in CI, the test fails instead.
    """
    places = os.pathsep.join(
        filter(None, (os.environ.get("EVENTRAIN_PROMETHEUS_DIR"), os.environ.get("PATH")))
    )
    found = shutil.which(name, path=places)
    if found is None:
        said = f"{name} is not installed: scripts/test_tools.sh gets it"
        if package in os.environ.get("EVENTRAIN_REQUIRE", "").split():
            pytest.fail(said)
        pytest.skip(said)
    return found
