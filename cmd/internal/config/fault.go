package config

import (
	"fmt"
	"strings"
)

// Fault is one thing wrong with a configuration. It is an error, so that the
// Validate of a binary may return it.
type Fault struct {
	Field   string // as in the file, e.g. "hold.max"; "" if it is about several
	Value   string // as given
	Problem string // what is wrong
	Remedy  string // what to do
}

func (f Fault) Error() string {
	var b strings.Builder
	if f.Field != "" {
		b.WriteString(f.Field)
		if f.Value != "" {
			fmt.Fprintf(&b, " = %q", clip(f.Value))
		}
		if strings.HasPrefix(f.Problem, "is ") || strings.HasPrefix(f.Problem, "has ") || strings.HasPrefix(f.Problem, "item ") {
			b.WriteByte(' ')
		} else {
			b.WriteString(": ")
		}
	}
	b.WriteString(f.Problem)
	if f.Remedy != "" {
		b.WriteString("; ")
		b.WriteString(f.Remedy)
	}
	return b.String()
}

// Error holds every fault that Load found, in the order file, environment,
// flags, validation.
type Error struct {
	Faults []Fault
}

func (e *Error) Error() string {
	var b strings.Builder
	if len(e.Faults) == 1 {
		b.WriteString("1 fault in the configuration:")
	} else {
		fmt.Fprintf(&b, "%d faults in the configuration:", len(e.Faults))
	}
	for _, f := range e.Faults {
		b.WriteString("\n  ")
		b.WriteString(f.Error())
	}
	return b.String()
}

// detailed is what the error of a library's Validate may offer.
type detailed interface {
	error
	Field() string
	Value() string
	Problem() string
	Remedy() string
}

// Faults takes apart an error as Validate returns it: errors joined by
// errors.Join or wrapped, each with or without the methods Field, Value,
// Problem and Remedy.
func Faults(err error) []Fault {
	switch e := err.(type) {
	case nil:
		return nil
	case Fault:
		return []Fault{e}
	case *Error:
		return e.Faults
	case detailed:
		return []Fault{{Field: e.Field(), Value: e.Value(), Problem: e.Problem(), Remedy: e.Remedy()}}
	case interface{ Unwrap() []error }:
		var out []Fault
		for _, inner := range e.Unwrap() {
			out = append(out, Faults(inner)...)
		}
		return out
	case interface{ Unwrap() error }:
		// What wraps is context; only keep it when nothing below says more.
		inner := Faults(e.Unwrap())
		if len(inner) > 1 || len(inner) == 1 && inner[0].Field != "" {
			return inner
		}
	}
	return []Fault{{Problem: err.Error()}}
}

// clip keeps a value short enough for a line.
func clip(s string) string {
	const limit = 120
	if len(s) > limit {
		return strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return s
}
