"""
The package as a whole: lazy parts, command line, metadata, style.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import returnn_common
from returnn_common import cli, demo, zoo_commands

ROOT = Path(__file__).parent.parent

# Where a distribution has another name than the module it provides.
DISTRIBUTIONS = {"espeakng_loader": "espeakng-loader", "tree": "dm-tree"}


def test_parts_are_modules():
    from returnn_common import nn, zoo

    assert returnn_common.nn is nn is sys.modules["returnn_common.nn"]
    assert returnn_common.zoo is zoo is sys.modules["returnn_common.zoo"]
    assert {"nn", "zoo", "data", "cli", "__version__"} <= set(dir(returnn_common))


def test_misspelt_part():
    with pytest.raises(AttributeError, match=r"no attribute 'zooo'; did you mean 'zoo'\?"):
        _ = returnn_common.zooo
    with pytest.raises(AttributeError, match=r"no attribute 'qqqqqq'; valid are: .*nn, .*zoo"):
        _ = returnn_common.qqqqqq
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'returnn_common\.qqqqqq'"):
        importlib.import_module("returnn_common.qqqqqq")


def test_error_inside_a_part_is_not_hidden(tmp_path):
    """A part that cannot be imported says why, rather than that it does not exist."""
    package = tmp_path / "broken"
    package.mkdir()
    shutil.copy(ROOT / "returnn_common/__init__.py", package)
    (package / "nn.py").write_text("import missing_library")
    code = "import broken; broken.nn"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "ModuleNotFoundError: No module named 'missing_library'" in result.stderr


def usage_error(capsys, *argv: str) -> str:
    """
    :return: the last line that a wrong usage prints
    """
    with pytest.raises(SystemExit) as error:
        cli.main(argv)
    assert error.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_command_line_usage(capsys):
    misspelt = usage_error(capsys, "dmo")
    assert "there is no command 'dmo'; did you mean 'demo'? valid are: demo, list, " in misspelt
    assert "there is no command 'qqq'; valid are: demo, list, " in usage_error(capsys, "qqq")
    assert usage_error(capsys).endswith("the following arguments are required: COMMAND")
    assert "argument --seed: invalid int value: 'x'" in usage_error(capsys, "demo", "--seed", "x")
    assert "invalid choice: 'jax'" in usage_error(capsys, "demo", "--backend", "jax")


def test_demo_gets_its_options(monkeypatch):
    """Every option of the command reaches `demo.run`, which takes no other ones."""
    given = {}
    signature = inspect.signature(demo.run)
    monkeypatch.setattr(demo, "run", lambda **options: given.update(options))
    assert cli.main(["demo"]) == 0
    assert given == {name: option.default for name, option in signature.parameters.items()}
    argv = ["--data=d", "--out=o", "--backend=torch", "--resume", "--seed=5", "--hold-out=theo"]
    assert cli.main(["demo", *argv]) == 0
    expected = {"data": "d", "out": "o", "backend": "torch", "resume": True, "seed": 5}
    assert given == {**expected, "hold_out": "theo"}


def test_list(capsys):
    assert cli.main(["list"]) == 0
    assert "\nconformer_block " in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"returnn_common {returnn_common.__version__}\n"


def run_with(monkeypatch, error: BaseException | None, raised_by: str) -> int:
    """
    :return: exit code of a command that ends like this; the error comes from a file of this name
    """
    code = compile("def run(args):\n    if error:\n        raise error", raised_by, "exec")
    scope = {"error": error}
    exec(code, scope)
    monkeypatch.setattr(zoo_commands, "_run_list", scope["run"])
    return cli.main(["list"])


OURS = str(Path(cli.__file__).parent / "zoo/some.py")


@pytest.mark.parametrize(
    ("error", "raised_by", "code", "printed"),
    [
        (None, OURS, 0, ""),
        (ValueError("no model 'x'"), OURS, 1, "returnn-common: no model 'x'\n"),
        (FileNotFoundError(2, "No such file", "a.wav"), "/lib/io.py", 1, "'a.wav'\n"),
        (KeyboardInterrupt(), "/lib/tensorflow.py", 130, "returnn-common: interrupted\n"),
    ],
)
def test_errors_end_in_one_line(error, raised_by, code, printed, monkeypatch, capsys):
    assert run_with(monkeypatch, error, raised_by) == code
    captured = capsys.readouterr().err
    assert captured.endswith(printed)
    assert captured.count("\n") <= 1


@pytest.mark.parametrize(
    ("error", "raised_by"),
    [(ValueError("shapes"), "/lib/numpy.py"), (ZeroDivisionError(), OURS)],
)
def test_faults_keep_their_traceback(error, raised_by, monkeypatch):
    with pytest.raises(type(error)):
        run_with(monkeypatch, error, raised_by)


def test_ctrl_c_prints_no_traceback(tmp_path):
    """The console script itself, in its own process."""
    code = (
        "from returnn_common import cli\n"
        "def run(args):\n"
        "    import _thread\n"
        "    _thread.interrupt_main()\n"
        "    for _ in range(10**8): pass\n"
        "cli.zoo_commands._run_list = run\n"
        "raise SystemExit(cli.main(['list']))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (130, "returnn-common: interrupted\n")


def test_reader_that_stops_early():
    command = f"{sys.executable} -m returnn_common list | true"
    result = subprocess.run(
        command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stderr == ""


def metadata(monkeypatch) -> dict:
    """
    :return: what setup.py passes to setuptools
    """
    given: dict = {}
    monkeypatch.setattr("setuptools.setup", lambda **kwargs: given.update(kwargs))
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("setup_of_returnn_common", ROOT / "setup.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return given


def imported_libraries() -> set[str]:
    """
    :return: all modules outside the standard library that the package imports anywhere
    """
    names = set()
    for file in (ROOT / "returnn_common").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names.add(node.module)
    return {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)


def test_imported_libraries_are_required(monkeypatch):
    """Every imported library is required, by the package or by an extra."""
    given = metadata(monkeypatch)
    extras = given["extras_require"]
    lists = (given["install_requires"], extras["demo"], extras["tensorboard"], extras["torch"])
    required = {item.split(">")[0].split("=")[0] for items in lists for item in items}
    imported = {DISTRIBUTIONS.get(name, name) for name in imported_libraries()}
    assert imported - required == set()
    assert {*extras["demo"], *extras["tensorboard"]} <= set(extras["test"])


def test_metadata(monkeypatch):
    given = metadata(monkeypatch)
    assert given["version"] == returnn_common.__version__
    assert "returnn_common.nn" in given["packages"]
    assert not [name for name in given["packages"] if not name.startswith("returnn_common")]


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "--no-cache"),
        ("ruff", "format", "--check", "--no-cache"),
        ("mypy",),
    ],
    ids=" ".join,
)
def test_style_and_types(command):
    result = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
