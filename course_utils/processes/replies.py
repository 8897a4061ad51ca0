"""What a worker sends back of its calls, as it comes."""

import json
import time
from typing import Any

from course_utils.processes import transport
from course_utils.processes.stacks import Raised

MOST_TOLD = 4 << 20  # bytes that a call may tell before it ends


class Replies:
    """What has come of the call that is under way, and the bytes of what has come only in part. `begun`: when
    it began in the process, or last told something, on the monotonic clock; None while it has not. `told`:
    what it has told. `outcome`: how it ended, and the bytes of what it returned."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._in = bytearray()
        self.expect()

    def expect(self) -> None:
        """A new call is sent."""
        self.begun: float | None = None
        self.outcome: tuple[dict[str, Any], bytes] | None = None
        self.told: list[Any] = []
        self._told_bytes = 0

    def take(self, part: bytes) -> None:
        """Takes in some bytes. Raises whatever it may where they cannot be read."""
        self._in += part
        while len(self._in) >= transport.HEADER_BYTES:
            header = bytes(self._in[: transport.HEADER_BYTES])
            kind, length = transport.read_header(self._token, header)
            if len(self._in) < transport.HEADER_BYTES + length:
                return
            payload = bytes(self._in[transport.HEADER_BYTES : transport.HEADER_BYTES + length])
            del self._in[: transport.HEADER_BYTES + length]
            if kind == transport.RESULT:
                line, _, content = payload.partition(b"\n")
                ended = json.loads(line)
                if ended["state"] == "raised":
                    ended["error"] = Raised.of_plain(ended["error"])
                self.outcome = ended, content
                continue
            self.begun = time.monotonic()
            if kind == transport.PART:
                self._told_bytes += length
                if self._told_bytes > MOST_TOLD:
                    raise transport.GarbledError
                self.told.append(json.loads(payload))
