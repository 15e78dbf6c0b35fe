"""Simulated engines, learners and environments in virtual time: the shipped core on a world that costs nothing."""
