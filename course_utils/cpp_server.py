"""A server in C++: it loads a package that AOTInductor made and answers requests on its pipes.

A request is two int64, rows and columns, and then the numbers in float32, row by row. So is an answer. An
error is -1, the number of bytes, and a text of that many bytes.
"""

from pathlib import Path

import torch
from torch import nn

from course_utils import cpp, torch_private
from course_utils.wrong_use import public

SOURCE = r"""
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <cstdio>

// Two int64, then the bytes.
void send(int64_t first, int64_t second, const void* bytes, size_t count) {
  int64_t header[] = {first, second};
  std::fwrite(header, 8, 2, stdout);
  std::fwrite(bytes, 1, count, stdout);
  std::fflush(stdout);
}

// server PACKAGE: until there are no more requests.
int main(int argc, char** argv) {
  torch::inductor::AOTIModelPackageLoader model(argv[1]);
  c10::InferenceMode no_graph;
  for (int64_t n[2]; std::fread(n, 8, 2, stdin) == 2;) {
    torch::Tensor x = torch::empty({n[0], n[1]});
    if (std::fread(x.data_ptr(), 4, x.numel(), stdin) != size_t(x.numel())) return 1;
    try {
      torch::Tensor y = model.run({x})[0].contiguous();
      send(y.size(0), y.size(1), y.data_ptr(), y.nbytes());
    } catch (const std::exception& error) {
      std::string said = error.what();
      said = said.substr(0, said.find("\nException raised from"));  // C++ frames from here on
      send(-1, said.size(), said.data(), said.size());
    }
  }
}
"""


@public
def program() -> Path:
    """The server, from the cache where it was built before. Raises `cpp.BuildError`."""
    return cpp.build(SOURCE, "server")


@public
def package(net: nn.Module, columns: int) -> Path:
    """A package of `net` for any number of rows of `columns` numbers, from the cache where it was made
    before."""

    def make(place: Path) -> Path:
        rows = torch.export.Dim("rows")
        example = torch.zeros(2, columns)
        exported = torch.export.export(net, (example,), dynamic_shapes=({0: rows},))
        path = str(place / "net.pt2")
        return Path(torch_private.aoti_compile_and_package(exported, package_path=path))

    numbers = {name: tensor.tolist() for name, tensor in net.state_dict().items()}
    return cpp.keep("net.pt2", f"{net} {columns} {numbers}", make)
