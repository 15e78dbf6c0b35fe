"""JSON Lines and Parquet files as data."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventrain.adapters.data import DataError, eval_prompt_source, prompt_source
from eventrain.adapters.data.jsonl import JsonlRows
from eventrain.core.config import DataSection, EvalSection

ROWS = [{"prompt": f"{n} + {n} = ?", "answer": 2 * n, "tags": ["é", None]} for n in range(25)]


@pytest.fixture
def jsonl(tmp_path):
    """Write ROWS, with a byte order mark, blank lines and no newline at the end."""
    lines = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
    (tmp_path / "rows.jsonl").write_text("\ufeff" + lines, encoding="utf-8")
    return DataSection(kind="jsonl", path="rows.jsonl")


@pytest.fixture
def parquet(tmp_path):
    """Write ROWS in row groups of seven."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet", row_group_size=7)
    return DataSection(kind="parquet", path="rows.parquet")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_file_gives_all_its_items_with_their_index(kind, request, tmp_path):
    """Every item comes once per epoch, whole, beside its index in the file."""
    source = prompt_source(request.getfixturevalue(kind), seed=3, base=tmp_path)
    drawn = dict(source.item(1, position) for position in range(len(source)))
    assert [drawn[index] for index in range(len(ROWS))] == ROWS


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_size_takes_the_first_items_of_a_file(kind, request, tmp_path):
    """data.size limits a file to its first items."""
    section = request.getfixturevalue(kind).model_copy(update={"size": 10})
    source = prompt_source(section, seed=0, base=tmp_path)
    assert sorted(source.item(0, position)[0] for position in range(len(source))) == list(range(10))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_file_smaller_than_size_is_refused(kind, request, tmp_path):
    """data.size asks for more items than there are: that is said, with both numbers."""
    section = request.getfixturevalue(kind).model_copy(update={"size": 26})
    with pytest.raises(DataError, match=r"data\.size is 26, but .* holds only 25 items"):
        prompt_source(section, seed=0, base=tmp_path)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_evaluation_reads_its_own_file_in_its_order(kind, request, tmp_path):
    """Evaluation items come from data.eval_path, whole and unshuffled, whatever data.size says."""
    section = request.getfixturevalue(kind)
    section = section.model_copy(update={"eval_path": section.path, "path": "elsewhere", "size": 3})
    source = eval_prompt_source(section, EvalSection(every_steps=1), seed=0, base=tmp_path)
    assert [source.item(0, position) for position in range(25)] == list(enumerate(ROWS))


def test_evaluation_without_a_file_is_refused(jsonl, tmp_path):
    """Training items are never used for evaluation in silence."""
    with pytest.raises(DataError, match=r"data\.eval_path is missing"):
        eval_prompt_source(jsonl, EvalSection(), seed=0, base=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}\n{"a": \n', r"data.jsonl:2: not valid JSON"),
        ('{"a": 1}\n\n[1, 2]\n', r"data.jsonl:3: each line must be a JSON object, found an array"),
        ("7\n", r"data.jsonl:1: each line must be a JSON object, found a number"),
        ("", r"data.jsonl: no line holds an item"),
        ("\n \n", r"data.jsonl: no line holds an item"),
    ],
)
def test_a_broken_line_is_named_before_the_run_starts(text, message, tmp_path):
    """What is wrong with a file is one line with its name and the number of the line."""
    (tmp_path / "data.jsonl").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        prompt_source(DataSection(kind="jsonl", path="data.jsonl"), seed=0, base=tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_missing_file_is_named(kind, tmp_path):
    """A path that leads nowhere is one line with the key and the path."""
    with pytest.raises(DataError, match=r"data\.path: .*nowhere: no such file"):
        prompt_source(DataSection(kind=kind, path="nowhere"), seed=0, base=tmp_path)


def test_a_file_that_is_no_parquet_is_refused_in_one_line(tmp_path):
    """Garbage under a Parquet name is the data's fault and says so."""
    pytest.importorskip("pyarrow")
    (tmp_path / "data.parquet").write_bytes(b"no columns here" * 10)
    with pytest.raises(DataError, match=r"data\.parquet: ") as caught:
        prompt_source(DataSection(kind="parquet", path="data.parquet"), seed=0, base=tmp_path)
    assert "\n" not in str(caught.value)


def test_options_that_a_file_does_not_take_are_refused(jsonl, tmp_path):
    """A stray option is an error, because whoever wrote it expects it to matter."""
    section = jsonl.model_copy(update={"options": {"max_terms": 2}})
    with pytest.raises(DataError, match=r"data\.options\.max_terms: data\.kind = 'jsonl' takes no options"):
        prompt_source(section, seed=0, base=tmp_path)


def test_a_file_changed_under_the_run_is_noticed(jsonl, tmp_path):
    """A rewritten file would give other items for the same index: the source refuses to go on."""
    source = prompt_source(jsonl, seed=0, base=tmp_path)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"other": true}\n' * 100)
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match="changed since the run began"):
        source.item(0, 0)


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers(-(2**53), 2**53) | st.none()), min_size=1))
def test_any_objects_come_back_as_they_were_written(tmp_path_factory, items):
    """JSON Lines give back every object that json can write, whatever characters it holds."""
    path = tmp_path_factory.mktemp("jsonl") / "items.jsonl"
    path.write_text("".join(json.dumps(item, ensure_ascii=True) + "\n" for item in items))
    rows = JsonlRows(path)
    assert [rows.row(index) for index in range(len(rows))] == items
