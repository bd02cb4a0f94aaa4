"""The BPF source of the call probes and the way back from their words to arguments.

Each function has a layout: which six words its entry record carries. Where all arguments lie in
registers the words are simply the six registers. The layouts of launches, which read the stack or
a struct and pack what they find, have a program each; the rest share one program that looks up
what to read, because each program costs some 0.08 s to compile.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from analysis.schema import CALL_ENTRY, CALL_RETURN, N_CALL_WORDS, OFFCPU_RECORD, PROCESS_RECORD
from probes.cuda.abi import N_REGISTERS, Field, Source
from probes.cuda.functions import FUNCTIONS, SYMBOL_INDEX, SYMBOLS, Function

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

#: Deepest nesting of traced calls that is followed.
MAX_DEPTH = 8
#: Slots of per-thread state; a thread's place is its id modulo this.
N_SLOTS = 1 << 16
#: Most processes recorded at once.
MAX_TARGETS = 16384

#: Name of the program that every return probe runs.
RETURN_PROGRAM = "call_return"
#: Name of the entry program that looks up what to read.
DESCRIBED_PROGRAM = "call_entry_described"


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
    """Return the layouts that have a program of their own: registers, and those of launches."""
    found = {layout_of(function)[0] for function in FUNCTIONS if function.kind == "launch"}
    found -= {REGISTER_LAYOUT}
    return (REGISTER_LAYOUT, *sorted(found, key=lambda layout: repr(layout.words)))


def program_of(function: Function) -> str:
    """Return the name of the entry program of a function."""
    layout = layout_of(function)[0]
    hot = hot_layouts()
    return f"call_entry_{hot.index(layout)}" if layout in hot else DESCRIBED_PROGRAM


def program_names() -> tuple[str, ...]:
    """Return the names of every call program."""
    entries = (f"call_entry_{index}" for index in range(len(hot_layouts())))
    return (*entries, DESCRIBED_PROGRAM, RETURN_PROGRAM)


def descriptions() -> dict[int, bytes]:
    """Return what the described program reads: symbol index to the map's value.

    A value is one 32-bit number per word: slot + 1 (0 for none) in the low byte, then whether it
    is a pointer, then the offset behind it.
    """
    found = {}
    for function in FUNCTIONS:
        if program_of(function) != DESCRIBED_PROGRAM:
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


def _entry_program(index: int, layout: Layout) -> str:
    """C text of one entry program."""
    lines = [f"int call_entry_{index}(struct pt_regs *ctx)", "{", "    BEGIN_CALL(ctx)"]
    done: set[int] = set()
    for number, sources in enumerate(layout.words):
        if number in done:
            continue
        if len(sources) == 2 or sources[0].width == 4:
            parts = []
            for lane, source in enumerate(sources):
                if _is_read(source):
                    lines.append(f"    u32 part{number}_{lane} = 0;")
                    lines.append(f"    READ(part{number}_{lane}, 4, {_address(source)})")
                    part = f"(u64)part{number}_{lane}"
                else:
                    part = f"(u64)(u32)ctx->{_REGISTERS[source.slot]}"
                parts.append(part if lane == 0 else f"({part} << 32)")
            lines.append(f"    call->words[{number}] = {' | '.join(parts)};")
            continue
        source = sources[0]
        if not _is_read(source):
            lines.append(f"    call->words[{number}] = ctx->{_REGISTERS[source.slot]};")
            continue
        run = number + 1
        while run < len(layout.words) and _follows(layout.words[run - 1], layout.words[run]):
            done.add(run)
            run += 1
        lines.append(f"    READ(call->words[{number}], {8 * (run - number)}, {_address(source)})")
    lines.append("    END_CALL")
    lines.append("}")
    return "\n".join(lines)


def _follows(first: tuple[Source, ...], second: tuple[Source, ...]) -> bool:
    """Whether two words lie next to each other in memory."""
    if len(first) != 1 or len(second) != 1:
        return False
    one, two = first[0], second[0]
    if one.width != 8 or two.width != 8 or not _is_read(one) or not _is_read(two):
        return False
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
        "ENTRY_PAGES": entry_bytes // 4096,
        "RETURN_PAGES": return_bytes // 4096,
        "SIDE_PAGES": side_bytes // 4096,
    }
    lines = [f"#define {name} {value}" for name, value in constants.items()]
    lines.extend(
        record.c_struct() for record in (CALL_ENTRY, CALL_RETURN, OFFCPU_RECORD, PROCESS_RECORD)
    )
    return "\n".join(lines)


def source_text(entry_bytes: int, return_bytes: int, side_bytes: int) -> str:
    """Return the whole BPF source: header, shared parts, one program per layout, scheduler."""
    calls = Path(__file__).with_name("calls.bpf.c").read_text(encoding="utf-8")
    scheduler = Path(__file__).parents[1] / "scheduler" / "offcpu.bpf.c"
    entries = [_entry_program(index, layout) for index, layout in enumerate(hot_layouts())]
    return "\n\n".join(
        (
            header(entry_bytes, return_bytes, side_bytes),
            calls,
            *entries,
            scheduler.read_text(encoding="utf-8"),
        )
    )
