"""The commands ``returnn-common data ...`` and ``returnn-common vocab ...``: each parses, makes one call, prints."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from .paths import DEFAULT_FOLDER, VARIABLE

_DEFAULT_VOCAB = "en-1k"


def add_commands(commands: argparse._SubParsersAction) -> None:
    """add ``data`` and ``vocab`` to the commands of the command line"""
    data = commands.add_parser(
        "data",
        help="prepare corpora, check and describe them",
        description=f"Corpora lie in the folder {DEFAULT_FOLDER}, or in the one that the environment"
        f" variable {VARIABLE} names.",
    ).add_subparsers(metavar="COMMAND", required=True)
    prepare = data.add_parser("prepare", help="make archives that RETURNN reads").add_subparsers(
        metavar="CORPUS", required=True
    )
    _add_prepare_librispeech(prepare)
    _add_prepare_digits(prepare)
    _add_check(data)
    _add_stats(data)
    _add_link(data)
    vocab = commands.add_parser("vocab", help="train vocabularies").add_subparsers(
        metavar="COMMAND", required=True
    )
    _add_vocab_train(vocab)


def _add(
    commands: argparse._SubParsersAction,
    name: str,
    run: Callable[[argparse.Namespace], None],
    summary: str,
) -> Callable[..., argparse.Action]:
    """:return: adds an option to the new command"""
    parser = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    parser.set_defaults(run=run)
    return parser.add_argument


def _add_prepare_librispeech(commands: argparse._SubParsersAction) -> None:
    option = _add(commands, "librispeech", _prepare_librispeech, "LibriSpeech of openslr.org/12")
    option(
        "--from",
        dest="sources",
        metavar="DIR_OR_TAR",
        nargs="+",
        required=True,
        help="folders of LibriSpeech or of its parts, their tar files, librispeech-lm-norm.txt.gz",
    )
    option("--to", metavar="DIR", help=f"for the archives; default: {DEFAULT_FOLDER}/librispeech")
    option(
        "--ogg",
        action="store_true",
        help="store Ogg/Vorbis instead of FLAC: smaller, but lossy, and other bytes every time",
    )
    option(
        "--skip-broken",
        action="store_true",
        help="leave out utterances with problems, and list these in problems.txt",
    )
    option("--jobs", metavar="N", type=int, help="threads; default: one for each processor")


def _prepare_librispeech(args: argparse.Namespace) -> None:
    from .librispeech_preparation import prepare_librispeech

    options = {"ogg": args.ogg, "skip_broken": args.skip_broken, "jobs": args.jobs}
    _print_prepared(prepare_librispeech(args.sources, args.to, **options))


def _add_prepare_digits(commands: argparse._SubParsersAction) -> None:
    option = _add(commands, "digits", _prepare_digits, "spoken digits, single or in strings")
    option(
        "--from",
        dest="source",
        metavar="DIR",
        help="recordings named as in the Free Spoken Digit Dataset; by default synthetic speech",
    )
    option("--to", metavar="DIR", help=f"for the archives; default: {DEFAULT_FOLDER}/digits")
    option("--single", action="store_true", help="one digit each, instead of strings")
    option("--hold-out", metavar="SPEAKER", help="speaker of --from who is only in test")
    option(
        "--num-strings",
        metavar="N",
        type=int,
        nargs=3,
        help="of train, dev and test; default: 3000 100 200",
    )
    option("--seed", type=int, default=1, help="default: %(default)s")


def _prepare_digits(args: argparse.Namespace) -> None:
    from dataclasses import replace

    from .spoken_digits import SINGLE_DIGITS, DigitStrings, prepare_digits

    strings = SINGLE_DIGITS if args.single else DigitStrings()
    strings = replace(strings, hold_out=args.hold_out, seed=args.seed)
    if args.num_strings:
        strings = replace(strings, num_strings=tuple(args.num_strings))
    _print_prepared(prepare_digits(args.source, args.to, strings=strings))


def _print_prepared(paths: list[str]) -> None:
    from .archives import read_facts

    for path in paths:
        facts = read_facts(path)
        if not facts:
            continue  # --skip-broken left nothing of it
        left_out = len(facts["left_out"])
        print(
            f"{path}: {facts['utterances']} utterances of {facts['speakers']} speakers,"
            f" {facts['seconds'] / 3600:.2f} h" + (f", {left_out} left out" if left_out else "")
        )


def _add_check(commands: argparse._SubParsersAction) -> None:
    option = _add(commands, "check", _check, "verify that prepared archives are whole")
    option("folder", nargs="?", metavar="DIR", help=f"of archives; default: {DEFAULT_FOLDER}")
    option("--jobs", metavar="N", type=int, help="threads; default: one for each processor")


def _check(args: argparse.Namespace) -> None:
    from .checking import check

    for line in check(args.folder, jobs=args.jobs):
        print(line)


def _add_stats(commands: argparse._SubParsersAction) -> None:
    option = _add(commands, "stats", _stats, "durations, labels and speakers of prepared archives")
    option("folder", nargs="?", metavar="DIR", help=f"of archives; default: {DEFAULT_FOLDER}")
    option(
        "--vocab",
        metavar="NAME_OR_FILE",
        default=_DEFAULT_VOCAB,
        help="of the labels: one of ours, or a SentencePiece model; default: %(default)s",
    )
    option("--plot", metavar="FILE", help="draw histograms into this file (png, pdf or svg)")


def _stats(args: argparse.Namespace) -> None:
    from .statistics import HEADER, plot, statistics

    found = statistics(args.folder, vocab=args.vocab)
    _print_table(HEADER, [item.row() for item in found])
    if args.plot:
        plot(found, args.plot)
        print(f"{args.plot}: histograms")


def _print_table(header: tuple[str, ...], rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def _add_link(commands: argparse._SubParsersAction) -> None:
    option = _add(commands, "link", _link, "make the common data folder of this project a link")
    option("folder", metavar="DIR", help="where the data is, or will be")
    option("--at", metavar="LINK", default=DEFAULT_FOLDER, help="default: %(default)s")


def _link(args: argparse.Namespace) -> None:
    from .linking import link

    print(link(args.folder, at=args.at))


def _add_vocab_train(commands: argparse._SubParsersAction) -> None:
    option = _add(commands, "train", _vocab_train, "train a vocabulary with SentencePiece")
    option(
        "--from",
        dest="source",
        metavar="FILE_OR_DATASET",
        required=True,
        help="a text, transcripts or word counts (also .gz), an archive, a folder of LibriSpeech,"
        ' or "librispeech" for its prepared training data',
    )
    option("--size", metavar="N", type=int, default=1000, help="labels; default: %(default)s")
    option("--out", metavar="FILE", required=True, help="for the model, e.g. my.model")
    option("--type", choices=("bpe", "unigram"), default="bpe", help="default: %(default)s")
    option("--upper", action="store_true", help="convert the text to upper case")


def _vocab_train(args: argparse.Namespace) -> None:
    from ..files import whole_file
    from .vocab_training import count_words, size_of, train_vocab, upper_case

    counts = count_words(args.source)
    model = train_vocab(
        upper_case(counts) if args.upper else counts, args.size, model_type=args.type
    )
    with whole_file(args.out) as temporary:
        temporary.write_bytes(model)
    reached = size_of(model)
    print(f"{args.out}: asked for {args.size} labels, reached {reached}")
    if reached < args.size:
        print("There are no more, the text is too small for them; a larger text gives more.")
