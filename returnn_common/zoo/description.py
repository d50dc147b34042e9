"""What is known about an entry, read from its source: nothing is imported for it."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from ..hints import valid_names
from ..plugins import Plugin
from ..records import Entry
from . import sources

# Authors, "title", year, and a link where there is one.
_PAPER = re.compile(
    r'[A-Z]\S+(?: et al\.| and [A-Z]\S+)?, "[^"]+", [^"]*?\d{4}(?:,? https?://\S+)?'
)
_LINK = re.compile(r"https?://[^\s)>\]]+")
_FIELD = re.compile(r"^:(\w+)(?: ([^:\n]+))?:", re.MULTILINE)
_INDENT = " " * 24


@dataclass(frozen=True)
class Argument:
    """An argument of an entry; `default` and `annotation` as they are written, empty where there is none."""

    name: str
    default: str
    annotation: str
    doc: str


@dataclass(frozen=True, repr=False)
class Info:
    """
    What :func:`zoo.info` gives; it prints as a page.

    :param signature: ``make_conformer(in_dim=80, ...)``
    :param distribution: who provides it, with `version` and `licence`; empty where unknown
    :param paper: the first one that the documentation of the function or of its module cites, else
        the first link there
    :param num_parameters: with the defaults; None where not asked for, and for what has none
    """

    name: str
    kind: str
    summary: str
    signature: str
    arguments: tuple[Argument, ...]
    backends: tuple[str, ...]
    distribution: str
    version: str
    licence: str
    file: str
    paper: str
    num_parameters: int | None = None

    def __str__(self) -> str:
        lines = [f"{self.name} ({self.kind}): {self.summary}", ""]
        lines += [_wrapped(self.signature, " " * 4), ""]
        lines += map(_line_of, self.arguments)
        lines += ["", *(f"{name:<12}{text}" for name, text in self._facts() if text)]
        return "\n".join(lines)

    __repr__ = __str__

    def _facts(self) -> list[tuple[str, str]]:
        origin = f"{self.distribution} {self.version}".strip()
        size = "" if self.num_parameters is None else f"{self.num_parameters:,}"
        return [
            ("parameters", size),
            ("backends", ", ".join(self.backends)),
            ("link" if self.paper.startswith("http") else "paper", self.paper),
            ("origin", ", ".join(filter(None, [origin, self.licence]))),
            ("file", self.file),
        ]


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, 100, initial_indent=indent, subsequent_indent=indent + "    ")


def _line_of(argument: Argument) -> str:
    default = f" = {argument.default}" if argument.default else ""
    head = f"{argument.name}{default}"
    kind = f" ({argument.annotation})" if argument.annotation else ""
    body = textwrap.fill(
        f"{argument.doc}{kind}", 100, initial_indent=_INDENT, subsequent_indent=_INDENT
    )
    return f"{head}\n{body}" if len(head) >= len(_INDENT) else head + body[len(head) :]


def describe(entry: Entry, plugin: Plugin) -> Info:
    """
    :param plugin: who registered it
    :raises ValueError: the source of its function is not found
    """
    source, node = find_definition(entry)
    docs = [ast.get_docstring(n) or "" for n in (node, *_init(node, source), source.tree)]
    parameters = _parameters(node, source)
    signature = inspect.Signature([p.replace(annotation=p.empty) for p in parameters])
    return Info(
        name=entry.full_name,
        kind=entry.kind,
        summary=entry.summary,
        signature=f"{node.name}{signature}",
        arguments=tuple(_argument(p, docs) for p in parameters),
        backends=entry.backends,
        distribution=plugin.owner,
        version=plugin.version,
        licence=plugin.licence,
        file=source.file,
        paper=find_paper(docs),
    )


def find_definition(entry: Entry) -> tuple[sources.Source, ast.FunctionDef | ast.ClassDef]:
    """
    :return: the source and the node of the entry's function or class
    :raises ValueError: it is not found by reading; the message names the nearest functions
    """
    found = sources.definition(entry.target)
    if found is not None:
        return found
    module, _, function = entry.target.partition(":")
    source = sources.read(module)
    if source is None:
        raise ValueError(f"{entry.full_name}: there is no Python source of the module {module!r}")
    functions = [n.name for n in source.tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    raise ValueError(
        f"{entry.full_name}: {module} defines no {function!r}{valid_names(function, functions)}"
    )


# --- arguments


class _Text(str):
    """a default as it is written"""

    __repr__ = str.__str__


def _init(node: ast.FunctionDef | ast.ClassDef, source: sources.Source) -> list[ast.FunctionDef]:
    """:return: the ``__init__`` of a class or of its first base that has one, else nothing"""
    if isinstance(node, ast.FunctionDef):
        return []
    own = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    for base in node.bases if not own else []:
        found = sources.definition(f"{source.module}:{ast.unparse(base)}")
        own = own or (_init(found[1], found[0]) if found else [])
    return own


def _parameters(
    node: ast.FunctionDef | ast.ClassDef, source: sources.Source
) -> list[inspect.Parameter]:
    """:return: the arguments with which a function or class is called"""
    if isinstance(node, ast.FunctionDef):
        return _of_function(node.args)
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        fields = [n for n in node.body if isinstance(n, ast.AnnAssign)]
        args = [ast.arg(ast.unparse(f.target), f.annotation) for f in fields]
        return [_parameter(a, f.value, "POSITIONAL_OR_KEYWORD") for a, f in zip(args, fields)]
    return [p for init in _init(node, source) for p in _of_function(init.args)[1:]]  # without self


def _of_function(args: ast.arguments) -> list[inspect.Parameter]:
    positional = [(a, "POSITIONAL_ONLY") for a in args.posonlyargs]
    positional += [(a, "POSITIONAL_OR_KEYWORD") for a in args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + args.defaults
    found = [_parameter(a, d, kind) for (a, kind), d in zip(positional, defaults)]
    found += [_parameter(args.vararg, None, "VAR_POSITIONAL")] if args.vararg else []
    found += [_parameter(a, d, "KEYWORD_ONLY") for a, d in zip(args.kwonlyargs, args.kw_defaults)]
    found += [_parameter(args.kwarg, None, "VAR_KEYWORD")] if args.kwarg else []
    return found


def _parameter(arg: ast.arg, default: ast.expr | None, kind: str) -> inspect.Parameter:
    return inspect.Parameter(
        arg.arg,
        getattr(inspect.Parameter, kind),
        default=_Text(ast.unparse(default)) if default else inspect.Parameter.empty,
        annotation=ast.unparse(arg.annotation) if arg.annotation else "",
    )


def _argument(parameter: inspect.Parameter, docs: list[str]) -> Argument:
    default = "" if parameter.default is parameter.empty else str(parameter.default)
    doc = next(filter(None, (find_argument(parameter.name, doc) for doc in docs)), "")
    return Argument(parameter.name, default, parameter.annotation, doc)


# --- docstrings


def find_argument(name: str, doc: str) -> str:
    """:return: what ``:param name:`` of a docstring says, in one line; empty where it says nothing"""
    starts = list(_FIELD.finditer(doc))
    for field, end in zip(starts, [*(s.start() for s in starts[1:]), len(doc)]):
        if field[1] == "param" and name in re.split(r"[,\s]+", field[2] or ""):
            return _plain(doc[field.end() : end])
    return ""


def find_paper(docs: Iterable[str]) -> str:
    """
    :return: the first paper that one of the docstrings cites like ``Graves et al., "Title", 2006``
        with or without a link, else the first link, else nothing
    """
    texts = [_plain(doc) for doc in docs]
    for pattern in (_PAPER, _LINK):
        for text in texts:
            if found := pattern.search(text):
                return found[0].rstrip(".,;")
    return ""


def _plain(text: str) -> str:
    """:return: one line, without the roles of reStructuredText"""
    return re.sub(r":\w+:`([^`]*)`", r"`\1`", " ".join(text.split())).replace("``", "`")
