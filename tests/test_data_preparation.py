"""
Preparing LibriSpeech from small made-up folders: the same bytes, whatever happens on the way, and what is said
about everything that can be wrong.
"""

from __future__ import annotations

import hashlib
import io
import os
import resource
import shutil
import signal
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import numpy
import pytest

from returnn_common import cli
from returnn_common.data import preparation
from returnn_common.data.archives import read_entries, read_facts
from returnn_common.data.checking import check
from returnn_common.data.librispeech_preparation import prepare_librispeech
from returnn_common.data.spoken_digits import DigitStrings, prepare_digits

soundfile = pytest.importorskip("soundfile")

TEXTS = {
    "12-34-0000": "ONE TWO",
    "12-34-0001": "IT'S THREE",
    "12-35-0000": "FOUR",
    "7-1-0000": "FIVE SIX SEVEN",
}


def audio_of(name: str, seconds: float = 0.2, rate: int = 16_000) -> numpy.ndarray:
    rng = numpy.random.RandomState(int(name.replace("-", "")))
    return (rng.uniform(-0.5, 0.5, round(seconds * rate)) * 2**15).astype("int16")


def folder_of(corpus: Path, name: str, part: str = "dev-clean") -> Path:
    speaker, chapter, _ = name.split("-")
    return corpus / part / speaker / chapter


def write_corpus(corpus: Path, texts=None, *, part="dev-clean", ending="flac") -> Path:
    """:return: `corpus`, the folder LibriSpeech with one part"""
    for name, text in (TEXTS if texts is None else texts).items():
        folder = folder_of(corpus, name, part)
        folder.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / f"{name}.{ending}", audio_of(name), 16_000)
        speaker, chapter, _ = name.split("-")
        with open(folder / f"{speaker}-{chapter}.trans.txt", "a") as file:
            file.write(f"{name} {text}\n")
    return corpus


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "LibriSpeech")


def prepare(corpus, to, **options):
    return prepare_librispeech([corpus], to, jobs=2, **options)


def content(folder: Path) -> dict[str, str]:
    """:return: checksums of all files below, by name"""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_archive_holds_the_files_unchanged(corpus, tmp_path):
    (path,) = prepare(corpus, tmp_path / "to")
    names = sorted(TEXTS)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["dev-clean.txt", *(f"dev-clean/{n}.flac" for n in names)]
        for name in names:
            stored = archive.read(f"dev-clean/{name}.flac")
            assert stored == (folder_of(corpus, name) / f"{name}.flac").read_bytes()
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    entries = read_entries(path)
    assert [entry.text for entry in entries] == [TEXTS[name] for name in names]
    assert [entry.name for entry in entries] == [f"dev-clean/{name}/{name}" for name in names]
    assert {entry.duration for entry in entries} == {0.2}
    facts = read_facts(path)
    assert (facts["utterances"], facts["speakers"], facts["words"]) == (4, 2, 8)
    assert facts["seconds"] == 0.8 and facts["bytes"] == os.path.getsize(path)
    lines = (tmp_path / "to/dev-clean.transcripts.txt").read_text().splitlines()
    assert lines == [TEXTS[name] for name in names]


def test_same_bytes_from_folder_and_tar_and_again(corpus, tmp_path):
    expected = (prepare(corpus, tmp_path / "to"), content(tmp_path / "to"))[1]
    assert sorted(expected) == ["dev-clean.json", "dev-clean.transcripts.txt", "dev-clean.zip"]
    with tarfile.open(tmp_path / "dev-clean.tar.gz", "w:gz") as archive:
        archive.add(corpus, "LibriSpeech")
    prepare(tmp_path / "dev-clean.tar.gz", tmp_path / "from_tar")
    prepare(corpus / "dev-clean", tmp_path / "from_part")
    os.utime(tmp_path / "to/dev-clean.zip", (1, 1))
    prepare(corpus, tmp_path / "to")
    for to in ("to", "from_tar", "from_part"):
        assert content(tmp_path / to) == expected
    assert os.path.getmtime(tmp_path / "to/dev-clean.zip") == 1  # it was not written again


def test_archive_cut_short_is_made_again(corpus, tmp_path):
    (path,) = prepare(corpus, tmp_path / "to")
    expected = content(tmp_path / "to")
    Path(path).write_bytes(Path(path).read_bytes()[:-300])
    prepare(corpus, tmp_path / "to")
    assert content(tmp_path / "to") == expected


def test_changed_text_is_noticed(corpus, tmp_path):
    (path,) = prepare(corpus, tmp_path / "to")
    before = read_facts(path)
    transcripts = folder_of(corpus, "7-1-0000") / "7-1.trans.txt"
    transcripts.write_text("7-1-0000 EIGHT\n")
    prepare(corpus, tmp_path / "to")
    assert read_facts(path)["source"] != before["source"]
    assert read_entries(path)[-1].text == "EIGHT"


def test_other_audio_becomes_flac_and_ogg_is_an_option(tmp_path):
    corpus = write_corpus(tmp_path / "LibriSpeech", ending="wav")
    (path,) = prepare(corpus, tmp_path / "to")
    (ogg_path,) = prepare(corpus, tmp_path / "ogg", ogg=True)
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(ogg_path) as ogg_archive:
        for name in TEXTS:
            flac = archive.read(f"dev-clean/{name}.flac")
            assert flac[:4] == b"fLaC"
            samples, rate = soundfile.read(io.BytesIO(flac), dtype="int16")
            assert rate == 16_000
            numpy.testing.assert_array_equal(samples, audio_of(name))
            assert ogg_archive.read(f"dev-clean/{name}.ogg")[:4] == b"OggS"


def test_parts_of_several_sources(corpus, tmp_path):
    write_corpus(tmp_path / "other", {"9-9-0001": "NINE"}, part="test-other")
    (tmp_path / "librispeech-lm-norm.txt.gz").write_bytes(b"as it is")
    sources = [corpus, tmp_path / "other", tmp_path / "librispeech-lm-norm.txt.gz"]
    paths = prepare_librispeech(sources, tmp_path / "to")
    assert [Path(path).name for path in paths] == ["dev-clean.zip", "test-other.zip"]
    assert (tmp_path / "to/librispeech-lm-norm.txt.gz").read_bytes() == b"as it is"


# --- what is wrong with a source


def truncate(corpus):
    path = folder_of(corpus, "12-34-0001") / "12-34-0001.flac"
    path.write_bytes(path.read_bytes()[:-2500])


def flip(corpus):
    path = folder_of(corpus, "12-34-0001") / "12-34-0001.flac"
    data = bytearray(path.read_bytes())
    data[30] ^= 1  # in the checksum of the samples
    path.write_bytes(data)


def rewrite(corpus, samples, rate):
    soundfile.write(folder_of(corpus, "12-34-0001") / "12-34-0001.flac", samples, rate)


def no_samples(corpus):
    path = folder_of(corpus, "12-34-0001") / "12-34-0001.flac"
    path.unlink()
    soundfile.write(path.with_suffix(".wav"), numpy.zeros(0), 16_000)


def transcript(corpus, line):
    (folder_of(corpus, "12-34-0001") / "12-34.trans.txt").write_text(f"12-34-0000 ONE TWO\n{line}")


BROKEN = [
    (truncate, r"12-34-0001.flac: is cut off"),
    (flip, r"12-34-0001.flac: is damaged: the checksum in its header is not that of its samples"),
    (lambda c: rewrite(c, audio_of("1"), 8000), r"12-34-0001.flac: is of 8000 Hz, expected 16000"),
    (lambda c: rewrite(c, numpy.zeros([99, 2]), 16000), r"0001.flac: has 2 channels, expected 1"),
    (
        lambda c: (folder_of(c, "12-34-0001") / "12-34.trans.txt").write_bytes(b"12-34-0001 \xff"),
        r"12-34.trans.txt: is not text in UTF-8",
    ),
    (no_samples, r"12-34-0001.wav: has no samples"),
    (
        lambda c: (folder_of(c, "12-34-0001") / "12-34-0001.flac").write_bytes(b""),
        r"12-34-0001.flac: is an empty file",
    ),
    (
        lambda c: (folder_of(c, "12-34-0001") / "12-34-0001.flac").unlink(),
        r"12-34.trans.txt: 12-34-0001 has a transcript, but no audio file",
    ),
    (lambda c: transcript(c, ""), r"12-34-0001.flac: there is no transcript of 12-34-0001"),
    (
        lambda c: transcript(c, "12-34-0001\n"),
        r"12-34.trans.txt: the transcript of 12-34-0001 is em",
    ),
    (
        lambda c: transcript(c, "12-34-0001 A\n12-34-0001 B\n"),
        r"12-34.trans.txt, line 3: 12-34-0001 is also in .*12-34.trans.txt, expected one",
    ),
    (
        lambda c: write_corpus(c / "dev-clean/again", {"12-34-0001": "A"}, part=""),
        r"12-34-0001 is also .*12-34-0001.flac, expected one audio file",
    ),
    (
        lambda c: transcript(c, "12-34-0001 A\nno name\n"),
        r"line 3: expected SPEAKER-CHAPTER-NUMBER and a text, got 'no name'",
    ),
]


@pytest.mark.parametrize(("break_it", "message"), BROKEN)
def test_broken_source_is_told_and_no_archive_is_made(break_it, message, corpus, tmp_path):
    break_it(corpus)
    with pytest.raises(ValueError, match=message) as error:
        prepare(corpus, tmp_path / "to")
    assert "leave these utterances out with --skip-broken" in str(error.value)
    assert sorted(os.listdir(tmp_path / "to")) == [".prepare", "problems.txt"]


def test_everything_wrong_is_listed_at_once_and_can_be_left_out(corpus, tmp_path):
    truncate(corpus)
    (folder_of(corpus, "7-1-0000") / "7-1-0000.flac").unlink()
    with pytest.raises(ValueError, match="2 problems, all listed in .*problems.txt"):
        prepare(corpus, tmp_path / "to")
    for _ in range(2):
        (path,) = prepare(corpus, tmp_path / "to", skip_broken=True)
        assert [entry.file for entry in read_entries(path)] == [
            "12-34-0000.flac",
            "12-35-0000.flac",
        ]
        assert read_facts(path)["left_out"] == ["12-34-0001"]
        assert len((tmp_path / "to/problems.txt").read_text().splitlines()) == 2
    with pytest.raises(ValueError, match="2 problems"):
        prepare(corpus, tmp_path / "to")


def test_nothing_is_left(tmp_path):
    corpus = write_corpus(tmp_path / "LibriSpeech", {"12-34-0001": "A"})
    truncate(corpus)
    assert prepare(corpus, tmp_path / "to", skip_broken=True) == [
        str(tmp_path / "to/dev-clean.zip")
    ]
    assert "no utterance with whole audio and text" in (tmp_path / "to/problems.txt").read_text()
    assert not (tmp_path / "to/dev-clean.zip").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", "there is no folder .*nowhere"),
        (
            "empty",
            r"no part of LibriSpeech in .*empty', expected folders such as 'train-clean-100'",
        ),
        ("a.mp3", "a.mp3' is neither a folder nor a file named"),
    ],
)
def test_no_source(source, message, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.mp3").touch()
    with pytest.raises(ValueError, match=message):
        prepare(tmp_path / source, tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_folder_without_permission():
    """As another user where the tests run as root, who may read everything."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(Path(folder) / "LibriSpeech")
        to = Path(folder) / "to"
        to.mkdir()
        for path in (folder, to):
            os.chmod(path, 0o777)
        closed = folder_of(corpus, "12-35-0000")
        closed.chmod(0)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)
            with pytest.raises(PermissionError, match=r"12/35'"):
                prepare(corpus, to)
        finally:
            os.seteuid(user)
            closed.chmod(0o755)
        assert not (to / "dev-clean.zip").exists()


def test_full_disk_is_foreseen(corpus, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(preparation.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match=r"no space left for .*dev-clean.zip': it needs about 0.0 MB"):
        prepare(corpus, tmp_path / "to")
    assert os.listdir(tmp_path / "to") == [".prepare"]


def test_disk_becomes_full(corpus, tmp_path, capsys):
    """A limit of the system on the size of a file ends the writing in the middle."""
    expected = (prepare(corpus, tmp_path / "good"), content(tmp_path / "good"))[1]
    size = os.path.getsize(tmp_path / "good/dev-clean.zip")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    argv = ["data", "prepare", "librispeech", f"--from={corpus}", f"--to={tmp_path / 'to'}"]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, hard))
    try:
        code = cli.main(argv)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 1
    assert "Nothing of it was kept; make space and run the same command" in capsys.readouterr().err
    assert os.listdir(tmp_path / "to") == [".prepare"]
    assert cli.main(argv) == 0
    assert content(tmp_path / "to") == expected


def test_file_changes_meanwhile(corpus, tmp_path, monkeypatch):
    written = preparation.write_archive

    def change_first(*args):
        rewrite(corpus, audio_of("5"), 16000)
        written(*args)

    monkeypatch.setattr(preparation, "write_archive", change_first)
    with pytest.raises(ValueError, match="0001.flac: has changed while it was prepared"):
        prepare(corpus, tmp_path / "to")
    assert os.listdir(tmp_path / "to") == [".prepare"]


# --- tar files


def write_tar(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"0" * member.size))
    return path


def member(name: str, type: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = type, link, 5 if type == tarfile.REGTYPE else 0
    return info


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([member("../evil")], "its member '../evil' leads out of the folder"),
        ([member("a/../../evil")], "leads out of the folder"),
        ([member("/evil")], "its member '/evil' leads out of the folder"),
        ([member("a\\..\\evil")], "leads out of the folder"),
        ([member("a", tarfile.SYMTYPE, "/etc")], "member 'a' is neither a file nor a folder"),
        ([member("a", tarfile.LNKTYPE, "../evil")], "neither a file nor a folder"),
        ([member("a", tarfile.CHRTYPE)], "neither a file nor a folder"),
        ([member("a", tarfile.FIFOTYPE)], "neither a file nor a folder"),
        ([member("a"), member("./a")], "it has './a' twice"),
    ],
)
def test_hostile_tar_is_refused(members, message, tmp_path):
    path = write_tar(tmp_path / "x.tar.gz", *members)
    with pytest.raises(ValueError, match=f"is refused: .*{message}".replace("\\", r"\\")):
        prepare(path, tmp_path / "sub/to")
    assert sorted(os.listdir(tmp_path)) == ["sub", "x.tar.gz"]
    assert os.listdir(tmp_path / "sub") == []


def test_tar_cut_short(corpus, tmp_path):
    path = tmp_path / "dev-clean.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(corpus, "LibriSpeech")
    for length in (path.stat().st_size // 2, 100, 0):
        cut = tmp_path / f"cut{length}.tar.gz"
        cut.write_bytes(path.read_bytes()[:length])
        with pytest.raises(ValueError, match=f"cut{length}.tar.gz' is cut short or no tar file"):
            prepare(cut, tmp_path / "to")


# --- killed


def fork(function) -> int:
    """:return: the signal that ended a child process that calls this; 0 if it came to an end"""
    child = os.fork()
    if child == 0:
        try:
            function()
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def kill_at(number: int, target: Path) -> None:
    """This process dies before its n-th step that touches something in the target."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, args: tuple) -> None:
        if event.split(".")[0] in ("open", "os", "shutil") and str(target) in str(args[0]):
            step()

    written = zipfile.ZipFile.writestr

    def writestr(self, info, data, *rest):
        if steps + 1 == number:  # dead in the middle of a file
            written(self, info, data[: len(data) // 2], *rest)
            self.fp.flush()
        step()
        written(self, info, data, *rest)

    zipfile.ZipFile.writestr = writestr  # type: ignore[method-assign,assignment]
    sys.addaudithook(hook)


def prepare_from_tar(corpus: Path, to: Path) -> None:
    path = corpus.parent / "dev-clean.tar"
    if not path.exists():
        with tarfile.open(path, "w") as archive:
            archive.add(corpus, "LibriSpeech")
    prepare_librispeech([path], to, jobs=1)


def prepare_spoken_digits(corpus: Path, to: Path) -> None:
    folder = corpus.parent / "recordings"
    if not folder.exists():
        folder.mkdir()
        for index in (0, 5, 10):  # of test, dev, train
            soundfile.write(folder / f"3_ann_{index}.wav", audio_of("1", 0.05, 8000), 8000)
    prepare_digits(folder, to, strings=DigitStrings(num_strings=(3, 1, 1), lengths=(1, 2)))


@pytest.mark.parametrize(
    ("run", "stride"),
    [
        (lambda corpus, to: prepare_librispeech([corpus], to, jobs=1), 1),
        (prepare_from_tar, 3),
        (prepare_spoken_digits, 3),
    ],
    ids=["folder", "tar", "digits"],
)
def test_killed_at_any_moment(run, stride, corpus, tmp_path):
    """Then run again: the same bytes as undisturbed, and an archive that is there at all is whole."""
    run(corpus, tmp_path / "good")
    expected = content(tmp_path / "good")
    to, number, ended_by = tmp_path / "to", 0, signal.SIGKILL
    while ended_by == signal.SIGKILL:
        number += stride
        shutil.rmtree(to, ignore_errors=True)
        ended_by = fork(lambda n=number: (kill_at(n, to), run(corpus, to)))
        for path in to.glob("*.zip"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == expected[path.name]
        run(corpus, to)
        assert content(to) == expected, number
    assert number > 20


def test_work_done_is_not_done_again(corpus, tmp_path, monkeypatch):
    from returnn_common.data import verification

    truncate(corpus)
    with pytest.raises(ValueError, match="1 problems"):
        prepare(corpus, tmp_path / "to")
    with open(tmp_path / "to/.prepare/dev-clean.journal", "a") as file:
        file.write('["cut in the mid')
    soundfile.write(folder_of(corpus, "12-34-0001") / "12-34-0001.flac", audio_of("3"), 16000)
    verified = []
    real = verification.verify_audio
    monkeypatch.setattr(
        verification,
        "verify_audio",
        lambda path, **o: (verified.append(path.name), real(path, **o))[1],
    )
    prepare(corpus, tmp_path / "to")
    assert verified == ["12-34-0001.flac"]


def test_one_run_at_a_time(corpus, tmp_path):
    with (
        preparation.work_folder(tmp_path / "to"),
        pytest.raises(ValueError, match="another process prepares data in .*to' now"),
    ):
        prepare(corpus, tmp_path / "to")


# --- check


def test_check(corpus, tmp_path, capsys):
    (path,) = prepare(corpus, tmp_path / "to")
    assert cli.main(["data", "check", str(tmp_path / "to")]) == 0
    assert capsys.readouterr().out == f"{path}: 4 utterances, 0.00 h, all whole\n"


def rewrite_zip(path: str, change) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


AUDIO = "dev-clean/12-34-0001.flac"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop(AUDIO), "dev-clean/12-34-0001/12-34-0001 has no audio"),
        (lambda m: m.update({AUDIO: m[AUDIO][:2000]}), "12-34-0001 has "),
        (lambda m: m.update({AUDIO: b"text"}), "12-34-0001 has broken audio"),
        (lambda m: m.update({"other": b""}), "dev-clean.zip: other is not in its list"),
        (lambda m: m.pop("dev-clean.txt"), "has no list of its utterances, expected a member"),
        (lambda m: m.update({"a": b""}), "its checksum is not the one it was written with"),
    ],
)
def test_check_finds(change, message, corpus, tmp_path):
    (path,) = prepare(corpus, tmp_path / "to")
    rewrite_zip(path, change)
    with pytest.raises(ValueError, match=message):
        check(tmp_path / "to")


def test_check_finds_a_zip_cut_short(corpus, tmp_path):
    (path,) = prepare(corpus, tmp_path / "to")
    Path(path).write_bytes(Path(path).read_bytes()[:-500])
    with pytest.raises(ValueError, match=r"1 problems:\n.*dev-clean.zip' is cut short or no zip"):
        check(tmp_path / "to")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="there is no archive in .*data prepare makes some"):
        check(tmp_path / "empty")
    with pytest.raises(ValueError, match="there is no folder .*data link"):
        check(tmp_path / "nowhere")
