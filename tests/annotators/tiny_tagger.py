"""A tiny WD14 tagger with the two files of published ones; importing this takes neither torch nor onnx."""

from __future__ import annotations

from pathlib import Path

TAGS = [
    ("9999999", "general", "9"),
    ("9999998", "explicit", "9"),
    ("1", "blue_sky", "0"),
    ("2", "green_grass", "0"),
    ("3", "red_dress", "0"),
    ("4", "o_o", "0"),
    ("5", "miss_red", "4"),
]


def tiny_tagger(folder: Path) -> Path:
    """A tagger of 16 x 16 pixels: how blue, green and red an image is. Needs onnx."""
    from onnx import TensorProto, helper, save

    folder.mkdir(parents=True)
    #  of B, G, R in thousandths: an even image of one colour gives sigmoid(255 * 0.02 - 2.5) = 0.93
    columns = [(0, 0, 0), (-9, -9, -9), (20, 0, 0), (0, 20, 0), (0, 0, 20), (0, 0, 15), (0, 0, 25)]
    weights = [columns[column][row] / 1000 for row in range(3) for column in range(len(columns))]
    batch, side, count = "N", 16, len(columns)
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["image", "axes"], ["mean"], keepdims=0),
            helper.make_node("MatMul", ["mean", "weights"], ["product"]),
            helper.make_node("Add", ["product", "bias"], ["sum"]),
            helper.make_node("Sigmoid", ["sum"], ["tags"]),
        ],
        "tagger",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, side, side, 3])],
        [helper.make_tensor_value_info("tags", TensorProto.FLOAT, [batch, count])],
        [
            helper.make_tensor("axes", TensorProto.INT64, [2], [1, 2]),
            helper.make_tensor("weights", TensorProto.FLOAT, [3, count], weights),
            helper.make_tensor("bias", TensorProto.FLOAT, [count], [1.0, 0.5, *[-2.5] * (count - 2)]),
        ],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), folder / "model.onnx")
    rows = [f"{number},{name},{category},1" for number, name, category in TAGS]
    (folder / "selected_tags.csv").write_text("\n".join(["tag_id,name,category,count", *rows]) + "\n")
    return folder
