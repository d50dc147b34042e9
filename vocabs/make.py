"""
Makes the vocabularies in this folder, the same bytes every time::

    pip install wordfreq==3.1.1 && python vocabs/make.py

Word frequencies are those of wordfreq (https://github.com/rspeer/wordfreq, DOI 10.5281/zenodo.7199437),
in upper case, of all words made of A-Z and the apostrophe, as LibriSpeech transcripts are.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

FOLDER = Path(__file__).parent
SIZES = {"en-128": 128, "en-1k": 1000, "en-5k": 5000}
WORDFREQ = "3.1.1"
PER = 10**9  # frequencies become counts in so many words
_WORD = re.compile("[A-Z']+")


def word_counts() -> Counter[str]:
    """:return: how often English words occur in a thousand million words"""
    import wordfreq

    counts: Counter[str] = Counter()
    for word, frequency in wordfreq.get_frequency_dict("en", wordlist="large").items():
        if _WORD.fullmatch(word.upper()):
            counts[word.upper()] += round(frequency * PER)
    return counts


def main(argv: list[str] | None = None) -> None:
    from returnn_common.data.vocab_training import size_of, train_vocab
    from returnn_common.files import whole_file

    parser = argparse.ArgumentParser(description="make the vocabularies of this folder")
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder; default: %(default)s")
    folder = parser.parse_args(argv).to
    counts = word_counts()
    for name, size in SIZES.items():
        model = train_vocab(counts, size)
        with whole_file(folder / f"{name}.model") as temporary:
            temporary.write_bytes(model)
        print(f"{name}.model: {size_of(model)} pieces, {len(model)} bytes")


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER.parent))
    main()
