"""Weaken one rule at a time, and count how many random worlds it takes until the simulator notices.

    python scripts/mutants.py                       every rule, one line each; exit code 1 if one goes unnoticed
    python scripts/mutants.py --only fencing lag    some of them
    python scripts/mutants.py --list

A simulator that finds nothing proves nothing unless it can find. So each rule below is removed from a copy of the
source, and the copy runs worlds, seed after seed, until a law breaks: random ones, every other one killed and
resumed, and after each three of them one of tests/scenarios. The last line is the source as it is, on all the seeds
that any mutant needed: there nothing may break.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("core", "events", "adapters")
DEADLINE_S = 1800


@dataclass(frozen=True)
class Mutant:
    """One rule, and how it is weakened: `old`, which `path` has exactly once, becomes `new`.

    Where two places keep the rule, `also` becomes `also_new`: either of them alone would be enough.
    """

    name: str
    rule: str
    path: str
    old: str
    new: str
    also: str = ""
    also_new: str = ""


MUTANTS = (
    Mutant(
        "window-start",
        "the window of target steps begins at the first step not consumed",
        "core/policies/targeted.py",
        "return range(view.trainer.step, last + 1)",
        "return range(version + 1 if version else 0, last + 1)",
    ),
    Mutant(
        "lag",
        "no group starts for a step that its version may not serve",
        "core/policies/targeted.py",
        "last = min(version + config.scheduler.max_staleness, config.run.steps - 1)",
        "last = min(version + config.scheduler.max_staleness + 1, config.run.steps - 1)",
    ),
    Mutant(
        "capacity-give-back",
        "a filtered group gives its capacity back",
        "core/policies/capacity.py",
        'accepted = groups.buffered + groups.training + groups.ended["trained"]',
        'accepted = groups.buffered + groups.training + groups.ended["trained"] + groups.ended["filtered"]',
    ),
    Mutant(
        "late-groups",
        "a group whose last step is gone is evicted, and no batch takes it",
        "core/policies/windowed.py",
        "if min(targets, default=step) >= step:",
        "if True:",
        " if groups.live[number].target >= view.trainer.step]",
        "]",
    ),
    Mutant(
        "fencing",
        "what still runs of a group ends with it",
        "core/rollout.py",
        "            task.cancel()\n",
        "            pass\n",
    ),
    Mutant(
        "readmission-version",
        "an engine that starts takes what was published meanwhile before it serves",
        "core/engine_pool.py",
        "while weights.version < self.view.trainer.published:  #",
        "while False:  #",
    ),
    Mutant(
        "served-version",
        "an answer of weights that the engine should not have is refused",
        "core/engine_pool.py",
        "if any(not oldest <= sampled <= newest for sampled, _ in generation.version_spans):",
        "if False:",
    ),
    Mutant(
        "lease",
        "an engine that does not acknowledge its weights in time is lost",
        "core/weight_sync.py",
        "                self.pool.lives.lose(name,",
        "                if not isinstance(error, Expired): self.pool.lives.lose(name,",
    ),
    Mutant(
        "deadline",
        "every call outside has a deadline",
        "core/waits.py",
        "requests, limit = task.cancelling(), asyncio.timeout(limit_s)",
        "requests, limit = task.cancelling(), asyncio.timeout(None)",
    ),
    Mutant(
        "check-then-wait",
        "a condition is asked again after every tick",
        "events/bus.py",
        "            for watcher in list(self._watchers):\n                watcher.wake_if_ready()\n",
        "            for watcher in list(self._watchers)[1:]:\n                watcher.wake_if_ready()\n",
    ),
    Mutant(
        "retry-budget",
        "attempts are counted",
        "core/failures.py",
        "if not failed.retryable or failures >= allowed:",
        "if not failed.retryable:",
    ),
    Mutant(
        "failed-is-not-complete",
        "a group is whole when its trajectories are complete, not when they have ended",
        "core/collector.py",
        'failed.group in given_up:\n            continue',
        'failed.group in given_up or failed.failure == "llm_expired":\n            continue',
    ),
    Mutant(
        "returned-prompts",
        "the prompt of a failed group is drawn again",
        "core/collector.py",
        '    return [ended, PromptReturned(prompt=group.prompt, reason="failed")]',
        "    return [ended]",
    ),
    Mutant(
        "end-of-run",
        "groups in flight are accounted for when a run ends",
        "core/collector.py",
        '        ends.append(PromptReturned(prompt=group.prompt, reason="discarded"))',
        "",
    ),
    Mutant(
        "engine-budget",
        "restarts of an engine are counted",
        "core/engine_pool.py",
        "if engine.restarts < config.engine.restarts_max",
        "if engine.restarts >= 0",
    ),
    Mutant(
        "resume-in-flight",
        "a resume gives back the prompts that were in flight",
        "core/resume.py",
        "events += [PromptReturned(prompt=prompt, reason=\"discarded\") for prompt in sorted(prompts)]",
        "events += []",
    ),
    Mutant(
        "resume-restores",
        "a resume restores the groups of steps that it rolls back",
        "core/resume.py",
        "    events += [_restored(step, taken) for step, taken in restored]\n",
        "",
    ),
    Mutant(
        "resume-checkpoint",
        "a resume goes on from what the checkpoint holds",
        "core/resume.py",
        "        if present(path):\n            return version, path",
        "        if present(path):\n            return past.view.trainer.version, path",
    ),
    Mutant(
        "decide-then-act",
        "a batch is taken from the buffer before it is trained",
        "core/projections/groups.py",
        '            self._leave_buffer(group)\n            group.state = "training"\n',
        '            group.state = "training"\n',
    ),
    Mutant(
        "durable-checkpoint",
        "a checkpoint is committed once it is written",
        "core/trainer.py",
        'written = await self.waiter.bounded("checkpoint", path, limit_s, work)',
        "self.waiter.publish(CheckpointCommitted(step=version, version=version, path=path, size_bytes=0, seconds=0))\n"
        '            written = await self.waiter.bounded("checkpoint", path, limit_s, work)',
    ),
    Mutant(
        "masking",
        "tokens older than max_staleness are left out of the loss",
        "core/config.py",
        "return max(0, step - self.max_staleness) if",
        "return max(0, step - self.max_staleness - 1) if",
    ),
    Mutant(
        "group-floor",
        "a group is trained with no fewer trajectories than its floor",
        "core/collector.py",
        "+ config.rollout.floor_or_default",
        "+ config.rollout.floor_or_default - 1",
    ),
    Mutant(
        "surplus-fencing",
        "what still runs of a group that was given up ends with it",
        "core/collector.py",
        "ENDS = (GroupBuffered, GroupFiltered, GroupFailed, GroupEvicted, GroupDiscarded)",
        "ENDS = (GroupBuffered, GroupFiltered, GroupFailed)",
    ),
    Mutant(
        "worker-route",
        "an environment is made in a worker that is up",
        "core/environment_pool.py",
        "return min(workers.up(), key=",
        "return min(workers.by_name.values(), key=",
    ),
    Mutant(
        "worker-fencing",
        "what a former life of a worker or an engine still has to say is not held against the present one",
        "core/lives.py",
        '(status.state == "lost" or status.restarts != life)',
        'status.state == "lost"',
    ),
)

CHILD = """
import sys
from pathlib import Path
root, first, last, scenarios = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", str(finder))]
sys.path.insert(0, root)
from eventrain.adapters.cli.scenario_file import load_scenario
from eventrain.adapters.simulated.chaos import draw_scenario
from eventrain.adapters.simulated.judge import judge
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
import eventrain.core
assert eventrain.core.__path__[0].startswith(root), eventrain.core.__path__
known = [load_scenario(path) for path in sorted(scenarios.glob("*.toml"))]
known = [scenario for scenario in known if scenario.expect.refused is None]
for seed in range(first, last):
    tape = Tape(seed)
    try:
        if seed % 4 == 3:
            broken = judge(simulate(known[seed // 4 % len(known)], tape))
        else:
            broken = judge(simulate(draw_scenario(tape), tape, killing=seed % 2 == 1))
    except Exception as error:
        print(seed - first + 1, f"it ends with {type(error).__name__}", sep="\\t")
        break
    if broken is not None:
        print(seed - first + 1, broken.law, sep="\\t")
        break
"""


@dataclass(frozen=True)
class Caught:
    """How a mutant was noticed: after how many seeds, and by which law; 0 seeds where it was not."""

    seeds: int
    law: str


def copy(folder: Path, mutant: Mutant | None) -> None:
    """Put the source, weakened by `mutant`, into `folder`."""
    package = folder / "eventrain"
    package.mkdir()
    for part in PARTS:
        shutil.copytree(ROOT / part, package / part, ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is None:
        return
    path = package / mutant.path
    text = path.read_text()
    for old, new in ((mutant.old, mutant.new), (mutant.also, mutant.also_new)):
        if old and text.count(old) != 1:
            raise SystemExit(
                f"{mutant.name}: {mutant.path} has the text {text.count(old)} times, not once: {old!r}"
            )
        text = text.replace(old, new) if old else text
    path.write_text(text)


def hunt(mutant: Mutant | None, first: int, seeds: int) -> Caught:
    """Run up to `seeds` worlds from seed `first` on, until one notices `mutant`."""
    with tempfile.TemporaryDirectory() as name:
        copy(Path(name), mutant)
        command = [sys.executable, "-W", "ignore", "-c", CHILD, name, str(first), str(first + seeds)]
        command.append(str(ROOT / "tests" / "scenarios"))
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        except subprocess.TimeoutExpired:
            return Caught(seeds, f"no end within {DEADLINE_S} s")
    if done.returncode:
        raise SystemExit(f"{mutant.name if mutant else 'the source'}: {done.stderr.strip().splitlines()[-1]}")
    found, _, law = done.stdout.strip().partition("\t")
    return Caught(int(found or 0), law)


def main(argv: Iterable[str] | None = None) -> int:
    """Hunt the mutants that were asked for and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these rules only")
    parser.add_argument("--seeds", type=int, default=1000, help="worlds that a mutant gets at most (1000)")
    parser.add_argument("--first", type=int, default=0, help="first seed (0)")
    parser.add_argument("--list", action="store_true", help="name the rules and end")
    options = parser.parse_args(argv)
    chosen = [mutant for mutant in MUTANTS if not options.only or mutant.name in options.only]
    unknown = set(options.only or ()) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"no rule is called {', '.join(sorted(unknown))}; --list names them")
    if options.list:
        print("\n".join(f"{mutant.name:<24} {mutant.rule}" for mutant in chosen))
        return 0
    missed, most = 0, 0
    print(f"{'rule':<24} {'seeds':>6}  noticed by")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, caught in zip(
            chosen, pool.map(lambda m: hunt(m, options.first, options.seeds), chosen), strict=True
        ):
            missed += not caught.seeds
            most = max(most, caught.seeds)
            seeds = str(caught.seeds) if caught.seeds else f">{options.seeds}"
            print(f"{mutant.name:<24} {seeds:>6}  {caught.law or 'nobody'}", flush=True)
    control = hunt(None, options.first, most)
    print(f"{'(the source as it is)':<24} {most:>6}  {control.law or 'nobody, as it should be'}")
    return int(missed > 0 or control.seeds > 0)


if __name__ == "__main__":
    sys.exit(main())
