"""Smaller versions of a graph: int8 by dynamic quantization, and fp16.

Int8 is dynamic quantization: weights are integers with a scale, and activations are quantized at run time.
onnxruntime's own tool does the products with constant weights, with a scale for each output channel. It would leave the
embedding table, which most models share with the vocabulary projection, in fp32 or store it twice; here it becomes one
int8 table, with a scale per token, that serves both. Fp16 is onnxruntime's own conversion, inputs and outputs left as
they are.
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
    _save(model, target)


def halve_graph(source: Path, target: Path) -> None:
    """Write the fp16 version of an ONNX file that `write_graph` wrote; its inputs and outputs keep their types.

    The angles of rotary positions stay in fp32, because fp16 has no odd numbers beyond 2,048.
    """
    float16 = import_package("onnxruntime.transformers.float16")
    model = import_package("onnx").load(source)
    angles = _take_angles(model.graph)
    inputs = [value.name for value in model.graph.input]
    # What the angles give becomes an input while the rest is converted, so the converter adds a cast behind it.
    model.graph.input.extend(value for value in model.graph.value_info if value.name in angles.outputs)
    with silence_logging():
        model = float16.convert_float_to_float16(model, keep_io_types=True, disable_shape_infer=True)
    added = {value.name for value in model.graph.input if value.name not in inputs}
    casts = [node for node in model.graph.node if node.op_type == "Cast" and added.intersection(node.input)]
    rest = [node for node in model.graph.node if node not in casts]
    del model.graph.node[:], model.graph.input[len(inputs) :], model.graph.value_info[:]
    model.graph.node.extend([*angles.nodes, *casts, *rest])
    _save(model, target)


class _Angles(NamedTuple):
    nodes: list[Any]
    outputs: set[str]
    """Those that other nodes use."""


def _take_angles(graph: Any) -> _Angles:
    """Remove the nodes that compute sines and cosines, from the positions on; they get weights of their own."""
    makers = {output: number for number, node in enumerate(graph.node) for output in node.output}
    found: set[int] = set()
    pending = [number for number, node in enumerate(graph.node) if node.op_type in ("Cos", "Sin")]
    while pending:
        number = pending.pop()
        if number not in found:
            found.add(number)
            pending += [makers[name] for name in graph.node[number].input if name in makers]
    nodes = [node for number, node in enumerate(graph.node) if number in found]
    others = [node for number, node in enumerate(graph.node) if number not in found]
    used = {name for node in others for name in node.input}
    for tensor in [one for one in graph.initializer if one.name in used]:
        users = [node for node in nodes if tensor.name in node.input]
        if users:
            own = graph.initializer.add()
            own.CopyFrom(tensor)
            own.name = f"{tensor.name}_of_angles"
        for node in users:
            renamed = [own.name if name == tensor.name else name for name in node.input]
            del node.input[:]
            node.input.extend(renamed)
    del graph.node[:]
    graph.node.extend(others)
    return _Angles(nodes, used.intersection(output for node in nodes for output in node.output))


def _save(model: Any, target: Path) -> None:
    num_bytes = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    import_package("onnx").save_model(
        model, target, save_as_external_data=num_bytes > LARGEST_FILE_BYTES, location=name_data_file(target)
    )


def quantize_tables(graph: Any) -> None:
    """Replace tables for lookups and for products with hidden states by int8 tables."""
    matrices = [tensor for tensor in graph.initializer if len(tensor.dims) == 2]
    for table in matrices:
        users = _TableUsers(graph, table.name)
        if users.lookups or users.projections:
            _replace_table(graph, table, users)


class _TableUsers:
    """The nodes that use a table in a way that int8 supports."""

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
    """Write a product as onnxruntime's tool does, so that its session finds the same fast kernel."""
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
    """Quantize a table to int8 with a scale per row, rounding to nearest."""
    scales = np.abs(table).max(axis=1) / _LARGEST_WEIGHT
    scales = np.where(scales == 0, 1, scales).astype(np.float32)
    return np.rint(table / scales[:, None]).astype(np.int8), scales
