#!/usr/bin/env python3
"""Writes a tiny Qwen3 model directory for a real vLLM run with --load-format dummy.

No weights and no hub are needed: config.json (any size), a byte-level BPE tokenizer
trained here on the standard library's own documentation, and a Qwen3 chat template.

    make_tiny_model.py OUT_DIR [--preset tiny|slow|slow32] [--template FILE.jinja] [--vocab 4096]
                       [--tokenizer-from DIR] [--hidden N --layers N --heads N ...]

Needs the packages tokenizers (any recent version); nothing else.
"""
import argparse
import json
import os
import shutil

PRESETS = {
    # about 0.3 M parameters: start-up and wire tests, a 4,000-token prefill costs next to nothing
    "tiny": dict(hidden=64, inter=128, layers=2, heads=2, kv_heads=2, head_dim=32, max_len=32768),
    # for bfloat16 on a CPU with AMX: a cold 4,000-token prefill costs about 2 CPU seconds
    "slow": dict(hidden=768, inter=2048, layers=8, heads=12, kv_heads=4, head_dim=64, max_len=32768),
    # the same cost with --dtype float32
    "slow32": dict(hidden=512, inter=1536, layers=5, heads=8, kv_heads=4, head_dim=64, max_len=32768),
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
# Qwen's own split pattern
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
FALLBACK_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def corpus():
    import pydoc_data.topics as topics
    for text in topics.topics.values():
        yield text
    for s in ("Grüße aus Köln, naïve café, Ελληνικά, русский текст, 日本語の文章、中文句子。", "🙂🚀👩‍💻", "0123456789"):
        yield s


def make_tokenizer(out, vocab):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    tok = Tokenizer(models.BPE(byte_fallback=False, fuse_unk=False))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
    ])
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    n_added = len(SPECIAL) + len(ADDED)
    trainer = trainers.BpeTrainer(vocab_size=vocab - n_added, show_progress=False, special_tokens=[],
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tok.train_from_iterator(corpus(), trainer)
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tok.add_tokens([AddedToken(t, special=False, normalized=False) for t in ADDED])
    tok.save(os.path.join(out, "tokenizer.json"), pretty=False)
    return tok.get_vocab_size(), {t: tok.token_to_id(t) for t in SPECIAL}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--preset", default="tiny", choices=PRESETS)
    ap.add_argument("--template")
    ap.add_argument("--vocab", type=int, default=4096)
    ap.add_argument("--tokenizer-from", help="copy the tokenizer files of another model folder")
    for k in ("hidden", "inter", "layers", "heads", "kv_heads", "head_dim", "max_len"):
        ap.add_argument("--" + k.replace("_", "-"), type=int)
    a = ap.parse_args()
    p = dict(PRESETS[a.preset])
    p.update({k: getattr(a, k) for k in p if getattr(a, k) is not None})
    os.makedirs(a.out, exist_ok=True)

    if a.tokenizer_from:
        for f in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copy(os.path.join(a.tokenizer_from, f), os.path.join(a.out, f))
        old = json.load(open(os.path.join(a.tokenizer_from, "config.json")))
        size, ids = old["vocab_size"], {"<|im_end|>": old["eos_token_id"], "<|endoftext|>": old["bos_token_id"]}
    else:
        size, ids = make_tokenizer(a.out, a.vocab)
        template = open(a.template, encoding="utf-8").read() if a.template else FALLBACK_TEMPLATE
        json.dump({
            "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, "add_prefix_space": False,
            "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None,
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "clean_up_tokenization_spaces": False,
            "model_max_length": p["max_len"], "chat_template": template,
        }, open(os.path.join(a.out, "tokenizer_config.json"), "w"), indent=1, ensure_ascii=False)
        json.dump({"bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"],
                   "pad_token_id": ids["<|endoftext|>"], "do_sample": False},
                  open(os.path.join(a.out, "generation_config.json"), "w"), indent=1)

    json.dump({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
        "hidden_size": p["hidden"], "intermediate_size": p["inter"], "num_hidden_layers": p["layers"],
        "num_attention_heads": p["heads"], "num_key_value_heads": p["kv_heads"], "head_dim": p["head_dim"],
        "vocab_size": size, "max_position_embeddings": p["max_len"], "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": True,
        "use_cache": True, "use_sliding_window": False, "sliding_window": None, "initializer_range": 0.02,
        "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"], "torch_dtype": "bfloat16",
    }, open(os.path.join(a.out, "config.json"), "w"), indent=1)
    print(a.out, p, "vocab", size)


if __name__ == "__main__":
    main()
