"""The reader's record: nothing is lost, and storage trouble is a sentence and never an exception."""

from __future__ import annotations

import fcntl
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from course_utils.exercise import Exercise
from course_utils.reader.record import Record, open_record


def entries(path: Path) -> list[dict]:
    """What is in the file, read without the code under test."""
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()]


def attempt(record: Record, exercise: str = "strides", state: str = "wrong") -> None:
    record.add_attempt(exercise, "tensors", state, 1, 3)


def script(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A Python process that runs `code`, with what most scripts here need."""
    start = "import os, sys, time\nfrom pathlib import Path\n"
    start += "from course_utils.reader.record import Record\n"
    command = [sys.executable, "-c", start + code, *map(str, arguments)]
    root = Path(__file__).parent.parent
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root)


def output(process: subprocess.Popen[str]) -> str:
    said, complaint = process.communicate(timeout=400)
    assert process.returncode == 0, complaint
    assert complaint == ""
    return said


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "workspace" / ".record.jsonl"


# What it remembers.


def test_remembers_everything_in_the_next_kernel(path: Path) -> None:
    first = Record(path)
    # The state is the last one until one passed.
    for state in ("raised", "passed", "wrong"):
        attempt(first, state=state)
    attempt(first, "reshape", state="timed out")
    assert [first.reveal_hint("strides"), first.reveal_hint("strides")] == [1, 2]
    assert [first.ask_solution("reshape"), first.ask_solution("reshape")] == [1, 2]
    first.see_solution("reshape")
    for record in (first, Record(path)):
        names = ("strides", "reshape", "other")
        assert [record.attempts(name) for name in names] == [3, 1, 0]
        assert [record.state(name) for name in names] == ["passed", "timed out", None]
        assert [record.hints(name) for name in names] == [2, 0, 0]
        assert record.notice is None
        strides, reshape = record.summary()["strides"], record.summary()["reshape"]
        assert set(record.summary()) == {"strides", "reshape"}
        found = strides.state, strides.attempts, strides.hints, strides.solution_seen
        assert found == ("passed", 3, 2, False) and reshape.solution_seen
        assert all(datetime.fromisoformat(one.last).utcoffset() is not None for one in (strides, reshape))
    assert Record(path).ask_solution("reshape") == 3


def test_a_solution_that_is_looked_at_after_the_exercise_was_passed_was_not_needed(path: Path) -> None:
    record = Record(path)
    for exercise, seen_first in (("strides", False), ("reshape", True)):
        if seen_first:
            record.see_solution(exercise)
        for state in ("wrong", "passed", "wrong"):
            attempt(record, exercise, state=state)
        record.see_solution(exercise)
    rows = Record(path).summary()
    assert (rows["strides"].solution_seen, rows["reshape"].solution_seen) == (False, True)


def test_an_attempt_is_stored_with_all_its_details(path: Path) -> None:
    Record(path).add_attempt("strides", "tensors", "wrong", 2, 5, "copies")
    (stored,) = entries(path)
    expected = {"lesson": "tensors", "state": "wrong", "passed": 2, "total": 5, "told_by": "copies"}
    assert expected.items() <= stored.items()


def test_asking_creates_nothing_and_writing_leaves_one_file(path: Path) -> None:
    record = Record(path)
    assert (record.attempts("strides"), record.summary(), record.notice) == (0, {}, None)
    assert not path.parent.exists()
    attempt(record)
    assert list(path.parent.iterdir()) == [path]


def test_the_default_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COURSE_RECORD", raising=False)
    monkeypatch.setenv("COURSE_ROOT", str(tmp_path))
    assert open_record().path == tmp_path.resolve() / "workspace" / ".record.jsonl"
    monkeypatch.setenv("COURSE_RECORD", str(tmp_path / "elsewhere.jsonl"))
    assert open_record().path == tmp_path.resolve() / "elsewhere.jsonl"


# Several kernels.


def test_an_open_record_sees_what_another_kernel_adds(path: Path) -> None:
    one, other = Record(path), Record(path)
    attempt(one)
    attempt(other, state="passed")
    assert (one.attempts("strides"), one.state("strides")) == (2, "passed")
    assert one.reveal_hint("strides") == 1
    assert other.reveal_hint("strides") == 2


def test_kernels_that_write_at_once_lose_and_repeat_nothing(path: Path) -> None:
    code = """
record = Record(Path(sys.argv[1]))
revealed = []
for turn in range(150):
    record.add_attempt("strides", "tensors", "wrong", 0, 1, told_by=f"{sys.argv[2]}.{turn}")
    revealed.append(record.reveal_hint("strides"))
assert record.notice is None, record.notice
print(*revealed)
"""
    kernels = [script(code, path, number) for number in range(3)]
    numbers = [int(word) for kernel in kernels for word in output(kernel).split()]
    # Each revealed hint had a number of its own: a count and the addition to it are one transaction.
    assert sorted(numbers) == list(range(1, 451))
    digests = [entry["told_by"] for entry in entries(path) if entry["kind"] == "attempt"]
    assert sorted(digests) == sorted(f"{kernel}.{turn}" for kernel in range(3) for turn in range(150))
    assert Record(path).attempts("strides") == 450
    assert list(path.parent.iterdir()) == [path]


def test_a_thousand_kills_lose_no_finished_attempt(path: Path) -> None:
    # A small process forks the children, so that a thousand of them take seconds.
    code = """
import random, signal
folder, chance = Path(sys.argv[1]), random.Random(20)
for kill in range(1000):
    path = folder / f"{kill % 20}.jsonl"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        record = Record(path)
        for turn in range(10_000):
            record.add_attempt("strides", "tensors", "wrong", 0, 1, told_by=f"{kill}.{turn}")
            assert record.notice is None
            os.write(writing, f"{kill}.{turn}\\n".encode())
        os._exit(1)
    os.close(writing)
    # Half of them die after a first attempt, half at any time from their start on.
    said = os.read(reading, 1) if kill // 20 % 2 else b""
    time.sleep(chance.uniform(0, 0.006))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while part := os.read(reading, 65536):
        said += part
    os.close(reading)
    print(said.decode())
print("kills", 1000)
"""
    path.parent.mkdir()
    *finished, _, kills = output(script(code, path.parent)).split()
    stored: list[str] = []
    for file in path.parent.glob("*.jsonl"):
        before = Record(file)
        assert before.attempts("strides") == len(entries(file))
        assert before.notice is None
        stored += [entry["told_by"] for entry in entries(file)]
    assert set(finished) <= set(stored)
    assert len(set(stored)) == len(stored)
    # At most the one attempt that each of them was about to report may be there besides.
    assert len(stored) <= len(finished) + int(kills)
    assert len(finished) >= 500


# Trouble with the storage.


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", folder]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is for root; the same trouble is made in another way by the test above")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_no_room_keeps_attempts_until_there_is_room(path: Path) -> None:
    # A limit on the size of files stands for the full disk: the same failing writes, for every user.
    code = """
import resource
path = Path(sys.argv[1])
record = Record(path)
record.add_attempt("strides", "tensors", "wrong", 0, 1)
assert record.notice is None
limit = path.stat().st_size + 4096
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
for turn in range(60):
    record.add_attempt("strides", "tensors", "wrong", 0, 1)
assert record.attempts("strides") == 61
print(record.notice)
print(Record(path).attempts("strides"))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
record.add_attempt("strides", "tensors", "passed", 1, 1)
assert record.notice is None, record.notice
"""
    notice, stored = output(script(code, path)).splitlines()
    assert notice.startswith(f"Your progress is kept in memory until {path} can be written: ")
    assert 1 <= int(stored) < 61
    assert len(entries(path)) == 62
    assert list(path.parent.iterdir()) == [path]


def test_a_full_and_a_read_only_disk_keep_attempts_until_there_is_room(disk: Path) -> None:
    path = disk / ".record.jsonl"
    record = Record(path)
    attempt(record)
    (disk / "ballast").write_bytes(bytes(36 * 1024))
    for _ in range(100):
        attempt(record)
    assert record.attempts("strides") == 101
    assert str(record.notice).endswith(f"{path} can be written: the disk is full.")
    assert 1 <= len(entries(path)) < 101
    (disk / "ballast").unlink()
    attempt(record, state="passed")
    assert (record.notice, len(entries(path))) == (None, 102)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    attempt(record)
    assert (record.attempts("strides"), record.news() is None, record.news()) == (103, False, None)
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    assert record.reveal_hint("strides") == 1
    assert (record.notice, len(entries(path))) == (None, 104)


# The script gives up being root, for whom no folder is read-only.
READ_ONLY = """
os.geteuid() == 0 and os.setuid(65534)
path, before = Path(sys.argv[1]), int(sys.argv[2])
record = Record(path)
assert record.attempts("strides") == before, record.notice
for turn in range(3):
    record.add_attempt("strides", "tensors", "passed", 1, 1)
assert (record.attempts("strides"), record.state("strides")) == (before + 3, "passed")
assert record.reveal_hint("strides") == 1
print(record.news())
assert record.notice is not None and record.news() is None
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can reach."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


@pytest.mark.parametrize(
    ("stored", "modes", "why"),
    [
        (0, {".": 0o555}, ""),
        (2, {".": 0o555}, ""),
        (1, {".": 0o777, ".record.jsonl": 0o444}, "it is read-only."),
        (0, {".": 0o000}, "permission denied."),
    ],
)
def test_what_cannot_be_written_is_kept_in_memory(
    open_folder: Path, stored: int, modes: dict[str, int], why: str
) -> None:
    folder = open_folder / "workspace"
    path = folder / ".record.jsonl"
    folder.mkdir()
    for _ in range(stored):
        attempt(Record(path))
    before = {file: file.read_bytes() for file in folder.iterdir()}
    for name, mode in modes.items():
        (folder / name).chmod(mode)
    notice = output(script(READ_ONLY, path, stored)).strip()
    folder.chmod(0o755)
    assert notice.startswith(f"Your progress is kept in memory until {path} can be written: {why}")
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_a_path_that_cannot_be_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "file").touch()
    below = tmp_path / "file" / ".record.jsonl"
    for path, why in ((folder, "it is a folder"), (below, "its folder is a file")):
        record = Record(path)
        attempt(record)
        assert record.attempts("strides") == 1
        assert record.notice == f"Your progress is kept in memory until {path} can be written: {why}."
    assert list(folder.iterdir()) == []
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    attempt(record := Record(loop))
    assert (record.attempts("strides"), record.notice is None) == (1, False)


def test_a_file_behind_a_link_stays_there(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / ".record.jsonl"
    link.symlink_to(tmp_path / "real" / "record.jsonl")
    attempt(Record(link))
    (tmp_path / "real" / "record.jsonl").write_bytes(b"no record at all")
    attempt(Record(link))
    assert link.is_symlink()
    assert len(entries(link)) == 1


def test_a_kernel_that_holds_the_file_for_long(path: Path) -> None:
    record = Record(path)
    attempt(record)
    record._patience = 0.05
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        attempt(record)
        assert record.attempts("strides") == 2
        assert str(record.notice).endswith("can be written: another program is using it.")
    attempt(record)
    assert (record.notice, len(entries(path))) == (None, 3)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_deleted_while_open(path: Path, what: str) -> None:
    one, other = Record(path), Record(path)
    for _ in range(3):
        attempt(one)
    other.reveal_hint("reshape")
    path.unlink() if what == "file" else shutil.rmtree(path.parent)
    attempt(one)
    assert (one.attempts("strides"), one.notice) == (4, None)
    assert len(entries(path)) == 4
    attempt(other)
    assert (len(entries(path)), other.attempts("strides"), one.hints("reshape")) == (6, 5, 1)
    assert list(path.parent.iterdir()) == [path]


def test_replaced_by_an_older_copy_while_open(path: Path) -> None:
    record = Record(path)
    attempt(record)
    backup = path.read_bytes()
    attempt(record)
    path.write_bytes(backup)
    attempt(record, state="passed")
    assert (record.attempts("strides"), len(entries(path))) == (3, 3)


# Files that are not a whole record.


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a record with sixty entries."""
    path = tmp_path_factory.mktemp("whole") / "record.jsonl"
    record = Record(path)
    for number in range(60):
        record.add_attempt("strides", "tensors", "wrong", 0, 1, told_by=f"{number:064}")
    return path.read_bytes()


@pytest.fixture(scope="module")
def texts(whole: bytes) -> list[bytes]:
    """The entries of the whole record, as they are stored."""
    return whole.splitlines()


def hurt(whole: bytes) -> bytes:
    """The record with three thousand bytes of it gone."""
    return whole[:5000] + bytes(3000) + whole[8000:]


def readable(data: bytes, texts: list[bytes]) -> list[bytes]:
    """The entries that are there in full, somewhere among the bytes."""
    return [text for text in texts if text in data]


def open_damaged(path: Path, data: bytes, texts: list[bytes]) -> str | None:
    """Opens a damaged file as a new kernel would; asserts what must hold for any. Returns the notice."""
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir()
    path.write_bytes(data)
    record = Record(path)
    attempt(record)
    assert not str(record.notice).startswith("Your progress is kept in memory")
    *stored, added = sorted(entries(path), key=lambda entry: entry["at"])
    # What was whole is there, once, and nothing that never was.
    assert all(json.loads(text) in stored for text in readable(data, texts)), record.notice
    assert all(entry in [json.loads(text) for text in texts] for entry in stored), record.notice
    assert len({entry["id"] for entry in stored}) == len(stored)
    assert (added["passed"], record.attempts("strides")) == (1, len(stored) + 1)
    files = {file.name for file in path.parent.iterdir()}
    if record.notice is None:
        assert files == {".record.jsonl"}
    else:
        kept = path.with_name(".record.damaged-1.jsonl")
        assert files == {".record.jsonl", kept.name}
        assert kept.read_bytes() == data
        assert str(kept) in record.notice
        assert Record(path).notice is None
    return record.notice


def test_truncated_anywhere_keeps_what_is_left(path: Path, whole: bytes, texts: list[bytes]) -> None:
    chance = random.Random(3)
    for length in [0, 1, 2, 15, 16, 99, 100, *(chance.randrange(len(whole)) for _ in range(40))]:
        # What a kill may leave as well is no damage to tell of.
        assert open_damaged(path, whole[:length], texts) is None


def test_random_bytes_are_kept_and_replaced(path: Path) -> None:
    chance = random.Random(4)
    for size in (2, 100, 4096, 50_000):
        assert "nothing in it could be read" in str(open_damaged(path, chance.randbytes(size), []))


def test_flipped_bytes_keep_every_other_entry(path: Path, whole: bytes, texts: list[bytes]) -> None:
    chance = random.Random(5)
    damaged = 0
    for _ in range(100):
        data = bytearray(whole)
        data[chance.randrange(len(whole))] ^= chance.randrange(1, 256)
        damaged += open_damaged(path, bytes(data), texts) is not None
    for _ in range(10):
        data = bytearray(whole)
        start = chance.randrange(len(whole) - 3000)
        data[start : start + 3000] = chance.randbytes(3000)
        damaged += open_damaged(path, bytes(data), texts) is not None
    assert damaged > 100


def test_a_file_damaged_while_open_loses_nothing_this_kernel_knows(path: Path, whole: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(whole)
    record = Record(path)
    assert record.attempts("strides") == 60
    path.write_bytes(b"\xff" * len(whole))
    attempt(record, state="passed")
    assert (record.attempts("strides"), len(entries(path))) == (61, 61)
    assert Record(path).state("strides") == "passed"


def test_damaged_files_are_never_overwritten(path: Path) -> None:
    path.parent.mkdir()
    for number in range(1, 4):
        path.write_bytes(b"damage %d" % number)
        attempt(Record(path))
    kept = sorted(file.read_bytes() for file in path.parent.glob("*.damaged-*"))
    assert kept == [b"damage 1", b"damage 2", b"damage 3"]


def test_kernels_that_find_damage_at_once_repair_it_once(
    path: Path, whole: bytes, texts: list[bytes]
) -> None:
    code = """
record = Record(Path(sys.argv[1]))
print("ready", flush=True)
while not Path(sys.argv[2]).exists():
    pass
for turn in range(10):
    record.add_attempt("strides", "tensors", "wrong", 0, 1)
assert not str(record.notice).startswith("Your progress is kept in memory"), record.notice
"""
    path.parent.mkdir()
    path.write_bytes(hurt(whole))
    start = path.with_name("start")
    kernels = [script(code, path, start) for _ in range(3)]
    for kernel in kernels:
        assert kernel.stdout.readline() == "ready\n"
    start.touch()
    for kernel in kernels:
        output(kernel)
    left = Record(path)
    assert left.attempts("strides") == len(entries(path)) == 30 + len(readable(hurt(whole), texts))
    assert len(list(path.parent.glob("*.damaged-*"))) == 1


def test_kills_during_a_repair_lose_nothing(path: Path, whole: bytes, texts: list[bytes]) -> None:
    code = """
import random, signal
damaged, chance = Path(sys.argv[1]).read_bytes(), random.Random(21)
unfinished, kill = 0, -1
while kill < 99 or unfinished < 10:  # most kills may come too late to tell anything
    kill += 1
    path = Path(sys.argv[1]).with_name(f"{kill}") / ".record.jsonl"
    path.parent.mkdir()
    path.write_bytes(damaged)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        record = Record(path)
        os.write(writing, b"!")
        record.reveal_hint("reshape")
        os._exit(0)
    os.read(reading, 1)
    time.sleep(chance.uniform(0, 0.006))
    os.kill(child, signal.SIGKILL)
    unfinished += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    os.close(reading), os.close(writing)
print(kill + 1)
"""
    path.parent.mkdir()
    path.write_bytes(hurt(whole))
    kills = int(output(script(code, path)))
    left = [json.loads(text) for text in readable(hurt(whole), texts)]
    for number in range(kills):
        record = Record(path.with_name(f"{number}") / ".record.jsonl")
        assert record.attempts("strides") == len(left)
        kept = [file.read_bytes() for file in record.path.parent.glob("*.damaged-*")]
        assert kept and set(kept) == {hurt(whole)}
        assert all(entry in entries(record.path) for entry in left)


def test_damage_where_nothing_can_be_written(open_folder: Path, whole: bytes, texts: list[bytes]) -> None:
    path = open_folder / ".record.jsonl"
    path.write_bytes(whole[:100] + bytes(4000) + whole[4100:])
    open_folder.chmod(0o555)
    output(script(READ_ONLY, path, len(readable(path.read_bytes(), texts))))
    assert list(open_folder.iterdir()) == [path]


def test_a_notice_is_told_once(path: Path) -> None:
    path.mkdir(parents=True)
    record = Record(path)
    assert record.news() is None
    attempt(record)
    notice = record.notice
    assert (record.news(), record.news()) == (notice, None)
    attempt(record)
    assert (record.notice, record.news()) == (notice, None)


# Copies of an exercise that each reader has of their own.


def with_copies(name: str = "repair_it") -> Exercise:
    return Exercise(minutes=1, hints=[], copies="    copy = {}".format, name=name)


def test_a_reader_has_one_copy_in_all_kernels_and_after_forgetting(path: Path) -> None:
    first = Record(path)
    mine = first.own_copy(with_copies())
    attempt(first, "repair_it")
    first.forget("repair_it")
    assert {Record(path).own_copy(with_copies()), first.own_copy(with_copies())} == {mine}
    assert first.summary() == {}  # to have a copy is no attempt
    assert [one["number"] for one in entries(path) if one["kind"] == "copy"] == [int(mine.split()[-1])]
    without = Exercise(minutes=1, hints=[], name="other", starter_source="def other(): ...")
    assert first.own_copy(without) == "def other(): ..."


def test_two_kernels_that_draw_at_once_have_one_copy(path: Path, monkeypatch) -> None:
    here, there = Record(path), Record(path)
    numbers, found = iter([7, 8]), []

    def draw(_: int) -> int:
        number = next(numbers)
        if number == 7:
            found.append(there.own_copy(with_copies()))
        return number

    monkeypatch.setattr("secrets.randbelow", draw)
    found.append(here.own_copy(with_copies()))
    assert found == ["    copy = 9", "    copy = 9"]
    assert Record(path).own_copy(with_copies()) == "    copy = 9"
