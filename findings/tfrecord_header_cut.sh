#!/usr/bin/env bash
# TensorFlow 2.21.0 reads three kinds of incomplete TFRecord files without an error:
# - A file that ends within the 12 bytes of a record's header (its length and the length's checksum) is
#   read as if it ended before this header. From byte 12 on, it raises DataLossError.
# - A GZIP file without its last 8 bytes, its checksum and its size, is read as if it were whole.
# - Of joined ZLIB streams, only the first is read. Joined GZIP streams are all read.
# Output seen:
#   2 of 3 records, for 1 to 11 bytes of the third one; DataLossError for 12
#   GZIP without its end: 3 of 3 records
#   joined GZIP: 6 of 6 records, joined ZLIB: 3 of 6 records
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet tensorflow-cpu==2.21.0
cat > "$folder/seen.py" <<'PROGRAM'
import sys

import tensorflow as tf

PATH = sys.argv[1]


def written(compression):
    with tf.io.TFRecordWriter(PATH, compression) as writer:
        for _ in range(3):
            writer.write(bytes(50))
    with open(PATH, "rb") as file:
        return file.read()


def read(content, compression=""):
    with open(PATH, "wb") as file:
        file.write(content)
    try:
        return len(list(tf.data.TFRecordDataset(PATH, compression)))
    except tf.errors.DataLossError:
        return "DataLossError"


plain, gzip, zlib = map(written, ("", "GZIP", "ZLIB"))
third = 2 * (12 + 50 + 4)
assert [read(plain[: third + kept]) for kept in range(12)] == [2] * 12
assert read(plain[: third + 12]) == "DataLossError"
print("2 of 3 records, for 1 to 11 bytes of the third one; DataLossError for 12")
assert read(gzip[:-8], "GZIP") == 3
print("GZIP without its end: 3 of 3 records")
assert (read(2 * gzip, "GZIP"), read(2 * zlib, "ZLIB")) == (6, 3)
print("joined GZIP: 6 of 6 records, joined ZLIB: 3 of 6 records")
PROGRAM
"$folder/venv/bin/python" "$folder/seen.py" "$folder/file"
