"""Context of a running stage, and its execution."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Protocol

from pipeline.stages import stage_code, stage_named
from pipeline.stages.staying_workers import BOOTSTRAP, StayingWorkers, WorkerFiles, WorkerStart
from prepare import errors
from prepare.credentials import credential_variables
from prepare.digest import digest_json
from prepare.errors import PrepareError
from prepare.events import EVENTS_FD_VARIABLE, Progress, forward_progress, read_event
from prepare.file_locks import held_descriptors
from prepare.plugins import PLUGINS
from prepare.private_files import write_atomically
from prepare.process_environment import NetworkAccess, server_environment
from prepare.stage import Parameters, Runtime, StageRecord, StageSpec
from prepare.store import RECORD, Store
from prepare.supervisor import SupervisedProcess

# Waiting threads sleep: spinning ones take the core from the process that they wait for.
WORKER_VARIABLES = {"OMP_WAIT_POLICY": "PASSIVE"}
ROOM_BYTES = 2**16
LOG = "worker.log"


class ArmServers(Protocol):
    """Model servers of several arms."""

    def up(
        self, names: Sequence[str], *, stay: bool
    ) -> AbstractContextManager[dict[str, dict[str, Any]]]:
        """Serve the arms meanwhile, and afterwards if they `stay`; yield facts by arm.

        ServingError: a server does not start, or ended.
        """

    def leave(self, name: str, error: PrepareError) -> None:
        """Continue without the arm, or raise the error."""


@dataclass
class StageContext(Generic[Parameters, Runtime]):
    """A stage's parameters, inputs, output folder and progress."""

    spec: StageSpec
    folder: Path
    store: Store
    progress: Progress
    notes: list[str] = field(default_factory=list)
    peak_memory_bytes: int | None = None
    servers: ArmServers | None = None
    workers: StayingWorkers | None = None
    earlier_seconds: float = 0.0  # that its work took in other stages

    @property
    def parameters(self) -> Parameters:
        parameters: Parameters = stage_named(self.spec.stage).parameters_of(self.spec)
        return parameters

    @property
    def runtime(self) -> Runtime:
        runtime: Runtime = stage_named(self.spec.stage).runtime_of(self.spec)
        return runtime

    def input_folder(self, role: str) -> Path:
        reference = self.spec.inputs[role]
        return self.store.stage_folder(reference.stage, reference.key)

    def input_record(self, role: str) -> StageRecord:
        """Return the earlier stage's record; raises as `Store.get`."""
        return self.store.get(self.spec.inputs[role])

    def input_digests(self) -> dict[str, str]:
        """Digest the inputs' results."""
        return {role: digest_json(self.input_record(role).result) for role in self.spec.inputs}

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        self.progress.advance(f"{self.spec.variant}: {task}", done, total, unit)

    def note(self, text: str) -> None:
        """Report a note, and record it."""
        self.notes.append(text)
        self.progress.note(f"{self.spec.variant}: {text}")

    def output_folder(self) -> Path:
        """Create `output/`, which may have content with RESUMED."""
        folder = self.folder / "output"
        folder.mkdir(exist_ok=True)
        return folder

    def run_worker(
        self,
        worker: str,
        worker_spec: dict[str, Any],
        *,
        output: Path | None = None,
        environment: Mapping[str, str] | None = None,
        needs: Collection[NetworkAccess] = (),
        plugins: Sequence[Mapping[str, str]] = (),
        stays: bool = False,
    ) -> dict[str, Any]:
        """Run a worker in the stage's environment and return its result.

        It gets credentials for `needs` only. `plugins` are as from `Plugin.for_worker`. The process
        of one that `stays` answers later stages' requests too, if their variables are the same.

        PrepareError: from the worker; WorkerError with its log if it died.
        """
        files = WorkerFiles(
            spec=self.folder / "worker-spec.json",
            result=self.folder / "worker-result.json",
            output=output or self.folder,
            log=self.folder / LOG,
        )
        files.result.unlink(missing_ok=True)  # another worker's
        told = json.dumps({**worker_spec, PLUGINS: plugins})
        files.spec.write_text(told)
        start = self._worker_start(credential_variables(told), environment or {}, needs)
        if stays and self.workers is not None:
            code = self.workers.call_worker(worker, start, files, self)
        else:
            code = self._run_alone(worker, start, files)
        return self._worker_result(code, files.result, files.log)

    def warm_worker(self, worker: str, environment: Mapping[str, str] | None = None) -> None:
        """Have a staying worker without credentials made ready, while this process goes on."""
        if self.workers is not None:
            start = self._worker_start({}, environment or {}, ())
            self.workers.warm(worker, start, self.folder / LOG)

    def _worker_start(
        self,
        credentials: Mapping[str, str],
        environment: Mapping[str, str],
        needs: Collection[NetworkAccess],
    ) -> WorkerStart:
        python = str(self.spec.runtime["python"])  # every stage with a worker has it
        variables = server_environment(
            {**os.environ, **credentials},
            {**WORKER_VARIABLES, **environment},
            python=Path(python),
            needs=needs,
        )
        return WorkerStart.of(python, variables)

    def _run_alone(self, worker: str, start: WorkerStart, files: WorkerFiles) -> int:
        """Run a worker's own process; return its exit code."""
        events_read, events_write = os.pipe()
        forwarder = threading.Thread(target=self._forward, args=(events_read,), daemon=True)
        paths = (files.spec, files.result, files.output)
        try:
            with files.log.open("ab") as log_file:
                process = SupervisedProcess(
                    [str(start.python), str(BOOTSTRAP), worker, *map(str, paths)],
                    environment={**dict(start.variables), EVENTS_FD_VARIABLE: str(events_write)},
                    output=log_file,
                    pass_descriptors=[events_write],
                    held_descriptors=held_descriptors(),
                )
        finally:
            os.close(events_write)
        forwarder.start()
        with process:
            code = process.wait()
        forwarder.join()
        return code

    def _worker_result(self, code: int, result_file: Path, log: Path) -> dict[str, Any]:
        try:
            answer = json.loads(result_file.read_text())  # noqa: TID251
        except (FileNotFoundError, ValueError) as cause:
            result_file.write_bytes(bytes(ROOM_BYTES))  # OSError if the disk is full
            raise errors.WorkerError(
                f"the worker of '{self.spec.stage}' ended with exit code {code} and no result"
                + (" (killed; often the machine is out of memory)" if code == 137 else ""),
                where=str(log),
                hint="read the log, then run the same command again",
            ) from cause
        self.peak_memory_bytes = answer.get("peak_memory_bytes")
        if not answer["ok"]:
            error = errors.from_dict(answer["error"])
            error.where = error.where or str(log)
            error.hint = error.hint or "read the log; fix the cause and run the command again"
            raise error
        result: dict[str, Any] = answer["result"]
        return result

    def _forward(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as lines:
            for line in lines:
                forward_progress(read_event(line), self)


def advance(
    spec: StageSpec,
    store: Store,
    progress: Progress,
    servers: ArmServers | None = None,
    workers: StayingWorkers | None = None,
) -> tuple[StageRecord, bool]:
    """Run a stage, or find another process's record; return whether it ran here.

    PrepareError: it failed; its files stay in `<key>.*.partial`.
    """
    code = stage_code(spec.stage)
    resumed = getattr(code, "RESUMED", ())
    with store.open_for_writing(spec.stage, spec.key, resumed, progress.note) as folder:
        if folder is not None:
            started = time.monotonic()
            context: StageContext[Any, Any] = StageContext(spec, folder, store, progress)
            context.servers = servers
            context.workers = workers
            result = code.run(context)
            record = StageRecord(
                **spec.model_dump(include={"stage", "variant", "key", "parameters"}),
                inputs=spec.inputs,
                input_digests=context.input_digests(),
                result=result.model_dump(mode="json"),
                notes=context.notes,
                seconds=time.monotonic() - started + context.earlier_seconds,
                finished=datetime.now(UTC).isoformat(timespec="seconds"),
                peak_memory_bytes=context.peak_memory_bytes,
            )
            write_atomically(folder / RECORD, record.model_dump_json(indent=1))
    # If two processes finished, as after a takeover, the first result is there.
    record_found = store.find(spec.stage, spec.key)
    if record_found is None:
        raise errors.StoreError("a stage that another process finished has vanished")
    return record_found, folder is not None
