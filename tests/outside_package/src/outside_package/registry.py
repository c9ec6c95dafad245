"""A registry at addresses `outside:///FOLDER`, which keeps OCI layouts in the folder."""

from __future__ import annotations

from artifacts.registry.oci_layout_registry import SCHEME, OciLayoutRegistry


class OutsideRegistry(OciLayoutRegistry):
    """The registry `outside`."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri.replace("outside://", SCHEME, 1))
        self.uri = uri
