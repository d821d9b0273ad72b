"""Writes a network to a file that `tide.scorers.encoder` reads.

The file is an ONNX graph that onnxruntime runs by itself: BERT's layers, and a linear layer on the
mean and the maximum of the text's vectors. Its metadata holds a `Shape` and the wordpieces.

Matrices are stored as integers of 8 bits with a scale for each row of weights. `exact` computes in
float32 with them. Otherwise products are computed in integers, several times as fast: onnxruntime
rounds the activations of each run by their largest value. The weights then have 7 bits, since
processors without VNNI add two products of 8 bits in 16.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tide.scorers.encoder import SHAPE, VOCABULARY, Shape

Array = NDArray[np.float32]
FAR = 1e4  # subtracted from the context's vectors, so that they are never the maximum
EPSILON = 1e-12
_MICROSOFT = "com.microsoft"  # onnxruntime's own operations, with the attention in one


def write(
    out: Path,
    weights: Mapping[str, Array],
    shape: Shape,
    pieces: Sequence[str],
    heads: int,
    *,
    pair: bool,
    exact: bool,
) -> None:
    """Write the file. weights: by the names of `Network` in `encoder_training.py`.

    pair: the network also reads a context, and has a vector for each of the two types of tokens.
    """
    model = Graph(weights, heads, exact).model(pair)
    described = json.dumps(shape.model_dump(), sort_keys=True)
    metadata = {SHAPE: described, VOCABULARY: "\n".join(pieces)}
    helper.set_model_props(model, dict(sorted(metadata.items())))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(model.SerializeToString(deterministic=True))


class Graph:
    """A graph under construction: its operations, and the tensors that they use."""

    def __init__(self, weights: Mapping[str, Array], heads: int, exact: bool) -> None:
        self._weights, self._heads, self._exact = weights, heads, exact
        self._layers = 1 + max(
            int(name.split(".")[2]) for name in weights if name.startswith("encoder.layers.")
        )
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: dict[str, onnx.TensorProto] = {}

    def model(self, pair: bool) -> onnx.ModelProto:
        vectors = self._embedded(pair)
        for number in range(self._layers):
            vectors = self._layer(vectors, f"encoder.layers.{number}")
        output = self._head(vectors, pair)
        self._nodes.append(helper.make_node("Squeeze", [output, self._whole(1)], ["output"]))
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "tokens"])
            for name in (("ids", "types") if pair else ("ids",))
        ]
        outputs = [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["n"])]
        graph = helper.make_graph(
            self._nodes, "encoder", inputs, outputs, list(self._tensors.values())
        )
        versions = [helper.make_opsetid("", 21), helper.make_opsetid(_MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=versions, ir_version=10)

    def _embedded(self, pair: bool) -> str:
        whole, scale = rounded(self._weights["tokens.weight"], 127)
        rows = self._add("Gather", self._tensor("tokens.weight", whole), "ids")
        scales = self._add("Gather", self._tensor("tokens.scale", scale), "ids")
        vectors = self._add("Mul", self._add("Cast", rows, to=TensorProto.FLOAT), scales)
        length = self._add("Shape", "ids", start=1, end=2)
        positions = self._weight("positions.weight")
        positions = self._add("Slice", positions, self._whole(0), length, self._whole(0))
        vectors = self._add("Add", vectors, positions)
        if pair:
            types = self._add("Gather", self._weight("types.weight"), "types")
            vectors = self._add("Add", vectors, types)
        return self._norm(vectors, "norm")

    def _layer(self, vectors: str, name: str) -> str:
        attention = f"{name}.self_attn"
        matrices = np.split(self._weights[f"{attention}.in_proj_weight"], 3)
        biases = np.split(self._weights[f"{attention}.in_proj_bias"], 3)
        parts = [
            self._linear(vectors, f"{attention}.{part}", matrix, bias)
            for part, matrix, bias in zip(("query", "key", "value"), matrices, biases, strict=True)
        ]
        attended = self._add("MultiHeadAttention", *parts, domain=_MICROSOFT, num_heads=self._heads)
        added = self._projected(attended, f"{attention}.out_proj")
        vectors = self._norm(self._add("Add", vectors, added), f"{name}.norm1")
        inner = self._projected(vectors, f"{name}.linear1")
        inner = self._add("Gelu", inner, domain=_MICROSOFT)
        added = self._projected(inner, f"{name}.linear2")
        return self._norm(self._add("Add", vectors, added), f"{name}.norm2")

    def _head(self, vectors: str, pair: bool) -> str:
        """Return outputs, (n, 1), from the mean and the maximum of the text's vectors."""
        along = self._whole(1)
        if pair:
            kept = self._add("Unsqueeze", "types", self._whole(2))
            kept = self._add("Cast", kept, to=TensorProto.FLOAT)
            total = self._add("ReduceSum", self._add("Mul", vectors, kept), along, keepdims=0)
            count = self._add("ReduceSum", kept, along, keepdims=0)
            mean = self._add("Div", total, count)
            away = self._add("Sub", kept, self._tensor("one", np.float32(1)))
            away = self._add("Mul", away, self._tensor("far", np.float32(FAR)))
            vectors = self._add("Add", vectors, away)
        else:
            mean = self._add("ReduceMean", vectors, along, keepdims=0)
        most = self._add("ReduceMax", vectors, along, keepdims=0)
        pooled = self._add("Concat", mean, most, axis=1)
        return self._add(
            "Gemm", pooled, self._weight("head.weight"), self._weight("head.bias"), transB=1
        )

    def _projected(self, values: str, name: str) -> str:
        return self._linear(
            values, name, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        )

    def _linear(self, values: str, name: str, matrix: Array, bias: Array) -> str:
        whole, scale = rounded(matrix, 127 if self._exact else 63)
        weight = self._tensor(f"{name}.weight", whole.T.copy())
        scales = self._tensor(f"{name}.scale", scale[:, 0])
        added = self._tensor(f"{name}.bias", bias.astype(np.float32))
        if not self._exact:
            return self._add(
                "DynamicQuantizeMatMul", values, weight, scales, "", added, domain=_MICROSOFT
            )
        weight = self._add("Mul", self._add("Cast", weight, to=TensorProto.FLOAT), scales)
        return self._add("Add", self._add("MatMul", values, weight), added)

    def _norm(self, vectors: str, name: str) -> str:
        return self._add(
            "LayerNormalization", vectors, self._weight(f"{name}.weight"),
            self._weight(f"{name}.bias"), axis=-1, epsilon=EPSILON,
        )  # fmt: skip

    def _add(self, kind: str, *inputs: str, **options: Any) -> str:
        """Add an operation; return the name of its result."""
        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [name], name, **options))
        return name

    def _weight(self, name: str) -> str:
        return self._tensor(name, self._weights[name].astype(np.float32))

    def _whole(self, number: int) -> str:
        return self._tensor(f"whole {number}", np.array([number]))

    def _tensor(self, name: str, values: Any) -> str:
        self._tensors[name] = numpy_helper.from_array(np.asarray(values), name)
        return name


def rounded(matrix: Array, most: int) -> tuple[NDArray[np.int8], Array]:
    """Return a matrix as integers from -most to most, and the scale of each of its rows."""
    scale = np.maximum(np.abs(matrix).max(axis=1, keepdims=True), 1e-8) / np.float32(most)
    return np.rint(matrix / scale).astype(np.int8), scale.astype(np.float32)
