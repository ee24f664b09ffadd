#!/usr/bin/env python3
"""Writes the tokenizer package's test data: tokenizer_variants.py DIR

DIR is picker/prompt/tokenizer/testdata. Trains two small BPE models on made-up
text, one of bytes and one of characters, and writes with them

  variants.json.gz          {"bases": {name: tokenizer.json}, "variants": [{"name", "base", "set": {...}}]}
  variant_vectors.jsonl.gz  {"variant", "text", "ids", "around", "decoded", "skipped"}

A variant is a base with some of its keys set to other values (those of "model"
one by one): the components of the families in use, and the rarer ones. Needs
the package tokenizers (0.23.3).
"""
import gzip
import json
import os
import random
import sys

os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # noqa: E402

rng = random.Random(11)
WORDS = ("the quick brown fox jumps over lazy dog function return import class statement object value list string number error file line "
         "naïve Straße café привет мир данные Καλημέρα κόσμε 日本語 中文 句子 문장 한국어 नमस्ते สวัสดี مرحبا HTTPServer camelCase snake_case It's don't we'll").split()
POOLS = [
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", "    \t\n\r\x0b", ".,;:!?'\"()[]{}<>|/\\@#$%^&*-_=+`~", "éèüößçñåøÆłžđΑΩαωЖяДאعمहि中文日本語かなカナ한글กขค",
    "\u0300\u0301\u0308\u0323\u0327\u3099", "🙂🚀👩💻🏽❤\ufe0f\u200d", "\u00a0\u2003\u3000\u200b\u2028\u0085", "²³½Ⅷ٣५１", "ſﬁÅΩKİıǅʰªºẞ", "𝕳𐍈𠀀", "▁ _", "\u1112\u1161\u11ab\u1100\uac00\u11a8", "\x00\x1b\ufffd\U0010ffff",
]
BITS = ["'s", "'S", "'ll", "'RE", " the", "\r\n", "\n\n", "    ", "/\n", "//", "!\n", "<0x0A>", "<unk>", "<s>", "</s>", "<pad>", " <mask> ", "<mask>", "  <left>", "<left>", "<right>  ", "<right>", "one", " one ", "oneone",
        "bOth", "BOTH", "Both", "[X]", "ǅungla", "both<mask>one", "<right> <left>", "<right>\n\nx", "\n\n\n", "<table>", "1234567", "camelCaseWord", "HTTPServer", "def f(x):\n    return x\n", "e\u0301", "<｜tool｜>"]


def corpus():
    for _ in range(4000):
        yield " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 12))) + rng.choice([".", "!", "\n", ";", " 12", "  x", "\n\n", "/"])


def text():
    out = []
    for _ in range(rng.randint(1, 25)):
        r = rng.random()
        if r < 0.25:
            out.append(rng.choice(BITS))
        elif r < 0.55:
            out.append(rng.choice(["", " ", "  "]) + rng.choice(WORDS))
        elif r < 0.6:
            out.append(rng.choice(" \n\té中a") * rng.randint(2, 40))
        else:
            pool = rng.choice(POOLS)
            out.append("".join(rng.choice(pool) for _ in range(rng.randint(1, 5))))
    return "".join(out)


def train(pre, size, special, alphabet):
    tok = Tokenizer(models.BPE(unk_token=special[0] if special else None, byte_fallback=True))
    tok.pre_tokenizer = pre
    tok.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, limit_alphabet=300, show_progress=False))
    f = json.loads(tok.to_str())
    f["added_tokens"], f["pre_tokenizer"] = [], None
    return f


LINES = list(corpus())
chars = train(pre_tokenizers.Metaspace(split=True), 1000, ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)], list("abcdefghijklmnopqrstuvwxyz 0123456789.,\n▁"))
chars["model"].update(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
byte = train(pre_tokenizers.ByteLevel(add_prefix_space=False), 900, [], pre_tokenizers.ByteLevel.alphabet())
byte["model"].update(byte_fallback=False, unk_token=None)
byte["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def token(base, content, **flags):
    """An added token; ids go on from the end of the vocabulary."""
    vocab = base["model"]["vocab"]
    t = {"id": vocab.get(content), "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    t.update(flags)
    return t


def tokens(base, *list_):
    n = len(base["model"]["vocab"])
    for t in list_:
        if t["id"] is None:
            t["id"], n = n, n + 1
    return list(list_)


seq = lambda key, *c: {"type": "Sequence", key: list(c)}
replace = lambda a, b, kind="String": {"type": "Replace", "pattern": {kind: a}, "content": b}
split = lambda p, behavior="Isolated", kind="Regex", invert=False: {"type": "Split", "pattern": {kind: p}, "behavior": behavior, "invert": invert}
level = lambda space=False, regex=False: {"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": True, "use_regex": regex}
meta = lambda scheme, cut=True: {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}
template = lambda t, i: {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": t, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                         "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]}}}
spaces = [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
strip1 = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
S = [dict(content="<unk>"), dict(content="<s>"), dict(content="</s>")]
start = lambda: [token(chars, s["content"]) for s in S]
ODD = [dict(content="<mask>", lstrip=True), dict(content="<left>", lstrip=True, rstrip=True), dict(content="<right>", rstrip=True), dict(content="one", single_word=True, special=False),
       dict(content="bOth", normalized=True, special=False), dict(content="[X]", normalized=True, single_word=True)]
odd = lambda base: [token(base, o["content"], **{k: v for k, v in o.items() if k != "content"}) for o in ODD]

DEEPSEEK = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
UPPER, LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
o200k = lambda contr, digits: UPPER + "*" + LOWER + "+" + contr + "|" + UPPER + "+" + LOWER + "*" + contr + "|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTR = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
gpt4 = lambda digits: r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"

VARIANTS = []


def variant(name, base, **keys):
    VARIANTS.append({"name": name, "base": base, "set": keys})


variant("llama2", "chars", normalizer=seq("normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")), added_tokens=tokens(chars, *start()), decoder=seq("decoders", *spaces, strip1), post_processor=template("<s>", 1))
variant("llama2 with odd tokens", "chars", normalizer=seq("normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")), added_tokens=tokens(chars, *start(), *odd(chars)), decoder=seq("decoders", *spaces, strip1))
variant("gemma", "chars", normalizer=replace(" ", "▁"), added_tokens=tokens(chars, *start(), token(chars, "<pad>")), decoder=seq("decoders", *spaces), post_processor=template("<s>", 1))
variant("gemma3", "chars", normalizer=replace(" ", "▁"), pre_tokenizer=split(" ", "MergedWithPrevious", "String"),
        added_tokens=tokens(chars, *start(), *(token(chars, s, special=False) for s in ("\n\n", "\n\n\n", "▁▁", "<table>"))), decoder=seq("decoders", *spaces))
variant("mistral first", "chars", pre_tokenizer=meta("first", False), added_tokens=tokens(chars, *start()), decoder=seq("decoders", *spaces, strip1), post_processor=template("<s>", 1))
variant("metaspace first, odd tokens", "chars", pre_tokenizer=meta("first"), added_tokens=tokens(chars, *start(), *odd(chars)), decoder=meta("first"))
variant("metaspace always", "chars", pre_tokenizer=meta("always"), added_tokens=tokens(chars, *start()), decoder=meta("always"), model={"byte_fallback": False})
variant("metaspace always, unknown one by one", "chars", pre_tokenizer=meta("always", False), added_tokens=tokens(chars, *start()), decoder=meta("always"), model={"byte_fallback": False, "fuse_unk": False})
variant("metaspace never", "chars", pre_tokenizer=meta("never"), decoder=meta("never"), model={"byte_fallback": False, "unk_token": None})
variant("no decoder", "chars", normalizer=replace(" ", "▁"), decoder=None, model={"ignore_merges": True})
variant("white space", "chars", normalizer=seq("normalizers", {"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": False}), pre_tokenizer={"type": "Whitespace"}, added_tokens=tokens(chars, *start(), *odd(chars)), decoder=None)
variant("digits and punctuation", "chars", normalizer={"type": "NFKD"}, pre_tokenizer=seq("pretokenizers", {"type": "WhitespaceSplit"}, {"type": "Digits", "individual_digits": False}, {"type": "Punctuation", "behavior": "MergedWithNext"}), decoder=seq("decoders", {"type": "Fuse"}))
variant("bert", "chars", normalizer=seq("normalizers", {"type": "NFD"}, replace(r"\p{Mn}+|[0-5]{2,3}", "-", "Regex")), pre_tokenizer=seq("pretokenizers", {"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "Contiguous"}),
        decoder=seq("decoders", {"type": "Strip", "content": "a", "start": 2, "stop": 0}, {"type": "Fuse"}), post_processor={"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True, "add_prefix_space": False})
variant("deepseek", "bytes", normalizer=seq("normalizers"), pre_tokenizer=seq("pretokenizers", *map(split, DEEPSEEK), level()), added_tokens=tokens(byte, token(byte, "<s>"), token(byte, "<｜tool｜>", normalized=True, special=False), token(byte, "<mask>", normalized=True)))
variant("o200k", "bytes", pre_tokenizer=seq("pretokenizers", split(o200k(CONTR, r"\p{N}{1,3}")), level()), model={"ignore_merges": True}, added_tokens=tokens(byte, token(byte, "<s>")))
variant("tekken", "bytes", pre_tokenizer=seq("pretokenizers", split(o200k("", r"\p{N}")), level()), model={"ignore_merges": True})
variant("llama3", "bytes", pre_tokenizer=seq("pretokenizers", split(gpt4(r"\p{N}{1,3}")), level()), model={"ignore_merges": True}, added_tokens=tokens(byte, *odd(byte)))
variant("qwen", "bytes", normalizer={"type": "NFC"}, pre_tokenizer=seq("pretokenizers", split(gpt4(r"\p{N}")), level()), added_tokens=tokens(byte, *odd(byte)))
variant("cl100k", "bytes", normalizer=seq("normalizers", {"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": True}), pre_tokenizer=seq("pretokenizers", split(CL100K, "Removed", invert=True), level()), added_tokens=tokens(byte, *odd(byte)))
variant("gpt2", "bytes", pre_tokenizer=level(True, True), added_tokens=tokens(byte, token(byte, "<mask>", lstrip=True)))
variant("behaviors", "bytes", pre_tokenizer=seq("pretokenizers", split(r"\s+", "MergedWithNext"), split("[,;]", "Contiguous"), split("a|e+?|o{2}", "MergedWithPrevious"), split(r"\bthe\b|^x|n$|(?>i|in)g(?=s|\Z)", "Removed"), split(r"[^\W\d_]+(?:'\w)?", "Isolated", invert=True), level()))


def main():
    bases = {"chars": chars, "bytes": byte}
    rows = []
    for v in VARIANTS:
        f = json.loads(json.dumps(bases[v["base"]]))
        for k, x in v["set"].items():
            f[k].update(x) if k == "model" else f.__setitem__(k, x)
        tok = Tokenizer.from_str(json.dumps(f))
        for _ in range(90):
            t = text()
            ids = tok.encode(t, add_special_tokens=False).ids
            rows.append({"variant": v["name"], "text": t, "ids": ids, "around": tok.encode(t).ids, "decoded": tok.decode(ids, skip_special_tokens=False), "skipped": tok.decode(ids, skip_special_tokens=True)})
    write("variants.json.gz", [{"bases": bases, "variants": VARIANTS}])
    write("variant_vectors.jsonl.gz", rows)


def write(name, rows):
    with open(f"{sys.argv[1]}/{name}", "wb") as out, gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as z:
        for row in rows:
            z.write((json.dumps(row, ensure_ascii=False) + "\n").encode())


main()
