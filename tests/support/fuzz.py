"""Bytes and messages that nobody should send: made at random, or from right ones by changing a little."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

M = TypeVar("M", bound=Message)

INTEGERS = (0, 1, 2, 3, 7, 63, 64, 127, 128, 255, 256, 65_535, 65_536, 1 << 20, (1 << 31) - 1, 1 << 31,
            (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip
REALS = (0.0, -0.0, 1.5, -1e300, 1e300, 5e-324, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "a", "é" * 50, "\x00", "__class__", "builtins.eval", "../..", "%s", "a.b.c.d", "x" * 5000)
BITS = {
    FieldDescriptor.CPPTYPE_INT32: (32, True),
    FieldDescriptor.CPPTYPE_INT64: (64, True),
    FieldDescriptor.CPPTYPE_UINT32: (32, False),
    FieldDescriptor.CPPTYPE_UINT64: (64, False),
    FieldDescriptor.CPPTYPE_ENUM: (31, False),
}


class Mutator:
    """Changes things at random.

    Args:
        seed: of the randomness; the same seed makes the same.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def noise(self, most: int = 200) -> bytes:
        """Random bytes, a few more often than many."""
        return self.rng.randbytes(int(most * self.rng.random() ** 3))

    def data(self, data: bytes) -> bytes:
        """Some bytes changed, inserted, dropped, repeated or cut off."""
        rng, out = self.rng, bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            at = rng.randrange(len(out) + 1)
            match rng.randrange(6):
                case 0 if out:
                    out[at % len(out)] ^= 1 << rng.randrange(8)
                case 1 if out:
                    out[at % len(out)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
                case 2:
                    out[at:at] = self.noise(16)
                case 3:
                    del out[at : at + rng.randrange(1, 9)]
                case 4:
                    out[at:at] = out[at : at + rng.randrange(1, 33)]
                case _:
                    del out[at:]
        return bytes(out)

    def message(self, message: M, changes: Sequence[int] = (1, 1, 2, 4)) -> M:
        """A copy of a message with some fields changed, at any depth."""
        made = type(message).FromString(message.SerializeToString())
        for _ in range(self.rng.choice(changes)):
            self._change(made)
        return made

    def _change(self, message: Message, depth: int = 0) -> None:
        rng = self.rng
        fields = message.DESCRIPTOR.fields
        held = [field for field, _ in message.ListFields()]
        field = rng.choice(held if held and rng.random() < 0.8 else fields)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return
        if _is_repeated(field):
            self._change_list(getattr(message, field.name), field, depth)
        elif rng.random() < 0.05:
            message.ClearField(field.name)
        elif field.message_type is None:
            setattr(message, field.name, self._scalar(field, getattr(message, field.name)))
        elif depth < 8:
            inner = getattr(message, field.name)
            inner.SetInParent()
            self._change(inner, depth + 1)

    def _change_list(self, items: Any, field: FieldDescriptor, depth: int) -> None:
        rng = self.rng
        action = rng.randrange(5)
        if field.message_type is not None:
            if action == 0 or not items:
                items.add()
            elif action == 1:
                del items[rng.randrange(len(items))]
            elif action == 2:
                items.add().CopyFrom(rng.choice(items))
            elif depth < 8:
                self._change(rng.choice(items), depth + 1)
        elif action == 0 or not items:
            items.append(self._scalar(field, b"" if field.type == field.TYPE_BYTES else 0))
        elif action == 1:
            del items[rng.randrange(len(items))]
        elif action == 2:
            items.append(rng.choice(items))
        else:
            at = rng.randrange(len(items))
            items[at] = self._scalar(field, items[at])

    def _scalar(self, field: FieldDescriptor, value: Any) -> Any:
        rng = self.rng
        if field.cpp_type in BITS:
            bits, signed = BITS[field.cpp_type]
            number = rng.choice((*INTEGERS, int(value) + 1, max(0, int(value) - 1), rng.getrandbits(64)))
            number &= (1 << bits) - 1
            return number - (1 << bits) if signed and number >> (bits - 1) else number
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return rng.choice(REALS)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self.data(value) if value and rng.random() < 0.8 else self.noise()
        return rng.choice((*TEXTS, *(self._text(value) for _ in range(8))))

    def _text(self, value: str) -> str:
        return self.data(value.encode()).decode(errors="replace") if value else "?"


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


Maker = Callable[[], bytes]
