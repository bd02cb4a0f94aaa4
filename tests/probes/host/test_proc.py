"""Readers of /proc against real processes and hand-made roots, and what a command line keeps."""

from __future__ import annotations

import base64
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.host import proc
from probes.host.redaction import MASK, MAX_LENGTH, TEXT_MASK, redact


def test_stat_of_itself_agrees_with_the_kernel() -> None:
    stat = proc.read_stat(os.getpid())
    assert stat is not None and not stat.is_dead
    assert (stat.pid, stat.parent_pid) == (os.getpid(), os.getppid())
    assert stat.n_threads >= 1
    start_ns = proc.start_time_ns(stat.start_ticks, proc.boottime_offset_ns())
    assert 0 < start_ns <= time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def test_start_time_is_monotonic_and_good_to_a_tick() -> None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    with subprocess.Popen(["sleep", "30"]) as process:
        stat = proc.read_stat(process.pid)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        process.kill()
    assert stat is not None
    start_ns = proc.start_time_ns(stat.start_ticks, proc.boottime_offset_ns())
    tick_ns = 1_000_000_000 // proc.TICKS_PER_SECOND
    assert before - tick_ns <= start_ns <= after + tick_ns


def test_stat_with_brackets_and_spaces_in_the_name(tmp_path: Path) -> None:
    rest = " ".join(["S", "7"] + ["0"] * 60)
    stat = proc.parse_stat(f"42 (a) (b c)) {rest}\n".encode())
    assert stat is not None
    assert (stat.pid, stat.name, stat.state, stat.parent_pid) == (42, "a) (b c)", "S", 7)


@pytest.mark.parametrize("data", [b"", b"garbage", b"1 (x", b"1 (x) S", b"x (y) S 1 2 3"])
def test_damaged_stat_is_none(data: bytes) -> None:
    assert proc.parse_stat(data) is None


def test_zombie_is_dead() -> None:
    process = subprocess.Popen(["true"])
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        stat = proc.read_stat(process.pid)
        assert stat is not None
        if stat.is_dead:
            break
        time.sleep(0.01)
    assert stat.is_dead and stat.state == "Z"
    process.wait()
    assert proc.read_stat(process.pid) is None


def test_gone_process_gives_nothing(tmp_path: Path) -> None:
    pid = 1 << 29
    assert proc.read_stat(pid) is None and proc.read_status(pid) is None
    assert proc.command_line(pid) is None and proc.read_maps(pid) == []
    assert proc.read_cgroups(pid) == {} and proc.list_tids(pid) == []
    assert proc.namespace_pids(pid) == [] and proc.list_pids(tmp_path / "none") == []


def test_maps_of_itself() -> None:
    mappings = proc.read_maps(os.getpid())
    assert [m.start for m in mappings] == sorted(m.start for m in mappings)
    executable = proc.read_maps(os.getpid(), executable_only=True)
    expected = [m for m in mappings if "x" in m.permissions and m.inode]
    assert executable == expected and executable
    status = Path(sys.executable).resolve().stat()
    program = next(m for m in executable if m.inode == status.st_ino)
    assert program.device == status.st_dev
    assert Path(f"/proc/self/map_files/{program.range_name}").exists()


def test_maps_with_odd_paths() -> None:
    data = (
        b"1000-2000 r-xp 00000000 fe:01 7    /a b/lib (deleted)\n"
        b"2000-3000 r--p 00000000 00:00 0 \n"
        b"nonsense\n"
        b"3000-4000 r-xp 00001000 103:02 9                /x\\012y\n"
        b"4000-5000 rwxp 00000000 00:00 0    [heap]\n"
    )
    first, second = proc.parse_maps(data, executable_only=True)
    assert (first.path, first.device) == ("/a b/lib (deleted)", os.makedev(0xFE, 1))
    assert (second.path, second.offset, second.inode) == ("/x\ny", 0x1000, 9)
    assert len(proc.parse_maps(data)) == 4


def test_children_are_listed_or_unknown(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "30"]) as process:
        children = proc.list_children(os.getpid())
        process.kill()
    assert children is None or process.pid in children
    (tmp_path / "5" / "task" / "5").mkdir(parents=True)
    assert proc.list_children(5, tmp_path) is None
    (tmp_path / "5" / "task" / "5" / "children").write_text("6 7 ")
    assert proc.list_children(5, tmp_path) == [6, 7]


@pytest.mark.root
def test_pid_inside_and_outside_of_a_namespace() -> None:
    process = subprocess.Popen(
        [
            "unshare",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            "echo $$; exec sleep 30",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        inner = int(process.stdout.readline())
        (child,) = [pid for pid in proc.list_pids() if _parent(pid) == process.pid]
        assert proc.namespace_pids(child) == [child, inner]
    finally:
        process.kill()
        process.communicate()


def _parent(pid: int) -> int | None:
    stat = proc.read_stat(pid)
    return None if stat is None else stat.parent_pid


_ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "container", "cgroup"),
    [
        (f"0::/system.slice/docker-{_ID}.scope\n", _ID, f"/system.slice/docker-{_ID}.scope"),
        (f"4:cpu,cpuacct:/docker/{_ID}\n3:memory:/\n", _ID, f"/docker/{_ID}"),
        (
            f"0::/kubepods.slice/kubepods-pod12_3.slice/cri-containerd-{_ID}.scope\n",
            _ID,
            f"/kubepods.slice/kubepods-pod12_3.slice/cri-containerd-{_ID}.scope",
        ),
        ("0::/lxc.payload.web/init.scope\n", "web", "/lxc.payload.web/init.scope"),
        ("0::/user.slice/user-0.slice\n", None, "/user.slice/user-0.slice"),
        ("5:cpu:/\n0::/\n", None, "/"),
        ("", None, None),
        ("garbage\n", None, None),
    ],
)
def test_container_and_cgroup(
    tmp_path: Path, text: str, container: str | None, cgroup: str | None
) -> None:
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "cgroup").write_text(text)
    cgroups = proc.read_cgroups(9, tmp_path)
    assert proc.container_id(cgroups) == container
    assert proc.main_cgroup(cgroups) == cgroup


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            [
                "vllm",
                "serve",
                "Qwen/Qwen2.5-Coder-32B-Instruct-GPTQ-Int4",
                "--api-key",
                "a",
                "b",
                "--port",
                "80",
                "--max-num-batched-tokens",
                "8192",
                "--tokenizer",
                "x/y",
            ],
            "vllm serve Qwen/Qwen2.5-Coder-32B-Instruct-GPTQ-Int4 --api-key *** *** --port 80 "
            "--max-num-batched-tokens 8192 --tokenizer x/y",
        ),
        (
            ["curl", "-H", "Authorization: Bearer x", "http://a:b@h/x?token=55&a=1"],
            "curl -H *** http://***@h/x?token=***&a=1",
        ),
        (
            [
                "python",
                "-c",
                "from multiprocessing.spawn import spawn_main; "
                "spawn_main(tracker_fd=6, pipe_handle=8)",
                "--multiprocessing-fork",
            ],
            "python -c from multiprocessing.spawn import spawn_main; "
            "spawn_main(tracker_fd=6, pipe_handle=8) --multiprocessing-fork",
        ),
        (["python", "-c", "import os; print(1)"], "python -c <text>"),
        (["x", "--prompt", "why", "is", "--n", "3"], "x --prompt <text> <text> --n 3"),
        (["x", "--num-prompts", "100", "--input-len=128"], "x --num-prompts 100 --input-len=128"),
        (
            ["x", "--speculative-config", '{"method": "eagle", "n": 3, "api_key": "v"}'],
            'x --speculative-config {"method":"eagle","n":3,"api_key":"***"}',
        ),
        (["env", "HF_TOKEN=abc", "MODE=fast"], "env HF_TOKEN=*** MODE=fast"),
        (["VLLM::EngineCore"], "VLLM::EngineCore"),
        (["ssh", "-p", "2222", "node"], "ssh -p 2222 node"),
        (["nginx: worker process"], "nginx: worker process"),
        (["/m/Meta-Llama-3.1-70B-Instruct-AWQ-INT4"], "/m/Meta-Llama-3.1-70B-Instruct-AWQ-INT4"),
    ],
)
def test_command_lines(arguments: list[str], line: str) -> None:
    assert redact(arguments) == line


_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_FORMS = [
    ["--api-key", "{}"], ["--api-key={}"], ["--token", "{}"], ["--hf-token={}"],
    ["--password", "{}"], ["-H", "X-Auth: {}"], ["-u", "me:{}"], ["--header", "{}"],
    ["HF_TOKEN={}"], ["OPENAI_API_KEY={}"], ["AWS_SECRET_ACCESS_KEY={}"], ["dbPassword={}"],
    ["--env", "DB_PASSWORD={}"], ["--env=PGPASSWORD={}"], ["-e", "MY_SECRET={}"],
    ["https://user:{}@host/path"], ["https://{}@host"], ["https://h/p?access_token={}&x=1"],
    ["--config", '{{"a": {{"client_secret": "{}"}}}}'], ["--kv-config={{\"password\": \"{}\"}}"],
    ["Bearer {}"], ["--x", "authorization: {}"], ["--prompt", "{}"], ["--system-prompt={}"],
    ["hf_{}"], ["sk-{}"], ["ghp_{}"], ["--model", "sk-proj-{}"], ["nvapi-{}"], ["eyJ{}.x.y"],
    ["this is my text {}"], ["-c", "a b {}"], ["--api-key", "x", "{}"],
    ["-p", "{}"], ["--pw", "{}"], ["--user", "bob:{}"], ["--license", "{}"], ["--login={}"],
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    form=st.sampled_from(_FORMS),
    secret=st.text(_ALPHABET, min_size=8, max_size=40),
    before=st.lists(st.sampled_from(["python", "-m", "vllm", "--port", "8000"]), max_size=4),
    after=st.lists(st.sampled_from(["--host", "0.0.0.0", "x=1"]), max_size=3),
)
def test_no_secret_survives(
    form: list[str], secret: str, before: list[str], after: list[str]
) -> None:
    # A prompt that is a number is kept on purpose (--prompts 100): not one of these.
    secret = "q" + secret
    words = [word.format(secret) for word in form]
    assert secret not in redact(["program", *before, *words, *after])


@pytest.mark.parametrize("kind", ["hex", "base64", "urlsafe", "letters and digits"])
def test_random_strings_are_hidden_wherever_they_are(kind: str) -> None:
    """It is a guess from the characters: 99 of 100 must be hidden."""
    source = random.Random(kind)
    n_shown = 0
    for _ in range(1000):
        data = source.randbytes(source.randint(24, 64))
        secret = {
            "hex": data.hex(),
            "base64": base64.b64encode(data).decode().rstrip("="),
            "urlsafe": base64.urlsafe_b64encode(data).decode().rstrip("="),
            "letters and digits": "".join(_ALPHABET[byte % 62] for byte in data),
        }[kind]
        lines = [redact(["run", form.format(secret)]) for form in ("{}", "--x={}", "/srv/{}/a")]
        n_shown += any(secret in line for line in lines)
    assert n_shown <= 10


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=200), max_size=30))
def test_any_command_line_is_bounded(words: list[str]) -> None:
    assert len(redact(words)) <= MAX_LENGTH


def test_long_command_lines_are_cut() -> None:
    line = redact(["x"] * 10_000)
    assert line.endswith("…") and len(line) <= MAX_LENGTH
    assert len(redact(["a=" * 100_000, "-" * 100_000])) <= MAX_LENGTH
    assert MASK != TEXT_MASK


def test_command_line_of_a_real_process_is_redacted() -> None:
    secret = "s3cr3t-value"
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(30)", "--api-key", secret],
    ) as process:
        deadline = time.monotonic() + 10
        line = ""
        while time.monotonic() < deadline and "--api-key" not in line:
            line = proc.command_line(process.pid) or ""
        process.kill()
    assert "--api-key ***" in line and secret not in line
