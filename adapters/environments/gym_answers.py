r"""Keep an answer from being run as a program.

Nine tasks of reasoning-gym hand the answer to Python's ``eval``, or to sympy's ``parse_expr``, which calls
``eval``. A policy under training writes anything, sooner or later also ``exit()``, a call that touches files, or
``9**9**9**9``, which holds the interpreter for hours. So before such a task scores an answer, the answer must
look like what the task asks for:

- a list, where a list is expected: literals and nothing else, unless it is no Python expression at all;
- a formula, where a formula is expected: numbers, single-letter names, common functions, small exponents.
"""

from __future__ import annotations

import ast
import re

LIST_TASKS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Tasks whose scorers evaluate the answer as a Python list."""

FORMULA_TASKS = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
"""Tasks whose scorers evaluate the answer as a sympy expression."""

_CHARACTERS_MAX = 2000
_DIGITS_MAX = 20
_EXPONENT_MAX = 64
_LITERALS = (ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.UnaryOp, ast.USub, ast.Load, ast.Name)

_FORMULA_CHARACTERS = re.compile(r"[A-Za-z0-9\s+\-*/^().=]*")
_NAME = re.compile(r"[A-Za-z]\w*")
_FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh"}
    | {"exp", "log", "ln", "sqrt", "Abs", "pi"}
)
_POWER = re.compile(r"\s*(?:\*\*|\^)\s*")
_EXPONENT = re.compile(r"-?\s*(\w+)(?![\w.(])|\(\s*-?\s*(\w+)\s*(?:/\s*\d+\s*)?\)")


def is_harmless(answer: str, task: str) -> bool:
    """Say whether the scorer of `task` can be given `answer` without running it as a program."""
    if task in LIST_TASKS:
        return len(answer) <= _CHARACTERS_MAX and _is_literal(answer)
    if task in FORMULA_TASKS:
        return len(answer) <= _CHARACTERS_MAX and _is_formula(answer)
    return True


def _is_literal(text: str) -> bool:
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # What Python cannot parse it cannot run; the scorer compares it as text.
        return True
    return all(isinstance(node, _LITERALS) for node in ast.walk(tree))


def _is_formula(text: str) -> bool:
    if not _FORMULA_CHARACTERS.fullmatch(text):
        return False
    if any(len(name) > 1 and name not in _FUNCTIONS for name in _NAME.findall(text)):
        return False
    if re.search(rf"\d{{{_DIGITS_MAX + 1}}}", text) or re.search(r"\.\s*[A-Za-z(]|\)\s*\(", text):
        return False
    return _powers_are_small(text)


def _powers_are_small(text: str) -> bool:
    """Every exponent is a small number or one letter, none stands on another, and their product stays small."""
    product = 1
    for power in _POWER.finditer(text):
        exponent = _EXPONENT.match(text, power.end())
        if exponent is None or _POWER.match(text, exponent.end()):
            return False
        number = exponent[1] or exponent[2]
        if not number.isdecimal():
            if len(number) > 1:
                return False
            continue
        if int(number) > _EXPONENT_MAX:
            return False
        if text[: power.start()].endswith(")"):
            product *= max(1, int(number))
    return product <= _EXPONENT_MAX
