"""The parts of a model's server on other nodes than the one that its sitting is held on.

A sitting asks for them by an event, and whoever has put it where it is begins them, one on each
other node of its room, each a piece of work of its own; see executors. They end when it says so,
and all with each of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from pydantic import Field

from artifacts.model_to_serve import ModelToServe
from pipeline.core.errors import ServingError
from pipeline.core.events import EventWriter
from pipeline.core.hardware import Hardware, this_node
from pipeline.core.installation import this_prepare
from pipeline.core.node_address import own_address
from pipeline.core.stage_record import Task
from pipeline.core.store import Store
from pipeline.environments.compile_caches import open_caches
from pipeline.environments.definition import Accelerator
from pipeline.environments.environment import identity, interpreters, refuse_other
from pipeline.environments.settings import load_settings
from pipeline.serving.server import Server
from pipeline.serving.server_address import free_port
from recipes.engine_arguments import count_nodes
from recipes.engines import Part, find_engine


class ServerPart(Task):
    """One node's part of a model's server; `prepare stage run` is it until that ends."""

    stage: Literal["server_part"] = Field(
        "server_part", description="where a stage's spec has its name"
    )
    store: str = Field(description="folder of the store")
    accelerator: Accelerator = Field(description="that the engine's environment is for")
    hardware: Hardware = Field(description="of the node that answers, and has to be of this one")
    engine: str = Field(description="identity of the environment that it answers from")
    log: str = Field(description="file for the engine's output")
    model: ModelToServe = Field(description="who is served")
    node: int = Field(description="number of this part, from 1")
    first: str = Field(description="address of the node that answers")
    port: int = Field(description="there, that the parts meet at")


@dataclass(frozen=True)
class OtherNodes:
    """Those of a sitting's room on which it is not held.

    Attributes:
        store: folder of the store.
        accelerator: of the sitting's environments.
        events: where it tells of itself.
    """

    store: Path
    accelerator: Accelerator
    events: EventWriter

    def begin(self, model: ModelToServe, log: Path) -> Part | None:
        """Have a part of the model's server begun on each; what is ours, None where it has none.

        Args:
            log: of our part, beside which theirs lie.

        Raises:
            ServingError: nobody has put the sitting on several nodes.
        """
        serving = model.arguments
        if serving is None or (nodes := count_nodes(serving.engine_arguments)) == 1:
            return None
        address = own_address(os.environ)
        if not address:
            raise ServingError(
                f"'{model.name}' is served over {nodes} nodes, and this work was put on one",
                cure="serve it by the executor 'ray' (docs/cluster.md)",
            )
        ours = Part(0, address, free_port(address), address)
        hardware = this_node(with_gpus=self.accelerator is Accelerator.CUDA)
        name = find_engine(serving.engine).environment
        engine = identity(name, self.accelerator, load_settings(self.store))
        tasks = [
            ServerPart(
                prepare=this_prepare(),
                store=str(self.store),
                accelerator=self.accelerator,
                hardware=hardware.hardware(self.accelerator),
                engine=engine,
                log=str(log.with_suffix(f".node{node}.log")),
                model=model,
                node=node,
                first=ours.first,
                port=ours.port,
            )
            for node in range(1, nodes)
        ]
        told = [task.model_dump(mode="json") for task in tasks]
        self.events.write({"event": "parts", "name": model.name, "tasks": told})
        return ours

    def end(self, model: str) -> None:
        """Have those parts ended."""
        self.events.write({"event": "parts_over", "name": model})


def attend(part: ServerPart, events: EventWriter) -> NoReturn:
    """Be that part, on this node.

    Args:
        events: where it tells of itself.

    Raises:
        ServingError: the server has ended; or this is other hardware than that which answers.
        PrepareError: the environment cannot be built, or is another than there; or the weights
            cannot be brought.
    """
    store, serving = Store(Path(part.store)), part.model.arguments
    if serving is None:
        raise ValueError(f"{part.model.name} is not ours to serve")
    node = this_node(with_gpus=part.accelerator is Accelerator.CUDA)
    if (here := node.hardware(part.accelerator)) != part.hardware:
        raise ServingError(
            f"a part of '{part.model.name}' is to be served on other hardware than the rest: "
            f"{here.model_dump()}, not {part.hardware.model_dump()}",
            where=f"node {node.name}",
            cure="have the executor choose nodes of one kind (docs/cluster.md)",
        )
    settings, name = load_settings(store.root), find_engine(serving.engine).environment
    refuse_other(name, part.accelerator, settings, part.engine)
    python = interpreters(part.accelerator, settings, events)(name)
    store.bring_named([part.model.folder, part.model.draft])
    Server(
        python,
        Path(part.model.folder),
        serving,
        Path(part.log),
        trust_remote_code=part.model.trust_remote_code,
        draft=Path(part.model.draft) if part.model.draft else None,
        caches=open_caches(settings.home, identity(name, part.accelerator, settings), events),
        part=Part(part.node, part.first, part.port, own_address(os.environ)),
    ).attend()
