"""
The commands about entries: ``list``, ``info``, ``plugins``, ``copy``, ``status``, ``update``,
``show``.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Sequence


def add_commands(commands: argparse._SubParsersAction) -> None:
    """add them to the command line"""
    _add_list(commands)
    _add_info(commands)
    _add_plugins(commands)


def _add(
    commands: argparse._SubParsersAction, name: str, text: str, run
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument(
        "--strict", action="store_true", help="a broken plugin is an error (for CI)"
    )
    parser.set_defaults(run=_strictly(run))
    return parser


def _strictly(run):
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


def _as_json(entry) -> dict[str, object]:
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


def _outcome(plugin) -> str:
    if plugin.state != "loaded":
        return plugin.reason
    return f"{len(plugin.entries)} {'entry' if len(plugin.entries) == 1 else 'entries'}"
