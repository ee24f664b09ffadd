// Package jinja runs the part of Jinja2 that chat templates are written in,
// with Python's meaning of every value, so that a rendered prompt is the same
// byte for byte as the one that Hugging Face's transformers renders.
//
// General template libraries for Go differ from Python in ways that a prompt
// does not survive (negative indexes, empty mappings, None, key order, how
// floats print), and cost a millisecond for a long conversation. This package
// knows only what transformers enables: the immutable sandbox, trim_blocks,
// lstrip_blocks, loop controls, the generation tag, raise_exception,
// strftime_now and its own tojson. What it does not know is an error when the
// template is parsed, named, so that the caller asks the engine instead.
//
//	t, err := jinja.Parse(`{% for m in messages %}{{ m.role }}{% endfor %}`)
//	out, err := t.Render(now, []jinja.Var{{Name: "messages", Value: list}}, 0)
//
// Values are nil (None), bool, int64, float64, string, *List, *Dict and
// Undefined. Inside the package errors travel as panics of type *Error, as in
// text/template, and become errors at Parse and Render.
package jinja

import (
	"fmt"
	"sync"
	"time"
)

// Limits of one rendering. A template comes with the model, but what it loops
// over comes from anybody.
const (
	maxSteps  = 4_000_000
	maxOutput = 32 << 20
	maxList   = 1_000_000
	maxDepth  = 1000 // of values inside one another, about what Python stands
	maxNest   = 200  // macro calls and expressions inside one another
)

// Error says what is wrong in which line of a template.
type Error struct {
	Line int
	Msg  string
	// Raised is true if the template itself refused its input
	// (raise_exception).
	Raised bool
}

func (e *Error) Error() string {
	if e.Raised {
		return "template refuses: " + e.Msg
	}
	return fmt.Sprintf("template line %d: %s", e.Line, e.Msg)
}

func fail(format string, args ...any) { panic(&Error{Msg: fmt.Sprintf(format, args...)}) }

// Template is a parsed template. It is safe for concurrent use.
type Template struct {
	body  []stmt
	texts sync.Pool // of *[]byte, for env.texts
}

// Bounds of the memory for texts that a rendering begins with, and leaves to the next one.
const (
	minTexts = 4 << 10
	maxTexts = 4 << 20
)

// Var is one variable that a template sees.
type Var struct {
	Name  string
	Value any
}

// Parse reads a template. The error is an *Error: bad syntax, or a tag, filter,
// test or function that this package does not know.
func Parse(source string) (t *Template, err error) {
	defer func() { err = caught(recover(), err) }()
	p := &parser{toks: lex(source)}
	return &Template{body: p.body()}, nil
}

// Render runs the template. now is what strftime_now prints. The values are not
// changed.
func (t *Template) Render(now time.Time, vars []Var) (string, error) {
	out, err := t.AppendRender(nil, now, vars)
	return string(out), err
}

// AppendRender is Render that appends the text to dst. After an error dst comes
// back as it was.
func (t *Template) AppendRender(dst []byte, now time.Time, vars []Var) (out []byte, err error) {
	e := &env{now: now, frame: newFrame(nil), out: dst, limit: len(dst) + maxOutput}
	texts, _ := t.texts.Get().(*[]byte)
	if texts == nil {
		texts = new([]byte)
	}
	e.texts = *texts
	defer func() {
		if err = caught(recover(), err); err != nil {
			out = dst
		}
		if *texts = e.texts[:0]; cap(*texts) <= maxTexts {
			t.texts.Put(texts)
		}
	}()
	e.frame.vars = append(e.frame.vars, vars...)
	e.run(t.body)
	if len(e.out) > e.limit {
		fail("rendered text is too long")
	}
	return e.out, nil
}

func caught(r any, err error) error {
	switch r := r.(type) {
	case nil:
		return err
	case *Error:
		return r
	default:
		panic(r)
	}
}
