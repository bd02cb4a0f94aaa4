"""Plays the processes of a case on paper: CUDA calls, times off the CPU, device time, tokens.

An :class:`Actor` is one process with one launching thread on one device. :func:`play` lets all
actors of a case live through its phases; the modules ``seen_*.py`` then observe what they did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.analysis.builder import MS, S, Service

#: Longest time that is played step by step, s; longer phases exist as samples only.
LONGEST_PLAY_S = 120.0


@dataclass
class Actor(Service):
    """One launching thread and its device, with the faults that cases ask for.

    Attributes:
        device: Index of its device.
        rank: Its rank among the actors.
        noise: Relative noise of every length.
        marks: Per metric, what was added when: (ns, value, weight).
        open_calls: Calls that were entered and never return: (since ns, row).
        parked: Intervals that have no end in the recording: (start ns, whether on the CPU).
        due: Per fault, when it happens next.
        sibling: Thread that takes the interpreter.
        n_steps: Steps so far.
        events: Rows of the table of that name.
    """

    device: int = 0
    rank: int = 0
    noise: float = 0.1
    marks: dict[str, list[tuple[int, float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    open_calls: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    parked: list[tuple[int, bool]] = field(default_factory=list)
    due: dict[str, int] = field(default_factory=dict)
    sibling: int = 0
    n_steps: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    def shake(self, value: float) -> int:
        return max(int(value * self.rng.uniform(1 - self.noise, 1 + self.noise)), 1)

    def call(self, function: str, kind: str, duration: int, **more: Any) -> None:
        super().call(function, kind, duration, **{"device": self.device, **more})

    def is_due(self, fault: str, every_ns: float) -> bool:
        """Whether a recurring fault happens now; the next one is set."""
        first = self.now + int(every_ns * self.rng.random())
        if self.now < self.due.setdefault(fault, first):
            return False
        self.due[fault] = self.now + self.shake(every_ns)
        return True

    def disturb(self, faults: Mapping[str, Any]) -> None:
        """Whatever keeps the thread from launching now."""
        preempt = faults.get("preempt")
        if preempt and self.is_due("preempt", preempt["every_ms"] * MS):
            self.preempt(
                self.shake(preempt["for_ms"] * MS), preempt.get("pid", 9100), preempt["by"]
            )
        delay = faults.get("wake_delay")
        if delay and self.is_due("wake_delay", delay["every_ms"] * MS):
            # Asleep for a moment, then long ready with an idle CPU beside it.
            length = self.shake(delay["for_ms"] * MS)
            self.absent(self.now, self.now + length, "sleeping", int(length * 0.9))
            self.now += length
        throttle = faults.get("throttle")
        if throttle and self.is_due("throttle", 100 * MS):
            # Parked until the period ends; nobody of this process runs meanwhile.
            end = (self.now // (100 * MS) + 1) * 100 * MS
            start = max(end - self.shake(throttle["share"] * 100 * MS), self.now)
            self.now = start
            if end > start:
                self.absent(start, end, "running", end - start)
                self.now = end
        gil = faults.get("gil")
        if gil and self.is_due("gil", gil["every_ms"] * MS):
            length = self.shake(gil["for_ms"] * MS)
            self._wait_for_sibling(length, gil.get("by", "poller"), gil.get("lock"))
        gc = faults.get("gc")
        if gc and self.is_due("gc", gc["every_s"] * S):
            length = self.shake(gc["for_ms"] * MS)
            if gc.get("probed"):
                self.event("gc", "python", pid=self.pid, tid=self.pid, duration_ns=length)
            self.compute(length)
        stall = faults.get("stall")
        if stall and self.is_due("stall", stall["every_s"] * S):
            length = self.shake(stall["for_ms"] * MS)
            self.absent(self.now, self.now + length, "uninterruptible", 20_000)
            self.now += length
        first = faults.get("first_use")
        if first and self.is_due("first_use", first["every_s"] * S):
            for _ in range(first.get("kernels", 4)):
                if first.get("module_ms"):
                    self.call("cuModuleLoadData", "module", self.shake(first["module_ms"] * MS))
                self.launch_kernel(
                    1000 + len(self.seen),
                    self.shake(first["launch_ms"] * MS),
                    is_first_use=first.get("is_known", True),
                    is_first_seen=True,
                )
        compile_ = faults.get("compile")
        if compile_ and self.is_due("compile", compile_["every_s"] * S):
            self._compile(compile_)

    def _wait_for_sibling(self, length: int, name: str, lock: str | None) -> None:
        """Sleep for the interpreter in slices of five milliseconds, woken by the timer or it; on a
        lock that the recording names or not.
        """
        end = self.now + length
        while self.now < end:
            part = min(5 * MS, end - self.now)
            waker = {"waker_pid": self.pid, "waker_tid": self.sibling, "waker_name": name}
            self.absent(
                self.now,
                self.now + part,
                "sleeping",
                4_000,
                lock=lock,
                **(waker if self.now + part >= end else {}),
            )
            self.now += part

    def _compile(self, spec: Mapping[str, Any]) -> None:
        """A child compiles; the thread works, then sleeps until the child is done."""
        child = self.pid + 500 + len(self.events)
        length = self.shake(spec["for_s"] * S)
        self.compute(length // 5)
        self.event("fork", spec["child"], pid=child, parent_pid=self.pid)
        self.event("exec", spec["child"], pid=child)
        self.absent(
            self.now,
            self.now + length * 4 // 5,
            "sleeping",
            30_000,
            waker_pid=child,
            waker_tid=child,
            waker_name=spec["child"],
        )
        self.now += length * 4 // 5
        self.event("exit", spec["child"], pid=child)
        self.call("cuModuleLoadData", "module", self.shake(4 * MS))
        self.launch_kernel(5000 + len(self.seen), self.shake(2 * MS), is_first_use=True)

    def event(self, kind: str, name: str, **more: Any) -> None:
        """Something the recorder sees happen now."""
        self.events.append({"time_ns": self.now, "kind": kind, "name": name, **more})

    def step(self, spec: Mapping[str, Any], faults: Mapping[str, Any]) -> None:
        """One step up to its last launch; :meth:`finish` waits for it."""
        self.n_steps += 1
        if spec.get("think_ms"):
            self.sleep(self.shake(spec["think_ms"] * MS))
        if spec.get("load_ms"):
            self._load(spec)
        self.disturb(faults)
        self.compute(self.shake(spec.get("host_ms", 0.7) * MS))
        copy = spec.get("h2d_ms", 0)
        size = spec.get("h2d_bytes", 4096)
        if copy:
            # A pageable copy keeps the caller; the device does nothing else meanwhile.
            self.call(
                *("cudaMemcpyAsync", "copy", self.shake(copy * MS)),
                copy_kind="h2d_pageable",
                size_bytes=size,
            )
        else:
            self.call("cudaMemcpyAsync", "copy", 3_000, copy_kind="h2d", size_bytes=size)
        self._launch(spec)
        if spec.get("d2h_bytes"):
            self.call(
                "cudaMemcpyAsync", "copy", 3_000, copy_kind="d2h", size_bytes=spec["d2h_bytes"]
            )

    def _load(self, spec: Mapping[str, Any]) -> None:
        """Wait for the input; its workers, other processes, end the wait."""
        load = spec["load_ms"]
        length = self.shake((load[self.rank] if isinstance(load, list) else load) * MS)
        waker = {"waker_pid": 4900, "waker_tid": 4900, "waker_name": "pt_data_worker"}
        self.absent(self.now, self.now + length, "sleeping", 5_000, **waker)
        self.now += length

    def _launch(self, spec: Mapping[str, Any]) -> None:
        device = self.shake(spec["device_ms"] * MS)
        n = int(spec.get("launches", 2))
        length = spec.get("launch_us", 8) * 1_000
        gap = spec.get("gap_us", 0) * 1_000
        if spec.get("graph", True):
            self.run_device(device)
            self.call("cudaGraphLaunch", "graph_launch", self.shake(length), kernel=1)
            for index in range(n - 1):
                self.launch_kernel(2 + index, self.shake(length))
            return
        every = int(spec.get("sync_every", 0))
        for index in range(n):
            end = self.run_device(device // n)
            self.launch_kernel(100 + index % 40, self.shake(length))
            if gap:
                self.compute(self.shake(gap))
            if every and index % every == every - 1:
                self.call("cudaMemcpyAsync", "copy", 3_000, copy_kind="d2h", size_bytes=4)
                self.sync(end)

    def enter_collective(self, function: str = "ncclAllReduce") -> int:
        """Launch the collective now; return when this rank arrived."""
        self.call(function, "collective", self.shake(9_000), layer="nccl")
        return self.now

    def finish(self, tokens: float, prompt: float) -> None:
        """Wait for the device; tokens come out."""
        self.sync(self.busy[-1][1])
        if tokens:
            self.mark("inter_token_seconds", (self.now - self.last_tokens) / S, tokens)
            self.mark("generation_tokens", tokens)
            self.last_tokens = self.now
        if prompt:
            self.mark("prompt_tokens", prompt)
        if tokens or prompt:
            self.mark("iteration_tokens", tokens + prompt, 1)

    def mark(self, metric: str, value: float, weight: float = 1.0) -> None:
        """Add to a counter, or a value of some weight to a histogram."""
        self.marks[metric].append((self.now, value, weight))

    def hang(self, end: int, is_seen: bool) -> None:
        """A kernel is launched that never ends; the thread waits until the recording ends."""
        self.compute(self.shake(0.7 * MS))
        if is_seen:
            self.launch_kernel(77)
        self.wait_for_ever(end, is_seen)

    def wait_for_ever(self, end: int, is_seen: bool) -> None:
        """Enter a sync that does not return; the device stays busy."""
        self.busy.append((self.now, end))
        row = {
            "start_ns": self.now,
            "pid": self.pid,
            "tid": self.pid,
            "function": "cudaStreamSynchronize",
            "layer": "runtime",
            "kind": "sync",
            "call_id": self.call_id + 1,
            "depth": 0,
            "stream": 7,
            "is_doubtful": False,
            "thread_state": "S" if self.is_sleepy else "R",
        }
        if is_seen:
            self.open_calls.append((self.now, row))
        self.parked.append((self.now, not self.is_sleepy))
        self.now = end


def play(actors: Sequence[Actor], phases: Sequence[tuple[int, int, Mapping[str, Any]]]) -> None:
    """Let the actors live through phases of (start ns, end ns, description)."""
    for start, end, phase in phases:
        spec = phase.get("step")
        if spec is None or end - start > LONGEST_PLAY_S * S:
            continue
        for actor in actors:
            if start > actor.now:
                actor.sleep(start - actor.now)
                actor.last_tokens = actor.now
            actor.is_sleepy = not spec.get("spin", False)
        _play_phase(actors, end, phase, spec)
    for actor in actors:
        if actor.now < phases[-1][1]:
            actor.parked.append((actor.now, False))


def _play_phase(
    actors: Sequence[Actor], end: int, phase: Mapping[str, Any], spec: Mapping[str, Any]
) -> None:
    faults = phase.get("faults", {})
    running = float(phase.get("running", 4))
    if "hang" in faults:
        for actor in actors:
            actor.hang(end, faults["hang"] != "before")
        return
    prompts = phase.get("prompts")
    while min(actor.now for actor in actors) < end:
        if "wedge" in faults and _wedge(actors, end, spec, faults["wedge"]):
            return
        lead = actors[0]
        is_prompt = bool(prompts) and lead.is_due("prompts", prompts["every_ms"] * MS)
        for _ in range(int(prompts.get("chunks", 1)) if is_prompt else 0):
            _one_step(actors, {"graph": False, "launches": 40, **spec, **_chunk(prompts)}, faults)
            for actor in actors:
                actor.finish(prompts.get("decodes", 0) * running, prompts["tokens"])
        _one_step(actors, spec, faults)
        is_decode = spec.get("kind", "decode") == "decode"
        for actor in actors:
            tokens = running * spec.get("tokens", 1) if is_decode else 0.0
            prompt = spec.get("tokens", 0) if spec.get("kind") == "prefill" else 0.0
            if spec.get("depth", 1) == 1 or actor.n_steps % spec["depth"] == 0:
                actor.finish(tokens, prompt)


def _chunk(prompts: Mapping[str, Any]) -> dict[str, Any]:
    return {"device_ms": prompts["device_ms"], "launches": prompts.get("launches", 40)}


def _one_step(actors: Sequence[Actor], spec: Mapping[str, Any], faults: Mapping[str, Any]) -> None:
    late_rank = spec.get("late_rank")
    slow = actors[0].rng.randrange(len(actors)) if late_rank == "any" else late_rank
    for actor in actors:
        actor.step(spec, faults)
        if actor.rank == slow:
            actor.compute(actor.shake(spec["late_ms"] * MS))
    if "collective_ms" not in spec:
        return
    arrivals = [actor.enter_collective() for actor in actors]
    end = max(max(arrivals), *(actor.busy[-1][1] for actor in actors))
    end += actors[0].shake(spec["collective_ms"] * MS)
    for actor, arrival in zip(actors, arrivals, strict=True):
        # The kernel of the collective runs from this rank's arrival until all are done.
        begin = max(arrival, actor.busy[-1][1])
        actor.busy.append((begin, end))


def _wedge(
    actors: Sequence[Actor], end: int, spec: Mapping[str, Any], wedge: Mapping[str, Any]
) -> bool:
    """After some seconds a collective does not end; return whether that has happened.

    One rank may leave it out (``rank``): it waits in the next one, which may be another function
    (``enters``), or ``goes_on`` without work.
    """
    begin = actors[0].due.setdefault("wedge", actors[0].now + int(wedge["at_s"] * S))
    if actors[0].now < begin:
        return False
    for actor in actors:
        actor.step(spec, {})
        if actor.rank != wedge.get("rank"):
            actor.enter_collective()
            actor.wait_for_ever(end, is_seen=True)
        elif wedge.get("goes_on"):
            actor.finish(0, 0)
            actor.parked.append((actor.now, False))
            actor.now = end
        else:
            actor.finish(0, 0)
            actor.step(spec, {})
            actor.enter_collective(wedge.get("enters", "ncclAllReduce"))
            actor.wait_for_ever(end, is_seen=True)
    return True
