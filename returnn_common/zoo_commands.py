"""
The commands about entries: ``list``, ``info``, ``plugins``, ``copy``, ``status``, ``update``,
``show``.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .copying import Change
    from .plugins import Plugin
    from .records import Entry

Run = Callable[[argparse.Namespace], None]


def add_commands(commands: argparse._SubParsersAction) -> None:
    """add them to the command line"""
    _add_list(commands)
    _add_info(commands)
    _add_show(commands)
    _add_plugins(commands)
    _add_copy(commands)
    _add_status(commands)
    _add_update(commands)


def _add(
    commands: argparse._SubParsersAction, name: str, text: str, run: Run
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument(
        "--strict", action="store_true", help="a broken plugin is an error (for CI)"
    )
    parser.set_defaults(run=_strictly(run))
    return parser


def _strictly(run: Run) -> Run:
    """:return: `run`, but first what ``--strict`` says"""

    def run_strictly(args: argparse.Namespace) -> None:
        from . import plugins

        if args.strict:
            os.environ[plugins.STRICT] = "1"
        run(args)

    return run_strictly


def _print_table(rows: Iterable[Sequence[str]]) -> None:
    """print columns; the last one is not padded"""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join([cell.ljust(w) for cell, w in zip(row[:-1], widths)] + [row[-1]]))


# --- list


def _add_list(commands: argparse._SubParsersAction) -> None:
    parser = _add(commands, "list", "list models, parts, datasets, vocabularies", _run_list)
    option = parser.add_argument
    option("pattern", nargs="?", default="*", help="of names, with wildcards: '*former*'")
    option("--kind", help="only these: encoder, dataset, ...")
    option("--backend", help="only what works there: tensorflow-net-dict or torch")
    option("--json", action="store_true", help="for programs")


def _run_list(args: argparse.Namespace) -> None:
    from .zoo import registry

    entries = registry.select(args.pattern, kind=args.kind, backend=args.backend)
    if args.json:
        print(json.dumps([_as_json(entry) for entry in entries], indent=2))
    else:
        _print_table((registry.short_name(e), e.kind, e.summary) for e in entries)


def _as_json(entry: Entry) -> dict[str, object]:
    keys = ("name", "full_name", "kind", "summary", "backends")
    return {key: getattr(entry, key) for key in keys}


# --- info


def _add_info(commands: argparse._SubParsersAction) -> None:
    parser = _add(commands, "info", "describe an entry: arguments, origin, paper", _run_info)
    parser.add_argument("name", metavar="NAME", help="as `list` prints it")
    parser.add_argument("--size", action="store_true", help="make it and count its parameters")


def _run_info(args: argparse.Namespace) -> None:
    from . import zoo

    print(zoo.info(args.name, size=args.size))


# --- show


def _add_show(commands: argparse._SubParsersAction) -> None:
    parser = _add(commands, "show", "draw a network: blocks, dims, parameters, layers", _run_show)
    option = parser.add_argument
    option("name", metavar="NAME", help="as `list` prints it")
    option("options", metavar="OPTION=VALUE", nargs="*", help="as in `info NAME`: num_layers=2")
    option("--out", metavar="FILE", help="also draw a picture: FILE.svg or FILE.png")
    option("--depth", type=int, default=3, help="levels below the whole; default: %(default)s")


def _run_show(args: argparse.Namespace) -> None:
    from . import showing

    root = showing.blocks_of(args.name, **dict(map(_option, args.options)))
    print(showing.as_text(root, depth=args.depth))
    if args.out:
        showing.draw(root, args.out, depth=args.depth)


def _option(text: str) -> tuple[str, Any]:
    """:return: name and value; what is no Python literal is a string"""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"expected OPTION=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


# --- plugins


def _add_plugins(commands: argparse._SubParsersAction) -> None:
    _add(
        commands, "plugins", "list who provides entries, and which plugins are broken", _run_plugins
    )


def _run_plugins(args: argparse.Namespace) -> None:
    from . import plugins

    found = plugins.all_plugins()
    _print_table((f"{p.owner} {p.version}".strip(), p.name, p.state, _outcome(p)) for p in found)
    plugins.all_entries()  # in strict mode, an error


def _outcome(plugin: Plugin) -> str:
    if plugin.state != "loaded":
        return plugin.reason
    return f"{len(plugin.entries)} {'entry' if len(plugin.entries) == 1 else 'entries'}"


# --- copies


def _add_copy(commands: argparse._SubParsersAction) -> None:
    text = "copy the source of an entry, and of what it needs, to edit it"
    parser = _add(commands, "copy", text, _run_copy)
    parser.add_argument("name", metavar="NAME", help="as `list` prints it")
    parser.add_argument("--to", metavar="DIR", required=True, help="a Python package, or a new one")
    _add_dry_run(parser)
    _add_diff(parser)


def _run_copy(args: argparse.Namespace) -> None:
    from . import copying

    _print_changes(copying.copy(args.name, args.to, dry_run=args.dry_run), args)
    if not args.dry_run:
        line = copying.import_line(args.name, args.to)
        print(f"\nWith {Path(args.to).resolve().parent} on the path: {line}")


def _add_status(commands: argparse._SubParsersAction) -> None:
    text = "say what you and the originals changed in a folder of copies"
    parser = _add(commands, "status", text, _run_status)
    parser.add_argument("folder", metavar="DIR", help="the folder of `copy --to`")
    _add_diff(parser)


def _run_status(args: argparse.Namespace) -> None:
    from . import copying

    _print_changes(copying.status(args.folder), args)


def _add_update(commands: argparse._SubParsersAction) -> None:
    text = "bring what changed in the originals into a folder of copies; edits stay"
    parser = _add(commands, "update", text, _run_update)
    parser.add_argument("folder", metavar="DIR", help="the folder of `copy --to`")
    _add_dry_run(parser)
    _add_diff(parser)


def _run_update(args: argparse.Namespace) -> None:
    from . import copying

    changes = copying.update(args.folder, dry_run=args.dry_run)
    _print_changes(changes, args)
    waiting = [change.path for change in changes if change.state in copying.WAITING]
    if waiting:
        raise ValueError(f"your edits and the original's changes meet in {', '.join(waiting)}")


def _add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="write nothing")


def _add_diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--diff", action="store_true", help="also print the changes")


def _print_changes(changes: Sequence[Change], args: argparse.Namespace) -> None:
    _print_table((change.state, change.path) for change in changes)
    if args.diff:
        print("".join(f"\n{change.diff()}" for change in changes if change.diff()), end="")
    if getattr(args, "dry_run", False):
        print("\nNothing was written (--dry-run).")
