"""Each rank is told who it is, where the others are, and how many share the machine."""

import socket
from pathlib import Path

from psframework.cluster.launch.environment import World, free_port


def test_names_of_ours_and_those_that_people_know() -> None:
    told = World(12, "127.0.0.1:7070", "trainer", 3).environment(
        10, {"HOME": "/h", "PSF_LANES": "inline"}, 4711
    )
    expected = {
        "PSF_COORDINATOR": "127.0.0.1:7070",
        "PSF_NAME": "trainer-10",
        "PSF_LOCAL_PROCESSES": "3",
        "PSF_LANES": "inline",
        "RANK": "10",
        "LOCAL_RANK": "10",
        "WORLD_SIZE": "12",
        "LOCAL_WORLD_SIZE": "12",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4711",
    }
    assert told.items() >= expected.items()
    assert "HOME" not in told


def test_what_the_user_has_set_stays() -> None:
    outer = {"PSF_LOCAL_PROCESSES": "1", "MASTER_ADDR": "node-0", "MASTER_PORT": "29500", "PSF_NAME": "me"}
    outer["PSF_PARENT_FD"] = "7"
    told = World(2, "a:1").environment(0, outer, 4711)
    assert (told["PSF_LOCAL_PROCESSES"], told["MASTER_ADDR"], told["MASTER_PORT"]) == ("1", "node-0", "29500")
    assert told["PSF_NAME"] == "rank-0", "but not the name, which is of one process"
    assert "PSF_PARENT_FD" not in told, "each rank has a pipe of its own"


def test_credentials_are_those_of_the_cluster_that_is_joined() -> None:
    outer = {"PSF_TLS_DIR": "certs", "PSF_TOKEN": "secret", "PSF_CONFIG": "other.toml"}
    joined = World(1, "a:1").environment(0, outer, 1)
    assert joined.items() >= outer.items()
    own = World(1, "a:1", token_file=Path("/t/token")).environment(0, outer, 1)
    assert own["PSF_TOKEN_FILE"] == "/t/token"
    assert not {"PSF_TLS_DIR", "PSF_TOKEN", "PSF_CONFIG"} & own.keys()


def test_a_free_port_can_be_bound() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_port()))
