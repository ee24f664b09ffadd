package jinja

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

var day = time.Date(2026, 3, 9, 4, 5, 6, 0, time.UTC)

type vectors struct {
	Context json.RawMessage
	Rows    []struct {
		Template string
		Out      *string
		Error    string
	}
}

func load(t testing.TB) (vectors, []Var) {
	t.Helper()
	b, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	var vars []Var
	for name, val := range Decode(v.Context).(*Dict).All() {
		vars = append(vars, Var{name, val})
	}
	return v, vars
}

// TestVectors compares with transformers 5.19 on Jinja2 3.1.6: the same text,
// or an error where Python has one. A line may be an error here and text there
// only if it asks for something unsupported.
func TestVectors(t *testing.T) {
	v, vars := load(t)
	unsupported := 0
	for _, r := range v.Rows {
		got, err := render(r.Template, vars)
		switch {
		case r.Out == nil && err == nil:
			t.Errorf("%q\n got %q\nwant error %s", r.Template, got, r.Error)
		case r.Out == nil:
		case err != nil && strings.Contains(err.Error(), "not supported"):
			unsupported++
			t.Logf("%q: %v", r.Template, err)
		case err != nil:
			t.Errorf("%q: %v\nwant %q", r.Template, err, *r.Out)
		case got != *r.Out:
			t.Errorf("%q\n got %q\nwant %q", r.Template, got, *r.Out)
		}
	}
	if unsupported > 5 {
		t.Errorf("%d of %d rows are not supported", unsupported, len(v.Rows))
	}
}

func render(source string, vars []Var) (string, error) {
	tmpl, err := Parse(source)
	if err != nil {
		return "", err
	}
	return tmpl.Render(day, vars)
}

func TestErrors(t *testing.T) {
	tests := []struct{ name, source, want string }{
		{"unknown tag", "a\n{% include 'x' %}", "line 2: tag include is not supported"},
		{"unknown filter", "{{ x|urlize }}", "filter urlize is not supported"},
		{"unknown test", "{{ x is escaped }}", "test escaped is not supported"},
		{"line of an expression", "\n\n{{ x.y.z }}", "line 3: y is undefined"},
		{"raised", "{{ raise_exception('system role is not allowed') }}", "template refuses: system role is not allowed"},
		{"endless", "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "runs too long"},
		{"long searches", `{% set l = "a" * 9000000 %}{% for i in range(99999) %}{% set t = "b" in l %}{% endfor %}`, "runs too long"},
		{"long searches in lists", `{% set l = [1] * 900000 %}{% for i in range(99999) %}{% set t = 5 in l %}{% endfor %}`, "runs too long"},
		{"recursion", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too deep"},
		{"deep parentheses", "{{ " + strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000) + " }}", "nested too deep"},
		{"deep blocks", strings.Repeat("{% if 1 %}", 5000), "nested too deep"},
		{"deep nots", "{{ " + strings.Repeat("not ", 5000) + "1 }}", "nested too deep"},
		{"huge text", "{{ 'x' * 1000000000 }}", "too long"},
		{"growing text", "{% set ns = namespace(s='0123456789') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "too long"},
		{"growing list", "{% set ns = namespace(l=[1, 2]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}", "too long"},
		{"growing print", "{% set ns = namespace(l=[1, 2]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}", "too large"},
		{"growing JSON", "{% set ns = namespace(l=[1, 2]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson }}", "too long"},
		{"deep value", "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}", "too large"},
		{"deep equal", "{% set a = namespace(l=[]) %}{% set b = namespace(l=[]) %}{% for i in range(9999) %}{% set a.l = [a.l] %}{% set b.l = [b.l] %}{% endfor %}{{ a.l == b.l }}", "too deep"},
		{"deep recursive loop", "{% set ns = namespace(l=[]) %}{% for i in range(999) %}{% set ns.l = [ns.l] %}{% endfor %}{% for x in ns.l recursive %}{{ loop(x) }}{% endfor %}", "too deep"},
		{"replaced with more", "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}", "too long"},
		{"joined", "{{ ('b' * 100000).join(['a'] * 100000) }}", "too long"},
		{"wide format", "{{ '%999999999s' % 1 }}", "not supported"},
		{"wide pad", "{{ 'a'.ljust(999999999) }}", "too long"},
		{"huge range", "{{ range(1000000) }}", "more than"},
		{"strftime", "{{ strftime_now('%Q') }}", "not supported"},
		{"unpack", "{% for a, b in [[1]] %}{% endfor %}", "unpack"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := render(tt.source, []Var{{"x", &Dict{}}})
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

// TestPrintWithMacro holds the output apart from what a macro inside a printed
// sum captures.
func TestPrintWithMacro(t *testing.T) {
	got, err := render("{% macro m(x) %}<{{ 'long text before ' + x }}>{% endmacro %}start {{ 'ab' + m('q' + m('r')) + 'c' }}{{ [1] + [2] }}{{ 1 + 2 }}", nil)
	if want := "start ab<long text before q<long text before r>>c[1, 2]3"; got != want || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestStrftime(t *testing.T) {
	got, err := render("{{ strftime_now('%d %b %Y, %-d %B %H:%M:%S %p %% %F') }}", nil)
	if want := "09 Mar 2026, 9 March 04:05:06 AM % 2026-03-09"; got != want || err != nil {
		t.Errorf("strftime = %q, %v, want %q", got, err, want)
	}
}

func FuzzRender(f *testing.F) {
	v, vars := load(f)
	for _, r := range v.Rows {
		f.Add(r.Template)
	}
	f.Fuzz(func(t *testing.T, source string) {
		if strings.Contains(source, "range") || strings.Contains(source, "*") {
			return // slow on purpose
		}
		_, _ = render(source, vars)
	})
}

// FuzzDecode holds Decode against encoding/json: what is written back is the
// same data.
func FuzzDecode(f *testing.F) {
	v, _ := load(f)
	f.Add([]byte(v.Context))
	for _, s := range []string{`[1,-2,3.5,1e5,true,false,null,"a\"b\\\\","\\",{"a":{}},[]]`, `"\u00e9\ud83d\ude42\n"`, ` { "a" : [ ] } `, `{"a":1,"a":2}`, `[[[`, `"\`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got := Decode(raw) // never panics
		var want any
		if json.Unmarshal(raw, &want) != nil || !utf8.Valid(raw) {
			return
		}
		d := dumper{item: ",", key: ":"}
		d.value(got, 0)
		var back any
		if err := json.Unmarshal(d.out, &back); err != nil {
			t.Fatalf("%q came back as %q: %v", raw, d.out, err)
		}
		if !reflect.DeepEqual(want, back) {
			t.Fatalf("%q came back as %q", raw, d.out)
		}
	})
}

// Texts made on the way lie in memory that the next rendering uses again: what comes back must
// not. Renderings at the same time have each their own.
func TestTextsOutliveTheirRendering(t *testing.T) {
	tmpl, err := Parse(`{% set s = a + '|' + a %}{% if s == bad %}{{ raise_exception(s + '!') }}{% endif %}{{ s + s }}{% set t %}{{ s }}{{ a }}{% endset %}{{ t }}`)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, n := range []int{1, 100, 10_000, 100_000} {
		wg.Go(func() {
			a := strings.Repeat(string(rune('a'+n%7)), n)
			s := a + "|" + a
			var outs []string
			var errs []error
			for range 20 {
				out, err := tmpl.Render(time.Time{}, []Var{{Name: "a", Value: a}, {Name: "bad", Value: "-"}})
				if err != nil {
					t.Error(err)
				}
				_, refused := tmpl.Render(time.Time{}, []Var{{Name: "a", Value: a}, {Name: "bad", Value: s}})
				outs, errs = append(outs, out), append(errs, refused)
			}
			for i := range outs {
				if outs[i] != s+s+s+a || errs[i] == nil || errs[i].Error() != "template refuses: "+s+"!" {
					t.Errorf("%d bytes, rendering %d: another text", n, i)
				}
			}
		})
	}
	wg.Wait()
}
