"""Clients of the simulated server, in a process of their own: ``python -m tracer.simulated.load``.

The configuration file is a JSON object with the server's ``url``, a ``seed`` and ``groups``, each
the fields of :class:`Group`.
"""

from __future__ import annotations

import argparse
import dataclasses
import http.client
import json
import os
import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tracer.simulated.orphan import end_with_parent


@dataclass(frozen=True)
class Group:
    """Clients that behave alike.

    With ``rate_per_s`` the group is an open loop: requests arrive at random at that rate whatever
    becomes of the earlier ones. Without, ``n_clients`` clients each send the next request about
    ``think_s`` after the last was answered. A request that takes longer than ``timeout_s`` is
    given up and sent again, at most ``n_retries`` times.
    """

    n_clients: int = 1
    rate_per_s: float | None = None
    prompt_tokens: tuple[int, int] = (96, 256)
    max_tokens: tuple[int, int] = (96, 224)
    n_samples: int = 1
    think_s: float = 0.0
    start_s: float = 0.0
    stop_s: float | None = None
    timeout_s: float = 600.0
    n_retries: int = 0


class Client:
    """Sends the requests of one group.

    Args:
        host: Address of the server.
        port: Its port.
        group: How the client behaves.
        seed: Of the sizes and times that are drawn.
    """

    def __init__(self, host: str, port: int, group: Group, seed: int) -> None:
        self._host = host
        self._port = port
        self._group = group
        self._random = random.Random(seed)
        self._begin = time.monotonic()

    def run_closed(self, offset_s: float) -> None:
        """Send one request after the other, from ``offset_s`` after the group's start on."""
        group = self._group
        time.sleep(max(0.0, self._begin + group.start_s + offset_s - time.monotonic()))
        while not self._is_over():
            self._send(self._draw())
            if group.think_s:
                time.sleep(group.think_s * self._random.uniform(0.5, 1.5))

    def run_open(self, rate_per_s: float) -> None:
        """Send requests at random times, each in a thread of its own."""
        time.sleep(self._group.start_s)
        while not self._is_over():
            threading.Thread(target=self._send, args=(self._draw(),), daemon=True).start()
            time.sleep(self._random.expovariate(rate_per_s))

    def _is_over(self) -> bool:
        stop_s = self._group.stop_s
        return stop_s is not None and time.monotonic() > self._begin + stop_s

    def _draw(self) -> bytes:
        group = self._group
        request = {
            "prompt_tokens": self._random.randint(*group.prompt_tokens),
            "max_tokens": self._random.randint(*group.max_tokens),
            "n": group.n_samples,
        }
        return json.dumps(request).encode()

    def _send(self, body: bytes) -> None:
        for _ in range(1 + self._group.n_retries):
            connection = http.client.HTTPConnection(
                self._host, self._port, timeout=self._group.timeout_s
            )
            try:
                connection.request("POST", "/v1/completions", body)
                if connection.getresponse().read():
                    return
            except TimeoutError:
                continue
            except (OSError, http.client.HTTPException):
                time.sleep(0.2)
                return
            finally:
                connection.close()


def run(url: str, groups: list[Group], seed: int) -> None:
    """Run the clients of all groups; returns only when every group has an end and reached it."""
    address = urlsplit(url)
    host, port = address.hostname or "127.0.0.1", address.port or 80
    threads = []
    for number, group in enumerate(groups):
        if group.rate_per_s is not None:
            client = Client(host, port, group, seed * 1000 + number * 100)
            threads.append(threading.Thread(target=client.run_open, args=(group.rate_per_s,)))
            continue
        for index in range(group.n_clients):
            client = Client(host, port, group, seed * 1000 + number * 100 + index)
            offset_s = index * 0.15
            threads.append(threading.Thread(target=client.run_closed, args=(offset_s,)))
    for thread in threads:
        thread.daemon = True
        thread.start()
    for thread in threads:
        thread.join()


def to_json(url: str, groups: list[Group], seed: int, cpus: tuple[int, ...] = ()) -> str:
    """Return the configuration file of a load."""
    listed = [dataclasses.asdict(group) for group in groups]
    return json.dumps({"url": url, "seed": seed, "cpus": cpus, "groups": listed})


def main() -> None:
    """Run the load that the configuration file describes."""
    parser = argparse.ArgumentParser(description="clients of the simulated server")
    parser.add_argument("--config", type=Path, required=True)
    config = json.loads(parser.parse_args().config.read_text(encoding="utf-8"))
    if config["cpus"]:
        os.sched_setaffinity(0, config["cpus"])
    end_with_parent()
    groups = []
    for item in config["groups"]:
        for name in ("prompt_tokens", "max_tokens"):
            item[name] = tuple(item[name])
        groups.append(Group(**item))
    run(config["url"], groups, config["seed"])


if __name__ == "__main__":
    main()
