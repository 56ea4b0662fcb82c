"""Buffers that come back when nobody looks at them, and how much memory is left."""

import gc

import numpy as np
import pytest

from psframework.wire.memory import BufferPool, available_memory, copy_into, empty


def address(view):
    return np.frombuffer(view, np.uint8).ctypes.data


@pytest.mark.parametrize("nbytes", [0, 1, 1000, 1 << 20])
def test_buffers_have_their_size_and_can_be_written(nbytes):
    for view in (empty(nbytes), BufferPool(smallest=1).take(nbytes)):
        assert (view.nbytes, view.readonly, view.itemsize) == (nbytes, False, 1)
        copy_into(view, b"a" * nbytes)
        assert bytes(view) == b"a" * nbytes


def test_a_buffer_is_reused_only_when_its_last_view_is_gone():
    pool = BufferPool()
    view = pool.take(1 << 20)
    place = address(view)
    array = np.frombuffer(view, np.float32)[10:].reshape(2, -1)
    del view
    assert pool.idle_bytes == 0
    other = pool.take(1 << 20)
    assert address(other) != place
    del array
    assert pool.idle_bytes == 1 << 20
    assert address(pool.take(1 << 20)) == place


def test_sizes_nearby_share_buffers():
    pool = BufferPool()
    place = address(pool.take(1_000_000))
    assert address(pool.take(999_000)) == place


def test_the_pool_keeps_no_more_than_it_may():
    pool = BufferPool(keep_bytes=1 << 20)
    views = [pool.take(1 << 20) for _ in range(3)]
    del views
    gc.collect()
    assert pool.idle_bytes == 1 << 20
    pool.clear()
    assert pool.idle_bytes == 0


def test_copies_of_another_length_fail():
    for nbytes in (10, 1 << 20):
        with pytest.raises(ValueError):
            copy_into(empty(nbytes), b"x" * (nbytes - 1))


def test_memory_that_is_left_here():
    assert 0 < available_memory() < 1 << 50


def machine(root, *, cgroup, groups):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, files in groups.items():
        folder = root / "sys/fs/cgroup" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text)
    return available_memory(root)


def version2(limit, used, cache=0):
    return {
        "memory.max": f"{limit}\n",
        "memory.current": f"{used}\n",
        "memory.stat": f"anon 5\ninactive_file {cache}\n",
    }


def test_the_tightest_group_counts(tmp_path):
    groups = {"a/b": version2("max", 10), "a": version2(1000, 600, 50)}
    assert machine(tmp_path, cgroup="0::/a/b\n", groups=groups) == 450


def test_groups_seen_from_inside_a_container(tmp_path):
    assert machine(tmp_path, cgroup="0::/\n", groups={"": version2(1000, 999)}) == 1


def test_version_1_groups(tmp_path):
    files = {
        "memory.limit_in_bytes": "5000",
        "memory.usage_in_bytes": "6000",
        "memory.stat": "total_inactive_file 100\n",
    }
    assert machine(tmp_path, cgroup="4:memory:/x\n0::/\n", groups={"memory/x": files}) == 0


def test_without_limits_the_machine_counts(tmp_path):
    assert machine(tmp_path, cgroup="0::/\n", groups={}) == 8000 * 1024


def test_systems_that_do_not_say(tmp_path):
    assert available_memory(tmp_path / "nowhere") > 1 << 60
