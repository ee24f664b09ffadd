#!/usr/bin/env python3
"""Answers for the Hugging Face tokenizers library: tokenizer.py DIR

Reads JSON lines {"model", "text"} or {"model", "ids"}, model being a folder of
DIR with a tokenizer.json, and writes for each {"ids", "around", "decoded",
"skipped"}: the text's ids, those with special tokens around them, and what the
ids decode to, with and without special tokens.
"""
import json
import sys

from tokenizers import Tokenizer

loaded = {}
for line in sys.stdin:
    q = json.loads(line)
    name = q["model"]
    if name not in loaded:
        loaded.clear()
        loaded[name] = Tokenizer.from_file(f"{sys.argv[1]}/{name}/tokenizer.json")
        loaded[name].no_truncation()
        loaded[name].no_padding()
    tok = loaded[name]
    ids, around = q.get("ids"), []
    if ids is None:
        ids = tok.encode(q["text"], add_special_tokens=False).ids
        around = tok.encode(q["text"]).ids
    row = {"ids": ids, "around": around, "decoded": tok.decode(ids, skip_special_tokens=False), "skipped": tok.decode(ids, skip_special_tokens=True)}
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()
