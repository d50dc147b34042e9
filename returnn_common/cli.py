"""
The command line: each command parses, makes one call, prints.

``returnn-common COMMAND`` after ``pip install``; ``python -m returnn_common COMMAND`` is the same.
Exit codes: 0, 1 for an error while a command runs, 2 for wrong usage, 130 for Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import __version__, zoo_commands
from .data import commands as data_commands
from .hints import valid_names


def main(argv: Sequence[str] | None = None) -> int:
    """
    Runs one command; ``argv`` is ``sys.argv[1:]`` by default.

    :return: the exit code
    """
    argv = sys.argv[1:] if argv is None else argv
    parser, commands = _make_parser()
    _check_command(argv, parser, commands)
    args = parser.parse_args(argv)
    try:
        args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _fail("interrupted", code=130)
    except BrokenPipeError:  # the reader has seen enough: `returnn-common list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if not _is_for_the_user(error):
            raise
        return _fail(str(error), code=1)
    return 0


def _make_parser() -> tuple[argparse.ArgumentParser, list[str]]:
    """
    :return: parser, names of the commands
    """
    parser = argparse.ArgumentParser(
        prog="returnn-common",
        description="Models for speech and language, lowered to compact RETURNN layers.",
    )
    parser.add_argument("--version", action="version", version=f"returnn_common {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_demo(commands)
    zoo_commands.add_commands(commands)
    data_commands.add_commands(commands)
    return parser, list(commands.choices)


def _add_demo(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "demo",
        help="train a small conformer-CTC on spoken digit strings and recognise a held-out set",
    )
    option = parser.add_argument
    option("--data", metavar="DIR", help="recordings named as in FSDD; by default synthetic speech")
    option("--out", metavar="DIR", default="demo", help="for all results; default: %(default)s")
    option(
        "--backend",
        choices=("tensorflow-net-dict", "torch"),
        default="tensorflow-net-dict",
        help="of RETURNN; default: %(default)s",
    )
    option("--resume", action="store_true", help="continue an interrupted run in --out")
    option(
        "--seed", type=int, default=1, help="of the data and of the training; default: %(default)s"
    )
    option(
        "--hold-out", metavar="SPEAKER", help="speaker of --data who is in the held-out set only"
    )
    parser.set_defaults(run=_run_demo)


def _run_demo(args: argparse.Namespace) -> None:
    from . import demo

    demo.run(
        data=args.data,
        out=args.out,
        backend=args.backend,
        resume=args.resume,
        seed=args.seed,
        hold_out=args.hold_out,
    )


def _check_command(
    argv: Sequence[str], parser: argparse.ArgumentParser, commands: Sequence[str]
) -> None:
    """
    Ends in a usage error that names the nearest command, if the first word is not one.
    """
    word = next((arg for arg in argv if not arg.startswith("-")), None)
    if word is None or word in commands:
        return
    parser.error(f"there is no command {word!r}{valid_names(word, commands)}")


def _is_for_the_user(error: Exception) -> bool:
    """
    :return: whether the message alone says what to do: what the system reports about a file, and
        what this package itself raised; an error inside a library needs its traceback
    """
    if isinstance(error, OSError):
        return True
    traceback = error.__traceback__
    while traceback and traceback.tb_next:
        traceback = traceback.tb_next
    file = Path(traceback.tb_frame.f_code.co_filename) if traceback else Path()
    is_ours = file.is_relative_to(Path(__file__).parent)
    return is_ours and isinstance(error, (ValueError, TypeError, ImportError))


def _fail(message: str, *, code: int) -> int:
    print(f"returnn-common: {message}", file=sys.stderr)
    return code
