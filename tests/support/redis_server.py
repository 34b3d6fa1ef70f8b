"""Real servers on free loopback ports, for as long as the tests want them."""

import shutil
import socket
import subprocess
from pathlib import Path

from tests.support.net import LOOPBACK, free_ports, wait_until


class RedisServer:
    """Started without persistence in a folder of its own; may be stopped and started again."""

    def __init__(self, folder: Path, name: str = "redis", *options: str) -> None:
        self._folder = folder
        self._name = name
        self._options = options
        (self.port,) = free_ports(1)
        self.url = f"redis://{LOOPBACK}:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def installed(name: str) -> bool:
        return shutil.which(f"{name}-server") is not None

    def start(self) -> None:
        options = {"bind": LOOPBACK, "port": self.port, "dir": self._folder, "save": ""}
        options |= {"appendonly": "no", "logfile": f"{self.port}.log"}
        pairs = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        self._launch([f"{self._name}-server", *pairs, *self._options])

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ask(self, *parts: str) -> str:
        """One command in plain text; the raw beginning of its answer."""
        with socket.create_connection((LOOPBACK, self.port), timeout=1.0) as connection:
            connection.sendall(" ".join(parts).encode() + b"\r\n")
            return connection.recv(65_536).decode()

    def _launch(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command)
        wait_until(self._answers, 10.0, f"start of {command[0]}")

    def _answers(self) -> bool:
        try:
            return self.ask("PING").startswith("+PONG")
        except OSError:
            return False


class SentinelServer(RedisServer):
    """One sentinel, enough for a verdict, that watches a primary under the name ``planner``."""

    def __init__(self, folder: Path, primary: RedisServer) -> None:
        super().__init__(folder)
        self._primary = primary
        self.url = f"redis+sentinel://{LOOPBACK}:{self.port}/planner/0"

    def start(self) -> None:
        lines = (
            f"port {self.port}",
            f"bind {LOOPBACK}",
            f"dir {self._folder}",
            f"logfile {self.port}.log",
            f"sentinel monitor planner {LOOPBACK} {self._primary.port} 1",
            "sentinel down-after-milliseconds planner 300",
            "sentinel failover-timeout planner 2000",
        )
        settings = self._folder / f"sentinel-{self.port}.conf"
        settings.write_text("\n".join(lines) + "\n")
        self._launch(["redis-server", str(settings), "--sentinel"])
