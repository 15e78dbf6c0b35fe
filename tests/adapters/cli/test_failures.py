"""Every error that the plumbing can raise has one clear line on the command line."""

from __future__ import annotations

import pytest

from eventrain.adapters.cli.failures import CommandFailed, expected_failure
from eventrain.core import ports
from eventrain.events import errors

KINDS = [
    kind
    for module in (errors, ports)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Exception) and kind.__module__ == module.__name__
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_typed_error_is_one_line_and_no_traceback(kind: type[Exception]) -> None:
    """No error of events/ or of a port is taken for a defect of ours."""
    error = kind("000001", 3, 5, "reason") if kind is errors.LogDamaged else kind("what, where, why")
    failure = expected_failure(error)
    assert isinstance(failure, CommandFailed)
    assert len(failure.lines) == 1
