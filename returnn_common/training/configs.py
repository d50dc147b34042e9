"""
Declared stages as a RETURNN config: a plain one where RETURNN's own loop does the same, else one that needs this
package.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import returnn.frontend as rf
from returnn.tensor import Dim

from ..hints import valid_names
from ..nn import _returnn
from ..nn._backend import LayersBackend
from ..nn._emit import Variable
from ..nn._graph import layer
from ..nn._stage import SCALARS, STORED, Stage
from ..nn._text import Dims, array_imports, code
from ..nn.lowering import as_templates, options_of
from ..nn.stages import EpochLoop, Stages, declared
from ._initial import initial_of
from .running import checked, run
from .session import Session

_TEMPLATE = '''#!returnn.py
"""RETURNN config of declared stages, made by returnn_common, which it needs: python -m returnn FILE"""

{imports}from {package} import training

use_tensorflow = True
behavior_version = {behavior_version}
task = "config:run"


{functions}


{settings}


def run():
    training.run_config(globals())
'''


def to_config(model: rf.Module, stages: Stages | None = None, /, **settings: Any) -> str:
    """
    The config text of what was declared, the same bytes every time.

    For one loop over the batches of a dataset, with update and with nothing else in the epoch, it is a plain config
    that runs with RETURNN alone. All else has ``task = "config:run"``, which needs this package: there ``optimizer``,
    ``learning_rate`` and ``random_seed`` mean what they mean for a :class:`Session`, and ``model`` is the folder of
    the checkpoints.

    :param stages: by default what was declared last
    :param settings: RETURNN's options
    :raises ValueError: data of a step loop are no dataset, and have no config form; or a setting would do nothing
    """
    stages = checked(stages or declared(), "training.to_config")
    if not is_plain(stages):
        _check_settings(settings)
        return _own_text(model, stages, settings)
    (loop,), (stage,) = stages.loops, stages.all
    declared_here = {"num_epochs": loop.num_epochs, "train": _data_opts(stage)}
    said = {name: value for name, value in declared_here.items() if value is not None}
    return stage.lowered(model).config_text(**{**said, **settings})


#: What ``run_config`` reads, and what RETURNN reads before it calls that.
_READ = (
    "batch_size",
    "learning_rate",
    "max_seqs",
    "model",
    "num_epochs",
    "optimizer",
    "random_seed",
    "train",
)
_OF_THE_PROCESS = ("device", "log", "log_verbosity", "tf_session_opts")


def _check_settings(settings: Mapping[str, Any]) -> None:
    """ValueError for a setting that would do nothing"""
    known = (*_READ, *_OF_THE_PROCESS)
    for name in settings:
        if name not in known:
            raise ValueError(
                f"training.to_config: these stages run in a loop of this package, which does not read "
                f"{name!r}{valid_names(name, known)}"
            )


def is_plain(stages: Stages) -> bool:
    """whether RETURNN's own loop does the same"""
    if len(stages.all) != 1:
        return False
    (stage,) = stages.all
    others = [*stage.stored, *stage.loaded, *(name for name in stage.templates if name in SCALARS)]
    return stage.update is True and not others


def _data_opts(stage: Stage) -> Mapping[str, Any] | None:
    """options of the dataset, None where none is given; ValueError for data without a config form"""
    data = stage.data
    if data is None or isinstance(data, Mapping):
        return data
    opts = getattr(data, "opts", None)
    if not isinstance(opts, Mapping):
        raise ValueError(
            f"{stage.line}the data of this step loop are a {type(data).__name__}, which has no config form; "
            f"give the part of a dataset, or the options of a RETURNN dataset"
        )
    return opts


# --- writing


def _own_text(model: rf.Module, stages: Stages, settings: Mapping[str, Any]) -> str:
    dims = Dims(set())
    names = {stage: f"stage_{i}" for i, stage in enumerate(stages.all, start=1)}
    described = {
        "modules": _modules(model),
        "parameters": {path: _parameter(param) for path, param in model.named_parameters()},
        "init": None if stages.init is None else _described(stages.init, names, model),
        "epoch_loops": [
            {
                "num_epochs": loop.num_epochs,
                "parts": [_described(part, names, model) for part in loop.parts],
            }
            for loop in stages.loops
        ],
    }
    values = {**settings, "declared": described}
    text = "\n\n".join(f"{name} = {code(value, dims)}" for name, value in values.items())
    if dims.lines:
        raise ValueError("training.to_config: settings cannot hold dims")
    return _TEMPLATE.format(
        imports="".join(f"{line}\n" for line in array_imports(text)),
        package=__package__.rpartition(".")[0],
        behavior_version=_returnn.BEHAVIOR_VERSION,
        functions="\n\n\n".join(_function(names[stage], stage, model) for stage in names),
        settings=text,
    )


def _function(name: str, stage: Stage, model: rf.Module) -> str:
    """the config of a stage as a function, so that its names and dims are its own"""
    _, _, text = stage.lowered(model).config_text().partition("\n\n")
    body = textwrap.indent(text.strip("\n"), "    ", lambda line: line.strip() != "")
    return f'def {name}():\n    """{stage.name}"""\n{body}\n    return locals()'


def _described(stage: Stage, names: Mapping[Stage, str], model: rf.Module) -> dict[str, Any]:
    lowered = stage.lowered(model)
    return {
        "kind": stage.kind,
        "name": stage.name,
        "net": names[stage],
        "data": _data_opts(stage),
        "update": stage.update if isinstance(stage.update, (bool, str)) else list(stage.update),
        "losses": stage.loss_names,
        "stored": list(stage.stored),
        "variables": {
            variable.path: [variable.name, list(variable.axes)]
            for variable in lowered.parameters.values()
        },
    }


def _modules(model: rf.Module) -> dict[str, str]:
    """the kinds of modules that RF has, by path"""
    kinds = {path: _kind(module) for path, module in model.named_modules()}
    return {path: kind for path, kind in kinds.items() if kind != "Module"}


def _kind(module: rf.Module) -> str:
    known = (cls for cls in type(module).__mro__ if getattr(rf, cls.__name__, None) is cls)
    return next(known, rf.Module).__name__


def _parameter(param: rf.Parameter) -> dict[str, Any]:
    options: dict[str, Any] = {
        "shape": [dim.dimension for dim in param.dims],
        "dtype": param.dtype,
        "initial": initial_of(param),
    }
    if param.trainable is not None:
        options["trainable"] = param.trainable
    if param.auxiliary:
        options["auxiliary"] = True
    if param.weight_decay:
        options["weight_decay"] = param.weight_decay
    return options


# --- reading


def run_config(config: Mapping[str, Any]) -> None:
    """run a config that :func:`to_config` wrote: its ``run()`` calls this with all that it defines"""
    described, stages = config["declared"], Stages()
    if described["init"]:
        stages.init = _restored(described["init"], config, stages)
    for opts in described["epoch_loops"]:
        loop = EpochLoop(opts["num_epochs"], stages, line="")
        loop.parts = [_restored(part, config, stages) for part in opts["parts"]]
        stages.loops.append(loop)
    options = {"optimizer": "optimizer", "learning_rate": "learning_rate", "seed": "random_seed"}
    session = Session(
        _model(described["modules"], described["parameters"]),
        extern_data=stages.templates,
        **{ours: config[name] for ours, name in options.items() if name in config},
    )
    with session:
        run(session, config.get("model", "checkpoints"), stages=stages)


def _model(modules: Mapping[str, str], parameters: Mapping[str, Mapping[str, Any]]) -> rf.Module:
    """modules without their code, with the same parameters"""
    tree: dict[str, rf.Module] = {"": _module(modules.get("", "Module"))}

    def at(path: str) -> rf.Module:
        if path not in tree:
            tree[path] = _module(modules.get(path, "Module"))
            parent, _, name = path.rpartition(".")
            setattr(at(parent), name, tree[path])
        return tree[path]

    for path, opts in parameters.items():
        parent, _, name = path.rpartition(".")
        setattr(at(parent), name, _restored_parameter(**opts))
    return tree[""]


def _module(kind: str) -> rf.Module:
    cls = getattr(rf, kind)
    return cls.__new__(cls)


def _restored_parameter(
    shape: Iterable[int],
    dtype: str,
    initial: Any,
    trainable: bool | None = None,
    auxiliary: bool = False,
    weight_decay: float = 0.0,
) -> rf.Parameter:
    dims = [Dim(size, name=f"axis{i}") for i, size in enumerate(shape)]
    with _returnn.selected(LayersBackend):
        param = rf.Parameter(dims, dtype, trainable=trainable, auxiliary=auxiliary)
        if isinstance(initial, Mapping):
            initial = layer("random", {**initial, "shape": dims}, dims=dims, dtype=dtype)
        param.initial = initial
    param.weight_decay = weight_decay
    return param


class _Lowered:
    """What a session needs of a lowered stage, from a config."""

    task = "train"

    def __init__(self, make: Any, opts: Mapping[str, Any]):
        self.make = make
        self.parameters = {
            path: Variable(path, name, tuple(axes))
            for path, (name, axes) in opts["variables"].items()
        }
        self.outputs = [STORED + name for name in opts["stored"]]
        self.network = self.config()["network"]

    def config(self) -> dict[str, Any]:
        """with dims of its own"""
        return options_of(self.make)


class _RestoredStage(Stage):
    restored: _Lowered

    def lowered(self, model: rf.Module) -> Any:
        return self.restored


def _restored(opts: Mapping[str, Any], config: Mapping[str, Any], stages: Stages) -> Stage:
    stage = _RestoredStage(opts["kind"], stages, line="")
    stage.name, stage.data, stage.update = opts["name"], opts["data"], opts["update"]
    stage.loss_names = list(opts["losses"])
    stage.restored = _Lowered(config[opts["net"]], opts)
    stage.templates = as_templates(stage.restored.config()["extern_data"])
    stage.stored = {name: stage.templates.get(STORED + name) for name in opts["stored"]}
    stage.loaded = {
        name[len(STORED) :]: tensor
        for name, tensor in stage.templates.items()
        if name.startswith(STORED)
    }
    return stage


__all__ = ["run_config", "to_config"]
