"""Ways from a log file into a loopback socket, by CPU time a piece: why the broker uses sendfile.

`python -m benchmarks.sending`; the reader is a process of its own. See docs/decisions/002. A piece
is a batch, and each way learns the size of the next one: from its header, which `sendfile` has to
read for itself.
"""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

FILE_BYTES = 200 * 1024 * 1024
PIECES_BYTES = (4 * 1024, 16 * 1024, 64 * 1024, 1024 * 1024)
HEAD = bytes(80)
HEADER_BYTES = 61
MORE = getattr(socket, "MSG_MORE", 0)
READER = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
room = bytearray(1 << 20)
while peer.recv_into(room): pass
"""

Way = Callable[[socket.socket, int, memoryview, int, int], None]


def pread(peer: socket.socket, file: int, _: memoryview, position: int, size_bytes: int) -> None:
    """Read into memory of our own, with the header behind, and send that."""
    data = memoryview(os.pread(file, size_bytes + HEADER_BYTES, position))
    _send(peer, memoryview(b"".join((HEAD, data[:size_bytes]))))


def mapped(
    peer: socket.socket, _: int, content: memoryview, position: int, size_bytes: int
) -> None:
    """Send from a mapping of the file. A file that is cut off under it ends the process."""
    sent = peer.sendmsg([HEAD, content[position : position + size_bytes]]) - len(HEAD)
    _send(peer, content[position + sent : position + size_bytes])


def sendfile(peer: socket.socket, file: int, _: memoryview, position: int, size_bytes: int) -> None:
    """The head held back, the rest from file to socket within the kernel."""
    end = position + size_bytes
    os.pread(file, HEADER_BYTES, end)
    peer.send(HEAD, MORE)
    while position < end:
        position += os.sendfile(peer.fileno(), file, position, end - position)


def cpu_us(way: Way, size_bytes: int) -> float:
    """CPU microseconds of the sender for a piece."""
    with tempfile.TemporaryFile() as file, socket.create_server(("127.0.0.1", 0)) as listener:
        file.write(os.urandom(FILE_BYTES))
        file.flush()
        port = listener.getsockname()[1]
        reader = subprocess.Popen([sys.executable, "-c", READER, str(port)])
        peer, _ = listener.accept()
        content = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        began_s = time.process_time()
        with peer, memoryview(content) as view:
            for position in range(0, FILE_BYTES - size_bytes + 1, size_bytes):
                way(peer, file.fileno(), view, position, size_bytes)
            took_s = time.process_time() - began_s
        content.close()
        reader.wait()
    return took_s * 1_000_000 * size_bytes / FILE_BYTES


def _send(peer: socket.socket, data: memoryview) -> None:
    while data:
        data = data[peer.send(data) :]


def main() -> None:
    """Print a line for each way and size."""
    for size_bytes in PIECES_BYTES:
        for way in (pread, mapped, sendfile):
            print(f"{size_bytes:>8} bytes by {way.__name__:<8} {cpu_us(way, size_bytes):7.1f} us")


if __name__ == "__main__":
    main()
