// Package config turns a plain struct into the configuration of a binary:
// command-line flags, environment variables, a YAML file, --print-config and
// a reference table, all from the struct's tags.
//
// The struct needs nothing from this package:
//
//	type Config struct {
//		Listen string        `json:"listen" help:"address to serve on"`
//		Hold   struct {
//			Max time.Duration `json:"max" help:"longest hold of a request"`
//		} `json:"hold"`
//	}
//
// Field Hold.Max is then `hold: {max: 10s}` in the file, GRAPEVINE_HOLD_MAX in
// the environment and --hold-max on the command line. An embedded struct
// without a name lends its fields to the struct around it. Fields tagged
// `json:"-"` are not configuration.
//
// A tag `short:"f"` gives a flag a letter as well.
//
// Kinds: bool, string, integers, floats, time.Duration ("10s"), types with
// UnmarshalText, slices of these ("a,b", repeated flags, or a YAML list) and
// maps from string to these ("a=1,b=2" or a YAML mapping).
//
// Values are resolved in the order defaults, file, environment, flags. A slice
// or map that is given replaces the one before it as a whole. Every fault is
// reported, not just the first: unknown keys, values that don't parse, and
// what the struct's own Validate says.
//
// A binary calls [Start], or [Bind] and [Load] where a command library parses
// the flags. The package holds no policy and knows no field of any binary.
package config

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"reflect"
	"time"

	"github.com/spf13/pflag"
)

// Names of the flags that Bind adds to the struct's own.
const (
	FlagConfig  = "config"
	FlagPrint   = "print-config"
	FlagVersion = "version"
)

// EnvPrefix starts the name of every environment variable.
const EnvPrefix = "GRAPEVINE_"

// Bind registers a flag on fs for each field of defaults (a struct or a
// pointer to one; its values are the defaults shown in the help) and the flags
// --config, --print-config and --version. It panics on a struct that can't be
// configuration: an unsupported field type, two fields of one name.
func Bind(fs *pflag.FlagSet, defaults any) {
	for _, f := range fieldsOf(defaults) {
		v := &flagValue{kind: kindName(f.value.Type()), text: formatFlag(f.value), many: isMany(f.value.Type())}
		flag := fs.VarPF(v, f.flag(), f.short, f.help+" ("+f.env()+")")
		if v.kind == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
	fs.String(FlagConfig, os.Getenv(EnvPrefix+"CONFIG"), "YAML file to read ("+EnvPrefix+"CONFIG)")
	fs.Bool(FlagPrint, false, "print the resolved configuration and exit")
	fs.Bool(FlagVersion, false, "print the version and exit")
}

// Load resolves cfg, a pointer to the struct that was given to Bind, filled
// with its defaults: file, environment and flags are laid over it, then its
// Validate is asked. fs must have been parsed. On faults the error is an
// *Error that names them all, and cfg holds what could be resolved.
func Load(fs *pflag.FlagSet, cfg any) error {
	l := newLoad(fs, cfg)
	l.file()
	l.environment(os.Environ())
	l.flags()
	l.validate(cfg)
	if len(l.faults) > 0 {
		return &Error{Faults: l.faults}
	}
	return nil
}

// Start does what every binary does first: it binds cfg (a pointer to a struct
// filled with its defaults), parses args (without the program's name), answers
// --help (with about, what the program is for, before the flags), --version and
// --print-config, and resolves cfg. If run is false the program ends with code: 0
// after an answer, 2 on faults, which have been written to stderr.
func Start(fs *pflag.FlagSet, about string, args []string, cfg any, version string, stdout, stderr io.Writer) (run bool, code int) {
	Bind(fs, cfg)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprintf(stdout, "%s\n\nFlags of %s:\n%s", about, fs.Name(), fs.FlagUsages()) }
	switch err := fs.Parse(args); {
	case err == pflag.ErrHelp:
		return false, 0
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v; see --help\n", fs.Name(), err)
		return false, 2
	}
	if rest := fs.Args(); len(rest) > 0 {
		fmt.Fprintf(stderr, "%s: unexpected argument %q; everything is given by flags, see --help\n", fs.Name(), rest[0])
		return false, 2
	}
	if on, _ := fs.GetBool(FlagVersion); on {
		fmt.Fprintf(stdout, "%s %s\n", fs.Name(), version)
		return false, 0
	}
	if err := Load(fs, cfg); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", fs.Name(), err)
		return false, 2
	}
	if on, _ := fs.GetBool(FlagPrint); on {
		if err := Print(stdout, cfg); err != nil {
			fmt.Fprintf(stderr, "%s: %v\n", fs.Name(), err)
			return false, 1
		}
		return false, 0
	}
	return true, 0
}

// File is the path given by --config or GRAPEVINE_CONFIG, "" for none.
func File(fs *pflag.FlagSet) string {
	path, _ := fs.GetString(FlagConfig)
	return path
}

// Watch reads the file of --config every interval until ctx ends and, each
// time that its content has changed, resolves a copy of defaults anew and hands
// it to changed, with the error of Load. A file that can't be read for a moment
// (a volume being swapped) is tried again and not reported. Without a file
// Watch returns at once.
func Watch[T any](ctx context.Context, fs *pflag.FlagSet, defaults T, interval time.Duration, changed func(T, error)) {
	path := File(fs)
	if path == "" {
		return
	}
	last, _ := os.ReadFile(path)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, err := os.ReadFile(path)
		if err != nil || bytes.Equal(now, last) {
			continue
		}
		last = now
		cfg := defaults
		err = Load(fs, &cfg)
		changed(cfg, err)
	}
}

// flagValue keeps what the command line says as text. It is parsed by Load, so
// that a bad value is reported together with all other faults.
type flagValue struct {
	kind string
	text string
	many bool
	set  bool
}

func (v *flagValue) String() string { return v.text }
func (v *flagValue) Type() string   { return v.kind }

func (v *flagValue) Set(s string) error {
	if v.many && v.set {
		v.text += "," + s
	} else {
		v.text = s
	}
	v.set = true
	return nil
}

// structOf is the struct in v, which may be a pointer to it.
func structOf(v any) reflect.Value {
	rv := reflect.ValueOf(v)
	for rv.Kind() == reflect.Pointer && !rv.IsNil() {
		rv = rv.Elem()
	}
	if rv.Kind() != reflect.Struct {
		panic(fmt.Sprintf("config: %T is not a struct", v))
	}
	return rv
}
