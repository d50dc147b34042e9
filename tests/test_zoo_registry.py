"""
The zoo by name: listing, errors, and that the records tell the truth about the makers.
"""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from returnn_common import plugins, zoo
from returnn_common.zoo import registry


def test_list():
    assert zoo.list("*former", kind="encoder") == ["conformer"]
    assert {"conformer", "ctc", "logmel", "specaugment"} <= set(zoo.list())


def test_names_are_in_natural_order(monkeypatch):
    entries = tuple(
        plugins.Entry("lm", name, "", ":", (), {}, {}, "me") for name in ("b", "a10", "a9")
    )
    monkeypatch.setattr(registry, "entries", lambda: entries)
    assert zoo.list() == ["a9", "a10", "b"]


def test_listing_imports_no_framework():
    code = (
        "import sys; from returnn_common import zoo; zoo.list('*', kind='encoder');"
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
        (lambda: zoo.get("confromer"), ValueError, "'confromer'; did you mean 'conformer' or"),
        (lambda: zoo.get("zzz"), ValueError, "'zzz'; valid are: conformer, conformer_block"),
        (
            lambda: zoo.get("conformer", numlayers=3),
            TypeError,
            "conformer has no option 'numlayers'; did you mean 'num_layers'?.*dropout",
        ),
        (lambda: zoo.list(kind="encodr"), ValueError, "no kind 'encodr'; did you mean 'encoder'"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


class Plugin:
    """A registration module."""

    def __init__(self, **changes):
        record = {
            "kind": "encoder",
            "name": "mine",
            "summary": "x",
            "target": "m:make_mine",
            "backends": ["torch"],
            "tiny": {},
            "vary": {},
        }
        record = {**record, **changes}
        self.record = {key: value for key, value in record.items() if value is not None}

    @plugins.hookspecs.hookimpl
    def returnn_common_entries(self):
        return [self.record]


def test_collect_through_the_hook():
    (first, second) = plugins.collect({"a": Plugin(), "b": Plugin(name="other")})
    assert (first.full_name, second.full_name) == ("a/mine", "b/other")
    assert first.backends == ("torch",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tiny": None}, "a: a record has the keys .* expected .*tiny"),
        ({"colour": "red"}, "a: a record has the keys .*colour"),
        ({"kind": "encoders"}, "a/mine: kind 'encoders' is none of .*encoder"),
        ({"backends": ["jax"]}, "a/mine: backend 'jax' is none of"),
    ],
)
def test_malformed_record(changes, message):
    with pytest.raises(ValueError, match=message):
        plugins.collect({"a": Plugin(**changes)})
