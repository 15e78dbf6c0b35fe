"""The hunt: its rules, and its exact scores against plain enumeration."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterable
from statistics import fmean

import pytest

from eventrain.adapters.environments.number_hunt import PARTIAL, NumberHunt, optimal_score, random_score
from eventrain.core.ports import Action, EnvironmentFailed

Play = Callable[..., float]


def answers(hunt: NumberHunt, number: int, *guesses: str) -> list[str]:
    """Return what the environment says, up to its end."""

    async def play() -> list[str]:
        said = [message.content for message in await hunt.reset({"number": number}, seed=0)]
        for guess in guesses:
            outcome = await hunt.step(Action(guess, []))
            said += [message.content for message in outcome.messages] + ["end"] * outcome.done
        return said

    return asyncio.run(play())


def test_a_game_reads_like_one() -> None:
    """The opening names the range; every guess is answered; the game ends with the number found."""
    assert answers(NumberHunt(12, 5), 7, "6", "9", "8") == [
        "guess 1 to 12",
        "higher",
        "lower",
        "found",
        "end",
    ]


def test_the_game_ends_with_the_last_guess() -> None:
    """A policy that never finds the number gets its guesses and no more."""
    assert answers(NumberHunt(12, 2), 7, "1", "2")[-2:] == ["higher", "end"]


def test_an_answer_without_a_number_is_a_wasted_guess(play: Play) -> None:
    """It is called invalid, narrows nothing, and counts; of several numbers the first is the guess."""
    assert answers(NumberHunt(12, 2), 7, "", "I say 6, or 8")[1:] == ["invalid", "higher", "end"]
    assert play(NumberHunt(12, 2), {"number": 7}, "higher", "?") == 0.0


def test_the_reward_is_one_for_the_number_and_less_for_what_was_learned(play: Play) -> None:
    """Found is 1, unfound is the share of information gained times PARTIAL, contradictory guesses gain nothing."""
    hunt = NumberHunt(12, 3)
    assert play(hunt, {"number": 7}, "8") == 1.0
    assert play(hunt, {"number": 7}, "6", "9") == pytest.approx(PARTIAL * (1 - math.log(2) / math.log(12)))
    assert play(hunt, {"number": 7}, "6", "3", "99") == pytest.approx(
        PARTIAL * (1 - math.log(6) / math.log(12))
    )
    assert play(hunt, {"number": 7}, "7", "9") == pytest.approx(PARTIAL)
    assert play(hunt, {"number": 7}) == 0.0


def test_items_in_order_hide_every_number_once(play: Play) -> None:
    """Twelve items in a row hide twelve numbers, and the trajectories of one item hunt the same one."""
    found = [
        [guess for guess in range(1, 13) if play(NumberHunt(12, 5), {"number": item}, str(guess)) == 1.0]
        for item in range(24, 36)
    ]
    assert found == [[number] for number in range(1, 13)]


def test_an_item_without_a_number_fails_as_such() -> None:
    """Data of another task is a typed failure that shows the item."""
    with pytest.raises(EnvironmentFailed, match=r"integer 'number', this one is \{'question': 'why'\}"):
        asyncio.run(NumberHunt().reset({"question": "why"}, seed=0))


@pytest.mark.parametrize(("n", "guesses"), [(1, 5), (12, 0)])
def test_a_game_that_cannot_be_played_is_refused(n: int, guesses: int) -> None:
    """Constructor and scores refuse the same settings."""
    for refuses in (NumberHunt, optimal_score, random_score):
        with pytest.raises(ValueError, match="but it takes"):
            refuses(n, guesses)


@pytest.mark.parametrize(("n", "guesses", "others"), [(4, 3, 0), (4, 3, 2), (3, 4, 1)])
def test_the_random_score_is_the_mean_of_all_games(play: Play, n: int, guesses: int, others: int) -> None:
    """Playing every sequence of answers against every hidden number gives the computed mean."""
    vocabulary = [*map(str, range(1, n + 1)), *["no number"] * others]
    games = itertools.product(range(n), itertools.product(vocabulary, repeat=guesses))
    enumerated = fmean(
        play(NumberHunt(n, guesses), {"number": item}, *until_found(item + 1, game)) for item, game in games
    )
    assert random_score(n, guesses, others) == pytest.approx(enumerated)


def until_found(hidden: int, game: Iterable[str]) -> list[str]:
    """Return the guesses of a game up to the hidden number: there it ends."""
    guesses = list(game)
    return guesses[: guesses.index(str(hidden)) + 1] if str(hidden) in guesses else guesses


def best_total(consistent: frozenset[int], n: int, left: int) -> float:
    """Return the best sum of rewards over the numbers still possible, trying every guess, sensible or not."""
    if not consistent:
        return 0.0
    if left == 0:
        return len(consistent) * PARTIAL * (1 - math.log(len(consistent)) / math.log(n))
    return max(
        (guess in consistent)
        + best_total(frozenset(x for x in consistent if x < guess), n, left - 1)
        + best_total(frozenset(x for x in consistent if x > guess), n, left - 1)
        for guess in range(n + 1)
    )


@pytest.mark.parametrize(("n", "guesses"), [(2, 1), (5, 1), (5, 2), (6, 3), (9, 3)])
def test_no_policy_beats_the_optimal_score(n: int, guesses: int) -> None:
    """Searching through every way to play gives the computed optimum."""
    assert optimal_score(n, guesses) == pytest.approx(best_total(frozenset(range(1, n + 1)), n, guesses) / n)


@pytest.mark.parametrize(("n", "guesses"), [(12, 5), (12, 4), (15, 4), (12, 3), (7, 2)])
def test_halving_reaches_the_optimal_score(play: Play, n: int, guesses: int) -> None:
    """Binary search, played in the environment against every number, scores what the formula says."""

    def halving(hidden: int) -> list[str]:
        low, high, made = 1, n, []
        while len(made) < guesses and (not made or made[-1] != hidden):
            made.append((low + high) // 2)
            low, high = (made[-1] + 1, high) if made[-1] < hidden else (low, made[-1] - 1)
        return [str(guess) for guess in made]

    scores = [play(NumberHunt(n, guesses), {"number": item}, *halving(item + 1)) for item in range(n)]
    assert fmean(scores) == pytest.approx(optimal_score(n, guesses))


def test_enough_guesses_make_a_perfect_score() -> None:
    """Five guesses find any of 31 numbers, and not every one of 32."""
    assert optimal_score(31, 5) == 1.0
    assert optimal_score(32, 5) < 1.0
