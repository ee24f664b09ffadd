#!/usr/bin/env python3
"""Writes what vLLM takes templates for: make_formats.py > formats.json

Each row holds a template and whether vLLM 0.32.0 gives it the content of
messages as a list of parts (content format "openai").
"""
import json
import logging

logging.disable(logging.CRITICAL)

from vllm.renderers import hf

TEMPLATES = [
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for p in m.content | list %}{{ p.text }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for p in m.content[1:] %}{{ p.text }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% set content = m.content %}{% for p in content %}{{ p.text }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% set c = m.content %}{% for p in c %}{{ p.text }}{% endfor %}{% endfor %}",
    "{% set ms = messages[1:] %}{% for m in ms %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
    "{% set a = messages %}{% set b = a | list %}{% for m in b %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
    "{% macro r(c) %}{% for p in c %}{{ p.text }}{% endfor %}{% endmacro %}{% for m in messages %}{{ r(m.content) }}{% endfor %}",
    "{% macro r(c) %}{% for p in c %}{{ p.text }}{% endfor %}{% endmacro %}{% for m in messages %}{{ r(c=m.content) }}{% endfor %}",
    "{% macro r(c) %}{% for p in c %}{{ p.text }}{% endfor %}{% endmacro %}{% for m in messages %}{{ r(m.role) }}{% endfor %}",
    "{% macro r(content) %}{% for p in content %}{{ p.text }}{% endfor %}{% endmacro %}{% for m in messages %}{{ r(m.role) }}{% endfor %}",
    "{% macro r(content) %}{% for p in content %}{{ p.text }}{% endfor %}{% endmacro %}{% for m in messages %}{{ r(m.content) }}{% endfor %}",
    "{% for m in messages[::-1] %}{% for p in m.content if p %}{{ p }}{% endfor %}{% endfor %}",
    "{% for m in x.messages %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}",
    "{% set ns = namespace() %}{% set ns.m = messages %}{% for m in messages %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}",
    "{% set a, b = messages %}{% for m in messages %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for k, p in m.content %}{{ p }}{% endfor %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for p in m.content %}{{ p }}{% endfor %}{% for k, p in m.content %}{{ p }}{% endfor %}{% endfor %}",
    "{% for i, m in messages %}{% for p in content %}{{ p }}{% endfor %}{% endfor %}",
    "{% for p in content %}{{ p }}{% endfor %}",
    "{% for m in messages %}{% for p in m.content.parts %}{{ p }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for p in (m.content if m.content else []) %}{{ p }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for p in m.get('content') %}{{ p }}{% endfor %}{% endfor %}",
    "{% set x %}{% for m in messages %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}{% endset %}{{ x }}",
    "{% for m in messages %}{% generation %}{% for p in m.content %}{{ p }}{% endfor %}{% endgeneration %}{% endfor %}",
    "{% for m in messages %}{% if m.content is string %}a{% else %}{% for p in m.content %}{{ p }}{% endfor %}{% endif %}{% endfor %}",
    "{% for m in messages %}{% filter upper %}{% for p in m.content %}{{ p }}{% endfor %}{% endfilter %}{% endfor %}",
    "{% macro outer(c) %}{% for p in c %}{% macro inner(d) %}{% for q in d %}{% endfor %}{% endmacro %}{% endfor %}{% endmacro %}{% for m in messages %}{{ inner(m.content) }}{% endfor %}",
]
print(json.dumps([dict(template=t, openai=hf._detect_content_format(t, default="string") == "openai") for t in TEMPLATES], indent=0))
