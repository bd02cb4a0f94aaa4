from __future__ import annotations

import json
from pathlib import Path

import pytest

from probes.host import containers
from probes.host.containers import ContainerNames, pod_uid

ID = "0123456789abcdef" * 4
UID = "11111111-2222-3333-4444-555555555555"
KUBERNETES = {"": f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-{ID}.scope"}


@pytest.mark.parametrize(
    ("path", "uid"),
    [
        (KUBERNETES[""], UID),
        (f"/kubepods/burstable/pod{UID}/{ID}", UID),
        ("/kubepods/pod" + "a" * 32 + "/x", "a" * 32),
        ("/user.slice/podman-1.scope", None),
        ("/", None),
    ],
)
def test_pod_of_a_cgroup(path: str, uid: str | None) -> None:
    assert pod_uid({"cpu": "/", "": path}) == uid


def test_outside_of_containers_there_is_no_name(tmp_path: Path) -> None:
    assert ContainerNames(tmp_path).name({"": "/user.slice/x"}) is None


def test_kubernetes_by_the_log_of_the_container_else_of_the_pod_else_by_uid(
    tmp_path: Path,
) -> None:
    assert ContainerNames(tmp_path).name(KUBERNETES) == f"pod {UID}"
    pods = tmp_path / "var/log/pods"
    (pods / f"serving_llm-0_{UID}").mkdir(parents=True)
    (pods / "serving_other_99999999-2222-3333-4444-555555555555").mkdir()
    assert ContainerNames(tmp_path).name(KUBERNETES) == "serving/llm-0"
    logs = tmp_path / "var/log/containers"
    logs.mkdir()
    (logs / f"llm-0_serving_vllm-server-{ID}.log").symlink_to("/nowhere")
    (logs / f"odd-{ID}.log").write_text("")
    assert ContainerNames(tmp_path).name(KUBERNETES) == "serving/llm-0/vllm-server"


def test_docker_and_podman_by_their_files_and_nothing_but_the_name(tmp_path: Path) -> None:
    docker = tmp_path / f"var/lib/docker/containers/{ID}"
    docker.mkdir(parents=True)
    config = {"Name": "/llm\n\x1b[31m", "Config": {"Env": ["HF_TOKEN=hf_secret"]}}
    (docker / "config.v2.json").write_text(json.dumps(config))
    assert ContainerNames(tmp_path).name({"": f"/docker/{ID}"}) == "llm??[31m"
    (docker / "config.v2.json").unlink()
    podman = tmp_path / "var/lib/containers/storage/overlay-containers"
    podman.mkdir(parents=True)
    listed = [{"id": "else", "names": ["x"]}, 7, {"id": ID, "names": ["served"]}]
    (podman / "containers.json").write_text(json.dumps(listed))
    assert ContainerNames(tmp_path).name({"": f"/libpod-{ID}"}) == "served"


@pytest.mark.parametrize("text", ["", "[", '{"Name": 7}', '"x"', "[" * 100_000])
def test_a_broken_file_names_nothing(tmp_path: Path, text: str) -> None:
    docker = tmp_path / f"var/lib/docker/containers/{ID}"
    docker.mkdir(parents=True)
    (docker / "config.v2.json").write_text(text)
    assert ContainerNames(tmp_path).name({"": f"/docker/{ID}"}) is None


def test_a_name_is_remembered_and_one_that_is_missing_looked_up_ever_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1
    names = ContainerNames(tmp_path, clock=lambda: now)
    looked = 0
    plain = ContainerNames._look_up

    def look_up(self: ContainerNames, container: str | None, pod: str | None) -> str | None:
        nonlocal looked
        looked += 1
        return plain(self, container, pod)

    monkeypatch.setattr(ContainerNames, "_look_up", look_up)
    for _ in range(3):
        assert names.name(KUBERNETES) == f"pod {UID}"
    assert looked == 1
    (tmp_path / f"var/log/pods/serving_llm-0_{UID}").mkdir(parents=True)
    now += containers.RETRY_NS
    for _ in range(3):
        assert names.name(KUBERNETES) == "serving/llm-0"
    assert looked == 2
