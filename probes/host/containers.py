"""Names of containers, where the node's own files tell them: Kubernetes, Docker, Podman.

No daemon is asked. Files that may hold an environment are read for the name alone.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from probes.host.proc import container_id, read_bytes

#: A container without a name is looked up again after this.
RETRY_NS = 10_000_000_000
#: Entries of a folder that are looked at, containers remembered, characters of a name.
MAX_ENTRIES = 20_000
MAX_REMEMBERED = 4096
MAX_NAME = 200

_LOG = re.compile(r"([^_]+)_([^_]+)_(.+)-([0-9a-f]{64})\.log")
_POD_FOLDER = re.compile(r"([^_]+)_([^_]+)_([0-9a-f-]{8,64})")
_POD_UID = re.compile(
    r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})"
)
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


def pod_uid(cgroups: Mapping[str, str]) -> str | None:
    """Return the UID of the Kubernetes pod that a process's cgroups are of; None outside one."""
    for path in cgroups.values():
        match = _POD_UID.search(path)
        if match is not None:
            return match[1].replace("_", "-")
    return None


class ContainerNames:
    """Looks up names of containers and remembers them.

    Args:
        filesystem: Root of the node's files.
        clock: CLOCK_MONOTONIC in ns.
    """

    def __init__(
        self, filesystem: Path = Path("/"), clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._filesystem = filesystem
        self._clock = clock
        self._names: dict[tuple[str | None, str | None], tuple[int, str | None]] = {}

    def name(self, cgroups: Mapping[str, str]) -> str | None:
        """Return the name of the container that a process's cgroups are of.

        ``NAMESPACE/POD/CONTAINER`` or ``NAMESPACE/POD`` of Kubernetes, the name in Docker or
        Podman, ``pod UID`` where the node tells no name; None outside of containers.
        """
        key = (container_id(dict(cgroups)), pod_uid(cgroups))
        if key == (None, None):
            return None
        now_ns = self._clock()
        due_ns, name = self._names.get(key, (0, None))
        if name is None and now_ns >= due_ns:
            if len(self._names) >= MAX_REMEMBERED:
                self._names.clear()
            name = self._look_up(*key)
            self._names[key] = (now_ns + RETRY_NS, name)
        return name or (f"pod {key[1]}" if key[1] is not None else None)

    def _look_up(self, container: str | None, pod: str | None) -> str | None:
        name = None
        if container is not None and len(container) == 64:
            name = (
                self._of_log(container) or self._of_docker(container) or self._of_podman(container)
            )
        if name is None and pod is not None:
            name = self._of_pod(pod)
        return None if name is None else _UNPRINTABLE.sub("?", name)[:MAX_NAME]

    def _of_log(self, container: str) -> str | None:
        """``NAMESPACE/POD/CONTAINER`` from the name of the container's log."""
        for name in self._entries("var/log/containers"):
            match = _LOG.fullmatch(name) if name.endswith(f"-{container}.log") else None
            if match is not None:
                return f"{match[2]}/{match[1]}/{match[3]}"
        return None

    def _of_pod(self, uid: str) -> str | None:
        """``NAMESPACE/POD`` from the name of the pod's folder of logs."""
        for name in self._entries("var/log/pods"):
            match = _POD_FOLDER.fullmatch(name)
            if match is not None and match[3] == uid:
                return f"{match[1]}/{match[2]}"
        return None

    def _of_docker(self, container: str) -> str | None:
        found = self._json(f"var/lib/docker/containers/{container}/config.v2.json")
        name = found.get("Name") if isinstance(found, dict) else None
        return name.lstrip("/") or None if isinstance(name, str) else None

    def _of_podman(self, container: str) -> str | None:
        found = self._json("var/lib/containers/storage/overlay-containers/containers.json")
        for item in found if isinstance(found, list) else []:
            if isinstance(item, dict) and item.get("id") == container:
                names = item.get("names")
                if isinstance(names, list) and names and isinstance(names[0], str):
                    return names[0]
        return None

    def _entries(self, folder: str) -> list[str]:
        names: list[str] = []
        try:
            with os.scandir(self._filesystem / folder) as entries:
                for entry in entries:
                    names.append(entry.name)
                    if len(names) >= MAX_ENTRIES:
                        break
        except OSError:
            return names
        return names

    def _json(self, path: str) -> object:
        data = read_bytes(self._filesystem / path)
        try:
            return json.loads(data) if data else None
        except (ValueError, RecursionError):
            return None
