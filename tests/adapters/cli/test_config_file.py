"""A configuration that is wrong ends before anything starts, with one line that says what to change."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventrain.adapters.cli.config_errors import known_keys
from eventrain.adapters.cli.config_file import load_config, parse_override, validate
from eventrain.adapters.cli.failures import BadInput

GOOD = """
[run]
name = "hunt"
steps = 4

[model]
path = "model"

[data]
kind = "generated"
size = 100

[environment]
kind = "number_hunt"

[scheduler]
groups_per_step = 4
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a model folder and a good configuration."""
    (tmp_path / "model").mkdir()
    (tmp_path / "config.toml").write_text(GOOD)
    return tmp_path


def lines_of(folder: Path, text: str, *overrides: str) -> list[str]:
    """Return the problems that loading `text` reports."""
    (folder / "config.toml").write_text(text)
    with pytest.raises(BadInput) as caught:
        load_config(folder / "config.toml", overrides)
    return list(caught.value.lines)


def test_good_file_loads_with_paths_made_absolute(folder: Path) -> None:
    """Relative paths start at the configuration file, whatever the working directory is."""
    config = load_config(folder / "config.toml")
    assert config.run.steps == 4
    assert Path(config.model.path) == folder / "model"


def test_set_changes_values_and_parses_them_as_toml(folder: Path) -> None:
    """`--set` values are TOML, bare words are strings, and free tables take nested keys."""
    config = load_config(
        folder / "config.toml",
        ["learner.lr=3e-4", "run.name=2026-01-31", "data.shuffle=false", "environment.options.high=8"],
    )
    assert config.learner.lr == 3e-4
    assert config.run.name == "2026-01-31"
    assert config.data.shuffle is False
    assert config.environment.options == {"high": 8}


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "groups_per_step = 4",
            "groups_per_step = 4\nmax_stalenes = 2",
            "config.toml: scheduler.max_stalenes = 2: unknown key; did you mean scheduler.max_staleness?",
        ),
        ("steps = 4", 'steps = "ten"', 'config.toml: run.steps = "ten": must be an integer >= 1'),
        ("steps = 4", "steps = true", "config.toml: run.steps = true: must be an integer >= 1"),
        ("steps = 4", "steps = 0", "config.toml: run.steps = 0: must be an integer >= 1"),
        (
            "steps = 4",
            "",
            "config.toml: run.steps is missing: must be an integer >= 1 (Optimizer steps to make)",
        ),
        (
            "steps = 4",
            "steps = 4\nlr = 0.1",
            "config.toml: run.lr = 0.1: unknown key; did you mean learner.lr?",
        ),
        (
            "[data]",
            "[learners]\nlr = 1.0\n[data]",
            "config.toml: [learners]: unknown section; did you mean learner?",
        ),
        (
            '"generated"',
            '"generate"',
            (
                'config.toml: data.kind = "generate": must be "jsonl", "parquet", "reasoning_gym" or "generated"; '
                'did you mean "generated"?'
            ),
        ),
        (
            "[data]",
            "[rollout]\ntop_p = 2.0\n[data]",
            "config.toml: rollout.top_p = 2.0: must be a number > 0 and <= 1",
        ),
        (
            "[data]",
            "[failures]\nshare_max = nan\n[data]",
            "config.toml: failures.share_max = NaN: must be a number > 0 and <= 1",
        ),
        (
            "groups_per_step = 4",
            "groups_per_step = 4\npermits = 'many'",
            'config.toml: scheduler.permits = "many": must be an integer >= 1, or left out',
        ),
        (
            "[run]",
            "rollout = 3\n[run]",
            "config.toml: rollout = 3: must be a table, written as [rollout]",
        ),
        (
            "size = 100",
            "",
            "config.toml: data.size is missing: data.kind = 'generated' has no length of its own",
        ),
        (
            "groups_per_step = 4",
            "groups_per_step = 4\nbuffer_groups = 3",
            (
                "config.toml: scheduler.buffer_groups is 3, but a step needs scheduler.groups_per_step = 4: "
                "no step could ever start"
            ),
        ),
        (
            "[run]",
            "[run\n",
            "config.toml, line 2: not valid TOML: Expected ']' at the end of a table declaration (column 5)",
        ),
        ('path = "model"', 'path = "modl"', 'config.toml: model.path = "{base}/modl": no such folder'),
    ],
)
def test_wrong_file_gives_one_line(folder: Path, old: str, new: str, line: str) -> None:
    """Each mistake gives exactly one line with key, value, what is allowed, and the nearest known key."""
    assert lines_of(folder, GOOD.replace(old, new, 1)) == [line.replace("{base}", str(folder))]


def test_several_problems_give_a_line_each(folder: Path) -> None:
    """All mistakes are told at once, so that nobody has to find them one run after the other."""
    lines = lines_of(folder, "[run]\nsteps = 0\n")
    assert [line.split(":")[1].split()[0] for line in lines] == [
        "run.steps",
        "model.path",
        "data.kind",
        "environment.kind",
        "scheduler.groups_per_step",
    ]


def test_problem_of_an_override_names_the_option(folder: Path) -> None:
    """A wrong value that came from the command line is not blamed on the file."""
    assert lines_of(folder, GOOD, "run.steps=ten") == ['--set run.steps = "ten": must be an integer >= 1']
    assert lines_of(folder, GOOD, "run.stepps=3") == [
        "--set run.stepps = 3: unknown key; did you mean run.steps?"
    ]
    assert lines_of(folder, GOOD, "steps") == [
        "--set steps: must be section.key=value, for example --set learner.lr=3e-4"
    ]
    assert lines_of(folder, GOOD, "run.steps.x=3") == ["--set run.steps.x: run.steps is 4, which has no keys"]
    assert lines_of(folder, GOOD, "steps=3") == ["--set steps = 3: unknown key; did you mean run.steps?"]


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    """A path that holds no file says so."""
    with pytest.raises(BadInput, match="no such file"):
        load_config(tmp_path / "nowhere.toml")
    with pytest.raises(BadInput, match="is a folder"):
        load_config(tmp_path)


@given(st.text())
def test_any_override_is_either_read_or_refused_in_one_line(text: str) -> None:
    """No text behind `--set` can end in anything but a value or one line that refuses it."""
    try:
        keys, _ = parse_override(text)
        refusal = None
    except BadInput as error:
        keys, refusal = [], error
    assert all(keys) if refusal is None else len(refusal.lines) == 1


@given(st.sampled_from(list(known_keys())), st.data())
def test_one_dropped_letter_still_finds_the_key(key: str, data: st.DataObject) -> None:
    """A key with one letter missing is refused with the right key, unless it is too short to tell."""
    section, word = key.split(".")
    if len(word) < 6:
        return
    position = data.draw(st.integers(1, len(word) - 1))
    wrong = word[:position] + word[position + 1 :]
    with pytest.raises(BadInput) as caught:
        validate({section: {wrong: 1}}, "c.toml")
    assert any(f"did you mean {section}." in line for line in caught.value.lines)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            'otlp_endpoint = "localhost:4318"',
            'must be a string such as "http://localhost:4318", or left out',
        ),
        (
            'ray_metrics = "http://node:8080"',
            'must be a list, each of it a string such as "http://10.0.0.7:8080"',
        ),
        ('ray_metrics = ["node:8080"]', 'must be a string such as "http://10.0.0.7:8080"'),
        ('trackers = ["tensorbord"]', '"trackio"; did you mean "tensorboard"?'),
    ],
)
def test_lists_and_addresses_say_what_would_be_right(folder: Path, setting: str, said: str) -> None:
    """A list, an element of one, and an address each get a line with a good value."""
    (line,) = lines_of(folder, f"{GOOD}\n[telemetry]\n{setting}\n")
    assert line.startswith("config.toml: telemetry.")
    assert line.endswith(said)


def test_a_list_in_a_file_is_taken_though_types_are_strict(folder: Path) -> None:
    """TOML and a recorded configuration have lists where the settings have tuples."""
    (folder / "config.toml").write_text(f'{GOOD}\n[telemetry]\ntrackers = ["tensorboard"]\n')
    assert load_config(folder / "config.toml", ()).telemetry.trackers == ("tensorboard",)
