"""One process of load: every connection asks again as soon as it is answered, and answers are counted, not read.

It reads what to ask from standard input as JSON and writes what it found to standard output; `serving_bulk.py` starts
several of them, so that asking is not what is measured.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
READ_BYTES = 1 << 20
PATIENCE_S = 60.0


def read_answer(connection: socket.socket, buffer: memoryview) -> int:
    """The status; the body is received and left alone."""
    head = b""
    while b"\r\n\r\n" not in head:
        head += bytes(buffer[: receive(connection, buffer)])
    lines, _, body = head.partition(b"\r\n\r\n")
    fields = [line.lower().split(b":") for line in lines.split(b"\r\n")]
    num_left = int(next(field[1] for field in fields if field[0] == b"content-length")) - len(body)
    while num_left:
        num_left -= receive(connection, buffer[:num_left])
    return int(lines.split(None, 2)[1])


def receive(connection: socket.socket, buffer: memoryview) -> int:
    num_bytes = connection.recv_into(buffer)
    if not num_bytes:
        raise ConnectionError("the server closed the connection")
    return num_bytes


def ask_again(port: int, requests: list[bytes], begin_s: float, seconds: float, found: list[Any]) -> None:
    """`found` gets of each answer its status, its seconds and when it came, counted from the beginning."""
    buffer = memoryview(bytearray(READ_BYTES))
    with socket.create_connection((HOST, port), PATIENCE_S) as connection:
        time.sleep(max(begin_s - time.time(), 0.0))
        number = 0
        while (asked_s := time.time() - begin_s) < seconds:
            connection.sendall(requests[number % len(requests)])
            status = read_answer(connection, buffer)
            came_s = time.time() - begin_s
            found.append((status, came_s - asked_s, came_s))
            number += 1


def main() -> None:
    asked = json.loads(sys.stdin.read())
    bodies = [body.encode() for body in json.loads(Path(asked["bodies"]).read_text(encoding="utf-8"))]
    head = f"POST {asked['path']} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nContent-Length: "
    requests = [f"{head}{len(body)}\r\n\r\n".encode() + body for body in bodies]
    found: list[Any] = []
    threads = []
    for number in asked["clients"]:
        first = number * 7 % len(requests)
        own = (asked["ports"][number % len(asked["ports"])], requests[first:] + requests[:first])
        arguments = (*own, asked["begin_s"], asked["seconds"], found)
        threads.append(threading.Thread(target=ask_again, args=arguments))
        threads[-1].start()
    for thread in threads:
        thread.join()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
