"""One colour for each thing, wherever it is drawn, told apart by all common kinds of colour blindness.

Phases: Okabe and Ito, "Color Universal Design" (2008). The rest: Paul Tol, "Colour Schemes" (2021), muted and light.
"""

from __future__ import annotations

PHASES = {
    "starting": "#999999",
    "generating": "#56B4E9",
    "waiting_for_buffer": "#E69F00",
    "converting": "#F0E442",
    "training": "#0072B2",
    "weight_sync": "#CC79A7",
    "eval": "#009E73",
    "checkpoint": "#D55E00",
}
POOL = {
    "serving": "#44AA99",
    "idle": "#BFC4CC",
    "draining": "#DDCC77",
    "syncing": PHASES["weight_sync"],
    "down": "#AA4466",
}
STALL = "#EE3377"
UNNOTICED = "#F6AFC9"
"""Of the time in which a run stood still already, and nobody had noticed."""
COMPONENTS = {
    "queue": "#AAAA00",
    "llm": "#77AADD",
    "env_setup": "#FFAABB",
    "env": "#EE8866",
    "reward": "#44BB99",
    "other": "#BBBBBB",
}
IN_FLIGHT = "#4477AA"
BUFFERED = "#CCBB44"
LIMIT = "#EE6677"
SLOTS = POOL["serving"]
REWARD = "#4477AA"
LOSS = "#AA7744"
LAG = "#7A5FB0"
EVALUATION = PHASES["eval"]
DEVICES = {"engine": "#44AA99", "learner": "#4477AA", "controller": "#999999", "shared": "#AA4499"}

WORDS = {
    "waiting_for_buffer": "waiting for groups",
    "weight_sync": "weight sync",
    "env_setup": "environment setup",
    "env": "environment",
    "llm": "model",
    "queue": "engine queue",
}
"""Names as they are shown, where that is not how they stand in the log."""


def words(name: str) -> str:
    """Return `name` as it is shown."""
    return WORDS.get(name, name.replace("_", " "))
