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

MORE = r"""
{% macro box(a) %}[{{ a }}:{{ caller() }}]{% endmacro %}{% call box(1) %}in {{ s }}{% endcall %}{{ n }}
{% macro each(xs) %}{% for x in xs %}{{ caller(x, loop.index) }};{% endfor %}{% endmacro %}{% call(v, i=0) each(l) %}{{ i }}={{ v }}{% endcall %}
{% macro v(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ v(1, 2, 3, x=4) }}{{ v(1) }}
{% macro v(a) %}{{ a }}{% endmacro %}{{ v(1, 2) }}
{% macro v(a) %}{{ a }}{% endmacro %}{{ v(1, b=2) }}
{% macro v(a) %}{{ a }}{% endmacro %}{{ v(1, a=2) }}
{% macro v(a, b, c=7) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ v(*[1, 2]) }}{{ v(**{'a': 1, 'c': 3}) }}{{ v(1, *[2], **{'c': 9}) }}
{% macro m() %}{% if caller is defined %}yes{% else %}no{% endif %}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}
{% macro m() %}{% set x = 5 %}{% endmacro %}{{ m() }}{{ x is defined }}{{ m.name }}
{% macro a(x, y=x) %}{{ x }}{{ y }}{% endmacro %}{{ a(1) }}{{ a(1, 2) }}
{% macro scope() %}{{ i }}{% endmacro %}{% for i in l %}{{ scope() }}{% endfor %}|
{% for i in l %}{% macro inner() %}{{ i }}{% endmacro %}{{ inner() }}{% endfor %}
{% for x in [{'n': 1, 'c': [{'n': 2, 'c': []}, {'n': 3, 'c': [{'n': 4, 'c': []}]}]}] recursive %}{{ x.n }}@{{ loop.depth }}{{ loop.depth0 }}({{ loop(x.c) }}){% endfor %}
{% for x in l recursive %}{{ x }}{% else %}none{% endfor %}{% for x in l %}{{ loop(l) }}{% endfor %}
{% for (a, b), c in [((1, 2), 3), ((4, 5), 6)] %}{{ a }}{{ b }}{{ c }};{% endfor %}{% for a, (b, c) in [(1, [2, 3])] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for x in 1, 2, 3 %}{{ x }}{% endfor %}{% for x in (1,) %}{{ x }}{% endfor %}{% for x in l if x > 1 %}{{ loop.index }}{{ x }}{% else %}none{% endfor %}{% for x in l if x > 5 %}{{ x }}{% else %}none{% endfor %}
{% set (a, b) = (1, 2) %}{{ a }}{{ b }}{% set a, (b, c) = 1, (2, 3) %}{{ c }}{% set x, = [9] %}{{ x }}
{% set a, b = 'xy' %}{{ a }}{{ b }}{% set a, b = d %}{{ a }}{{ b }}
{% set a, b = [1, 2, 3] %}
{% with a=1, b=n %}{{ a }}{{ b }}{% set s = 'inner' %}{{ s }}{% endwith %}{{ s }}{{ a is defined }}
{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}
{% with a=1 %}{% with a=2, b=a %}{{ a }}{{ b }}{% endwith %}{% endwith %}
{% filter upper %}abc {{ s }}{% endfilter %}{% filter replace('a', 'b') | upper %}aca{% endfilter %}
{% filter trim %}   x{% for i in l %}{{ i }}{% endfor %}   {% endfilter %}|
{% set x | trim | upper %}  abc  {% endset %}[{{ x }}]
{% set ns = namespace(a=1) %}{% set ns.b %}block{{ s }}{% endset %}{{ ns.b }}{{ ns.a }}{{ ns.missing is defined }}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns['a'] }}
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ dict([('x', 1), ['y', 2]], z=3) }}{{ dict({'a': 1}) }}
{% set d.x = 1 %}
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}{% set j = joiner('|') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}{% set k = joiner() %}{{ k() }}{{ k() }}
{% if ms|selectattr('role', 'equalto', 'nobody') %}true{% else %}false{% endif %}{% if ms|selectattr('role', 'equalto', 'nobody')|list %}true{% else %}false{% endif %}{% if l|map('string') %}t{% endif %}{% if ed.keys() %}t{% else %}f{% endif %}{% if range(0) %}t{% else %}f{% endif %}
{% set g = l|map('string') %}{% for x in g %}{{ x }}{% endfor %}|{% for x in g %}{{ x }}{% else %}empty{% endfor %}
{{ l|map('string')|length }}
{{ (l|map('string'))[0] }}|{{ (d.keys())[0] }}|{{ (l|reverse)[0] }}
{{ d.keys()[:1] }}
{{ (l|reverse)|length }}
{{ d.keys()|length }}{{ 'b' in d.keys() }}{{ 1 in d.values() }}{{ ('b', 1) in d.items() }}{{ d.items()|first }}{{ d.values()|list|last }}
{{ d.keys()|tojson }}
{{ range(3)|tojson }}
{{ l|map('string')|tojson }}
{{ range(5)[1] }}{{ range(5)[-1] }}{{ range(5)|last }}{{ range(3)|length }}{{ 2 in range(3) }}{{ range(5)[1:3]|list }}{{ range(3) == [0, 1, 2] }}{{ (range(4)|list)[::-1] }}
{{ l|map('string')|join(',') }} {{ l|map('string')|first }} {{ l|map('string')|list }} {{ l|select('odd')|map('string')|join }} {{ l|map('string') is iterable }}{{ l|map('string') is sequence }}{{ d.keys() is sequence }}{{ range(2) is sequence }}
{% for x in l|map('string') %}{{ loop.length }}{{ loop.last }}{{ loop.revindex }}{% endfor %}{% for x in l|reverse %}{{ x }}{% endfor %}{% for k, v in d|items %}{{ k }}{% endfor %}
{{ l|last }}{{ (l|reverse)|last }}
{{ [1, 2.5, 3]|sum }} {{ l|sum(start=10) }} {{ ms|sum(attribute='n') }} {{ []|sum }} {{ [[1], [2]]|sum(start=[]) }}
{{ ['a']|sum }}
{{ 42.55|round }} {{ 42.55|round(1) }} {{ 42.55|round(1, 'floor') }} {{ 42.55|round(1, 'ceil') }} {{ 42|round }} {{ 2.5|round }} {{ 3.5|round }} {{ -0.5|round }} {{ 2.675|round(2) }} {{ 42|round(0, 'ceil') }} {{ 1e300|round(3) }} {{ t|round }}
{{ range(7)|batch(3)|list }} {{ range(7)|batch(3, 'x')|list }} {{ range(6)|batch(3, 'x')|list }} {{ []|batch(3)|list }}
{{ range(7)|slice(3)|list }} {{ range(7)|slice(3, 'x')|list }} {{ range(6)|slice(3, 'x')|list }} {{ range(2)|slice(3)|list }}
{% for g in ms|groupby('role') %}{{ g.grouper }}:{{ g.list|length }}{{ g[0] }}{% endfor %}{% for r, list in ms|groupby('role') %}{{ r }}{{ list|map(attribute='n')|list }}{% endfor %}{{ (ms|groupby('n'))[0] }}{{ ['b', 'A', 'a']|groupby(0)|list }}
{{ ms|groupby('q', default='none')|map(attribute='grouper')|list }}{{ ['B', 'b', 'a']|map('upper')|list }}
{{ d|xmlattr }}|{{ {'a': none, 'b': missing, 'c': 1, 'd': '<"x">'}|xmlattr }}|{{ {'a': 1}|xmlattr(false) }}|{{ {}|xmlattr }}
{{ {'a b': 1}|xmlattr }}
{{ 'hello world-foo (bar) [baz] {x} <y> it\'s'|title }} {{ "it's a dog's ǆ".title() }} {{ '3rd 你a b' .title() }} {{ 'ß'.capitalize() }} {{ 'ß'.title() }} {{ 'HELLO wORLD'|title }} {{ 'ΑΣ'.lower() }} {{ 'ﬁ'.upper() }}
{{ 'foo bar baz qux'|truncate(9) }} {{ 'foo bar baz qux'|truncate(9, true) }} {{ 'foo bar baz qux'|truncate(11) }} {{ 'foo bar baz qux'|truncate(11, false, '...', 0) }} {{ 'short'|truncate }} {{ 'foobarbazqux'|truncate(6, leeway=0) }}
{{ 'foo'|center(9) }}|{{ 'foo'|center(8) }}|{{ 'ab'.center(7, '*') }}|{{ 'abc'.center(6, '*') }}|{{ 'x'.ljust(3) }}|{{ 'x'.rjust(3, '0') }}|{{ '42'.zfill(5) }}{{ '-42'.zfill(5) }}
{{ 'a_b c,d  9'|wordcount }} {{ ''|wordcount }}
{{ '%s is %d (%5.2f) %r %%'|format('x', 3, 2.5, 'q') }} {{ '%s' % n }} {{ '%s-%s' % (1, 2) }} {{ '%05d|%-5d|%+d|% d' % (42, 42, 42, 42) }} {{ '%s' % [1, 2] }} {{ '%.3s|%5s|%-5s|' % ('abcdef', 'ab', 'ab') }} {{ '%d' % 3.9 }} {{ '%e' % 12345.678 }} {{ '%f' % 1 }} {{ '%05.1f' % -2.345 }}
{{ '%d' % 'x' }}
{{ '%s %s' % 'x' }}
{{ '%s' % (1, 2) }}
{{ 'x' % d }}|{{ 'x' % [] }}
{{ '{} {} {{}}'.format(1, 'a') }} {{ '{1}{0}'.format('a', 'b') }} {{ '{x}-{y!r}'.format(x=1, y='q') }} {{ '{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{:*^7}'.format('a', 'b', 'c', 42, 3.14159, 'd') }} {{ '{:+d} {:5} {:5}|'.format(3, 7, 'x') }} {{ '{:.3}'.format('abcdef') }}
{{ '{}'.format() }}
{{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'abc'.partition('-') }} {{ 'abc'.rpartition('-') }} {{ ' a b  c '.split(none, 1) }} {{ 'a b  c'.split(maxsplit=1) }} {{ 'a  b'.split(none, 0) }} {{ 'a,b,c'.rsplit(',') }} {{ 'a,b,c'.rsplit(',', 5) }} {{ 'x\ny\r\nz\n'.splitlines(true) }} {{ 'a\x0bb\x85c\u2028d'.splitlines() }}
{{ 'hello'.find('l', 3) }} {{ 'hello'.find('l', -1) }} {{ 'hello'.find('l', 9) }} {{ 'hello'.index('l') }} {{ 'hello'.rindex('l') }} {{ 'éé'.find('é', 1) }} {{ ''.find('') }} {{ 'ab'.count('') }}
{{ 'hello'.index('z') }}
{{ 'abc'.isalpha() }}{{ 'ab1'.isalnum() }}{{ 'ABC'.isupper() }}{{ 'abc'.islower() }}{{ 'aB'.islower() }}{{ '1'.isupper() }}{{ 'a1'.islower() }}{{ 'ABC' is upper }}{{ 'abc' is lower }}{{ '1' is lower }}
{{ 'trim' is filter }}{{ 'nope' is filter }}{{ 'odd' is test }}{{ 'nope' is test }}
{{ 'abc'[::-1] }} {{ l[::-1] }} {{ l[-2:] }} {{ l[:-1] }} {{ s[1:-1:2] }} {{ 'abc'[5:] }}| {{ l[10:] }} {{ l[::2] }} {{ l[-1::-1] }} {{ (1, 2, 3)[1:] }} {{ l[none:2] }} {{ u[1:] }} {{ u[::-1] }} {{ l[true:] }}
{{ l[::0] }}
{{ d[:1] }}
{{ 1 < 2 <= 2 != 3 }} {{ 1 == 1 == true }} {{ 3 > 2 > 1 }} {{ 'a' in 'abc' in ['abc'] }} {{ not 1 == 2 }} {{ 1 if 0 else 2 if 1 else 3 }}
{{ [1, 2] < [1, 3] }} {{ (1, 'a') < (1, 'b') }} {{ [1] < [1, 0] }} {{ [1] == (1,) }} {{ t < 2 }} {{ 'a' < 'B' }}
{{ [1] < (1,) }}
{{ none < 1 }}
{{ [1, 2] * 2 }} {{ 'ab' * 0 }} {{ 'ab' * -1 }} {{ 2 * [0] }} {{ (1,) * 3 }} {{ t * 'x' }}
{{ 7 // -2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7.5 // 2 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }} {{ 2 ** 10 }} {{ 2 ** 0.5 }} {{ 2.0 ** 3 }} {{ -2 ** 2 }} {{ 10 / 4 }} {{ 1e10 // 3 }} {{ 0.1 + 0.2 }} {{ 1 / 3 }} {{ 3 - -2 }} {{ +3 }} {{ 1_000 }} {{ 0x1f }} {{ 1e3 }} {{ 1.5e-7 }} {{ 100 * 1.1 }}
{{ n // 0 }}
{{ 1.5 // 0 }}
{{ big * 10 }} {{ -big }} {{ 1e16 }} {{ 123456789012345680.0 }} {{ 9007199254740993 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ -0.0 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }} {{ 1e400 }} {{ -1e400 }}
{{ huge == huge }} {{ huge is number }} {{ huge is integer }} {{ huge|string|length }} {{ 'x' if huge else 'y' }} {{ huge > 1 }}
{{ 'x' ~ 1 ~ 2.0 ~ true ~ none ~ [1, 'a'] ~ {'k': 'v'} ~ (1,) ~ missing }}
{{ {'a': 1, 'b': {'c': [1, 2, {'d': none}]}} }} {{ {'a': 1, 'a': 2} }} {{ ['a', "b'c", 'd"e', 'f\'g"h', '\n\t\\', 'é', '\x00\x1f\x7f\xa0\xad', '\u200b\u2028\ufeff', '🙂', '\U000e0001'] }}
{{ d|dictsort }} {{ many|dictsort(reverse=true)|first }} {{ {'b': 1, 'A': 2, 'a': 0}|dictsort }} {{ {'b': 1, 'A': 2}|dictsort(true) }} {{ {'b': 1, 'a': 2}|dictsort(by='value') }} {{ {'x': 'b', 'y': 'A'}|dictsort(false, 'value') }}
{{ ms|sort(attribute='role,n')|map(attribute='n')|list }} {{ ms|sort(attribute='n', reverse=true)|map(attribute='n')|list }} {{ ls|sort(true) }} {{ [[2, 'b'], [1, 'a']]|sort(attribute=0) }} {{ [[2, 'b'], [1, 'a']]|sort(attribute='1') }} {{ [(2, 1), (1, 2)]|sort }} {{ 'bca'|sort }} {{ d|sort }}
{{ ['a', 'A', 'b']|unique(true)|list }} {{ ms|unique(attribute='role')|map(attribute='n')|list }} {{ [1, 1.0, true, 2]|unique|list }} {{ ls|max }} {{ ls|min(true) }} {{ ms|max(attribute='n') }} {{ []|min is defined }}
{{ 'a\n\nb\r\nc'|indent }}| {{ 'a\n\nb'|indent(2, true, true) }}| {{ 'a\nb'|indent('> ') }}| {{ 'a\n'|indent }}| {{ ''|indent(2, true) }}| {{ 'x\x0by'|indent(1) }}
{{ 'aaa'|replace('a', 'b', 2) }} {{ 'abc'|replace('', '-') }} {{ n|replace(3, 4) }} {{ 'aaa'.replace('a', '', 1) }} {{ 'x'.replace('', 'y') }} {{ 'éx'.replace('', '-') }}
{{ d|tojson(sort_keys=true) }} {{ l|tojson(indent=0) }} {{ l|tojson(indent='\t') }} {{ d|tojson(indent=2, separators=(',', ':')) }} {{ [[], {}, [[]]]|tojson(indent=1) }} {{ 'a/b<>&\u2028'|tojson }} {{ '\x7f\x80🙂'|tojson(ensure_ascii=true) }} {{ t|tojson }} {{ 1e400|tojson }} {{ [n, f1, -0.0]|tojson }}
{{ ms|tojson }} {{ ns|tojson }}
{{ range|tojson }}
{{ s|safe }}{{ '<a href="x">\'&'|e }}{{ '<'|escape }}{{ ls|join('<')|safe }}{% filter e %}<b>{% endfilter %}{{ d|tojson|safe }}{{ none|safe }}
{{ '<&>' + ('<b>'|safe) }}{{ ('<b>'|safe) + '<&>' }}{{ 'a<' + 'b' + ('<'|safe) + 'c<' + 'd' }}{{ ('<'|safe) + ('>'|safe) }}{{ 'x<' ~ ('<'|safe) ~ '<' }}{% set m = d|tojson|safe %}{{ m }}{{ m is string }}{{ m is sequence }}{{ m|length }}{{ m == d|tojson }}{{ 'b' in m }}{{ '<' ~ m }}{{ m|string + '<' }}{{ m|tojson }}{{ m|e }}{{ [m|replace('a', '<'), 1]|join('<') }}{{ ', '.join([m]) }}{{ 'x' if m }}
{% macro e(x) %}{{ x }}<{% endmacro %}{{ e('<'|safe) + '<' }}{% set z = '<i>'|e if t else 'x' %}{{ z + '<' }}{% for c in '<b'|safe %}{{ c + '<' }}{% endfor %}{{ {'<': 1}['<'|safe] }}{{ ls|map('e')|list|length }}{{ ls|map('safe')|join('<') }}
{{ ('<'|safe) + 1 }}
{{ missing|first is defined }} {{ ''|first is defined }} {{ d|first }} {{ s|list|first }} {{ missing|list }} {{ missing|join }} {{ missing|upper }}| {{ none|upper }} {{ none|string|length }} {{ n|upper }}
{{ none|length }}
{{ n|list }}
{{ none|join }}
{{ none|items|list }}
{{ missing|items|list }} {{ d|list }} {{ 'ab'|list }} {{ (1, 2)|list }} {{ d|length }} {{ d|join(',') }} {{ d|reverse|list }}
{{ '3.7'|int }} {{ '1e3'|int }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ ''|int }} {{ '  42  '|int }} {{ none|float }} {{ t|int }} {{ -3.7|int }} {{ '-5'|int }} {{ l|int }} {{ 'inf'|int }} {{ 'nan'|float }} {{ '+7'|int }} {{ '.5'|float }}
{{ missing|int }}
{{ ms|map(attribute='n')|sum }} {{ ms|map(attribute='content')|map('length')|list }} {{ ms|map('length')|list }} {{ ls|map('replace', 'a', 'z')|list }} {{ ms|selectattr('content')|map(attribute='n')|list }} {{ ms|rejectattr('role', 'eq', 'user')|list|length }} {{ ms|selectattr('n', '>', 1)|map(attribute='n')|list }} {{ ms|selectattr('n', 'in', [1, 2])|map(attribute='n')|list }} {{ l|select('>', 1)|list }} {{ ls|select('in', 'ab')|list }} {{ ls|reject('equalto', 'a')|list }}
{{ ms|selectattr('a.b')|list }}
{{ ms|map(attribute='content.0')|list }} {{ ms|join('|', 'role') }} {{ [d, d]|map(attribute='a.x.1')|list }} {{ [[1, 2], [3, 4]]|map('last')|list }} {{ [[1, 2], [3, 4]]|map('sum')|list }}
{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}{% for i in l %}{% for j in l %}{% if j == 1 %}{% break %}{% endif %}{{ j }}{% endfor %};{% endfor %}
{% for i in l %}{% break %}{% else %}never{% endfor %}|{% for i in l %}{{ loop.changed(i % 2) }}{% endfor %}{% for i in l %}{{ loop.cycle(*ls) }}{% endfor %}
{% break %}
{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x is defined }}{% set y = 0 %}{% for i in l %}{% set y = y + i %}{{ y }}{% endfor %}{{ y }}
{% if t %}{% set z2 = 1 %}{% endif %}{{ z2 }}{% set outer = 1 %}{% if t %}{% set outer = 2 %}{% endif %}{{ outer }}
{% set l2 = l %}{{ l2 is sameas none }}{{ none is sameas(none) }}{{ t is sameas true }}{{ d is mapping }}{{ ns is mapping }}{{ 1.0 is integer }}{{ t is integer }}{{ t is float }}{{ 1.0 is number }}
{% generation %}{% for i in l %}{% if i == 1 %}{% endif %}{{ i }}{% endfor %}{% endgeneration %}{% set g %}{% generation %}x{% endgeneration %}{% endset %}{{ g }}
{% generation %}{% set inside = 1 %}{% endgeneration %}{{ inside is defined }}
{% for i in l %}{% generation %}{{ i }}{{ loop.index }}{% endgeneration %}{% endfor %}
{{ strftime_now is defined }}{{ strftime_now is callable }}{{ raise_exception is defined }}{{ range is defined }}{{ namespace is callable }}{{ missing is callable }}
{{ s.upper is callable }}{{ s.upper is defined }}{{ s.nope is defined }}{{ l.append is defined }}{{ d.items is callable }}
{{ d.update({'x': 1}) }}
{{ l.pop() }}
{{ d.pop('b') }}
{{ ''.__class__ }}|{{ s.__len__ is defined }}
{{ d.copy() == d }}{{ l.copy() }}{{ l.index(1) }}{{ l.count(1) }}{{ (1, 1).count(1) }}{{ d.get('zz') is none }}{{ d.get(1) }}
{{ l.index(99) }}
{{ "a" "b" 'c' }} {{ 'it''s' }} {{ "\u00e9\x41\101\0" }}
{{ ['a', 'b',] }} {{ {'a': 1,} }} {{ (1, 2,) }} {{ () }} {{ [[1, [2]], ()] }}
{{ l[0] ~ l[1] * 2 }} {{ (l|length) * 2 }} {{ l|length * 2 }} {{ -l|length }} {{ not l|length > 5 }} {{ 'a' ~ 'b'|upper }} {{ ('a' ~ 'b')|upper }} {{ 1 + 2|string|int }} {{ n is odd and not n is even }} {{ n is not odd or true }} {{ 'x' is string|upper }}
{{ 5 is divisibleby 5 }} {{ 5 is not divisibleby(2) }} {{ 1 is in [1] }} {{ 'k' is in {'k': 1} }} {{ 3 is ge 3 }} {{ 3 is lessthan 4 }} {{ 3 is ne 4 }} {{ 3 is equalto 3 }} {{ 3 is == 3 }}
{{ s[0].lower() }}{{ s.split()[0][1:3].upper() }}{{ ms[-1]['content'].split('</think>')[-1] }}{{ ms[0].role.title() }}{{ (ms|first).role }}{{ ms.0.role }}{{ ms[0]['role'][0] }}
{{ loop }}
{% for i in l %}{% with x=i %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endwith %}{% endfor %}
{{ "x" if missing is not defined else missing }}{{ missing|default(none) is none }}{{ missing|default('a') ~ 'b' }}{{ (missing or 'z') }}{{ (none or missing) is defined }}{{ d.q.r|default('no') }}
{% macro m(x) -%} {{ x }} {%- endmacro %}[{{ m(' a ') }}] [{{- m('b') -}}]
{% set x = 'a' if t else 'b' %}{{ x }}{% set y = [1, 2, 3] if fa %}{{ y }}|{{ y is defined }}
{% for k in many if k > 'c' %}{{ k }}{% if not loop.last %},{% endif %}{% endfor %}{% for k, v in many|dictsort if v > 8 %}{{ k }}{{ v }}{% endfor %}{% for a in [] %}{% else %}{{ loop is defined }}{% endfor %}
{{ (s, n)|join('-') }}{{ [none, true, 1.0]|join(',') }}{{ [[1], {}]|join }}{{ ['a', none]|join('-') }}
{{ ', '.join(['a', none]) }}
{{ 'x'.join(d) }}{{ ''.join(s) }}{{ '-'.join(ls|sort) }}{{ ','.join(l|map('string')) }}
{{ s == 'Hello World' and n in [1, 2, 3] and not fa }}{{ (1 and 0) or 'x' }}{{ 0 or '' or none }}{{ 1 and 'y' }}
{{ 'Aé' | lower }}{{ 'aé' | upper }}{{ 'éA'|capitalize }}{{ 'ÀÉ'.lower() }}{{ 'straße'.upper() }}{{ 'İ'.lower()|length }}
{% block title %}x{{ s }}{% endblock %}
{% for m in ms %}{% if loop.first and m.role == 'user' %}{{ m.content }}{% elif loop.index0 == 1 %}<{{ m['content'] }}>{% else %}{{ '\n' + m.content|trim + '\n' }}{% endif %}{% endfor %}
""".strip("\n").split("\n")

BLOCKS = [
    "a\n{% if t %}\n  b\n{% endif %}\nc\n", "  {% if t %}  \n x\n  {%- endif %}\n  y", "{{ s }}\n\n{{ n }}\n", "a  {%- if t -%}  b  {%- endif -%}  c\n\n", "x\n   {# c #}\ny\n   {# d #} z",
    "{%+ if t %}a{% endif %}\n", "  {%+ if t +%}\n a\n{% endif %}", "\n\n{%- set x = 1 -%}\n\n  {{ x }}\n", "{% for m in ms %}\n    {{ m.role }}\n{% endfor %}\n", "{%- for m in ms %}\n    {{- m.role + '\\n' }}\n{%- endfor %}\n\n",
    "a\t{% if t %}\n\tb{% endif %}", "a \n {{- s -}} \n b", "{{ s }}  {% if t %}\n{% endif %}\n", "line1\r\nline2\r\n{% if t %}\r\nx{% endif %}", "{% if t %}{% endif %}\n\n\n", "a{# c #}\nb", "a{#- c -#}\n b", "  {% raw %}\n {{ x }}\n  {% endraw %}\nz",
    "{% if t %}\n\n  {% if t %}\n  deep\n  {% endif %}\n{% endif %}", "\u00a0{% if t %}x{% endif %}\u00a0\n{%- if t %}y{% endif %}", "{{ '}}' }}{{ '%}' }}{{ {'a': {'b': 1}} }}", "{ {{ s }} } {x}", "  {%- raw -%}  \n {{ x }} {%- endraw -%}  \n z", "{% raw -%}\n  a\n  {%+ endraw %}\nb", "{%+ raw %} {% if %} {%endraw+%}\nc", "  {%+ set x = 1 +%}\n y", "a {#+ c +#}\n b", "{%- if t -%}\n\n{{- s -}}\n\n{%- endif -%}\n\n",
]

rows = []
for t in TEMPLATES + MORE + BLOCKS:
    row = {"template": t}
    try:
        row["out"] = _compile_jinja_template(t).render(**CONTEXT)
    except Exception as e:
        row["error"] = f"{type(e).__name__}: {e}"[:120]
    rows.append(row)
print(json.dumps({"context": CONTEXT, "rows": rows}, indent=0, ensure_ascii=False))
