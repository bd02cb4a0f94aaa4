"""Where the arguments of a C function lie on x86-64, and what each means.

A declaration lists the roles of the parameters in order. The System V calling convention gives
each its place: six integer registers, then eight-byte slots of the stack, which begins with the
return address. ``dim3`` by value takes two registers; larger structs by value lie on the stack.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Integer registers that carry arguments; slot numbers from here on are stack slots.
N_REGISTERS = 6


@dataclass(frozen=True)
class Source:
    """Eight or four bytes that a probe reads.

    Attributes:
        slot: 0-5 the registers in order, 6 and up the stack slots above the return address.
        width: Bytes, 4 or 8.
        offset: Offset behind the pointer in the slot; None when the slot itself is the value.
    """

    slot: int
    width: int = 8
    offset: int | None = None


@dataclass(frozen=True)
class Field:
    """One recorded argument: its role, where it is read, and which bits of that it is.

    Attributes:
        role: Column or ``size`` (a factor of ``size_bytes``), ``copy_kind``, ``nccl_type``,
            ``source_memory``, ``target_memory``, ``rank``.
        source: Bytes that hold it.
        shift: First bit of it in the source.
        width: Bytes of it, 4 or 8.
    """

    role: str
    source: Source
    shift: int = 0
    width: int = 8


#: Bytes of the roles that are narrower than a register.
_NARROW = {"copy_kind": 4, "nccl_type": 4, "device": 4, "rank": 4}

#: Structs passed by pointer: (role, offset, width) of what is read, from the public headers.
STRUCTS: dict[str, tuple[tuple[str, int, int], ...]] = {
    "cudaLaunchConfig_t": (
        ("grid_x", 0, 4),
        ("grid_y", 4, 4),
        ("grid_z", 8, 4),
        ("block_x", 12, 4),
        ("block_y", 16, 4),
        ("block_z", 20, 4),
        ("shared", 24, 8),
        ("stream", 32, 8),
    ),
    "CUlaunchConfig": (
        ("grid_x", 0, 4),
        ("grid_y", 4, 4),
        ("grid_z", 8, 4),
        ("block_x", 12, 4),
        ("block_y", 16, 4),
        ("block_z", 20, 4),
        ("shared", 24, 4),
        ("stream", 32, 8),
    ),
    "cudaMemcpy3DParms": (
        ("size", 128, 8),
        ("size", 136, 8),
        ("size", 144, 8),
        ("copy_kind", 152, 4),
    ),
    "cudaMemcpy3DPeerParms": (("size", 144, 8), ("size", 152, 8), ("size", 160, 8)),
    "CUDA_MEMCPY2D": (
        ("source_memory", 16, 4),
        ("target_memory", 72, 4),
        ("size", 112, 8),
        ("size", 120, 8),
    ),
    "CUDA_MEMCPY3D": (
        ("source_memory", 32, 4),
        ("target_memory", 120, 4),
        ("size", 176, 8),
        ("size", 184, 8),
        ("size", 192, 8),
    ),
}


def parse_parameters(parameters: str) -> tuple[Field, ...]:
    """Return the recorded arguments of a function from the roles of its parameters.

    Args:
        parameters: One word per parameter: ``_`` not recorded; ``grid`` and ``block`` a ``dim3`` by
            value; ``extent`` a ``cudaExtent`` by value; ``memory:N`` a struct of N eight-byte words
            by value; ``@NAME`` a pointer to a struct of :data:`STRUCTS`; else ``ROLE`` or
            ``ROLE:WIDTH`` with the width in bytes.

    Raises:
        ValueError: a struct is not declared.
    """
    fields: list[Field] = []
    register, stack = 0, N_REGISTERS

    def take(n_words: int) -> int:
        """Give consecutive slots to one parameter: registers if all fit, else the stack."""
        nonlocal register, stack
        if n_words <= 2 and register + n_words <= N_REGISTERS:
            register += n_words
            return register - n_words
        stack += n_words
        return stack - n_words

    for word in parameters.split():
        role, _, number = word.partition(":")
        if role == "_":
            take(1)
        elif role in ("grid", "block"):
            slot = take(2)
            pair = Source(slot)
            fields.append(Field(f"{role}_x", pair, 0, 4))
            fields.append(Field(f"{role}_y", pair, 32, 4))
            fields.append(Field(f"{role}_z", Source(slot + 1, 4), 0, 4))
        elif role == "extent":
            slot = take(3)
            fields.extend(Field("size", Source(slot + index)) for index in range(3))
        elif role == "memory":
            take(int(number))
        elif role.startswith("@"):
            if role[1:] not in STRUCTS:
                raise ValueError(f"struct {role[1:]} is not declared in probes/cuda/abi.py")
            slot = take(1)
            for name, offset, width in STRUCTS[role[1:]]:
                source = Source(slot, 8, offset - offset % 8)
                fields.append(Field(name, source, offset % 8 * 8, width))
        else:
            width = int(number) if number else _NARROW.get(role, 8)
            fields.append(Field(role, Source(take(1), width), 0, width))
    return tuple(fields)
