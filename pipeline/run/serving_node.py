"""The node that a run is planned for: one that its executor uses for serving."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.core.events import Progress
from pipeline.core.hardware import NodeInfo
from pipeline.core.resource_request import ResourceRequest
from pipeline.plan.resource_requests import needs_to_serve
from pipeline.run.executors import Executor
from pipeline.run.executors.work_events import ProgressListener
from pipeline.serving.serving_arguments import ServingArguments
from recipes import catalog
from recipes.schema import ServingProfile

ON_CPU = ResourceRequest(cpus="all")
ON_WHAT_IS_THERE = (ResourceRequest(gpus=1), ON_CPU)


def find_node(executor: Executor, profile: str, store: Path, progress: Progress) -> NodeInfo:
    """Return the serving node for that profile; 'auto' prefers one with a GPU.

    Raises:
        UsageError: there is no such profile, or no node with as many GPUs.
        StageError: no node of a cluster answers.
    """
    if profile == "auto":
        return ask_node(executor, ON_WHAT_IS_THERE, store, progress)
    return ask_node(executor, [needs_of(catalog.load_profile(profile))], store, progress)


def ask_node(
    executor: Executor, asked: Sequence[ResourceRequest], store: Path, progress: Progress
) -> NodeInfo:
    """Return facts on a node for the first of these requests that some node can satisfy."""
    node = executor.describe_node(asked, store, ProgressListener(progress))
    if not node.machine:
        kind = node.kind("cuda" if node.gpus else "cpu")
        progress.note(f"laid out for nodes such as {node.name}: {kind}")
    return node


def needs_of(profile: ServingProfile) -> ResourceRequest:
    """Room for one server, nothing measured."""
    return needs_to_serve(profile.accelerator, [ServingArguments.of(profile, is_baseline=True)])
