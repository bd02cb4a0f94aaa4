"""The BPF source of the call probes and the way back from their words to arguments.

Each function has a layout: which six words its entry record carries. Where all arguments lie in
registers the words are simply the six registers. The layouts of launches, which read the stack or
a struct and pack what they find, have code of their own; for the rest it is looked up what to
read. All entries run one program, which gets the layout with its cookie: a program for each layout
would take four times as long to compile.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from analysis.schema import N_CALL_WORDS, RECORDS
from probes.cuda.abi import N_REGISTERS, Field, Source
from probes.cuda.functions import FUNCTIONS, SYMBOL_INDEX, SYMBOLS, Function, by_symbol

#: Registers of the arguments in order, by their names in the kernel's ``struct pt_regs``.
_REGISTERS = ("di", "si", "dx", "cx", "r8", "r9")

#: Bits of a record's ``depth``: the arguments could not be read; no entry belongs to the return;
#: the return of this call is not probed.
ARGUMENTS_UNREAD = 0x8000
NO_ENTRY = 0x4000
NO_RETURN = 0x2000
DEPTH_MASK = 0x1FFF

#: Bit of an attach cookie: this function has no return probe.
COOKIE_NO_RETURN = 1 << 16
#: Where an attach cookie has the number of the layout that has code of its own; 0 is none.
COOKIE_LAYOUT_SHIFT = 17

#: Where the kernel tells its types: with them a program may read a sleeping task's registers.
KERNEL_TYPES = Path("/sys/kernel/btf/vmlinux")

#: Deepest nesting of traced calls that is followed.
MAX_DEPTH = 8
#: Slots of per-thread state; a thread's place is its id modulo this.
N_SLOTS = 1 << 16
#: Size of the ring of garbage collections, and the shortest that is told.
COLLECTION_BYTES = 1 << 14
SHORTEST_COLLECTION_NS = 100_000
#: Most processes recorded at once.
MAX_TARGETS = 16384

#: Name of the program that every return probe runs.
RETURN_PROGRAM = "call_return"
#: Name of the program that every entry probe runs.
ENTRY_PROGRAM = "call_entry"


@dataclass(frozen=True)
class Placement:
    """One argument in the words of a record: its role, word, first bit and width in bytes."""

    role: str
    word: int
    shift: int
    width: int


@dataclass(frozen=True)
class Layout:
    """What the words of an entry record hold: one source, or a pair of 4-byte ones, per word."""

    words: tuple[tuple[Source, ...], ...]


REGISTER_LAYOUT = Layout(tuple((Source(slot),) for slot in range(N_REGISTERS)))


def layout_of(function: Function) -> tuple[Layout, tuple[Placement, ...]]:
    """Return the layout of a function's records and where each argument lies in it.

    Raises:
        ValueError: the arguments do not fit in the words of a record.
    """
    return _layout_of(function.fields, function.kind == "launch")


@cache
def _layout_of(fields: tuple[Field, ...], is_packed: bool) -> tuple[Layout, tuple[Placement, ...]]:
    """Layout of some arguments; packed means that 4-byte sources share words."""
    if all(field.source.offset is None and field.source.slot < N_REGISTERS for field in fields):
        places = tuple(
            Placement(field.role, field.source.slot, field.shift, field.width) for field in fields
        )
        return REGISTER_LAYOUT, places
    words: list[tuple[Source, ...]] = []
    where: dict[Source, tuple[int, int]] = {}
    sources = sorted({field.source for field in fields}, key=_source_order)
    narrow = [source for source in sources if source.width == 4 and is_packed]
    for source in sources:
        if source not in narrow:
            where[source] = (len(words), 0)
            words.append((source,))
    for first in range(0, len(narrow), 2):
        pair = tuple(narrow[first : first + 2])
        for lane, source in enumerate(pair):
            where[source] = (len(words), 32 * lane)
        words.append(pair)
    if len(words) > N_CALL_WORDS:
        raise ValueError(f"arguments need {len(words)} words, a record has {N_CALL_WORDS}")
    places = tuple(
        Placement(
            field.role, where[field.source][0], where[field.source][1] + field.shift, field.width
        )
        for field in fields
    )
    return Layout(tuple(words)), places


def _source_order(source: Source) -> tuple[int, int, int]:
    """Registers first, then what must be read from memory, neighbours together."""
    is_read = int(source.slot >= N_REGISTERS or source.offset is not None)
    return is_read, source.slot, source.offset or 0


@cache
def hot_layouts() -> tuple[Layout, ...]:
    """Return the layouts that have code of their own: those of launches, and registers."""
    found = {layout_of(function)[0] for function in FUNCTIONS if function.kind == "launch"}
    found -= {REGISTER_LAYOUT}
    return (*sorted(found, key=lambda layout: repr(layout.words)), REGISTER_LAYOUT)


def is_described(function: Function) -> bool:
    """Return whether it is looked up what to read for a function."""
    return layout_of(function)[0] not in hot_layouts()


def cookie_of(symbol: str, has_return: bool = True) -> int:
    """Return the attach cookie of a function: its number, its layout, whether returns are probed.

    Args:
        symbol: The function's name.
        has_return: Whether its return is probed.
    """
    function = by_symbol[symbol]
    number = 0 if is_described(function) else 1 + hot_layouts().index(layout_of(function)[0])
    flag = 0 if has_return else COOKIE_NO_RETURN
    return SYMBOL_INDEX[symbol] | flag | number << COOKIE_LAYOUT_SHIFT


def descriptions() -> dict[int, bytes]:
    """Return what is read for functions without code of their own: symbol index to map value.

    A value is one 32-bit number per word: slot + 1 (0 for none) in the low byte, then whether it
    is a pointer, then the offset behind it.
    """
    found = {}
    for function in FUNCTIONS:
        if not is_described(function):
            continue
        numbers = [
            (source.slot + 1) | (source.offset is not None) << 8 | (source.offset or 0) << 16
            for (source,) in layout_of(function)[0].words
        ]
        value = struct.pack(f"<{N_CALL_WORDS}I", *numbers, *[0] * (N_CALL_WORDS - len(numbers)))
        for symbol in function.symbols:
            found[SYMBOL_INDEX[symbol]] = value
    return found


def _address(source: Source) -> str:
    """C expression of the user address that holds a source."""
    if source.slot >= N_REGISTERS:
        return f"ctx->sp + {8 * (source.slot - N_REGISTERS + 1)}"
    return f"ctx->{_REGISTERS[source.slot]} + {source.offset}"


def _is_read(source: Source) -> bool:
    return source.slot >= N_REGISTERS or source.offset is not None


def _layout_code(number: int, layout: Layout) -> str:
    """C text that fills the words of one layout, as a case of the entry program."""
    lines = [f"    case {number}: {{"]
    memory = [source for sources in layout.words for source in sources if _is_read(source)]
    alone = {sources[0]: word for word, sources in enumerate(layout.words) if len(sources) == 1}
    where: dict[Source, str] = {}
    for run in _runs(memory):
        first = alone.get(run[0], -1)
        if all(
            source.width == 8 and alone.get(source) == first + index
            for index, source in enumerate(run)
        ):
            target = f"call->words[{first}]"  # they lie in the record as they do in memory
            where |= dict.fromkeys(run, "")
        else:
            name = f"memory{len(where)}"
            target = f"{name}[0]"
            lines.append(f"        u64 {name}[{len(run)}];")
            where |= {source: f"{name}[{index}]" for index, source in enumerate(run)}
        lines.append(f"        READ(&{target}, {8 * len(run)}, {_address(run[0])})")
    for word, sources in enumerate(layout.words):
        parts = []
        for lane, source in enumerate(sources):
            text = where.get(source, f"ctx->{_REGISTERS[source.slot % N_REGISTERS]}")
            text = f"(u64)(u32){text}" if source.width == 4 else text
            parts.append(f"({text} << 32)" if lane else text)
        if parts != [""]:
            lines.append(f"        call->words[{word}] = {' | '.join(parts)};")
    return "\n".join((*lines, "        break;", "    }"))


def _entry_cases() -> str:
    """C macro with the case of every layout that has code of its own."""
    cases = [_layout_code(1 + index, layout) for index, layout in enumerate(hot_layouts())]
    return "#define LAYOUT_CASES \\\n" + "\n".join(cases).replace("\n", " \\\n")


def _runs(sources: list[Source]) -> list[list[Source]]:
    """Sources of memory in runs of neighbours, which are read at once."""
    runs: list[list[Source]] = []
    for source in sorted(sources, key=_source_order):
        if runs and _follows(runs[-1][-1], source):
            runs[-1].append(source)
        else:
            runs.append([source])
    return runs


def _follows(one: Source, two: Source) -> bool:
    """Whether two sources lie next to each other in memory."""
    if one.offset is None or two.offset is None:
        return one.offset is None and two.offset is None and two.slot == one.slot + 1
    return one.slot == two.slot and two.offset == one.offset + 8


def header(entry_bytes: int, return_bytes: int, side_bytes: int) -> str:
    """Return the C header that every BPF source of the tracer begins with.

    Args:
        entry_bytes: Size of the ring buffer of entries, a power of two of at least a page.
        return_bytes: Size of the ring buffer of returns.
        side_bytes: Size of the ring buffers of processes and of off-CPU intervals.
    """
    constants = {
        "N_SYMBOLS": len(SYMBOLS),
        "N_SLOTS": N_SLOTS,
        "MAX_TARGETS": MAX_TARGETS,
        "MAX_DEPTH": MAX_DEPTH,
        "ARGUMENTS_UNREAD": ARGUMENTS_UNREAD,
        "NO_ENTRY": NO_ENTRY,
        "NO_RETURN": NO_RETURN,
        "COOKIE_NO_RETURN": COOKIE_NO_RETURN,
        "COOKIE_LAYOUT_SHIFT": COOKIE_LAYOUT_SHIFT,
        "ENTRY_PAGES": entry_bytes // 4096,
        "RETURN_PAGES": return_bytes // 4096,
        "SIDE_PAGES": side_bytes // 4096,
        "HAS_TASK_REGISTERS": int(KERNEL_TYPES.is_file()),
        "SYSCALL_FUTEX": 202,
        "STATE_SLEEPING": 1,
        "COLLECTION_PAGES": COLLECTION_BYTES // 4096,
        "SHORTEST_COLLECTION_NS": SHORTEST_COLLECTION_NS,
    }
    lines = [f"#define {name} {value}" for name, value in constants.items()]
    lines.extend(record.c_struct() for record in RECORDS)
    return "\n".join(lines)


def source_text(entry_bytes: int, return_bytes: int, side_bytes: int) -> str:
    """Return the whole BPF source: header, layouts, call probes, scheduler, interpreter."""
    calls = Path(__file__).with_name("calls.bpf.c").read_text(encoding="utf-8")
    scheduler = Path(__file__).parents[1] / "scheduler"
    return "\n\n".join(
        (
            header(entry_bytes, return_bytes, side_bytes),
            _entry_cases(),
            calls,
            *(
                (scheduler / name).read_text(encoding="utf-8")
                for name in ("offcpu.bpf.c", "collector.bpf.c")
            ),
        )
    )
