"""Dynamic int8 quantization of an ONNX file: weights are integers with a scale, activations become so as they come.

onnxruntime's own tool does the products with constant weights, each output channel with a scale of its own. The table
of embeddings, which most models share with the vocabulary projection, it would leave in fp32 or store twice; here it
becomes one int8 table with a scale per token that serves both.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskwright.export.onnx_graph import LARGEST_FILE_BYTES, import_package, name_data_file, silence_logging

_LARGEST_WEIGHT = 64
"""Seven bits: with eight, x86 processors without VNNI add two products beyond 16 bits and clip the sum."""


def quantize_graph(source: Path, target: Path) -> None:
    """Write the int8 version of an ONNX file that `write_graph` wrote."""
    onnx, quantization = import_package("onnx"), import_package("onnxruntime.quantization")
    with TemporaryDirectory(dir=target.parent) as temporary:
        halfway = Path(temporary) / target.name
        with silence_logging():  # its advice on pre-processing is not for the user, who has no say in it
            quantization.quantize_dynamic(
                source,
                halfway,
                op_types_to_quantize=["MatMul"],
                per_channel=True,
                reduce_range=True,
                weight_type=quantization.QuantType.QInt8,
                use_external_data_format=source.with_name(name_data_file(source)).exists(),
            )
        model = onnx.load(halfway)
    quantize_tables(model.graph)
    num_bytes = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    onnx.save_model(
        model, target, save_as_external_data=num_bytes > LARGEST_FILE_BYTES, location=name_data_file(target)
    )


def quantize_tables(graph: Any) -> None:
    """Put int8 tables in the place of those that tokens are looked up in or that hidden states are multiplied by."""
    matrices = [tensor for tensor in graph.initializer if len(tensor.dims) == 2]
    for table in matrices:
        users = _TableUsers(graph, table.name)
        if users.lookups or users.projections:
            _replace_table(graph, table, users)


class _TableUsers:
    """The nodes that use one table in a way that int8 can serve."""

    def __init__(self, graph: Any, table: str) -> None:
        users = [node for node in graph.node if table in node.input]
        self.lookups = [node for node in users if node.op_type == "Gather" and list(node.input) == [table, "input_ids"]]
        transposes = {node.output[0]: node for node in users if node.op_type == "Transpose"}
        self.projections = [node for node in graph.node if node.op_type == "MatMul" and node.input[1] in transposes]
        served = {node.input[1] for node in self.projections}
        others = [node for node in graph.node if node not in self.projections and served.intersection(node.input)]
        self.transposes = [transposes[name] for name in served]
        self.are_all_served = not others and len(users) == len(self.lookups) + len(self.transposes)


def _replace_table(graph: Any, table: Any, users: _TableUsers) -> None:
    helper = import_package("onnx").numpy_helper
    rows, scales = quantize_rows(helper.to_array(table))
    names = _TableNames(f"{table.name}_int8", f"{table.name}_scales", f"{table.name}_last_axis")
    for values, name in ((rows, names.rows), (scales, names.scales), (np.array([-1]), names.last_axis)):
        graph.initializer.append(helper.from_array(values, name))
    nodes = []
    for node in graph.node:
        if node in users.lookups:
            nodes += _look_up(names, node.input[1], node.output[0])
        elif node in users.projections:
            nodes += _project(names, node.input[0], node.output[0])
        elif not users.are_all_served or node not in users.transposes:
            nodes.append(node)
    if users.are_all_served:
        graph.initializer.remove(table)
    del graph.node[:]
    graph.node.extend(nodes)


class _TableNames(NamedTuple):
    rows: str
    scales: str
    last_axis: str


def _look_up(table: _TableNames, ids: str, output: str) -> list[Any]:
    onnx = import_package("onnx")
    make = onnx.helper.make_node
    return [
        make("Gather", [table.rows, ids], [f"{output}_rows"]),
        make("Cast", [f"{output}_rows"], [f"{output}_values"], to=onnx.TensorProto.FLOAT),
        make("Gather", [table.scales, ids], [f"{output}_scales"]),
        make("Unsqueeze", [f"{output}_scales", table.last_axis], [f"{output}_scale_column"]),
        make("Mul", [f"{output}_values", f"{output}_scale_column"], [output]),
    ]


def _project(table: _TableNames, hidden: str, output: str) -> list[Any]:
    """As onnxruntime's tool writes a product, so that its session finds the same fast kernel."""
    onnx = import_package("onnx")
    make = onnx.helper.make_node
    quantized, scale, zero_point = (f"{output}_hidden_{part}" for part in ("int8", "scale", "zero_point"))
    return [
        make("DynamicQuantizeLinear", [hidden], [quantized, scale, zero_point]),
        make("Transpose", [table.rows], [f"{output}_columns"], perm=[1, 0]),
        make("MatMulInteger", [quantized, f"{output}_columns", zero_point], [f"{output}_int32"]),
        make("Cast", [f"{output}_int32"], [f"{output}_product"], to=onnx.TensorProto.FLOAT),
        make("Mul", [scale, table.scales], [f"{output}_scales"]),
        make("Mul", [f"{output}_product", f"{output}_scales"], [output]),
    ]


def quantize_rows(table: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Integers and a scale per row whose product is nearest to the table."""
    scales = np.abs(table).max(axis=1) / _LARGEST_WEIGHT
    scales = np.where(scales == 0, 1, scales).astype(np.float32)
    return np.rint(table / scales[:, None]).astype(np.int8), scales
