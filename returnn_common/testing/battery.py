"""
The battery: what every entry of the zoo has to pass, ours and those of plugins.

:func:`check_plugin` runs it over the entries of one package. Each check is a function of :data:`CHECKS`; they share
one :class:`Case`, which builds, lowers and runs the tiny model of an entry once.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from . import backends, kernels, kinds

MAX_ARGUMENTS = 6
TOLERANCE = 1e-4  # between the backends, relative to the largest entry
PADDING_TOLERANCE = 1e-5  # between a sequence alone and in a batch
MAX_LAYERS_PER_BLOCK = 100  # RETURNN's frontend writes about 340 for a conformer block
MAX_LAYERS = 250  # of a tiny model without `num_layers`
STEPS = (0, 1, 7, 1000, 10**6)  # where schedules are evaluated


@dataclass(frozen=True)
class Report:
    """What the battery found out about an entry that has passed."""

    entry: str
    checks: tuple[str, ...]
    num_layers: int = 0
    layers_per_block: int = 0
    parameters: tuple[str, ...] = ()


def check_plugin(owner: str) -> list[Report]:
    """
    Run the battery over all entries of a plugin: for the plugin's own tests.

    :param owner: the distribution, e.g. ``my-package``, or the name of a registered module
    :return: one report for each entry
    :raises ValueError: nobody of this name has entries
    :raises AssertionError: an entry fails; all failures of all entries are listed
    """
    from ..hints import valid_names
    from ..records import canonical
    from ..zoo import registry

    entries = [entry for entry in registry.entries() if canonical(entry.owner) == canonical(owner)]
    if not entries:
        owners = sorted({entry.owner for entry in registry.entries()})
        raise ValueError(
            f"no plugin {owner!r} has entries{valid_names(owner, owners)}"
            f"{registry.hint_of_broken_plugins()}"
        )
    reports, failures = [], []
    for entry in entries:
        try:
            reports.append(check_entry(entry))
        except AssertionError as error:
            failures.append(str(error))
    if failures:
        raise AssertionError("\n".join(failures))
    return reports


def check_entry(entry: Any, *, skip: Sequence[str] = ()) -> Report:
    """
    Run all checks of an entry's kind.

    :param entry: a name, or one of ``zoo.registry.entries()``
    :param skip: names of checks that are left out
    :raises AssertionError: one line for each check that fails, ``owner/name: check: what is wrong``
    """
    from ..zoo import registry

    case = Case(registry.find(entry) if isinstance(entry, str) else entry)
    checks = CHECKS[case.entry.kind] if case.entry.kind in CHECKS else CHECKS["model"]
    checks = tuple(check for check in checks if check.__name__ not in skip)
    failures = []
    for check in checks:
        try:
            check(case)
        except (
            Exception
        ) as error:  # what a block raises is a failure of this check, not of the battery
            text = " ".join(f"{type(error).__name__}: {error}".split())
            failures.append(f"{case.entry.full_name}: {check.__name__}: {text}")
    if failures:
        raise AssertionError("\n".join(failures))
    return case.report(tuple(check.__name__ for check in checks))


class Case:
    """An entry and its tiny model, lowered once and run once, for all checks of it."""

    def __init__(self, entry: Any):
        self.entry = entry

    @functools.cached_property
    def maker(self) -> Callable[..., Any]:
        """the function ``make_...``"""
        from ..zoo import registry

        return registry.load(self.entry)

    @functools.cached_property
    def arguments(self) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(self.maker).parameters)

    def make(self, **options: Any) -> Any:
        """a tiny one, with these options instead of some of the tiny ones"""
        given = {name: _value(v) for name, v in {**self.entry.tiny, **options}.items()}
        if "encoder" in self.arguments and "encoder" not in given:
            given["encoder"] = tiny_encoder(given.get("in_dim", self.default("in_dim")))
        return self.maker(**given)

    def default(self, name: str) -> Any:
        return self.arguments[name].default if name in self.arguments else None

    @functools.cached_property
    def model(self) -> Any:
        return self.make()

    @functools.cached_property
    def extern_data(self) -> dict[str, Any]:
        return kinds.inputs(self.entry.kind, self.model)

    @functools.cached_property
    def batch(self) -> dict[str, numpy.ndarray]:
        return kinds.batch(self.extern_data)

    @functools.cached_property
    def step(self) -> Callable[..., None]:
        return kinds.step_of(self.entry.kind)

    @functools.cached_property
    def lowered(self) -> Any:
        from .. import nn

        return nn.lower(self.model, self.step, self.extern_data)

    def lower(self, **options: Any) -> Any:
        """another tiny one, lowered"""
        from .. import nn

        model = self.make(**options)
        return nn.lower(model, self.step, kinds.inputs(self.entry.kind, model))

    @functools.cached_property
    def parameters(self) -> dict[str, numpy.ndarray]:
        return backends.random_parameters(self.model)

    @functools.cached_property
    def results(self) -> list[backends.Result]:
        """on layers: of the whole batch, with gradients, then of each sequence alone; one session"""
        batches = [self.batch, *(kinds.alone(self.batch, i) for i in range(len(kinds.LABELS)))]
        return backends.run_losses_on_layers(self.lowered, batches, parameters=self.parameters)

    def run_torch(self, step: Callable[..., None], **options: Any) -> backends.Result:
        """the same batch on torch, with the same parameters"""
        with backends.torch_backend():
            model = self.make()  # with dims of its own
        data = kinds.inputs(self.entry.kind, model)
        options = {"parameters": self.parameters, **options}
        return backends.run_torch(lambda: model, step, data, self.batch, **options)

    @functools.cached_property
    def layers_per_block(self) -> int:
        """layers that one more block adds; all of them where the entry has no `num_layers`"""
        if "num_layers" not in self.arguments:
            return len(self.lowered.network)
        number = self.entry.tiny.get("num_layers", self.default("num_layers"))
        more = self.lower(num_layers=number + 1)
        return len(more.network) - len(self.lowered.network)

    def report(self, checks: tuple[str, ...]) -> Report:
        """what was found out"""
        if self.entry.kind not in kinds.KINDS:
            return Report(self.entry.full_name, checks)
        return Report(
            self.entry.full_name,
            checks,
            num_layers=len(self.lowered.network),
            layers_per_block=self.layers_per_block,
            parameters=tuple(parameter_names(self.model)),
        )


def tiny_encoder(in_dim: Any) -> Any:
    """an encoder for an entry that takes one and has none in its tiny options"""
    from .. import zoo

    return zoo.get("linear_subsampling", in_dim=in_dim, out_dim=8)


def _value(value: Any) -> Any:
    """in a record, ``"module:name"`` stands for what cannot be written there, e.g. a class"""
    if isinstance(value, str) and re.fullmatch(r"[\w.]+:\w+", value):
        module, _, name = value.partition(":")
        return getattr(importlib.import_module(module), name)
    return value


def parameter_names(model: Any) -> list[str]:
    """:return: path and sizes of each parameter, ``output.weight [8, 5]``"""
    return [
        f"{path} {[dim.dimension for dim in param.dims]}"
        for path, param in sorted(model.named_parameters())
    ]


# --- checks of all kinds


def arguments_are_documented(case: Case) -> None:
    """At most six arguments, all with defaults, and all in the docstring."""
    names = list(case.arguments)
    assert len(names) <= MAX_ARGUMENTS, f"{len(names)} arguments, at most {MAX_ARGUMENTS}"
    text = inspect.getdoc(case.maker) or ""
    documented = {
        n.strip() for line in re.findall(r":param ([^:]+):", text) for n in line.split(",")
    }
    missing = [name for name in names if name not in documented]
    assert not missing, f"the docstring has no :param for {', '.join(missing)}"
    required = [n for n, p in case.arguments.items() if p.default is p.empty]
    assert not required, f"no default for {', '.join(required)}"


def options_are_arguments(case: Case) -> None:
    """`tiny` and `vary` name arguments of the maker; `vary` names all of them."""
    for what in ("tiny", "vary"):
        unknown = set(getattr(case.entry, what)) - set(case.arguments)
        assert not unknown, f"{what} has {sorted(unknown)}, which are no arguments"
    left = set(case.arguments) - set(case.entry.vary) - {"encoder"}
    assert not left, f"vary lacks {sorted(left)}"


def builds_with_defaults(case: Case) -> None:
    """Called without arguments, the maker gives an object."""
    assert case.maker() is not None, "the maker returns None"


# --- checks of models


def lowers_the_same_each_time(case: Case) -> None:
    """Two tiny ones have the same parameters, and the same config to the byte."""
    again = case.lower()
    assert parameter_names(case.make()) == parameter_names(case.model), "parameters differ"
    assert again.config_text() == case.lowered.config_text(), "config texts differ"


def every_option_arrives(case: Case) -> None:
    """The `vary` value of each argument changes the config."""
    before = case.lowered.config_text()
    for name, value in case.entry.vary.items():
        assert case.lower(**{name: value}).config_text() != before, (
            f"{name}={value!r} changes nothing in the lowered network"
        )


def layers_equal_torch(case: Case) -> None:
    """With the same parameters, both backends give the same losses per frame, and gradients."""
    if "torch" not in case.entry.backends:
        return
    torch = case.run_torch(case.step, gradients=True)
    layers = case.results[0]
    assert set(layers.rows) == set(torch.rows), f"losses {set(layers.rows)}, {set(torch.rows)}"
    for name, rows in torch.rows.items():
        for i, (ours, theirs) in enumerate(zip(layers.rows[name], rows, strict=True)):
            backends.assert_close(f"{name} of sequence {i}", ours, theirs, TOLERANCE)
    assert set(layers.gradients) == set(torch.gradients), "other parameters have gradients"
    for path, gradient in torch.gradients.items():
        backends.assert_close(f"gradient of {path}", layers.gradients[path], gradient, TOLERANCE)


def padding_changes_nothing(case: Case) -> None:
    """Each sequence alone gives what it gives in a padded batch."""
    batch, *single = case.results
    for name, rows in batch.rows.items():
        for i, (row, result) in enumerate(zip(rows, single, strict=True)):
            what = f"{name} of sequence {i} in a batch and alone"
            backends.assert_close(what, row, result.rows[name][0], PADDING_TOLERANCE)


def steps_equal_the_whole(case: Case) -> None:
    """A decoder or LM called label by label gives what it gives for the whole sequence (on torch)."""
    if case.entry.kind not in ("decoder", "lm") or "torch" not in case.entry.backends:
        return
    compared = []

    def step(*, model: Any, extern_data: Any, **_: Any) -> None:
        whole, spatial_dim = kinds.whole_sequence(case.entry.kind, model, extern_data)
        outs = kinds.step_by_step(case.entry.kind, model, extern_data)
        for i, out in enumerate(outs):
            expected = nn.gather(whole, indices=i, axis=spatial_dim).copy_transpose(out.dims)
            compared.append((out.raw_tensor.numpy(), expected.raw_tensor.numpy()))
        whole.mark_as_output("out")

    from .. import nn

    case.run_torch(step, task="forward")
    for i, (out, expected) in enumerate(compared):
        inside = numpy.array(kinds.LABELS) > i
        backends.assert_close(f"step {i}", out[inside], expected[inside], PADDING_TOLERANCE)


def has_gpu_kernels(case: Case) -> None:
    """All ops of the training graph, with gradients, have a kernel for GPUs; told without one."""
    problems = kernels.without_gpu_kernel(backends.training_graph(case.lowered))
    assert not problems, "; ".join(problems[:5])


def can_be_copied(case: Case) -> None:
    """`returnn-common copy` finds the source of the entry, and of all that it needs."""
    from .. import copying

    with tempfile.TemporaryDirectory() as folder:
        changes = copying.copy(case.entry.full_name, Path(folder) / "models", dry_run=True)
    assert changes, "there is nothing to copy"
    for change in changes:
        compile(change.new, change.path, "exec")


def is_compact(case: Case) -> None:
    """One more block adds some layers, but not many; so does a model without blocks have."""
    most = MAX_LAYERS_PER_BLOCK if "num_layers" in case.arguments else MAX_LAYERS
    assert 0 < case.layers_per_block <= most, f"{case.layers_per_block} layers, at most {most}"


# --- checks of other kinds


def schedule_gives_rates(case: Case) -> None:
    """For every epoch and step a schedule gives a finite float >= 0, the same each time."""
    schedule, again = case.make(), case.make()
    for epoch in (1, 2, 100):
        for step in STEPS:
            rate = schedule(epoch, step)
            assert isinstance(rate, float) and math.isfinite(rate) and rate >= 0, (
                f"{rate!r} in epoch {epoch}, step {step}"
            )
            assert rate == again(epoch, step), "two schedules differ"


def every_option_changes_the_schedule(case: Case) -> None:
    """The `vary` value of each argument changes some rate."""
    points = [(epoch, step) for epoch in range(1, 30) for step in range(0, 300, 3)]
    before = [case.make()(*point) for point in points]
    for name, value in case.entry.vary.items():
        other = case.make(**{name: value})
        assert [other(*point) for point in points] != before, f"{name}={value!r} changes nothing"


def vocabulary_maps_text(case: Case) -> None:
    """Labels are distinct, text comes back from its indices, RETURNN gets its options."""
    vocab = case.make()
    assert len(set(vocab.labels)) == vocab.size == len(vocab.labels), "labels are not distinct"
    plain = [i for i, label in enumerate(vocab.labels) if label.isascii() and label.isalpha()][:20]
    text = vocab.decode(plain)
    letters = "".join(vocab.labels[i] for i in plain)
    assert letters and "".join(text.split()) == letters, f"{letters!r} gives {text!r}"
    indices = vocab.encode(text)
    assert all(0 <= index < vocab.size for index in indices), f"{text!r}: {indices}"
    assert vocab.decode(indices) == text, f"{text!r} gives {vocab.decode(indices)!r}"
    assert vocab.opts == case.make().opts, "two vocabularies differ"


def dataset_describes_its_data(case: Case) -> None:
    """Without its files: `extern_data` has all keys, the same dims each time, labels of the vocabulary."""
    dataset = case.make()
    data, again = dataset.extern_data, dataset.extern_data
    assert set(data) == set(dataset.keys), f"extern_data {set(data)}, keys {set(dataset.keys)}"
    for key, tensor in data.items():
        assert tensor.dims == again[key].dims, f"{key} has other dims each time"
        if tensor.sparse_dim is not None:
            assert tensor.sparse_dim.dimension == dataset.vocab.size, f"{key}: {tensor.sparse_dim}"


ALL_KINDS = (arguments_are_documented, options_are_arguments)

#: The checks by kind; ``model`` stands for all kinds that have none of their own.
CHECKS: dict[str, tuple[Callable[[Case], None], ...]] = {
    "model": (
        *ALL_KINDS,
        builds_with_defaults,
        lowers_the_same_each_time,
        every_option_arrives,
        layers_equal_torch,
        padding_changes_nothing,
        steps_equal_the_whole,
        has_gpu_kernels,
        is_compact,
        can_be_copied,
    ),
    "schedule": (
        *ALL_KINDS,
        builds_with_defaults,
        schedule_gives_rates,
        every_option_changes_the_schedule,
        can_be_copied,
    ),
    "dataset": (*ALL_KINDS, builds_with_defaults, dataset_describes_its_data, can_be_copied),
    "vocab": (*ALL_KINDS, builds_with_defaults, vocabulary_maps_text, can_be_copied),
}
