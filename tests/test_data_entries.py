"""Datasets and vocabularies by name in the zoo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from returnn_common import data, zoo
from returnn_common.data import entries

ROOT = Path(__file__).parent.parent
RECORDS = entries.returnn_common_entries()


def test_names():
    assert set(zoo.list(kind="dataset")) >= {"librispeech", "librispeech_text", "spoken_digits"}
    ours = {"bpe_en_128", "bpe_en_1k", "bpe_en_5k", "characters", "utf8_bytes"}
    assert set(zoo.list(kind="vocab")) >= ours


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["name"])
def test_made_with_every_argument(record):
    """Each option arrives: with another value, another object is made."""
    made = zoo.get(record["name"], **record["tiny"])
    assert isinstance(made, {"dataset": data.Dataset, "vocab": data.Vocab}[record["kind"]])
    assert zoo.get(record["name"]) is not None
    for option, value in record["vary"].items():
        assert zoo.get(record["name"], **{**record["tiny"], option: value}) != made, option


def test_what_is_made():
    assert zoo.get("librispeech") == data.Librispeech()
    assert zoo.get("bpe_en_1k") == data.bpe() == data.Librispeech().vocab
    assert zoo.get("characters", letters="ab").size == 5


def test_listing_imports_no_dataset():
    code = (
        "import sys\n"
        "from returnn_common import zoo\n"
        "assert 'librispeech' in zoo.list()\n"
        "names = [name.rpartition('returnn_common.data.')[2] for name in sys.modules]\n"
        "assert not {'librispeech', 'vocabularies', 'numpy', 'returnn'} & set(names), names\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
