"""A GGUF file with plain weights, for peers that read nothing else.

Everything but the weights' type is copied: metadata, tokenizer, names.
"""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, Keys, LlamaFileType
from gguf.quants import dequantize

PLAIN = {
    "f32": (np.float32, LlamaFileType.ALL_F32),
    "f16": (np.float16, LlamaFileType.MOSTLY_F16),
}
_WRITTEN_BY_THE_WRITER = ("GGUF.", Keys.General.ARCHITECTURE, Keys.General.FILE_TYPE)


def export(source: Path, target: Path, kind: str) -> None:
    """Write `source` again with its matrices in `kind`, "f32" or "f16"; vectors stay float32.

    A reader of the folder sees the whole file or none.
    """
    dtype, file_type = PLAIN[kind]
    reader = GGUFReader(source)
    partial = target.with_suffix(".partial")
    writer = GGUFWriter(partial, _contents(reader, Keys.General.ARCHITECTURE))
    writer.add_file_type(file_type)
    for name, field in reader.fields.items():
        if not name.startswith(_WRITTEN_BY_THE_WRITER):
            inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        plain = values.astype(dtype if values.ndim > 1 else np.float32)
        writer.add_tensor(tensor.name, np.ascontiguousarray(plain))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(target)


def _contents(reader: GGUFReader, name: str) -> Any:
    field = reader.get_field(name)
    if field is None:
        raise ValueError(f"the GGUF file does not say its {name}")
    return field.contents()
