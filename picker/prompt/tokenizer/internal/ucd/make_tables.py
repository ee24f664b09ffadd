#!/usr/bin/env python3
"""Writes tables.txt.gz: make_tables.py > tables.txt.gz

Asks the Hugging Face tokenizers library (0.23.3) about every code point, since
its parts follow different versions of Unicode: its pattern engine 16, its
normal forms 12, its lower case 17. Lines:

  g FIRST CATEGORY WORD   from FIRST on: general category, WORD 1 if \\w of added tokens
  n FIRST LAST            numeric (Digits pre-tokenizer)
  p FIRST LAST            punctuation (Punctuation pre-tokenizer)
  l CHAR CHARS            lower case
  o CHAR CLASS            canonical combining class
  d CHAR CHARS            full canonical decomposition
  k CHAR CHARS            full compatibility decomposition, where it differs
  m A B C                 A and B compose to C

Hangul syllables are left out of d, k and m: they follow a rule. Code points are
hexadecimal. Needs the package tokenizers; takes 15 s.
"""
import gzip
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

CPS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
ALL = "".join(map(chr, CPS))
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn".split()


def pieces(pre):
    out = set()
    for i in range(0, len(ALL), 20000):
        part = ALL[i:i + 20000]
        for _, (a, b) in pre.pre_tokenize_str(part):
            out.update(map(ord, part[a:b]))
    return out


def words():
    tok = Tokenizer(models.BPE(vocab={"U": 0}, merges=[], unk_token="U", fuse_unk=True))
    tok.add_tokens([AddedToken("XX", single_word=True, normalized=False)])
    out = set()
    for i in range(0, len(CPS), 2000):
        part = CPS[i:i + 2000]
        e = tok.encode("".join(chr(c) + "XX." for c in part))
        free = {o[0] for n, o in zip(e.ids, e.offsets) if n == 1}
        out.update(c for j, c in enumerate(part) if j * 4 + 1 not in free)
    return out


def numeric():
    out, pre, text = set(), pre_tokenizers.Digits(True), "".join("a" + chr(c) for c in CPS)
    for i in range(0, len(text), 20000):
        part = text[i:i + 20000]
        out.update(ord(part[a]) for _, (a, b) in pre.pre_tokenize_str(part) if b - a == 1 and a % 2 == 1)
    return out


def ranges(key, chars):
    chars = sorted(chars)
    first = None
    for i, c in enumerate(chars):
        first = c if first is None else first
        if i + 1 == len(chars) or chars[i + 1] != c + 1:
            yield f"{key} {first:x} {c:x}"
            first = None


def hexes(s):
    return " ".join(f"{ord(c):x}" for c in s)


def lines():
    of = {}
    for k in CATEGORIES:
        for c in pieces(pre_tokenizers.Split(Regex(r"\p{%s}" % k), "removed", invert=True)):
            of[c] = k
    word, last = words(), None
    for c in range(0x110000):
        now = (of.get(c, "Cn"), int(c in word))
        if now != last:
            yield f"g {c:x} {now[0]} {now[1]}"
        last = now
    yield from ranges("n", numeric())
    yield from ranges("p", set(CPS) - pieces(pre_tokenizers.Punctuation("removed")))

    lower, nfc = normalizers.Lowercase().normalize_str, normalizers.NFC().normalize_str
    nfd, nfkd = normalizers.NFD().normalize_str, normalizers.NFKD().normalize_str
    for c in CPS:
        if (s := lower(chr(c))) != chr(c):
            yield f"l {c:x} {hexes(s)}"

    # Combining classes by how characters swap places with marks of known class.
    swaps = lambda a, b: nfd("a" + a + b) != "a" + a + b
    marks = {}
    for c in CPS:
        if (cc := unicodedata.combining(chr(c))) and nfd(chr(c)) == chr(c) and (cc == 240 or swaps("\u0345", chr(c))):
            marks.setdefault(cc, chr(c))
    known = sorted(marks)
    for c in CPS:
        if nfd(chr(c)) != chr(c):
            continue
        if not swaps(marks[240], chr(c)) and not swaps(chr(c), marks[1]):
            continue
        cc = [k for k in known if not swaps(marks[k], chr(c)) and not swaps(chr(c), marks[k])]
        assert len(cc) == 1, (hex(c), cc)
        yield f"o {c:x} {cc[0]}"

    for c in CPS:
        if 0xAC00 <= c < 0xAC00 + 11172:
            continue
        d, k = nfd(chr(c)), nfkd(chr(c))
        if d != chr(c):
            yield f"d {c:x} {hexes(d)}"
            if len(d) > 1 and nfc(d) == chr(c):
                first = nfc(d[:-1])
                assert len(first) == 1 and nfc(first + d[-1]) == chr(c), hex(c)
                yield f"m {ord(first):x} {ord(d[-1]):x} {c:x}"
        if k != d:
            yield f"k {c:x} {hexes(k)}"


with gzip.GzipFile(fileobj=sys.stdout.buffer, mode="wb", mtime=0) as f:
    f.write(("\n".join(lines()) + "\n").encode())
