"""A run as a Perfetto trace: lanes of slices, counters, and arrows from what was generated to what trained it."""

SLOTS_MAX = 512
"""Lanes for attempts in flight unless somebody asks for more."""

MADE_BY = "eventrain export perfetto"
"""Stands at the beginning of every trace, as what is said of its process."""
