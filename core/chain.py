"""The chain of a verdict: from what the trainer waits for, link by link, to whom that leads."""

from __future__ import annotations

import re

from .config import RunConfig
from .projections import Hole, View, Wait


def trainer_chain(view: View, config: RunConfig) -> tuple[list[str], int | None]:
    """Return the links from the trainer's wait to whom it leads, and the seq of the first cause, if one shows."""
    wait = view.waits.by_waiter.get("trainer")
    chain, cause = [trainer_link(view)], None
    if wait is not None and wait.edge == "buffer_ready":
        step = view.trainer.step
        flying = view.groups.in_flight_by_target[step]
        have = flying + len(view.groups.buffered_by_target.get(step, ()))
        lacks = config.scheduler.groups_per_step - have
        if lacks > 0:
            chain.append(f"target {step} short by {lacks}")
            holes = lost_by(view, step)[-lacks:]
            chain += [f"prompt {hole.prompt} {hole.reason}" for hole in holes]
            cause = holes[0].seq if holes else None
        elif flying:
            chain += flying_links(view, step)
            return chain, cause
    if wait is not None and wait.edge == "engine_available":
        return chain + engine_links(view), cause
    collector = view.waits.by_waiter.get("collector")
    if collector is not None:
        chain.append(f"collector waits {edge_text(view, collector)}")
        if collector.edge == "version":
            chain.append("trainer")
        elif collector.edge == "drained" and view.prompts.exhausted:
            chain.append(f"the data has ended after {view.prompts.drawn} prompts")
        elif collector.edge == "engine_available":
            chain += engine_links(view)
        elif collector.edge == "permit":
            chain += flying_links(view, None)
    return chain, cause


def trainer_link(view: View) -> str:
    """Return what the trainer does: its wait, or its phase."""
    wait = view.waits.by_waiter.get("trainer")
    if wait is not None:
        return f"trainer waits {edge_text(view, wait)}"
    return f"trainer in {view.trainer.phase}"


def edge_text(view: View, wait: Wait) -> str:
    """Return the edge of `wait` with its argument: ``buffer_ready(3)``, ``version(4)``, ``permit``."""
    if wait.edge == "buffer_ready":
        return f"buffer_ready({view.trainer.step})"
    number = re.fullmatch(rf"{wait.edge} (\d+)", wait.awaited)
    return f"{wait.edge}({number[1]})" if number else wait.edge


def lost_by(view: View, target: int) -> list[Hole]:
    """Return the groups that `target` has lost, oldest first."""
    return [hole for hole in view.movement.holes if hole.target == target]


def flying_links(view: View, target: int | None) -> list[str]:
    """Return a link for the oldest group in flight (of `target`), and what its first waiting trajectory waits for."""
    for group in view.groups.live.values():
        if group.state == "in_flight" and target in (None, group.target):
            link = [f"group {group.group} in flight"]
            for index in range(group.size):
                wait = view.waits.by_waiter.get(f"{group.group}/{index}")
                if wait is not None:
                    places = worker_links if wait.edge == "environment_available" else engine_links
                    return [*link, f"{wait.waiter} waits {edge_text(view, wait)}", *places(view)]
            return link
    return []


def engine_links(view: View) -> list[str]:
    """Return a link for each engine that does not serve, with what was the matter; none where all serve by now."""
    links = []
    for engine in view.engines.by_name.values():
        if engine.state != "serving":
            why = f": {engine.lost_message}" if engine.lost_message else ""
            links.append(f"{engine.name} {engine.state}{why}")
    return links or ([] if view.engines.up() else ["no engine is up"])


def worker_links(view: View) -> list[str]:
    """Return a link for each worker of environments that is not up, with what was the matter."""
    links = []
    for worker in view.environment_workers.by_name.values():
        if worker.state != "up":
            why = f": {worker.lost_message}" if worker.lost_message else ""
            links.append(f"{worker.name} {worker.state}{why}")
    return links or ([] if view.environment_workers.up() else ["no environment worker is up"])
