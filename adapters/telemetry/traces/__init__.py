"""A run as OpenTelemetry spans: made from its log, sent while it goes on or later."""

WORKS = "the run, its log, and `eventrain export traces`, which sends the same spans later"
"""What is left when traces cannot be sent."""
