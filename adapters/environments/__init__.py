"""Environments behind the `Environment` port, and the choice of one by configuration."""

from .selection import environment_factory

__all__ = ["environment_factory"]
