"""A run as a Perfetto trace: lanes of slices, counters, and arrows from what was generated to what trained it."""
