"""
Every way in which people get at the package, each in an environment where it was not before.

The fresh environments see the libraries of the running one, but not its returnn_common.
Nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
REPO = "github.com/someone/returnn_common"

# What each way in must allow: `name` is the package's name there, `home` the folder where it lies.
CHECK = """
import importlib, os, sys
name, home = sys.argv[1:]
package = importlib.import_module(name)
file = os.path.realpath(package.__file__)
assert file.startswith(os.path.realpath(home) + os.sep), file
nn = importlib.import_module(name + ".nn")
zoo = importlib.import_module(name + ".zoo")
assert package.nn is nn and package.zoo is zoo
assert nn.__name__ == name + ".nn"
assert nn.FeatureDim("hidden", 7).dimension == 7
assert "conformer" in zoo.list()
makers = [zoo.registry.load(entry) for entry in zoo.registry.entries()]
homes = tuple(f"{name}.{part}." for part in ("zoo", "data"))
assert all(maker.__module__.startswith(homes) for maker in makers), makers
assert package.__version__
modules = [m for n, m in sys.modules.items() if n == name or n.startswith(name + ".")]
files = [m.__file__ for m in modules]
twice = {f for f in files if files.count(f) > 1}
assert not twice, twice
if name != "returnn_common":
    assert "returnn_common" not in sys.modules
print("good")
"""


# Lowers a model with the module `nn`: for the ways in where it may depend on the way.
LOWER = """
def lower(nn):
    time_dim, dim, hidden = nn.SpatialDim("time"), nn.FeatureDim("in", 3), nn.FeatureDim("hidden", 5)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(dim, hidden)

    def step(*, model, extern_data, **_):
        out = nn.dropout(model.linear(extern_data["data"]), dropout=0.1, axis=nn.any_feature_dim)
        nn.reduce_mean(nn.square(out), axis=hidden).mark_as_loss()

    data = nn.Tensor("data", [nn.batch_dim, time_dim, dim], "float32")
    return nn.lower(Model(), step, {"data": data}).config_text(num_epochs=7)
"""


def run(*command: str | Path, cwd: Path, **env: str | Path) -> str:
    """
    :return: what the command printed; fails with all its output where the command fails
    """
    settings = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    settings.update({key: str(value) for key, value in env.items()})
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def git(*args: str | Path, cwd: Path) -> str:
    identity = ("-c", "user.name=someone", "-c", "user.email=someone@example.org")
    return run("git", *identity, *args, cwd=cwd).strip()


def check(
    python: Path | str, *, cwd: Path, home: Path, name: str = "returnn_common", **env
) -> None:
    cwd.mkdir(exist_ok=True)
    assert run(python, "-c", CHECK, name, home, cwd=cwd, **env).splitlines()[-1] == "good"


@pytest.fixture(scope="session")
def checkout(tmp_path_factory) -> Path:
    """
    :return: a git repository with one commit: the files of this working tree that are not ignored
    """
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a checkout")
    folder = tmp_path_factory.mktemp("checkout")
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    git("init", "-q", cwd=folder)
    git("add", "--all", cwd=folder)
    git("commit", "-q", "-m", "one", cwd=folder)
    return folder


@pytest.fixture(scope="session")
def archives(checkout, tmp_path_factory) -> tuple[Path, Path]:
    """
    :return: sdist, and the wheel that was built from this sdist
    """
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "-q", "--no-isolation", "-o", folder, checkout, cwd=folder)
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture
def python(tmp_path) -> Path:
    """
    :return: the interpreter of a fresh environment: our libraries, but no returnn_common
    """
    run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=tmp_path)
    (site_packages,) = tmp_path.glob("env/lib/python*/site-packages")
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    # These come last, and *.pth files there are not read: no editable install shines through.
    (site_packages / "libraries.pth").write_text("\n".join(sorted(paths)) + "\n")
    return tmp_path / "env/bin/python"


def install(python: Path, *what: str | Path) -> Path:
    """
    Installs into the fresh environment, without its dependencies.

    :return: site-packages there
    """
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--ignore-installed")
    pip = (sys.executable, "-m", "pip", "-q", "--python", python, "install", *options)
    run(*pip, *what, cwd=python.parent)
    (site_packages,) = python.parent.parent.glob("lib/python*/site-packages")
    return site_packages


def test_wheel(archives, python, tmp_path):
    site_packages = install(python, archives[1])
    check(python, cwd=tmp_path / "empty", home=site_packages)
    code = LOWER + "from returnn_common import nn; print(lower(nn))"
    assert '"class": "linear"' in run(python, "-c", code, cwd=tmp_path)
    script = python.parent / "returnn-common"
    assert run(script, "--version", cwd=tmp_path).startswith("returnn_common ")


def test_sdist(archives, python, tmp_path):
    site_packages = install(python, archives[0])
    check(python, cwd=tmp_path / "empty", home=site_packages)


def test_editable(checkout, python, tmp_path):
    git("clone", "-q", checkout, tmp_path / "clone", cwd=tmp_path)
    install(python, "-e", tmp_path / "clone")
    check(python, cwd=tmp_path / "empty", home=tmp_path / "clone/returnn_common")
    # A change is seen without another installation, and no module is found beside the package.
    init = tmp_path / "clone/returnn_common/__init__.py"
    init.write_text(init.read_text() + "\nchanged = 5\n")
    code = (
        "import returnn_common, sys\n"
        "print(returnn_common.changed, any('clone' in path for path in sys.path))\n"
    )
    assert run(python, "-c", code, cwd=tmp_path / "empty").split() == ["5", "False"]


def test_wheel_contents(archives):
    with zipfile.ZipFile(archives[1]) as wheel:
        names = wheel.namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"returnn_common"}
    assert {"returnn_common/py.typed", "returnn_common/nn/__init__.py"} <= set(names)
    assert any(name.endswith("/LICENSE") for name in names)


def test_sdist_contents(archives, checkout):
    """All that a wheel and the tests need is in the source archive."""
    with tarfile.open(archives[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    tracked = git("ls-files", cwd=checkout).splitlines()
    left_out = {name for name in tracked if name not in names}
    assert left_out == {".gitignore"}


def test_vocabularies_are_in_the_wheel(checkout, tmp_path):
    """The folder vocabs/ of the checkout becomes returnn_common/vocabs."""
    clone = tmp_path / "clone"
    git("clone", "-q", checkout, clone, cwd=tmp_path)
    (clone / "vocabs/english").mkdir(parents=True, exist_ok=True)
    (clone / "vocabs/english/bpe.model").write_bytes(b"seven")
    out = tmp_path / "dist"
    run(sys.executable, "-m", "build", "-q", "--no-isolation", "-o", out, clone, cwd=tmp_path)
    (archive,) = out.glob("*.whl")
    with zipfile.ZipFile(archive) as wheel:
        assert wheel.read("returnn_common/vocabs/english/bpe.model") == b"seven"


def test_recipe_folder(checkout, python, tmp_path):
    """As for Sisyphus: a clone as recipe/returnn_common, and only recipe/ on the path."""
    recipe = tmp_path / "recipe"
    git("clone", "-q", checkout, recipe / "returnn_common", cwd=tmp_path)
    home = recipe / "returnn_common/returnn_common"
    check(python, cwd=tmp_path / "empty", home=home, PYTHONPATH=recipe)
    code = (
        "from returnn_common import nn, zoo\n"
        "import returnn_common.nn, returnn_common.test\n"
        "assert returnn_common.nn is nn\n"
        "try:\n"
        "    import returnn_common.returnn_common\n"
        "except ModuleNotFoundError:\n"
        "    print(returnn_common.test.hello())\n"
    )
    assert run(python, "-c", code, cwd=tmp_path, PYTHONPATH=recipe) == "hello world\n"
    assert "demo" in run(python, "-m", "returnn_common", "-h", cwd=tmp_path, PYTHONPATH=recipe)


def test_recipe_folder_inside_another_package(checkout, python, tmp_path):
    git("clone", "-q", checkout, tmp_path / "project/recipe/returnn_common", cwd=tmp_path)
    (tmp_path / "project/recipe/__init__.py").touch()
    home = tmp_path / "project/recipe/returnn_common/returnn_common"
    env = {"PYTHONPATH": tmp_path / "project"}
    check(python, cwd=tmp_path / "empty", home=home, name="recipe.returnn_common", **env)


def test_copy_under_another_name(checkout, python, tmp_path):
    shutil.copytree(checkout / "returnn_common", tmp_path / "setup/my_models")
    env = {"PYTHONPATH": tmp_path / "setup"}
    check(python, cwd=tmp_path / "empty", home=tmp_path / "setup", name="my_models", **env)


@pytest.fixture
def returnn_packages(checkout, tmp_path) -> dict[str, str | Path]:
    """
    :return: environment for RETURNN's `import_`, with a clone of our repository
    """
    folder = tmp_path / "pkg"
    git("clone", "-q", checkout, folder / REPO, cwd=tmp_path)
    return {"RETURNN_PKG_PATH": folder, "RETURNN_PKG_IMPORT_PATH": tmp_path / "pkg_import"}


def make_version(repo: Path, version: str) -> str:
    """
    Commits a change of `__version__`, and of what `test.hello` says.

    :return: the name of this version for `import_`, like "20261231-0123abcd0123"
    """
    init = repo / "returnn_common/__init__.py"
    init.write_text(init.read_text() + f"\n__version__ = {version!r}\n")
    (repo / "test.py").write_text(f"def hello():\n    return 'hello {version}'\n")
    git("commit", "-q", "-a", "-m", version, cwd=repo)
    return git("log", "-1", "--date=format:%Y%m%d", "--format=%cd-%h", "--abbrev=12", cwd=repo)


def test_returnn_import(python, returnn_packages, tmp_path):
    code = f"""
from returnn.import_ import import_
package = import_({REPO!r}, ".", None)
test = import_({REPO!r}, "test.py", None)
assert package.test is test
assert import_({REPO!r}, "nn", None) is package.nn
from returnn_import.github_com.someone.returnn_common.dev import nn, zoo
assert nn is package.nn and zoo is package.zoo
print(package.__name__, test.hello())
"""
    name = "returnn_import.github_com.someone.returnn_common.dev"
    printed = run(python, "-c", code, cwd=tmp_path, **returnn_packages)
    assert printed.splitlines()[-1] == f"{name} hello world"
    home = returnn_packages["RETURNN_PKG_PATH"] / REPO
    env = {**returnn_packages, "PYTHONPATH": returnn_packages["RETURNN_PKG_IMPORT_PATH"]}
    register = f"from returnn.import_ import import_; import_({REPO!r}, '.', None)\n"
    assert "good" in run(python, "-c", register + CHECK, name, home, cwd=tmp_path, **env)


def test_returnn_import_of_two_versions(python, returnn_packages, tmp_path):
    """Two versions in one process: each keeps its own modules, and a working copy is a third."""
    repo = returnn_packages["RETURNN_PKG_PATH"] / REPO
    versions = [make_version(repo, version) for version in ("3", "5")]
    code = f"""{LOWER}
import sys
from returnn.import_ import import_
one, two = [import_({REPO!r}, ".", version) for version in {versions!r}]
live = import_({REPO!r}, ".", None)
assert [p.__version__ for p in (one, two, live)] == ["3", "5", "5"]
assert [p.test.hello() for p in (one, two, live)] == ["hello 3", "hello 5", "hello 5"]
assert len({{id(p.nn) for p in (one, two, live)}}) == 3
assert len({{id(p.zoo) for p in (one, two, live)}}) == 3
for package in (one, two, live):
    names = [name for name in sys.modules if name.startswith(package.__name__ + ".")]
    folder = package.__path__[0]
    inner = [n for n in names if n != package.test.__name__]
    assert len(inner) >= 2 and all(sys.modules[n].__file__.startswith(folder) for n in inner)
texts = [lower(package.nn) for package in (one, two, one, live, two)]
assert len(set(texts)) == 1 and '"class": "linear"' in texts[0], texts
print(import_({REPO!r}, "test.py", {versions[0]!r}).hello())
"""
    assert run(python, "-c", code, cwd=tmp_path, **returnn_packages).splitlines()[-1] == "hello 3"
