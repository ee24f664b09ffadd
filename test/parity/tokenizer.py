#!/usr/bin/env python3
"""Answers for the Hugging Face libraries: tokenizer.py DIR [--auto]

By default for tokenizers, which reads tokenizer.json by itself; with --auto for
transformers' AutoTokenizer, by which engines load a model. Reads JSON lines
{"model", "text"} or {"model", "ids"}, model being a folder of DIR with a
tokenizer.json, and writes for each {"ids", "around", "decoded", "skipped"}: the
text's ids, those with special tokens around them, and what the ids decode to,
with and without special tokens.
"""
import json
import sys

from tokenizers import Tokenizer


def load(folder):
    if "--auto" not in sys.argv:
        return Tokenizer.from_file(f"{folder}/tokenizer.json")
    from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(folder).backend_tokenizer


loaded = {}
for line in sys.stdin:
    q = json.loads(line)
    name = q["model"]
    if name not in loaded:
        loaded.clear()
        loaded[name] = load(f"{sys.argv[1]}/{name}")
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
