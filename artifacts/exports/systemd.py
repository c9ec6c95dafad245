"""Export for systemd: a machine where `prepare` is installed, which checks all at each start."""

from __future__ import annotations

import math
import re

from artifacts.exports.commented_yaml import comment
from artifacts.exports.exported_version import PORT, START_MARGIN, START_MIN_SECONDS, ExportRequest

PROGRAM = "/usr/local/bin/prepare"
_STATE = "/var/lib/prepare"
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@-]+")
# The version's files and its environments; a JIT needs memory that is writable and executable, and
# a GPU its devices.
_UNIT = """
[Unit]
Description={service}, served as prepare judged it
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
# useradd --system --home-dir {state} prepare
User=prepare
StateDirectory=prepare
Environment=PREPARE_HOME={state} HOME={state}
# {key}=...
EnvironmentFile=-/etc/prepare/{service}.env
# Fetches the files once, and refuses any but the judged ones.
ExecStartPre=/bin/sh -c "test -d \\"$$0\\" || exec \\"$$@\\"" {weights} {pull}
# It checks digests, evidence, this machine and the engine, and refuses what was not judged.
ExecStart={serve}
TimeoutStartSec=infinity
Restart=on-failure
# Wrong usage.
RestartPreventExitStatus=2
RestartSec=30
KillMode=mixed
TimeoutStopSec=60
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes

[Install]
WantedBy=multi-user.target
"""


def export(request: ExportRequest) -> dict[str, str]:
    """Return the files by name."""
    version = request.version
    weights = f"{_STATE}/{version.service}"
    pull = [PROGRAM, *request.pull_into(weights)[1:]]
    timeout = math.ceil(max(START_MARGIN * version.ready_seconds, START_MIN_SECONDS))
    trusting = ["--trust-remote-code"] if version.trust_remote_code else []
    serve = [
        *(PROGRAM, "serve", f"{version.name}@{version.version}", f"--weights={weights}"),
        *(f"--registry={request.registry}", f"--port={PORT}", f"--ready-timeout={timeout}"),
        *trusting,
    ]
    unit = _UNIT.format(
        service=version.service,
        key=version.engine.key_variable,
        state=_STATE,
        weights=weights,
        pull=" ".join(map(_word, pull)),
        serve=" ".join(map(_word, serve)),
    )
    purpose = f"/etc/systemd/system/{version.service}.service"
    text = "\n".join(comment(request.header(purpose))) + "\n" + unit
    return {f"{version.service}.service": text}


def _word(text: str) -> str:
    """Quote one argument: no specifier (%), variable ($), escape or line end has a meaning."""
    escaped = "".join(
        f"\\x{ord(letter):02x}" if ord(letter) < 0x20 or letter in "\"\\'\x7f" else letter
        for letter in text
    )
    escaped = escaped.replace("%", "%%").replace("$", "$$")
    return escaped if _PLAIN.fullmatch(escaped) else f'"{escaped}"'
