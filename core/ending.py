"""Why a run that did not fail ended before its last step, in one line."""

from __future__ import annotations

from .projections import View


def end_of_data(view: View) -> str:
    """Return what became of the prompts, and how many steps they made, when the data has ended.

    The numbers of the prompts add up to those drawn. Those whose item was quarantined under another number, in
    an earlier or a later epoch, are not drawn again.
    """
    prompts, trainer = view.prompts, view.trainer
    ended = [
        (prompts.ended["trained"], "trained"),
        (prompts.ended["filtered"], "filtered (equal rewards)"),
        (prompts.ended["quarantined"], "quarantined"),
        (prompts.waiting(), "returned and not drawn again (their items are quarantined)"),
        (len(prompts.alive), "in groups that were not trained"),
    ]
    counted = ", ".join(f"{count} {what}" for count, what in ended if count or what == "trained")
    return f"{prompts.drawn} prompts: {counted}; {trainer.version} of {trainer.steps_total} steps"
