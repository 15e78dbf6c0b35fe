"""Which data a configuration names."""

from __future__ import annotations

from pathlib import Path

from ...core.config import DataSection, EvalSection
from ...core.ports import PromptSource
from .errors import DataError
from .gym import GymRows
from .jsonl import JsonlRows
from .parquet import ParquetRows
from .source import GeneratedRows, OrderedSource, Rows


def prompt_source(section: DataSection, seed: int, base: Path) -> PromptSource:
    """Open the training data. Relative paths start at `base`, the folder of the configuration file.

    Raises `DataError` with one line that says what is wrong, and `MissingExtra` when a library is missing.
    """
    _refuse_stray_options(section)
    if section.kind == "generated":
        return OrderedSource(GeneratedRows(_size(section)), seed, section.shuffle)
    if section.kind == "reasoning_gym":
        rows = GymRows(_task(section), _size(section), seed, section.options)
        return OrderedSource(rows, seed, section.shuffle)
    return OrderedSource(_file_rows(section, section.path, "data.path", base), seed, section.shuffle)


def eval_prompt_source(section: DataSection, evaluation: EvalSection, seed: int, base: Path) -> PromptSource:
    """Open the evaluation data: items that training does not see, always in the same order.

    Generated items go on where training's numbers end; a reasoning-gym task gets the seed
    ``seed + evaluation.seed_offset`` (of a task with few possible items, some come up in both); a file is
    ``data.eval_path``. Raises as `prompt_source` does.
    """
    _refuse_stray_options(section)
    if section.kind == "generated":
        return OrderedSource(GeneratedRows(evaluation.prompts, first=_size(section)), seed, shuffle=False)
    if section.kind == "reasoning_gym":
        rows = GymRows(_task(section), evaluation.prompts, seed + evaluation.seed_offset, section.options)
        return OrderedSource(rows, seed, shuffle=False)
    whole = section.model_copy(update={"size": None})
    return OrderedSource(_file_rows(whole, section.eval_path, "data.eval_path", base), seed, shuffle=False)


def _file_rows(section: DataSection, path: str | None, key: str, base: Path) -> Rows:
    if path is None:
        raise DataError(f"{key} is missing: data.kind = '{section.kind}' reads a file")
    file = base / Path(path).expanduser()
    if not file.is_file():
        raise DataError(f"{key}: {file}: no such file")
    rows: Rows = (JsonlRows if section.kind == "jsonl" else ParquetRows)(file, section.size)
    if section.size is not None and len(rows) < section.size:
        raise DataError(f"data.size is {section.size}, but {file} holds only {len(rows)} items")
    return rows


def _refuse_stray_options(section: DataSection) -> None:
    if section.options and section.kind != "reasoning_gym":
        name = next(iter(section.options))
        raise DataError(f"data.options.{name}: data.kind = '{section.kind}' takes no options")


def _size(section: DataSection) -> int:
    if section.size is None:
        raise DataError(f"data.size is missing: data.kind = '{section.kind}' has no length of its own")
    return section.size


def _task(section: DataSection) -> str:
    if section.task is None:
        raise DataError("data.task is missing: data.kind = 'reasoning_gym' needs the name of a task")
    return section.task
