#!/usr/bin/env python3
"""Writes tokenizer vectors: make_vectors.py MODEL_DIR > vectors.jsonl.gz

Each line holds a text, the ids that the Hugging Face tokenizers library gives
it (no special tokens around it), and what it decodes those ids to. Lines
without a text hold random ids. Needs the package tokenizers.
"""
import gzip
import json
import random
import sys

from tokenizers import Tokenizer

tok = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
rng = random.Random(7)

TEXTS = [
    "", " ", "  ", "\n", "\r\n", "\n\n", " \n", "\n ", "\t", "\t\t x", "a", "ab", "Hello world", " Hello  world ",
    "Hello   world", "x   ", "   x", "a \n b", "a\n\n\nb", "a \r\n \r\n b", "line\r\nline", "end\n", "  \n  \n  x", " \t\n\t ",
    "I'm you're he's they'll we'd I've can't", "I'M YOU'RE HE'S THEY'LL WE'D I'VE CAN'T", "'s", "'S", "''s", "' s", "'x", "'", "'ſ", "a'ſb",
    "'l", "'ll", "'lL", "'v", "'ve", "'r", "'rE", "don't'll", "'twas", "'d'd",
    "0", "12", "123456789", "3.14159", "1,000,000", "2024-05-01T12:00:00Z", "x1y2z3", "Ⅷ½²", "٣٤٥", "०१२", "１２３",
    "naïve café", "cafe\u0301", "e\u0301\u0301", "\u0301", " \u0301", "\u0301a", "a\u0300\u0323", "a\u0323\u0300", "\u1112\u1161\u11ab", "한글", "ガ", "カ\u3099",
    "Å \u212b A\u030a", "ﬁ ﬂ ſt", "q\u0307\u0323", "Ω \u2126", "\u0958", "\u2adc", "\u0344", "x" + "\u0301" * 10, "x" + "\u0301\u0323" * 20, "e" + "\u0301" * 29,
    "e" + "\u0301" * 30, "e" + "\u0301" * 31, "e" + "\u0301" * 64 + "\u0323" + "a\u030a", "é" + "\u0323" * 40 + "é", "\u0301" * 35,
    "日本語の文章、中文句子。", "Привет, мир!", "Γειά σου Κόσμε", "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "สวัสดีชาวโลก", "မင်္ဂလာပါ", "ქართული", "አማርኛ",
    "🙂", "🙂🙂", "👩‍💻", "👨‍👩‍👧‍👦 family", "🇩🇪🇫🇷", "👍🏽", "❤️", "a🙂b", "🙂 x", "1️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "\U0001f9ff\U0001fae8",
    "𝕳𝖊𝖑𝖑𝖔", "𐍈𐌰", "𠀀𠀁", "\U00030000", "\U0001e900\U0001e922", "\u00a0x", "x\u00a0y", "\u2003x", "a\u2028b", "a\u2029b", "a\u0085b", "a\x0bb", "a\x0cb", "\u3000x\u3000",
    "a\u200bb", "\ufeffa", "a\u200d", "\u00ad", "\x00", "a\x00b", "\x7f", "\u0080", "\x1b[0m", "\ufffd", "\ufffe", "\ue000", "\U0010ffff",
    "!", "!!", " !", "! ", "!\n", "!\n\n", " !\r\n", "?!?!\n\nx", "...", "$100 €5 £3", "a_b", "__init__", "foo.bar(baz)", "x=1;y=2", "//comment\n", "#!/bin/sh\n",
    "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|>", "<|im_end|><|im_end|>", "a<|im_end|>b", " <|im_end|> ", "<|im_end|>\n\n", "x\n<|im_start|>y", "<|endoftext|>",
    "<|im_end", "<|im_end|", "|im_end|>", "<<|im_end|>>", "<|im_start|im_end|>", "<|IM_END|>", "<tool_call>", "</tool_call>", "<tool_call></tool_call>", "<tool_calls>", "<tool_response>x</tool_response>",
    "<think>\nI think\n</think>\n\nYes", "<think", "think>", "</think>é", "é<think>e\u0301</think>", "e<think>\u0301", "'<think>s", " <think> a", "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "def f(x):\n    return x + 1\n", "if (a && b) {\n\treturn;\n}\n", "SELECT * FROM t WHERE a = 'b';", "{\"a\": [1, 2, {\"b\": null}]}", "<html>\n  <body class=\"x\">&nbsp;</body>\n</html>",
    "http://example.com/a?b=c&d=e#f", "user@example.com", "C:\\Users\\x", "\\n\\t", "a" * 100, "ab" * 200, " " * 100, " " * 47 + "x", " " * 49, "\n" * 60, "\t" * 50 + "x", "!" * 80, "1" * 70,
    "é" * 60, "日" * 80, "🙂" * 30, "=-" * 40 + "\n", "aA" * 30, "x" * 48, "x" * 49, "the " * 30, "antidisestablishmentarianism", "ZWJ\u200dZWNJ\u200c",
]

POOL = [
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", "     \t\n\r\x0b\x0c", ".,;:!?'\"()[]{}<>|/\\@#$%^&*-_=+`~", "éèüößçñåøÆłžđΑΩαωЖяדאعمहि中文日本語かなカナ한글กขค",
    "\u0300\u0301\u0308\u0323\u0327\u031b\u0345\u05b0\u0651\u094d\u3099", "🙂🚀👩💻🏽❤\ufe0f\u200d🇩🇪", "\u00a0\u2003\u3000\u200b\u2028\u0085", "²³½Ⅷ٣५１", "ſﬁÅΩKŉǰΐ\u1e9bẞ", "𝕳𐍈𠀀\U0001e900",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_", "'s", "'ll", " the", "\r\n", "  \n"]
WORDS = "the quick brown fox jumps over lazy dog function return import class statement object value list string number error file line".split()


def fuzz():
    out = []
    for _ in range(rng.randint(1, 40)):
        r = rng.random()
        if r < 0.08:
            out.append(rng.choice(SPECIAL))
        elif r < 0.3:
            out.append(rng.choice(["", " "]) + rng.choice(WORDS))
        else:
            pool = rng.choice(POOL)
            out.append("".join(rng.choice(pool) for _ in range(rng.randint(1, 5))))
    return "".join(out)


def assigned():
    """Characters from all over: letters, numbers, marks, symbols of Unicode 15."""
    import unicodedata
    while True:
        c = rng.randint(0x20, 0x323af)
        if not 0xd800 <= c < 0xe000 and unicodedata.category(chr(c)) != "Cn":
            return chr(c)


texts = TEXTS + [fuzz() for _ in range(400)] + ["".join(assigned() for _ in range(rng.randint(1, 25))) for _ in range(150)]
texts.append("".join(rng.choice(" \n" if rng.random() < 0.1 else "abcdefgh etao nrs,.") for _ in range(20000)))
texts.append("".join(rng.choice("etaonrishdlu") for _ in range(5000)))

with gzip.GzipFile(fileobj=sys.stdout.buffer, mode="wb", mtime=0) as f:
    for t in texts:
        ids = tok.encode(t, add_special_tokens=False).ids
        row = {"text": t, "ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False)}
        f.write((json.dumps(row) + "\n").encode())
    for _ in range(100):
        ids = [rng.randrange(4096) for _ in range(rng.randint(1, 30))]
        row = {"ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False), "skipped": tok.decode(ids, skip_special_tokens=True)}
        f.write((json.dumps(row) + "\n").encode())
