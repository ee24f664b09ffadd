#!/usr/bin/env python3
"""Renders random chat requests as vLLM does, one JSON line each.

    chat.py [--seed N] [--count N] [--template FILE]... MODEL_DIR...

The body of each request goes through vLLM's own request class, message parser
and template call (written with vLLM 0.32.0 and transformers 5.19.0). Where vLLM
is not installed, what it does before the template call is done here. A model
directory uses its own tokenizer and templates; a template given by --template
is rendered with the first directory's tokenizer. A line holds model (the
directory or template as given), request (a body), and rendered or refused (why
vLLM answers 400).
"""
import argparse
import json
import logging
import os
import random
import sys
from datetime import datetime as real_datetime
from types import SimpleNamespace

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jinja2
import transformers.utils.chat_template_utils as templates
from transformers import AutoTokenizer

try:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.renderers import hf
    from vllm.renderers.chat_utils import parse_chat_messages
    from vllm.renderers.params import merge_kwargs

    hf._try_get_processor_chat_template = lambda *a, **k: None
except ImportError:
    hf = None

logging.disable(logging.CRITICAL)


class Now(real_datetime):
    """The time that the Go test gives to templates."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 3, 9, 4, 5, 6)


templates.datetime = Now


def render(body, tok, dir, template):
    """What online_renderer.py and hf.py of vLLM do between them."""
    config = SimpleNamespace(multimodal_config=None, revision=None, code_revision=None, tokenizer_revision=None,
                             trust_remote_code=False, model=dir, tokenizer=dir, enable_prompt_embeds=False,
                             hf_config=SimpleNamespace(model_type="none"))
    req = ChatCompletionRequest.model_validate(json.loads(body))
    tools = None if req.tools is None else [t.model_dump() for t in req.tools]
    params = req.build_chat_params(template, "auto").with_defaults(merge_kwargs(None, dict(tools=tools, tokenize=False)))
    fmt = hf.resolve_chat_template_content_format(params.chat_template, params.chat_template_kwargs.get("tools"), "auto", tok, model_config=config)
    conversation, mm, _ = parse_chat_messages(req.messages, config, content_format=fmt)
    assert mm is None
    return hf.safe_apply_chat_template(config, tok, conversation, **params.get_apply_chat_template_kwargs())


# The same without vLLM, for the requests that Maker makes: written anew from
# what vLLM does to a request before it calls transformers.


def loops_over_content(template):
    """Whether a template takes the content of a message apart."""
    tree = templates._compile_jinja_template(template).environment.parse(template)
    nodes = jinja2.nodes

    def bare(x):
        while isinstance(x, (nodes.Filter, nodes.Test)) or isinstance(x, nodes.Getitem) and isinstance(x.arg, nodes.Slice):
            x = x.node
        return x

    def is_content(x):
        x = bare(x)
        if isinstance(x, nodes.Getattr):
            return isinstance(x.node, nodes.Name) and x.attr == "content"
        return isinstance(x, nodes.Getitem) and isinstance(x.node, nodes.Name) and isinstance(x.arg, nodes.Const) and x.arg.value == "content"

    def inside(m):
        given = {m.args[i].name for c in tree.find_all(nodes.Call) if isinstance(c.node, nodes.Name) and c.node.name == m.name
                 for i, a in enumerate(c.args) if i < len(m.args) and is_content(a)}
        return {id(f): given for f in m.find_all(nodes.For)}

    macros = {k: v for m in tree.find_all(nodes.Macro) for k, v in inside(m).items()}
    return any(is_content(f.iter) or isinstance(f.iter, nodes.Name) and f.iter.name in macros.get(id(f), {"content"}) for f in tree.find_all(nodes.For))


def in_order(d, *first):
    return {k: d[k] for k in (*first, *d) if k in d}


def arguments(text):
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}


def message(m, parts):
    content = m.get("content")
    content = [] if content is None else [content] if isinstance(content, str) else content
    content = [dict(type="text", text=p) if isinstance(p, str) else p for p in content]
    content = [dict(type="text", text=p[p["type"]], **{k: v for k, v in p.items() if k == "cache_control"}) for p in content]
    if m["role"] == "system":
        for p in content:
            if p["text"].startswith("x-anthropic-billing-header"):
                p["text"] = p["text"].partition("\n")[2] or None
        content = [p for p in content if p["text"] is not None]
    if not parts:
        content = "\n".join(p["text"] for p in content if p["text"])
    out = dict(role=m["role"], content=content)
    if m["role"] == "assistant":
        calls = [in_order(c, "id", "function", "type") for c in m.get("tool_calls") or []]
        for c in calls:
            c["function"] = dict(in_order(c["function"], "arguments", "name"), arguments=arguments(c["function"]["arguments"]))
        if calls:
            out["tool_calls"] = calls
        reasoning = m.get("reasoning") if m.get("reasoning") is not None else m.get("reasoning_content")
        if reasoning is not None:
            out["reasoning"] = out["reasoning_content"] = reasoning
    if m["role"] == "tool":
        out["tool_call_id"] = m["tool_call_id"]
        if parts:
            out["content"] = "\n".join(p["text"] for p in content)
    if "name" in m:
        out["name"] = m["name"]
    if m["role"] == "developer":
        out["tools"] = None
    return out


def one_system(messages):
    """Developer messages as system messages, all of them in front as one."""
    system = [m for m in messages if m["role"] in ("system", "developer")]
    rest = [m for m in messages if m not in system]
    for m in system:
        m["role"] = "system"
        m.pop("tools", None)
    if messages[:1] == system:
        return messages
    texts = [m["content"] if isinstance(m["content"], str) else "\n".join(p["text"] for p in m["content"]) for m in system]
    return [dict(role="system", content="\n\n".join(t for t in texts if t)), *rest]


def tool(t):
    f = t["function"]
    out = dict(name=f["name"], description=f.get("description"), parameters=f.get("parameters"))
    if f.get("strict") is not None:
        out["strict"] = f["strict"]
    return dict(type="function", function=out)


def render_without(body, tok, dir, template):
    req = json.loads(body)
    tools = [tool(t) for t in req["tools"]] if "tools" in req else None
    source = template if template is not None else tok.get_chat_template(None, tools)
    messages = [message(m, loops_over_content(source)) for m in req["messages"]]
    if any(m["role"] == "developer" for m in messages) and '"developer"' not in source and "'developer'" not in source:
        messages = one_system(messages)
    asked = req.get("chat_template_kwargs", {})
    kwargs = {k: v for k, v in asked.items() if v is not None and v != "auto" and k != "range"}
    if "reasoning_effort" in req:
        kwargs["reasoning_effort"] = req["reasoning_effort"]
        if "enable_thinking" not in asked:
            kwargs["enable_thinking"] = req["reasoning_effort"] != "none"
    kwargs["add_generation_prompt"] = req.get("add_generation_prompt", True)
    return tok.apply_chat_template(messages, tools=tools, documents=req.get("documents"), chat_template=source, tokenize=False,
                                   continue_final_message=req.get("continue_final_message", False), **kwargs)


class Maker:
    """Makes requests at random."""

    WORDS = ["hello", "the weather", "in Paris", "naïve café", "日本語のテキスト", "Ελληνικά", "русский", "👩‍💻🙂", "e\u0301", "\u00a0", "\u2028", "\u200b", "\ufeff",
             "line\nbreak", "\r\n", "\ttab", "  ", "\n\n", "\"quoted\"", "it's", "back\\slash", "<b>&amp;</b>", "a < b && c > d", "{{ x }}", "{% if %}", "{# c #}",
             "100%", "%s", "{}", "null", "None", "<think>", "</think>", "\n</think>\n\n", "<tool_call>", "</tool_response>", "<tool_response>\nx\n</tool_response>", "[INST]", "<|im_start|>",
             "<|im_end|>\n", "<|eot_id|>", "<|begin_of_text|>", "<s>", "</s>", "<bos>", "<start_of_turn>", "<｜User｜>", "<｜end▁of▁sentence｜>", "def f(x):\n    return x\n", "1.0", "0", "\x01\x7f",
             "https://example.org/?q=1&r=2", "x" * 40, "ǅ ß İ ŉ ﬁ", "CONTINUE", "word " * 12]
    KEYS = ["city", "n", "items", "keys", "get", "name", "type", "a b", "ключ", "q\"", "0", "nested", "default", "required", "properties", "description", "values"]

    def __init__(self, seed):
        self.r = random.Random(seed)

    def chance(self, p):
        return self.r.random() < p

    def text(self, most=6):
        r = self.r
        if self.chance(0.06):
            return ""
        if self.chance(0.02):
            return " ".join(r.choice(self.WORDS) for _ in range(400))
        return r.choice(["", " ", "\n"]) * self.chance(0.2) + r.choice(["", " ", "\n"]).join(r.choice(self.WORDS) for _ in range(r.randint(1, most))) + r.choice([" ", "\n", "\n\n"]) * self.chance(0.2)

    def value(self, depth=0):
        r = self.r
        kind = r.randint(0, 9 if depth < 3 else 6)
        if kind == 0:
            return r.choice([None, True, False])
        if kind == 1:
            return r.choice([0, 1, -1, 42, 2**31, 2**53 + 1, 12345678901234567890123, -(2**63)])
        if kind == 2:
            return r.choice([0.0, -0.0, 1.0, 1.5, 1e5, 1e16, 1e22, 1e-5, 1e-4, 0.1, 3.141592653589793, 5e-324, 1.7976931348623157e308, 123456789.125, -2.5])
        if kind <= 6:
            return self.text(2)
        if kind == 7:
            return [self.value(depth + 1) for _ in range(r.randint(0, 3))]
        return self.object(depth + 1)

    def object(self, depth=0):
        return {self.r.choice(self.KEYS): self.value(depth) for _ in range(self.r.randint(0, 4))}

    def content(self, null=0.0):
        r = self.r
        if self.chance(null):
            return None
        if self.chance(0.75):
            return self.text()
        parts = []
        for _ in range(r.randint(0, 3)):
            p = dict(type="text", text=self.text(3))
            if self.chance(0.1):
                p["cache_control"] = {"type": "ephemeral"}
            if self.chance(0.05):
                p = dict(type="refusal", refusal=self.text(2))
            parts.append(p)
        return parts

    def arguments(self):
        r = self.r
        if self.chance(0.1):
            return r.choice(["", "{}", "[1]", "not json", "null", "3", '{"a": 1', '{"a":1,"a":2}', '{"x": NaN, "y": -Infinity}', '{"s": "\\u00e9\\ud83d\\ude42\\/"}', ' { "b" : [ ] } ', '"text"'])
        return json.dumps(self.object(), ensure_ascii=self.chance(0.5), separators=r.choice([None, (",", ":")]))

    def call(self, i):
        c = dict(id=f"call{i:05d}"[:9], type="function", function=dict(name=self.r.choice(["get_weather", "now", "f"]), arguments=self.arguments()))
        if self.chance(0.1):
            c["index"] = i
        return c

    def assistant(self, last=False):
        m = dict(role="assistant", content=self.content(null=0.1))
        if self.chance(0.15):
            m["reasoning" if self.chance(0.5) else "reasoning_content"] = self.r.choice([None, self.text(3), "\n\nbecause\n\n"])
        if self.chance(0.1):
            m["content"] = "<think>\n" + self.text(3) + "\n</think>\n\n" + self.text(3)
        if self.chance(0.05):
            m["refusal"] = self.r.choice([None, "I won't"])
        if self.chance(0.04):
            m.pop("content")
            m["tool_calls"] = [self.call(0)]
        return m

    def messages(self):
        r = self.r
        out = []
        if self.chance(0.5):
            out.append(dict(role="system", content=self.r.choice([self.content(), "x-anthropic-billing-header: cch=1\nSystem"]) if self.chance(0.1) else self.content()))
        elif self.chance(0.05):
            out.append(dict(role="developer", content=self.content()))
        turns = r.choice([1, 1, 2, 3, 4]) if not self.chance(0.03) else 30
        n = 0
        for t in range(turns):
            u = dict(role="user", content=self.content())
            if self.chance(0.05):
                u["name"] = "bob"
            out.append(u)
            if self.chance(0.03):
                out.append(dict(role=r.choice(["user", "system", "developer", "tool"]), content=self.text()))
                if out[-1]["role"] == "tool":
                    out[-1]["tool_call_id"] = "call00000"
            if t == turns - 1 and self.chance(0.6):
                break
            if self.chance(0.3):
                a = self.assistant()
                count = r.choice([0, 1, 1, 1, 2, 3])
                a["tool_calls"] = [self.call(n + i) for i in range(count)]
                out.append(a)
                for i in range(count):
                    out.append(dict(role="tool", tool_call_id=a["tool_calls"][i]["id"], content=self.content() if self.chance(0.7) else json.dumps(self.object())))
                    if self.chance(0.2):
                        out[-1]["name"] = "get_weather"
                n += count
                if t == turns - 1 and self.chance(0.3):
                    break
            out.append(self.assistant())
        return out

    def tool(self):
        r = self.r
        f = dict(name=r.choice(["get_weather", "now", "f", "g"]))
        if self.chance(0.8):
            f["description"] = self.text(3)
        if self.chance(0.8):
            f["parameters"] = dict(type="object", properties={r.choice(self.KEYS): {"type": r.choice(["string", "number", ["string", "null"], "array", "object"]), "description": self.text(2), **(self.object(2) if self.chance(0.3) else {})}
                                                              for _ in range(r.randint(0, 3))}, **(dict(required=["city"]) if self.chance(0.5) else {}))
            if self.chance(0.1):
                f["parameters"] = self.object()
        if self.chance(0.1):
            f["strict"] = r.choice([True, False, None])
        if self.chance(0.1):
            f["extra"] = 1
        t = dict(type="function", function=f)
        if self.chance(0.1):
            t = dict(function=f, type="function", other=[1])
        return t

    def body(self):
        r = self.r
        body = dict(model="m", messages=self.messages())
        if self.chance(0.35):
            body["tools"] = [self.tool() for _ in range(r.randint(1, 3))]
            if self.chance(0.2):
                body["tool_choice"] = r.choice(["none", "auto", "required"])
        if self.chance(0.1):
            body["documents"] = [dict(title=self.text(1), text=self.text(3)) for _ in range(r.randint(0, 2))]
        if self.chance(0.15):
            body["reasoning_effort"] = r.choice(["none", "low", "medium", "high"])
        if self.chance(0.25):
            body["chat_template_kwargs"] = {k: v for k, v in dict(
                enable_thinking=r.choice([True, False, None]), thinking=r.choice([True, False]), unused=self.value(), date_string=r.choice(["1 May 2025", None, "auto"]),
                custom=self.value(), system_message=self.text(1), bos_token="<B>", reasoning_effort=r.choice(["high", "auto"]), range=3, add_generation_prompt=False).items() if self.chance(0.25)}
        if self.chance(0.12):
            body["continue_final_message"] = True
            body["add_generation_prompt"] = False
        elif self.chance(0.1):
            body["add_generation_prompt"] = False
        if self.chance(0.1):
            body["add_special_tokens"] = r.choice([True, False])
        return json.dumps(body, ensure_ascii=self.chance(0.5), separators=r.choice([None, (",", ":")]))


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--count", type=int, default=500)
    args.add_argument("--template", action="append", default=[])
    args.add_argument("--without-vllm", action="store_true", help="don't use vLLM even if it is installed")
    args.add_argument("dirs", nargs="+")
    args = args.parse_args()
    maker = Maker(args.seed)
    bodies = [maker.body() for _ in range(args.count)]
    jobs = [(d, d, None) for d in args.dirs] if not args.template else []
    jobs += [(t, args.dirs[0], open(t, encoding="utf-8", newline="").read()) for t in args.template]
    use = render_without if hf is None or args.without_vllm else render
    toks = {}
    for name, dir, template in jobs:
        if dir not in toks:
            toks[dir] = AutoTokenizer.from_pretrained(dir)
        for body in bodies:
            row = dict(model=name, request=body)
            try:
                row["rendered"] = use(body, toks[dir], dir, template)
            except Exception as e:  # vLLM answers 400 to all of them
                row["refused"] = f"{type(e).__name__}: {e}".splitlines()[0][:200]
            print(json.dumps(row))


main()
