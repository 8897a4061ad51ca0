"""The kernels that JupyterLab offers: one, this Python."""

from __future__ import annotations

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from traitlets import List, Unicode


class OnlyThisPython(KernelSpecManager):
    """Looks for kernels nowhere, so that `python3` is the Python that the server runs in."""

    kernel_dirs = List(Unicode(), default_value=[])

    def _kernel_dirs_default(self) -> list[str]:
        return []

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Its kernels say nothing in the terminal where the reader looks for the address."""
        spec = super().get_kernel_spec(kernel_name)
        spec.argv = [*spec.argv, "--log-level=ERROR"]
        return spec
