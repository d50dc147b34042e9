"""The user's own line, for errors: where a step is defined, where it fails, where a session is called."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import returnn.frontend as rf

#: Errors of these very classes are raised again with the line in front; all others pass as they are.
_RAISED_AGAIN = (AssertionError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError)


def _folders() -> tuple[str, ...]:
    """what is not the user's: this package, RETURNN and all that is installed beside it, the standard library"""
    installed = Path(inspect.getfile(rf)).parent.parent.parent
    folders = (Path(__file__).parent, installed, Path(inspect.getfile(contextlib)).parent)
    return tuple(f"{path}/" for folder in folders for path in (folder, folder.resolve()))


_NOT_THE_USERS = _folders()


def is_users(file: str) -> bool:
    """whether code of this file is the user's"""
    return not file.startswith(("<", *_NOT_THE_USERS))


def line_of(function: Callable) -> str:
    """``name (file:line)`` of where a function is defined; the name alone where it has no source"""
    inner: Any = function
    while hasattr(inner, "func"):  # functools.partial
        inner = inner.func
    inner = inspect.unwrap(inner)
    code = getattr(getattr(inner, "__func__", inner), "__code__", None)
    name = getattr(inner, "__name__", type(inner).__name__)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def calling_line() -> str:
    """``file:line: `` of the user's innermost running line; empty where there is none"""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}: " if frame else ""


@contextlib.contextmanager
def telling_line() -> Iterator[None]:
    """an error inside is raised again with the user's line that led to it in front"""
    try:
        yield
    except _RAISED_AGAIN as error:
        where = _failing_line(error.__traceback__)
        if type(error) not in _RAISED_AGAIN or not where or where in str(error):
            raise
        raise _with_line(where, error) from error


@contextlib.contextmanager
def telling_this_line(line: Callable[[], str]) -> Iterator[None]:
    """an error inside, to which no line of the user's led, is raised again with this one in front, unless one is"""
    try:
        yield
    except _RAISED_AGAIN as error:
        is_told = getattr(error, "tells_line", False) or _failing_line(error.__traceback__)
        if type(error) not in _RAISED_AGAIN or is_told:
            raise
        raised = _with_line(line(), error)
        raised.tells_line = True  # type: ignore[attr-defined]
        raise raised from error


def _with_line(line: str, error: BaseException) -> BaseException:
    kind = ValueError if isinstance(error, KeyError) else type(error)
    return kind(f"{line}{error.args[0] if error.args else type(error).__name__}")


def _failing_line(traceback: TracebackType | None) -> str:
    """``file:line: `` of the user's innermost line in a traceback"""
    where = ""
    while traceback is not None:
        if is_users(traceback.tb_frame.f_code.co_filename):
            where = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}: "
        traceback = traceback.tb_next
    return where


__all__ = ["calling_line", "is_users", "line_of", "telling_line", "telling_this_line"]
