#!/usr/bin/env python3
"""Arrow: Parquet files one by one, with and without mapping, as a data set of all, and Arrow's own
file format."""
import os
import numpy, pyarrow
import pyarrow.dataset, pyarrow.feather, pyarrow.parquet
import protocol

FILES, ROWS = 4, 2000


def prepare(root):
    rng = numpy.random.default_rng(protocol.SEED)
    for i in range(FILES):
        table = pyarrow.table({"x": rng.standard_normal(ROWS), "label": rng.integers(0, 10, ROWS),
                               "text": [f"sample {i} {n}" for n in range(ROWS)]})
        for kind in ("train", "valid"):
            os.makedirs(os.path.join(root, f"kind={kind}"), exist_ok=True)
            pyarrow.parquet.write_table(table, os.path.join(root, f"kind={kind}", f"part{i}.parquet"), row_group_size=500)
        pyarrow.feather.write_feather(table, os.path.join(root, f"part{i}.arrow"), compression="uncompressed")


def content(table):
    """Column by column, in the order of names."""
    return "\n".join(f"{name} {table[name].to_pylist()}" for name in sorted(table.column_names))


def parquet(path):
    return content(pyarrow.parquet.read_table(path, partitioning=None))


def parquet_mapped(path):
    return content(pyarrow.parquet.read_table(path, memory_map=True, columns=["x", "label"], partitioning=None))


def parquet_groups(path):
    with pyarrow.parquet.ParquetFile(path, pre_buffer=True) as file:
        return content(pyarrow.concat_tables(file.read_row_group(i) for i in range(file.num_row_groups)))


def dataset(root):
    """Partitions by directory, a filter, batches from Arrow's own threads."""
    while True:
        epoch = protocol.Epoch()
        data = pyarrow.dataset.dataset(root, format="parquet", partitioning="hive", exclude_invalid_files=True)
        wanted = pyarrow.dataset.field("label") < 5
        epoch.add("", content(data.to_table(filter=wanted, columns=["x", "label", "kind"])))
        yield epoch


def arrow(path):
    return content(pyarrow.feather.read_table(path, memory_map=False))


def arrow_mapped(path):
    with pyarrow.memory_map(path) as source, pyarrow.ipc.open_file(source) as file:
        return content(file.read_all())


if __name__ == "__main__":
    ways = {parquet: ".parquet", parquet_mapped: ".parquet", parquet_groups: ".parquet", arrow: ".arrow",
            arrow_mapped: ".arrow"}
    protocol.main(prepare, {read.__name__: protocol.each(read, suffix) for read, suffix in ways.items()}
                  | {"dataset": dataset})
