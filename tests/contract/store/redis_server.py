"""A real redis-server on a free loopback port, for as long as the tests want it."""

import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.support.net import LOOPBACK, free_ports


class RedisServer:
    """Started without persistence in a folder of its own; may be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (self.port,) = free_ports(1)
        self.url = f"redis://{LOOPBACK}:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def binary() -> str | None:
        return shutil.which("redis-server") or shutil.which("valkey-server")

    def start(self) -> None:
        binary = self.binary()
        assert binary is not None
        options = (
            "--bind",
            LOOPBACK,
            "--port",
            str(self.port),
            "--dir",
            str(self._folder),
            "--save",
            "",
            "--appendonly",
            "no",
            "--logfile",
            "redis.log",
        )
        self._process = subprocess.Popen([binary, *options])
        end_s = time.monotonic() + 10.0
        while not self._answers():
            assert time.monotonic() < end_s, "redis-server did not start"
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=0.2) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(7) == b"+PONG\r\n"
        except OSError:
            return False
