"""Worlds at random: settings, latencies and faults of a run, drawn from a tape.

Choice 0 is everywhere the plainest setting and no fault. Each place where something can go wrong is switched on or
off for a whole run first, and then strikes by chance: so runs differ in character, instead of all having a little of
everything. Faults end at `heal_s`, and from there on the run has to make progress.
"""

from __future__ import annotations

from typing import Any

from ...core.projections.environment_workers import worker_name
from .faults import PROMPT_CALLS, Fault, What, Where
from .scenario import Expect, Scenario, Surroundings
from .tape import Tape


def draw_scenario(tape: Tape) -> Scenario:
    """Return the world that `tape` draws."""
    world = _surroundings(tape)
    config = _settings(tape, world)
    if config["scheduler"]["policy"] == "token_windowed" and tape.happens("data", 2):
        world = _answers_outlast_steps(config, world)
    faults = [*_call_faults(tape), *_event_faults(tape, world.engines)]
    faults += _with_workers(tape, config)
    return Scenario(
        name="chaos",
        config=config,
        world=world,
        fault=tuple(faults),
        expect=_expectation(config, faults),
    )


def _among(tape: Tape, *values: Any) -> Any:
    return values[tape.draw("data", len(values))]


def _surroundings(tape: Tape) -> Surroundings:
    return Surroundings(
        engines=_among(tape, 1, 2, 3),
        turns=_among(tape, 1, 2),
        rollout_s=_among(tape, 1.0, 0.2, 3.0),
        environment_s=_among(tape, 0.1, 0.0, 1.0),
        train_s=_among(tape, 2.0, 0.1, 6.0),
        load_s=_among(tape, 0.1, 0.0, 1.0),
        commit_s=_among(tape, 0.004, 0.0, 0.3),
        spread=_among(tape, 1.0, 3.0, 10.0),
        rewards=_among(tape, "mixed", "every_third_equal"),
        heal_s=_among(tape, 30.0, 10.0, 60.0, 120.0),
    )


def _settings(tape: Tape, world: Surroundings) -> dict[str, dict[str, Any]]:
    steps, per_step, staleness = _among(tape, 3, 2, 5, 8), _among(tape, 2, 1, 3), _among(tape, 1, 0, 2, 3)
    epochs = _among(tape, 1, 2)
    need = -(-steps * per_step // epochs)
    window = per_step * (staleness + 1)
    scheduler: dict[str, Any] = {"groups_per_step": per_step, "max_staleness": staleness}
    permits, room = _among(tape, None, 1, per_step + 1), _among(tape, None, per_step, window + 2)
    if permits is not None:
        scheduler["permits"] = permits
    if room is not None:
        scheduler["buffer_groups"] = room
    scheduler["policy"] = _among(tape, "targeted", "capacity", "windowed", "token_windowed")
    if scheduler["policy"] == "capacity" and permits is not None:
        scheduler["permits"] = min(permits, window)  # more is refused: it could never be used
    # Draining is refused with a policy that lets groups go on through new weights.
    drains = "in_flight" if scheduler["policy"] == "token_windowed" else "drain"
    limit_s = _among(tape, 20.0, 8.0)
    settings: dict[str, dict[str, Any]] = {
        "run": {"steps": steps, "seed": tape.draw("data", 1000)},
        "data": {"size": need + _among(tape, 3 * need, need, 0, 1), "epochs": epochs},
        "scheduler": scheduler,
        "rollout": {"group_size": _among(tape, 2, 3), "max_turns": _among(tape, 2, 1)},
        "algorithm": {"drop_zero_variance": _among(tape, False, True)},
        "engine": {
            "count": world.engines,
            "sync_mode": _among(tape, "in_flight", "pause", "abort", drains),
            "restarts_max": _among(tape, 20, 2, 0),
        },
        "eval": {"every_steps": _among(tape, 0, 1, 2), "prompts": _among(tape, 2, 5)},
        "checkpoint": {"every_steps": _among(tape, 0, 1, 2), "at_end": _among(tape, True, False)},
        "failures": {
            "backoff_s": 0.5,
            "attempts_max": _among(tape, 3, 1),
            "strikes_max": _among(tape, 2, 1),
            "share_max": _among(tape, 1.0, 0.5),
            "window": 16,
        },
        "log": {"unsaved_max": _among(tape, 8192, 20)},
        "deadlines": {
            "start_s": limit_s,
            # Drain ends only after what is in flight, and a tenfold latency is no fault.
            "llm_call_s": 4 * limit_s,
            "weight_sync_s": 5 * limit_s,
            "env_reset_s": limit_s,
            "env_step_s": 1.5 * limit_s,
            "reward_s": limit_s,
            "train_step_s": 10 * limit_s,
            "publish_s": limit_s,
            "eval_s": 20 * limit_s,
            "checkpoint_s": limit_s,
            "close_s": limit_s,
        },
    }
    _groups_and_batches(tape, settings)
    return settings


def _groups_and_batches(tape: Tape, settings: dict[str, dict[str, Any]]) -> None:
    """Draw what groups and batches may do without: trajectories, and groups that others outrun."""
    scheduler, rollout = settings["scheduler"], settings["rollout"]
    floor = _among(tape, None, 2)
    if floor is not None:
        rollout["group_floor"], rollout["group_size"] = floor, rollout["group_size"] + 1
    oversample = _among(tape, 0, 1, 3)
    if oversample and scheduler["policy"] == "targeted":
        scheduler["oversample_groups"] = oversample
        least = scheduler["groups_per_step"] + oversample
        if "buffer_groups" in scheduler:
            scheduler["buffer_groups"] = max(scheduler["buffer_groups"], least)  # less is refused
    filtered = _among(tape, None, 0, 4)
    if filtered is not None:
        settings["algorithm"]["filtered_max"] = filtered
    settings["failures"]["engine_attempts_max"] = _among(tape, 8, 2)
    settings["failures"]["engine_strikes_max"] = _among(tape, 3, 1)


def _answers_outlast_steps(config: dict[str, dict[str, Any]], world: Surroundings) -> Surroundings:
    """Make steps short and some answers long, so that tokens get old before they are trained."""
    config["run"]["steps"], config["data"]["size"] = 12, 100
    config["scheduler"] |= {"groups_per_step": 1, "permits": 8, "buffer_groups": 8, "oversample_groups": 0}
    config["scheduler"]["max_staleness"] = max(1, config["scheduler"]["max_staleness"])
    return world.model_copy(update={"rollout_s": 1.0, "spread": 10.0, "train_s": 0.1, "load_s": 0.1})


CALLS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("engine.generate", ("error", "hang", "delay", "refuse", "too_long", "gone", "die", "lose_reply", "duplicate"), 2),
    ("environment.step", ("error", "hang", "delay"), 3),
    ("environment.reset", ("error", "hang", "delay"), 4),
    ("environment.reward", ("nan", "error", "hang", "delay"), 4),
    ("engine.begin_update", ("error", "hang", "lose_reply", "duplicate", "old_weights"), 6),
    ("engine.transfer", ("error", "hang", "delay", "lose_reply", "duplicate", "damage"), 4),
    ("engine.finish_update", ("error", "hang", "delay", "lose_reply", "duplicate", "old_weights"), 3),
    ("engine.start", ("error", "hang", "delay", "old_weights"), 4),
    ("engine.pause", ("error", "hang", "lose_reply"), 4),
    ("engine.resume", ("error", "hang", "lose_reply"), 4),
    ("engine.prepare", ("error", "hang"), 6),
    ("engine.close", ("hang", "delay"), 6),
    ("learner.checkpoint", ("error", "hang", "delay"), 4),
    ("learner.train", ("delay", "error", "gone", "hang", "lose_reply", "duplicate"), 14),
    ("learner.publish", ("delay", "error", "hang"), 20),
    ("learner.start", ("delay", "error", "hang"), 24),
    ("engine.generate", ("defect",), 24),
    ("learner.train", ("defect",), 24),
    ("data.item", ("defect",), 40),
    ("disk", ("slow",), 4),
    ("engine.fetch", ("error", "hang", "delay", "lose_reply", "duplicate"), 4),
)
"""Where, what can happen there, and in one run of how many it does."""


def _call_faults(tape: Tape) -> list[Fault]:
    faults = []
    for where, whats, one_in in CALLS:
        if not tape.happens("fault", one_in):
            continue
        what = whats[tape.draw("fault", len(whats))]
        seconds = (0.0, 0.5, 5.0, 40.0)[tape.draw("fault", 4)]
        if what in ("delay", "slow"):
            seconds = min(seconds, 8.0) or 2.0
        often = (
            where == "disk" or where in PROMPT_CALLS
        )  # made a thousand times in a run, others a few dozen times
        chance = ((20, 3, 8, 60) if often else (3, 1, 2, 6))[tape.draw("fault", 4)]
        faults.append(Fault(where=where, what=what, one_in=chance, seconds=seconds))
    return faults


def _event_faults(tape: Tape, engines: int) -> list[Fault]:
    faults = []
    for one_in in (3, 6):
        if tape.happens("fault", one_in):
            engine = f"engine-{tape.draw('fault', engines)}"
            faults.append(Fault(where="engine", what="die", engine=engine, at_event=tape.draw("fault", 400)))
    if tape.happens("fault", 6):
        faults.append(Fault(where="run", what="stop", at_event=tape.draw("fault", 600)))
    if tape.happens("fault", 12):
        faults.append(Fault(where="disk", what="full", at_event=tape.draw("fault", 600)))
    faults += [
        Fault(where="run", what="kill", at_event=tape.draw("fault", 600))
        for one_in in (3, 6, 6)
        if tape.happens("fault", one_in)
    ]
    return faults


def _with_workers(tape: Tape, config: dict[str, dict[str, Any]]) -> list[Fault]:
    """Draw whether environments live in workers, and what happens to those."""
    workers = _among(tape, 0, 2, 3, 1)
    if not workers:
        return []
    config["environment"] = {
        "kind": "simulated",
        "workers": workers,
        "restarts_max": _among(tape, 20, 2, 0),
    }
    faults = []
    for one_in in (2, 4):
        if tape.happens("fault", one_in):
            worker = worker_name(tape.draw("fault", workers))
            at_event = tape.draw("fault", 600)
            faults.append(Fault(where="environment_worker", what="die", worker=worker, at_event=at_event))
    for where, whats in WORKER_CALLS:
        if tape.happens("fault", 4):
            what = whats[tape.draw("fault", len(whats))]
            chance = (3, 1, 2)[tape.draw("fault", 3)]
            faults.append(Fault(where=where, what=what, one_in=chance, seconds=2.0 if what == "delay" else 0.0))
    return faults


WORKER_CALLS: tuple[tuple[Where, tuple[What, ...]], ...] = (
    ("environment_worker.start", ("error", "hang", "delay", "lose_reply", "duplicate")),
    ("environment_worker.ping", ("hang", "delay")),
)


def _expectation(config: dict[str, dict[str, Any]], faults: list[Fault]) -> Expect:
    """Return how a run with these faults may end: as failed only of what was done to it."""
    outcomes, errors = ["completed"], []
    places = {(fault.where, fault.what) for fault in faults}
    wheres = {where for where, _ in places}
    if (
        any(where.startswith(("engine", "environment")) for where in wheres)
        or (config["algorithm"]["drop_zero_variance"])
    ):
        outcomes.append("data_exhausted")
    if config["algorithm"]["drop_zero_variance"]:
        errors.append("too_many_filtered")
    if ("run", "stop") in places:
        outcomes.append("interrupted")
    if any(where.startswith(("engine", "environment")) for where in wheres):
        errors.append("too_many_failures")
    if any(where.startswith("engine") for where in wheres):
        errors.append("no_engine_left")
    if config.get("environment", {}).get("workers") and any(where.startswith("environment") for where in wheres):
        errors.append("no_environment_worker_left")
    if any(where.startswith("learner") for where in wheres):
        errors.append("learner_lost")
    if ("disk", "full") in places:
        errors.append("LogWriteError")
    if any(what == "defect" for _, what in places):
        errors.append("RuntimeError")
    if errors:
        outcomes.append("failed")
    return Expect(outcome=tuple(outcomes), error=tuple(errors))
