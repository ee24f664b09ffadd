#!/usr/bin/env python3
"""Writes Jinja vectors: make_vectors.py > vectors.json

Small templates, rendered by transformers' own environment over one context.
A row without "out" is one that Python refuses.
"""
import json

from transformers.utils.chat_template_utils import _compile_jinja_template

CONTEXT = json.loads("""{"s": "Hello World", "e": "", "u": "é🙂x", "n": 3, "z": 0, "neg": -7, "f": 1.5, "f1": 1.0, "big": 1e22, "tiny": 1e-7, "t": true, "fa": false, "none": null,
 "l": [3, 1, 2], "el": [], "ls": ["b", "A", "c", "a"], "d": {"b": 1, "a": {"x": [1, 2.0, null, true]}, "items": "shadow", "é": "ü<&>'"}, "ed": {},
 "ms": [{"role": "user", "content": "hi", "n": 2}, {"role": "assistant", "content": "", "n": 1}, {"role": "user", "content": "x</think>y", "n": 3}],
 "ws": " \\t x y \\n", "q": "it's", "qq": "a\\"b'c", "ctl": "\\u0001\\u007f\\u2028\\n\\t\\b\\f\\\\", "huge": 123456789012345678901234567890, "one": [1], "many": {"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9,"j":10}}""")

TEMPLATES = r"""
{{ s }}|{{ n }}|{{ f }}|{{ f1 }}|{{ big }}|{{ tiny }}|{{ t }}|{{ none }}|{{ l }}|{{ d }}|{{ ed }}|{{ el }}|{{ missing }}
{{ q }} {{ [q, qq, ctl, u] }} {{ {'k': q} }} {{ (1, 'a') }} {{ (1,) }} {{ huge }} {{ [huge] }}
{{ s|tojson }} {{ d|tojson }} {{ l|tojson(indent=2) }} {{ d|tojson(indent=4) }} {{ ctl|tojson }} {{ u|tojson(ensure_ascii=true) }} {{ ed|tojson(indent=2) }} {{ big|tojson }} {{ huge|tojson }}
{{ d|tojson(separators=(',', ':')) }} {{ none|tojson }} {{ [1.0, 1e5, 123456789.125]|tojson }} {{ (1,2)|tojson }}
{{ missing|tojson }}
{{ d.b }} {{ d['a'].x[1] }} {{ d.a.x[-1] }} {{ d['items'] }} {{ d.nope }}|{{ d['nope'] }}|{{ l[7] }}|{{ s[0] }}{{ s[-1] }}{{ u[1] }}|{{ one[-1] }}|{{ 'abc'.split('x')[-1] }}
{{ d.nope.deeper }}
{{ missing.x }}
{{ missing['x'] }}
{{ none.x }}|{{ n.x }}|{{ none['x'] }}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k in d %}{{ k }};{% endfor %}{% for c in u %}[{{ c }}]{% endfor %}{% for k, v in ed.items() %}x{% else %}empty{% endfor %}
{{ d.keys()|list }} {{ ed.values()|list }} {{ d.get('b') }} {{ d.get('q') }} {{ d.get('q', 5) }} {{ many.j }}{{ many['i'] }}
{% for m in ms %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem.n if loop.previtem else '-' }}{{ loop.nextitem.n if loop.nextitem is defined else '-' }}{{ loop.cycle('a', 'b') }};{% endfor %}
{% for m in ms if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{{ m.content }};{% endfor %}
{% for m in ms %}{% if m.n == 1 %}{% continue %}{% endif %}{{ m.n }}{% if loop.last %}{% break %}{% endif %}{% endfor %}
{% for a in l %}{% for b in l %}{{ loop.depth }}{{ a * b }} {% endfor %}{{ loop.index }};{% endfor %}
{% for m in ms[::-1] %}{{ m.n }}{% endfor %}{% for m in ms[1:] %}{{ m.n }}{% endfor %}{% for m in ms[:-1] %}{{ m.n }}{% endfor %}{{ l[-2:] }}{{ s[1:4] }}{{ s[::-1] }}{{ s[::2] }}{{ s[5:2] }}{{ l[10:] }}{{ l[-10:2] }}{{ s[-3:-1] }}{{ s[8:2:-2] }}
{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}
{% set ns = namespace(x=1, y='a') %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.nope }}
{% set a, b = (1, 2) %}{{ a }}{{ b }}{% set t2 = 1, 2 %}{{ t2 }}
{% set block %}x {{ s }} y{% endset %}[{{ block }}]{% set up | upper %}abc{% endset %}{{ up }}
{% if ed %}bad{% else %}ok{% endif %}{% if el %}bad{% endif %}{% if e %}bad{% endif %}{% if z %}bad{% endif %}{% if none %}bad{% endif %}{% if missing %}bad{% endif %}{% if d %}ok{% endif %}{% if '0' %}ok{% endif %}{% if not el %}ok{% endif %}
{% if n == 1 %}1{% elif n == 2 %}2{% elif n == 3 %}3{% else %}4{% endif %}
{{ 1 if t }}|{{ 1 if fa }}|{{ 'a' if fa else 'b' if fa else 'c' }}
{{ e or 'dflt' }} {{ s and 'x' }} {{ none or none }} {{ fa and 1 }} {{ not t }} {{ not missing }}
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ neg // 2 }} {{ neg % 3 }} {{ 7 % -3 }} {{ 2 ** 3 ** 2 }} {{ -n }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 1.5 * 2 }} {{ f // 1 }} {{ t + t }} {{ -7.5 % 2 }} {{ 2 ** -1 }}
{{ 'a' + 'b' }} {{ 'a' ~ 1 ~ none ~ missing ~ 1.0 }} {{ 'ab' * 3 }} {{ 2 * 'x' }} {{ [1] + [2] }} {{ 'a' 'b' }}
{{ 'a' + 1 }}
{{ 'a' + none }}
{{ s + missing }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 5 }} {{ 'a' < 'b' }} {{ 1 == 1.0 }} {{ t == 1 }} {{ 'a' == 1 }} {{ none == fa }} {{ l == [3,1,2] }} {{ d == d }} {{ missing == missing2 }} {{ l != el }} {{ (1,) == [1] }}
{{ 'a' < 1 }}
{{ 'ell' in s }} {{ 'x' not in s }} {{ 1 in l }} {{ 'b' in d }} {{ 'zz' in d }} {{ '' in s }} {{ 1 in missing }} {{ not 1 in l }}
{{ 1 in s }}
{{ x is defined }} {{ n is defined }} {{ none is defined }} {{ d.b is defined }} {{ d.q is undefined }} {{ none is none }} {{ missing is none }} {{ n is number }} {{ t is number }} {{ n is integer }} {{ f is float }} {{ s is string }} {{ t is boolean }} {{ d is mapping }} {{ l is sequence }} {{ s is sequence }} {{ l is iterable }} {{ n is iterable }} {{ d is sequence }}
{{ n is odd }} {{ n is not even }} {{ t is true }} {{ fa is false }} {{ 1 is true }} {{ n is eq 3 }} {{ n is gt(2) }} {{ n is in [1, 3] }} {{ n is divisibleby 3 }} {{ range is callable }} {{ none is not none }} {{ missing is string }} {{ 'a' is ne 'b' }} {{ t is integer }} {{ huge is string }}
{{ ws|trim }}| {{ ws.strip() }}|{{ ws.lstrip() }}|{{ ws.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'xyaxy'.lstrip('yx') }}|{{ 'a\n\n'.rstrip('\n') }}|{{ none|trim }}|{{ missing|trim }}|{{ 'xax'|trim('x') }}
{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a.b.c'.rsplit('.', 1) }} {{ ''.split(',') }} {{ ''.split() }} {{ 'a\nb\r\nc\n'.splitlines() }} {{ 'abc'.rsplit('x', 1) }}
{{ s.startswith('He') }} {{ s.endswith(('x', 'ld')) }} {{ s.upper() }} {{ s.lower() }} {{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ s.find('W') }} {{ s.find('q') }} {{ u.find('x') }} {{ s.count('l') }} {{ 'a b-c'.title() }} {{ 'hELLO'.capitalize() }} {{ ', '.join(ls) }} {{ s.rfind('o') }} {{ 'prefix'.removeprefix('pre') }} {{ 'prefix'.removesuffix('fix') }} {{ '12'.isdigit() }} {{ ' '.isspace() }} {{ ''.isdigit() }}
{{ s|length }} {{ u|length }} {{ l|count }} {{ d|length }} {{ missing|length }} {{ s|upper }} {{ s|lower }} {{ 'aBC'|capitalize }} {{ n|string + 'x' }} {{ s|replace('o', '0') }} {{ ls|join(', ') }} {{ l|join }} {{ ms|join('+', attribute='role') }} {{ s|list|length }}
{{ missing|default('x') }} {{ none|default('x') }} {{ e|default('x') }} {{ e|default('x', true) }} {{ none|d('y', boolean=true) }} {{ d.q|default([])|length }}
{{ l|first }} {{ l|last }} {{ el|first }}|{{ s|first }} {{ l|reverse|list }} {{ s|reverse }} {{ l|sort }} {{ ls|sort }} {{ ls|sort(case_sensitive=true) }} {{ l|sort(reverse=true) }} {{ ms|sort(attribute='n')|map(attribute='n')|list }} {{ ['a','A','b','a']|unique|list }} {{ l|max }} {{ l|min }} {{ el|max }}|{{ (neg)|abs }} {{ d|items|list }} {{ many|dictsort|first }}
{{ ms|map(attribute='content')|list }} {{ ls|map('upper')|list }} {{ ms|selectattr('role', 'equalto', 'user')|list|length }} {{ ms|rejectattr('content')|map(attribute='n')|list }} {{ l|select('odd')|list }} {{ l|reject('gt', 1)|list }} {{ [0, 1, none]|select|list }} {{ ms|selectattr('nope', 'defined')|list }} {{ ms|map(attribute='q', default='-')|join }}
{{ '12'|int }} {{ '1.9'|int }} {{ 'x'|int }} {{ 'x'|int(7) }} {{ f|int }} {{ '2.5'|float }} {{ n|float }} {{ none|int }} {{ 'a\nb\n\nc'|indent }} {{ 'a\nb'|indent(2, true) }}
{{ range(3)|list }} {{ range(1, 4)|list }} {{ range(5, 0, -2)|list }} {{ dict(a=1, b='x') }} {% for i in range(0, ms|length) %}{{ ms[i].n }}{% endfor %}
{% macro m(a, b=2, c='x') %}[{{ a }}{{ b }}{{ c }}{{ s }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='y') }}{{ m() }}{{ m(1)|upper }}
{% macro rec(x) %}{{ x }}{% if x > 0 %}{{ rec(x - 1) }}{% endif %}{% endmacro %}{{ rec(3) }}{% set late = 5 %}{% macro after() %}{{ late }}{% endmacro %}{{ after() }}
{% macro a(x) %}{% for i in x %}{% if i is mapping %}{{ a(i.values()) }}{% else %}{{ i }},{% endif %}{% endfor %}{% endmacro %}{{ a([1, {'k': 2, 'j': {'q': 3}}]) }}
{{ raise_exception('no ' ~ n) }}
{%- generation %}x{{ s }}{% endgeneration %}y
{# comment #}a{#- trim -#} b {#+ c #}
{% raw %}{{ not }} {% if %}{% endraw %} after
{{ "esc \n \t \\ \" \' é \u00e9 \x41 \q" }}
{{ {'a': 1, 'b': [1, {'c': 2}]}['b'][1].c }}{{ {'a': {}}['a'] }}{{ {} }}
{{ -l[0] }} {{ (l[0] + 1) * 2 }} {{ l[1] - -1 }} {{ n|string|length }} {{ -1|abs }} {{ 'x' if n > 2 and not (z or el) else 'y' }}
{{ missing() }}
{{ s.nope() }}
{{ s.nope }}|
{{ 1 / 0 }}
{{ l.append(1) }}
{% set x = namespace(v=[]) %}{% set x.v = x.v + [1] %}{{ x.v }}
{{ 'a'.join(['1', '2'])|upper ~ 'z' }}{{ ('a', 'b')|join }}{{ [1, 2, 3][1:]|first }}
{{ s is string and s is not number }} {{ 5 is not none }} {{ d is mapping or x }}
{{ loop is defined }}{% for i in l %}{{ loop.changed(i > 1) }}{% endfor %}
{{ true }}{{ True }}{{ false }}{{ None }}{{ none is sameas none }}
{% if 'a' in ['a', 'b'] and 'c' not in d.keys() %}yes{% endif %}{{ (d.items()|list)[0][0] }}
{{ 1.0 }} {{ 100000000000000000.0 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1e3|default(1) }}
{{ "%s" % n }}
{{ s|nosuchfilter }}
{% include 'x' %}
{{ unclosed
{% if x %}
{{ 'ß'|upper }} {{ 'ǆ'.capitalize() }} {{ 'İ'.lower() }}
""".strip("\n").split("\n")

BLOCKS = [
    "a\n{% if t %}\n  b\n{% endif %}\nc\n", "  {% if t %}  \n x\n  {%- endif %}\n  y", "{{ s }}\n\n{{ n }}\n", "a  {%- if t -%}  b  {%- endif -%}  c\n\n", "x\n   {# c #}\ny\n   {# d #} z",
    "{%+ if t %}a{% endif %}\n", "  {%+ if t +%}\n a\n{% endif %}", "\n\n{%- set x = 1 -%}\n\n  {{ x }}\n", "{% for m in ms %}\n    {{ m.role }}\n{% endfor %}\n", "{%- for m in ms %}\n    {{- m.role + '\\n' }}\n{%- endfor %}\n\n",
    "a\t{% if t %}\n\tb{% endif %}", "a \n {{- s -}} \n b", "{{ s }}  {% if t %}\n{% endif %}\n", "line1\r\nline2\r\n{% if t %}\r\nx{% endif %}", "{% if t %}{% endif %}\n\n\n", "a{# c #}\nb", "a{#- c -#}\n b", "  {% raw %}\n {{ x }}\n  {% endraw %}\nz",
    "{% if t %}\n\n  {% if t %}\n  deep\n  {% endif %}\n{% endif %}", "\u00a0{% if t %}x{% endif %}\u00a0\n{%- if t %}y{% endif %}", "{{ '}}' }}{{ '%}' }}{{ {'a': {'b': 1}} }}", "{ {{ s }} } {x} {%%}" if False else "{ {{ s }} } {x}",
]

rows = []
for t in TEMPLATES + BLOCKS:
    row = {"template": t}
    try:
        row["out"] = _compile_jinja_template(t).render(**CONTEXT)
    except Exception as e:
        row["error"] = f"{type(e).__name__}: {e}"[:120]
    rows.append(row)
print(json.dumps({"context": CONTEXT, "rows": rows}, indent=0, ensure_ascii=False))
