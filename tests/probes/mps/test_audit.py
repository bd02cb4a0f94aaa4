"""Each reason, made for real with namespaces around processes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.schema import MPS_CLIENT
from probes.gpu.contexts import DeviceContexts
from probes.mps.audit import REASONS, audit
from probes.mps.daemon import (
    DEFAULT_DIRECTORY,
    PIPE_VARIABLE,
    DaemonFinder,
    pipe_directory,
)
from probes.mps.probe import client_row
from probes.probe import make_batch
from tests.probes.mps.stand_in import StandIn, daemon, judge, pipe_folder, process

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def mps() -> Iterator[StandIn]:
    with pipe_folder() as folder, daemon(folder) as stand_in:
        time.sleep(0.05)
        yield stand_in


def test_daemon_and_server_are_found(mps: StandIn):
    found = mps.found()
    assert found.directory == str(mps.folder)
    assert found.control is not None
    assert [server.pid for server in found.servers] == [mps.server_pid]
    assert found.served_uid == 0 and not found.is_multiuser


def test_a_daemon_that_comes_later_is_found():
    finder = DaemonFinder()
    before = {item.pid for item in finder.find()}
    with pipe_folder() as folder, daemon(folder, None) as stand_in:
        assert {item.pid for item in finder.find()} - before == {stand_in.pid}
    assert {item.pid for item in finder.find()} == before


def test_inside(mps: StandIn):
    with process(pipe=mps.folder) as pid:
        client = judge(pid, mps.found(), clients=frozenset({pid}))
    assert client.role == "client" and client.reason is None and client.mend is None
    assert client.is_same_control and client.is_same_ipc and not client.is_started_before


def test_the_server_is_not_a_client_outside(mps: StandIn):
    assert mps.server_pid is not None
    client = judge(mps.server_pid, mps.found())
    assert client.role == "server" and client.reason is None


def test_no_daemon():
    with process() as pid:
        client = judge(pid)
    assert (client.role, client.reason) == ("outside", "no_daemon")
    assert client.mend and "nvidia-cuda-mps-control -d" in client.mend


def test_clients_without_a_visible_daemon():
    with process() as pid, process() as other:
        lists = DeviceContexts(1, 0, frozenset({pid, other}), frozenset({other}))
        clients = audit([lists], [])
    reasons = {client.pid: client.reason for client in clients}
    assert reasons == {pid: "daemon_not_visible", other: None}


def test_control_pipe_not_mounted(mps: StandIn):
    hide = f"mount -t tmpfs none {mps.folder}"
    with process("unshare", "--mount", pipe=mps.folder, script=hide) as pid:
        client = judge(pid, mps.found())
    assert (client.reason, client.other_reasons) == ("not_visible", None)
    assert client.is_control_visible is False
    assert client.mends is not None and client.mend == client.mends.docker
    assert f"-v {mps.folder}:{mps.folder}" in client.mends.docker
    assert "--ipc=host" in client.mends.docker and "--user 0" in client.mends.docker
    assert f"hostPath: {{path: {mps.folder}}}" in client.mends.kubernetes
    assert "hostIPC: true" in client.mends.kubernetes


def test_other_inode(mps: StandIn):
    hide = f"mount -t tmpfs none {mps.folder}; touch {mps.folder}/control"
    with process("unshare", "--mount", pipe=mps.folder, script=hide) as pid:
        client = judge(pid, mps.found())
    assert client.reason == "other_inode"
    assert client.is_control_visible is True and client.is_same_control is False


def test_a_link_in_a_container_does_not_lead_out_of_it(mps: StandIn, tmp_path: Path):
    """A link to the host's own folder shows nothing to the container itself."""
    root = tmp_path / "root"
    (root / "tmp").mkdir(parents=True)
    (root / "link").symlink_to(mps.folder)
    mounts = " && ".join(
        f"mkdir -p {root}/{name} && mount --rbind /{name} {root}/{name}"
        for name in ("bin", "lib", "lib64", "usr", "proc")
        if Path(f"/{name}").exists()
    )
    script = f"{mounts} && exec chroot {root} sh -ec 'echo $$; read line'"
    with process("unshare", "--mount", pipe=Path("/link"), script=script) as pid:
        client = judge(pid, mps.found())
    assert client.reason == "not_visible"


def test_other_uid(mps: StandIn):
    with process(pipe=mps.folder, user=1000) as pid:
        client = judge(pid, mps.found())
    assert client.reason == "other_uid"
    assert (client.uid, client.server_uid) == (1000, 0)
    assert client.detail and "1000" in client.detail


def test_root_in_a_user_namespace_is_the_user_outside(mps: StandIn):
    wrapper = ("unshare", "--user", "--map-root-user")
    try:
        with process(*wrapper, pipe=mps.folder, user=1000) as pid:
            client = judge(pid, mps.found())
    except AssertionError:
        pytest.skip("users may not make user namespaces here; set user.max_user_namespaces")
    assert (client.reason, client.uid) == ("other_uid", 1000)


def test_the_mend_for_another_user_has_writable_caches():
    with pipe_folder() as folder, daemon(folder, 1000) as stand_in:
        hide = f"mount -t tmpfs none {folder}"
        with process("unshare", "--mount", pipe=folder, script=hide) as pid:
            client = judge(pid, stand_in.found())
    assert client.reason == "not_visible" and client.other_reasons == "other_uid"
    assert client.mends is not None
    assert "--user 1000" in client.mends.docker and "-e HOME=/cache" in client.mends.docker
    assert "runAsUser: 1000" in client.mends.kubernetes
    assert "emptyDir" in client.mends.kubernetes


def test_a_server_for_several_users_takes_another_uid():
    with pipe_folder() as folder, daemon(folder, 0, "-multiuser-server") as stand_in:
        time.sleep(0.05)
        with process(pipe=folder, user=1000) as pid:
            client = judge(pid, stand_in.found())
    assert client.is_multiuser is True and client.reason == "unexplained"


def test_other_ipc_namespace(mps: StandIn):
    with process("unshare", "--ipc", pipe=mps.folder) as pid:
        client = judge(pid, mps.found())
    assert client.reason == "other_ipc_namespace" and client.is_same_ipc is False


def test_started_before_the_daemon():
    with pipe_folder() as folder, process(pipe=folder) as pid:
        time.sleep(0.05)
        with daemon(folder) as stand_in:
            client = judge(pid, stand_in.found())
    assert client.reason == "started_before" and client.is_started_before is True
    assert client.mend and f"CUDA_MPS_PIPE_DIRECTORY={folder}" in client.mend


@pytest.mark.parametrize("is_set", [True, False])
def test_the_environment_says_otherwise(mps: StandIn, is_set: bool):
    elsewhere = Path("/a-private-folder") if is_set else None
    with process(pipe=elsewhere) as pid:
        client = judge(pid, mps.found())
    assert str(mps.folder) != DEFAULT_DIRECTORY
    assert client.reason == "environment" and client.has_pipe_variable is is_set
    assert "a-private-folder" not in repr(client)


def test_a_folder_named_from_where_the_process_is(mps: StandIn):
    with process(script=f"cd {mps.folder.parent}", pipe=Path(mps.folder.name)) as pid:
        assert judge(pid, mps.found()).reason == "unexplained"
    with process(script="cd /", pipe=Path(mps.folder.name)) as pid:
        assert judge(pid, mps.found()).reason == "environment"


def test_a_pid_namespace_changes_nothing(mps: StandIn):
    """The driver lists host pids; the process itself believes to be number 1."""
    wrapper = ("unshare", "--pid", "--fork", "--mount-proc")
    with process(*wrapper, pipe=mps.folder) as pid:
        inside = judge(pid, mps.found(), clients=frozenset({pid}))
        outside = judge(pid, mps.found())
    assert inside.role == "client"
    assert outside.reason == "unexplained"


def test_several_reasons_are_all_told(mps: StandIn):
    hide = f"mount -t tmpfs none {mps.folder}"
    wrapper = ("unshare", "--mount", "--ipc")
    with process(*wrapper, pipe=mps.folder, script=hide) as pid:
        client = judge(pid, mps.found())
    assert (client.reason, client.other_reasons) == ("not_visible", "other_ipc_namespace")


def test_a_driver_that_does_not_list_clients(mps: StandIn):
    with process(pipe=mps.folder) as pid:
        client = judge(pid, mps.found(), clients=None)
    assert client.role == "unknown" and client.reason is None


def test_pids_that_nobody_has_are_left_out():
    assert audit([DeviceContexts(1, 0, frozenset({0, 4194303}), frozenset())], []) == []


def test_every_reason_has_a_meaning():
    assert all(len(text) > 20 for text in REASONS.values())


def test_a_folder_with_an_odd_name_is_told_so_that_it_can_be_typed_and_stored():
    with pipe_folder() as top:
        folder = Path(os.fsdecode(os.fsencode(top) + b"/a \xff"))
        folder.mkdir(mode=0o755)
        with daemon(folder) as mps, process() as pid:
            client = judge(pid, mps.found())
    assert client.reason == "environment"
    assert client.mends is not None
    assert f"{PIPE_VARIABLE}='{folder}' COMMAND" in client.mends.host
    assert f"-v '{folder}:{folder}'" in client.mends.docker
    assert 'mountPath: "/' in client.mends.kubernetes
    row = client_row(client, True)
    batch = make_batch(MPS_CLIENT, {name: [row.get(name)] for name in MPS_CLIENT.column_names})
    assert "/a \\udcff" in batch.rows["detail"][0].as_py()


def test_the_variable_is_found_in_an_environment_of_megabytes():
    environment = {f"SERVICE_{i}": "x" * 1000 for i in range(1500)}
    environment[PIPE_VARIABLE] = "/elsewhere"
    child = subprocess.Popen(["sleep", "30"], env=environment)
    try:
        while not Path(f"/proc/{child.pid}/environ").read_bytes():
            time.sleep(0.01)
        assert pipe_directory(child.pid) == (True, "/elsewhere")
    finally:
        child.kill()
        child.wait()
