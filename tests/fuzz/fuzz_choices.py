"""How an input comes about: decisions that are read from bytes, and what may be done to a message.

Hypothesis draws these bytes, or a search that is guided by coverage changes them. In both cases the
bytes alone say what is sent, so that an input can be made again.
"""

import hashlib
import json

_TEXTS = (
    "", "a", "0", "-1", "é", "\u0000", "\u202e", "\ud800", "x" * 3000, "../../etc/passwd",
    "0" * 64, "zz" * 32, "f" * 63, "0x" + "f" * 62, " " * 64, "%00", "' OR 1=1 --",
)  # fmt: skip
_LITERALS = (
    "null", "true", "false", "0", "-1", "-0", "1", "0.5", "1e308", "1e400", "-1e400", "NaN",
    "Infinity", "-Infinity", "2147483647", "2147483648", "4294967295", "4294967296",
    "9223372036854775807", "9223372036854775808", "18446744073709551616", "1" + "0" * 400,
    "1" + "0" * 3000, "[]", "[[]]", "{}", "[0]", "[-1]", "[1.5]", "[null]", "[4294967296]",
    '{"a": 1}', "[" * 1500 + "]" * 1500, '{"a":' * 600 + "1" + "}" * 600,
    "[" + ",".join("7" for _ in range(1500)) + "]",
)  # fmt: skip


class Choices:
    """Decisions read from bytes. Where the bytes are at an end each decision is the first one, and
    first ones change nothing: no bytes at all give a good message."""

    def __init__(self, data):
        self._data, self._at = data, 0

    def below(self, count):
        if count <= 1:
            return 0
        size = 1 if count <= 256 else 2 if count <= 65536 else 4
        taken = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(taken, "little") % count

    def chance(self, one_in):
        return self.below(one_in) == one_in - 1

    def pick(self, options):
        return options[self.below(len(options))]

    def bytes(self, size):
        """So many, all of them from four."""
        seed = self._data[self._at : self._at + 4]
        self._at += 4
        return hashlib.shake_128(seed).digest(size)

    # --- numbers ----------------------------------------------------------------------------------

    def number(self, near, bits=32):
        """Any that fits; often one at which something ends."""
        top = (1 << bits) - 1
        ends = (near + 1, near - 1, 0, 1, top, top - 1, top >> 1, (top >> 1) + 1, 1 << 16, 1 << 31)
        which = self.below(len(ends) + 2)
        if which < len(ends):
            return max(0, ends[which]) & top
        return int.from_bytes(self.bytes(bits // 8), "little")

    def other(self, value, bits=32, one_in=12):
        """Nearly always the value itself."""
        return self.number(value, bits) if self.chance(one_in) else value

    # --- bytes ------------------------------------------------------------------------------------

    def damaged(self, content):
        """Something else than this content."""
        for _ in range(1 + self.below(3)):
            content = self._damaged_once(bytes(content))
        return content

    def perhaps_damaged(self, content, one_in=8):
        return self.damaged(content) if self.chance(one_in) else content

    def _damaged_once(self, content):
        size = len(content)
        at = self.below(size + 1)
        span = 1 + self.below(max(1, min(size - at, 64)))
        after = content[at + span :]
        match self.below(13):
            case 0:
                return content[:at]
            case 1:
                return content[:-1]
            case 2:
                return content + self.bytes(1 + self.below(64))
            case 3 if size:
                at = min(at, size - 1)
                flipped = content[at] ^ (1 << self.below(8))
                return content[:at] + bytes([flipped]) + content[at + 1 :]
            case 4:
                return content[:at] + self.pick((b"\0", b"\xff", b"\x80", b"\x7f")) + after
            case 5:
                wide = self.pick((2, 4, 8))
                at -= at % wide
                value = self.number(0, 8 * wide).to_bytes(wide, "little")
                return content[:at] + value + content[at + wide :]
            case 6:
                return content[:at] + after
            case 7:
                return content[: at + span] + content[at:]
            case 8:
                return content[:at] + self.bytes(span) + content[at:]
            case 9:
                return self.bytes(size)
            case 10:
                return bytes([self.pick((0, 255))]) * size
            case 11:
                return content + content
            case _:
                return self.pick((b"", b"\0", b"\0" * 5000, content + b"\0" * 70_000))

    def refielded(self, layout, content, one_in=6):
        """With another number in one field of the head that `layout` (a Struct) describes."""
        if not self.chance(one_in) or len(content) < layout.size:
            return content
        fields = list(layout.unpack_from(content))
        at = self.below(len(fields))
        kinds = [code for code in layout.format if code.isalpha()]
        if isinstance(fields[at], bytes):
            fields[at] = self.bytes(len(fields[at]))
        else:
            bits = {"B": 8, "H": 16, "I": 32, "Q": 64, "q": 63}[kinds[at]]
            fields[at] = self.number(fields[at], bits)
        return layout.pack(*fields) + content[layout.size :]

    # --- JSON -------------------------------------------------------------------------------------

    def document(self, table):
        """The table as JSON, or, mostly, what somebody makes of it who means harm."""
        if self.below(6) == 0:
            return json.dumps(table).encode()
        fields = [(json.dumps(key), json.dumps(value)) for key, value in table.items()]
        for _ in range(1 + self.below(2)):
            self._change(fields)
        text = "{" + ", ".join(f"{key}: {value}" for key, value in fields) + "}"
        match self.below(12):
            case 0:
                return text.encode("utf-16", "surrogatepass")
            case 1:
                return b"\xef\xbb\xbf" + text.encode()
            case 2:
                return self.damaged(text.encode())
            case 3:
                return self.pick(_LITERALS).encode()
            case 4:
                return text.encode() + self.pick((b"}", b"\0", b" " * 3000, b"{}", b"\n"))
            case _:
                return text.encode()

    def _change(self, fields):
        literal = json.dumps(self.pick(_TEXTS)) if self.chance(2) else self.pick(_LITERALS)
        at = self.below(max(1, len(fields)))
        if not fields or self.chance(8):
            fields.append((json.dumps(self.pick(_TEXTS)), literal))
        elif self.chance(5):
            del fields[at]
        elif self.chance(8):
            fields.append((fields[at][0], literal))
        else:
            fields[at] = fields[at][0], literal
