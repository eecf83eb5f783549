"""Creating a file that nobody else may have created: whole, durable, and only once."""

import errno
import multiprocessing
import os

import pytest

from persistence.errors import UnsafeObjectError
from persistence.files import create_bytes, publish_new


def test_a_new_file_is_created_whole_with_its_folders(tmp_path):
    assert create_bytes(tmp_path, "a/b/c.txt", b"content")
    assert (tmp_path / "a/b/c.txt").read_bytes() == b"content"
    assert [path.name for path in (tmp_path / "a/b").iterdir()] == ["c.txt"]


@pytest.mark.parametrize("there", ["file", "link", "folder"])
def test_what_stands_there_already_is_left_alone(tmp_path, there):
    path = tmp_path / "c.txt"
    match there:
        case "file":
            path.write_text("theirs")
        case "link":
            path.symlink_to("nowhere")
        case _:
            path.mkdir()
    before = os.lstat(path)
    assert not create_bytes(tmp_path, "c.txt", b"ours")
    after = os.lstat(path)
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [each.name for each in tmp_path.iterdir()] == ["c.txt"]


def test_no_link_is_followed_on_the_way(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a").symlink_to("elsewhere")
    with pytest.raises(UnsafeObjectError):
        create_bytes(tmp_path, "a/c.txt", b"x")
    assert not list((tmp_path / "elsewhere").iterdir())


def no_links(*_, **__):
    raise OSError(errno.ENOTSUP, "no links here")


def test_where_the_disk_has_no_links_the_name_is_taken_first(tmp_path):
    (tmp_path / "temp").write_text("ours")
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        publish_new(folder, "temp", "c.txt", link=no_links)
        assert (tmp_path / "c.txt").read_text() == "ours"
        (tmp_path / "temp").write_text("later")
        with pytest.raises(FileExistsError):
            publish_new(folder, "temp", "c.txt", link=no_links)
        assert (tmp_path / "c.txt").read_text() == "ours"
    finally:
        os.close(folder)


def _create(root, number, barrier, won):
    barrier.wait()
    for turn in range(50):
        if create_bytes(root, f"file-{turn}", b"%d" % number * 1000):
            won.put((turn, number))


def test_of_racing_processes_exactly_one_creates_each_file(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    barrier, won = spawn.Barrier(3), spawn.Queue()
    workers = [spawn.Process(target=_create, args=(tmp_path, number, barrier, won)) for number in range(3)]
    for worker in workers:
        worker.start()
    winners = dict(won.get(timeout=60) for _ in range(50))
    for worker in workers:
        worker.join(60)
    assert won.empty()
    assert {turn: int((tmp_path / f"file-{turn}").read_bytes()[:1]) for turn in range(50)} == winners
