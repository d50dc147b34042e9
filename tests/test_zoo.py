"""
The battery over all entries of the zoo, the record of their parameters and layers, and what it says of broken ones.

``python tests/test_zoo.py`` writes the record anew, where names were changed on purpose, and the table in docs/zoo.md.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from returnn_common import plugins, testing, zoo
from returnn_common.testing import battery
from returnn_common.zoo import registry

pytest.importorskip("tensorflow")
pytest.importorskip("torch")

DOCUMENT = Path(__file__).parent.parent / "docs/zoo.md"
BEGIN, END = "<!-- table of entries -->\n", "<!-- end of table -->"
RECORD = Path(__file__).parent / "zoo_record.json"
OURS = [entry for entry in registry.entries() if entry.owner == "returnn_common"]


@pytest.mark.parametrize("entry", OURS, ids=lambda entry: entry.name)
def test_entry(entry):
    """
    The names of parameters are those of the checkpoints that people have; layers do not grow. The CI looks for GPU
    kernels with the benchmark.
    """
    report = testing.check_entry(entry, skip=["has_gpu_kernels"])
    if report.num_layers:
        recorded = json.loads(RECORD.read_text(encoding="utf-8"))[entry.name]
        assert list(report.parameters) == recorded["parameters"]
        assert report.layers_per_block <= recorded["layers_per_block"]


def test_whole_transformer_with_default_sizes():
    """`zoo.get("transformer", num_layers=6)` has the parameters of the paper's base model, and lowers."""
    model = zoo.get("transformer", num_layers=6)
    sizes = {path: param.num_elements() for path, param in model.named_parameters()}
    att, norm, ff = 4 * (512 * 512 + 512), 2 * 512, 2 * 512 * 2048 + 2048 + 512
    encoder = sum(n for path, n in sizes.items() if path.startswith("encoder.layers."))
    decoder = sum(n for path, n in sizes.items() if path.startswith("decoder.layers."))
    assert encoder == 6 * (att + ff + 2 * norm)
    assert decoder == 6 * (2 * att + ff + 3 * norm)
    assert sizes["decoder.output.weight"] == 512 * 1001


# --- what the battery says of entries that are wrong


PLUGIN = '''
from returnn_common import nn
from returnn_common.hookspecs import BACKENDS, hookimpl


class Scaled(nn.Module):
    """An encoder that scales its input."""

    def __init__(self, dim, factor, *, over_batch=False):
        super().__init__()
        self.in_dim = self.out_dim = nn.FeatureDim("scaled", dim)
        self.linear = nn.Linear(self.in_dim, self.out_dim)
        self.factor, self.over_batch = factor, over_batch

    def __call__(self, source, *, in_spatial_dim):
        out = self.linear(source) * self.factor
        if self.over_batch:
            out = out + nn.reduce_mean(out, axis=in_spatial_dim, use_mask=False)
        return out, in_spatial_dim


def make_good(dim: int = 5, *, factor: float = 2.0):
    """
    :param dim: size
    :param factor: of the output
    """
    return Scaled(dim, factor)


def make_deaf(dim: int = 5, *, factor: float = 2.0):
    """
    :param dim: size
    :param factor: is lost on the way
    """
    return Scaled(dim, 2.0)


def make_undocumented(dim: int = 5, *, factor: float = 2.0):
    """:param dim: size"""
    return Scaled(dim, factor)


def make_padded(dim: int = 5, *, factor: float = 2.0):
    """
    :param dim: size
    :param factor: of the output
    """
    return Scaled(dim, factor, over_batch=True)


@hookimpl
def returnn_common_entries():
    return [
        {
            "kind": "encoder",
            "name": name,
            "summary": "an encoder",
            "target": f"{__name__}:make_{name}",
            "backends": BACKENDS,
            "tiny": {"dim": 5},
            "vary": {"dim": 6, "factor": 3.0},
        }
        for name in NAMES
    ]
'''


@pytest.fixture
def plugin(monkeypatch, tmp_path):
    """:return: a function that registers a module beside a recipe, with these of the entries above"""
    monkeypatch.setattr(plugins, "_registered", {})
    monkeypatch.syspath_prepend(tmp_path)

    def register(name, *entries):
        (tmp_path / f"{name}.py").write_text(f"NAMES = {entries!r}\n{PLUGIN}", encoding="utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
        zoo.register_module(importlib.import_module(name))
        return name

    yield register
    for name in ("good_blocks", "bad_blocks"):
        sys.modules.pop(name, None)


def test_good_plugin(plugin):
    (report,) = testing.check_plugin(plugin("good_blocks", "good"))
    assert report.entry == "good_blocks/good"
    assert report.parameters == ("linear.bias [5]", "linear.weight [5, 5]")
    assert set(report.checks) == {check.__name__ for check in battery.CHECKS["model"]}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("deaf", "every_option_arrives: AssertionError: factor=3.0 changes nothing"),
        ("undocumented", "arguments_are_documented: .* no :param for factor"),
        ("padded", "padding_changes_nothing: .*sequence 0 in a batch and alone"),
    ],
)
def test_broken_plugin(plugin, entry, message):
    """Every failure is one line with the entry, the check and what is wrong."""
    name = plugin("bad_blocks", entry)
    with pytest.raises(AssertionError, match=message) as error:
        testing.check_plugin(name)
    assert str(error.value).startswith(f"bad_blocks/{entry}: ")
    assert "\n" not in str(error.value)


def test_unknown_plugin():
    with pytest.raises(
        ValueError, match="no plugin 'returnn_comon'.* did you mean 'returnn_common'"
    ):
        testing.check_plugin("returnn_comon")


def table() -> str:
    """:return: our entries as a table of Markdown, by kind"""
    rows = [f"| `{e.name}` | {e.kind} | {e.summary} |" for e in registry.select() if e in OURS]
    rows.sort(key=lambda row: row.split("|")[2])
    return "\n".join(["| name | kind | what |", "|---|---|---|", *rows, ""])


def test_document_lists_all_entries():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == table()


def write_table():
    """write the table of the document"""
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    text = before + BEGIN + table() + END + rest.partition(END)[2]
    DOCUMENT.write_text(text, encoding="utf-8")


def write_record():
    """write parameters and layers of all our models"""
    record = {}
    for entry in OURS:
        report = battery.Case(entry).report(())
        if report.num_layers:
            record[entry.name] = {
                "layers_per_block": report.layers_per_block,
                "parameters": list(report.parameters),
            }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_table()
    write_record()
