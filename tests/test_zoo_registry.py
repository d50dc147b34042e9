"""
The zoo by name: listing, errors, and that the records tell the truth about the makers.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import pytest

from returnn_common import cli, zoo
from returnn_common.records import Entry
from returnn_common.zoo import description, registry, sources


def test_list():
    names = zoo.list("*former", kind="encoder")
    assert "conformer" in names
    assert not {"transformer", "conformer_block"} & set(names)
    assert {"conformer", "ctc", "logmel", "specaugment"} <= set(zoo.list())


def test_names_are_in_natural_order(monkeypatch):
    entries = tuple(Entry("lm", name, "", ":", (), {}, {}, "me") for name in ("b", "a10", "a9"))
    monkeypatch.setattr(registry, "entries", lambda: entries)
    assert zoo.list() == ["a9", "a10", "b"]


def test_listing_and_describing_imports_no_framework():
    code = (
        "import sys; from returnn_common import zoo\n"
        "for name in zoo.list('*', backend='torch'): str(zoo.info(name))\n"
        "print(sorted({'returnn', 'torch', 'tensorflow', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


@pytest.mark.parametrize("entry", registry.entries(), ids=lambda entry: entry.name)
def test_record_fits_the_maker(entry):
    maker = registry.load(entry)
    arguments = inspect.signature(maker).parameters
    assert all(a.default is not a.empty for a in arguments.values())
    assert len(arguments) <= 6
    assert set(entry.tiny) <= set(arguments)
    assert set(entry.vary) <= set(arguments)
    for name, value in entry.vary.items():
        assert value != entry.tiny.get(name, arguments[name].default)
    for name in arguments:
        assert f":param {name}:" in maker.__doc__
    assert maker.__name__ == f"make_{entry.name}"


def test_get_passes_the_options_on():
    for name in ("conv_subsampling", "returnn_common/conv_subsampling"):
        module = zoo.get(name, in_dim=7, out_dim=5, factor=6)
        assert (module.in_dim.dimension, module.out_dim.dimension) == (7, 5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: zoo.get("confromer"), ValueError, "'confromer'; did you mean 'conformer'"),
        (lambda: zoo.get("zzz"), ValueError, "'zzz'; valid are: .*conformer, conformer_block, "),
        (
            lambda: zoo.get("conformer", numlayers=3),
            TypeError,
            "conformer has no option 'numlayers'; did you mean 'num_layers'?.*dropout",
        ),
        (lambda: zoo.get(zoo), TypeError, "expected the name of an entry, got <module"),
        (lambda: zoo.list(kind="encodr"), ValueError, "no kind 'encodr'; did you mean 'encoder'"),
        (lambda: zoo.list(backend="toch"), ValueError, "no backend 'toch'; did you mean 'torch'"),
        (lambda: zoo.info("confromer"), ValueError, "'confromer'; did you mean 'conformer'"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


# --- descriptions


def test_info():
    info = zoo.info("conformer_block")
    assert info.name == "returnn_common/conformer_block"
    assert info.signature == (
        "make_conformer_block(dim=512, *, num_heads=8, ff_dim=None, kernel_size=31, dropout=0.1, "
        "conv_norm=nn.BatchNorm)"
    )
    arguments = {argument.name: argument for argument in info.arguments}
    assert arguments["num_heads"].annotation == "int | nn.Dim"
    assert arguments["num_heads"].default == "8"
    assert arguments["num_heads"].doc == "heads of the self-attention; must divide `dim`"
    assert info.paper.startswith('Gulati et al., "Conformer: Convolution-augmented Transformer for')
    assert info.paper.endswith("2020, https://arxiv.org/abs/2005.08100")
    assert (info.distribution, info.licence) == ("returnn_common", "Apache-2.0")
    assert info.file == inspect.getfile(registry.load(registry.find("conformer_block")))
    assert info.num_parameters is None


def test_info_agrees_with_inspect():
    """The description is read from the source; here the functions themselves are asked."""
    for entry in registry.entries():
        maker = registry.load(entry)
        expected = inspect.signature(maker).parameters
        found = {argument.name: argument for argument in zoo.info(entry.full_name).arguments}
        assert list(found) == list(expected)
        for name, parameter in expected.items():
            assert found[name].annotation == parameter.annotation
            assert found[name].doc
            if isinstance(parameter.default, (bool, int, float, str, type(None))):
                # A default may be a constant of its module.
                value = eval(found[name].default, maker.__globals__)
                assert value == parameter.default


def test_size_of_an_entry():
    """Counted by hand from Figures 2 to 4 of the paper."""
    info = zoo.info("conformer_block", size=True)
    dim, ff, kernel = 512, 2048, 31
    norm = 2 * dim
    feed_forward = norm + dim * ff + ff + ff * dim + dim
    attention = norm + 4 * dim * dim + 4 * dim  # query, key, value, output
    attention += dim * dim + 2 * dim  # positions and their two biases
    convolution = norm + dim * 2 * dim + 2 * dim + kernel * dim + dim + 4 * dim + dim * dim + dim
    assert info.num_parameters == 2 * feed_forward + attention + convolution + norm


def test_info_prints_as_a_page():
    lines = str(zoo.info("conv_subsampling")).splitlines()
    assert lines[0].startswith("returnn_common/conv_subsampling (frontend): three convolutions")
    assert (
        "factor = 4              input frames per output frame: 1, 2, 3, 4, 6 or 8. With frames"
        in ("\n".join(lines))
    )
    assert repr(zoo.info("conv_subsampling")) == "\n".join(lines)
    assert max(map(len, lines[1:-4])) <= 100


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ("class Made:\n    def __init__(self, a, *, b: int = 3): pass", [("a", ""), ("b", "3")]),
        (
            "class Made(Base): pass\nclass Base(int):\n    def __init__(self, a=1): pass",
            [("a", "1")],
        ),
        ("class Made(Exception):\n    a: int = 3", []),
        (
            "@dataclass(frozen=True)\nclass Made:\n    a: int\n    b: str = 'x'",
            [("a", ""), ("b", "'x'")],
        ),
        ("def Made(a, /, b=(1, 2), *c, d, **e): pass", [*zip("abcde", ["", "(1, 2)", "", "", ""])]),
        ("from .parts import make_other as Made", [("z", "1")]),
    ],
)
def test_what_makes_an_entry(code, arguments, tmp_path, monkeypatch):
    """A class, a dataclass, a function of any form, one that is defined elsewhere."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "some_zoo").mkdir()
    (tmp_path / "some_zoo/__init__.py").write_text("raise ImportError('it is only read')")
    (tmp_path / "some_zoo/made.py").write_text(code)
    (tmp_path / "some_zoo/parts.py").write_text("def make_other(z=1): pass")
    entry = Entry("lm", "made", "", "some_zoo.made:Made", (), {}, {}, "me")
    info = description.describe(entry, registry.plugins.Plugin("me", "me", "me"))
    assert [(a.name, a.default) for a in info.arguments] == arguments


@pytest.mark.parametrize(
    ("text", "paper"),
    [
        (
            'Dong and Other, "A: b, c", 2018,\nhttps://x.org/a. More.',
            'Dong and Other, "A: b, c", 2018, https://x.org/a',
        ),
        ('Dong et al., "A", Interspeech 2018. https://y.org', 'Dong et al., "A", Interspeech 2018'),
        ("See https://x.org/1 (and 2).", "https://x.org/1"),
        ("Of 2018, without a source.", ""),
    ],
)
def test_paper(text, paper):
    assert description.find_paper(["no paper", text]) == paper


def test_documentation_of_arguments():
    doc = "x\n\n:param a, b: of ``both``,\n    in Hz\n:param c: one\n:return: two"
    found = [description.find_argument(name, doc) for name in "abcd"]
    assert found == ["of `both`, in Hz", "of `both`, in Hz", "one", ""]


def test_source_that_is_not_there():
    assert sources.read("returnn_common.zoo.nothing") is None
    assert sources.read("nothing.at.all") is None
    assert sources.read("math") is None  # not written in Python
    assert sources.definition("returnn_common.zoo.registry:nothing") is None


# --- command line


def test_list_command(capsys):
    assert cli.main(["list", "conformer*", "--kind=encoder", "--backend=torch"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "conformer        encoder  conformer encoder with convolutional subsampling"
    assert second.split()[:2] == ["conformer_block", "encoder"]
    assert cli.main(["list", "conformer", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["full_name"] == "returnn_common/conformer"
    assert record["backends"] == ["tensorflow-net-dict", "torch"]
    assert cli.main(["list", "nothing*"]) == 0
    assert capsys.readouterr().out == ""


def test_info_command(capsys):
    assert cli.main(["info", "logmel", "--size"]) == 0
    printed = capsys.readouterr().out
    assert "sample_rate = 16000" in printed
    assert "parameters  0\n" in printed
    assert cli.main(["info", "logmell"]) == 1
    assert "did you mean 'logmel'?" in capsys.readouterr().err


def test_list_and_info_are_fast():
    """In processor time, which other processes on the machine do not change."""
    code = "import time, sys; start = time.process_time(); from returnn_common import cli\n"
    code += "cli.main(sys.argv[1:]); print(time.process_time() - start, file=sys.stderr)"
    for argv in (["list"], ["list", "--json"], ["info", "conformer"], ["plugins"]):
        result = subprocess.run(
            [sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True
        )
        assert float(result.stderr) < 0.5
