package config

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
)

// load lays one layer after the other over the fields and gathers the faults.
// The layers stay apart, so that a fault can name where its value came from.
type load struct {
	flagSet *pflag.FlagSet
	fields  []field
	faults  []Fault
}

func newLoad(flagSet *pflag.FlagSet, cfg any) *load {
	if reflect.ValueOf(cfg).Kind() != reflect.Pointer {
		panic(fmt.Sprintf("config: Load needs a pointer, not %T", cfg))
	}
	return &load{flagSet: flagSet, fields: fieldsOf(cfg)}
}

func (l *load) file() {
	path := File(l.flagSet)
	if path == "" {
		return
	}
	k := koanf.New(".")
	if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
		remedy := "correct the YAML"
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			remedy = "give a file that exists and may be read, or leave --config out"
		}
		l.faults = append(l.faults, Fault{Field: FlagConfig, Value: path, Problem: err.Error(), Remedy: remedy})
		return
	}
	l.unknownKeys(k.Raw(), nil, path)
	l.apply(k, func(field) string { return "in " + path })
}

// unknownKeys reports the keys of the file that no field has.
func (l *load) unknownKeys(m map[string]any, at []string, path string) {
	for _, name := range sortedKeys(m) {
		here := join(at, name)
		key := strings.Join(here, ".")
		var leaf, branch bool
		for _, f := range l.fields {
			leaf = leaf || f.key() == key
			branch = branch || strings.HasPrefix(f.key(), key+".")
		}
		sub, isMap := m[name].(map[string]any)
		switch {
		case leaf:
		case branch && isMap:
			l.unknownKeys(sub, here, path)
		case branch && m[name] == nil:
		case branch:
			l.faults = append(l.faults, Fault{Field: key, Value: scalarText(m[name]), Problem: "is a group of settings, not one (in " + path + ")", Remedy: "write its settings indented under it"})
		default:
			remedy := "remove it; --help lists what there is"
			if near := l.nearest(key, field.key); near != "" {
				remedy = "write " + near
			}
			l.faults = append(l.faults, Fault{Field: key, Value: scalarText(m[name]), Problem: "is not a setting (in " + path + ")", Remedy: remedy})
		}
	}
}

// environment reads the variables of known names. Others with the prefix belong
// to other programs (or are the service links of Kubernetes) and are left
// alone, unless they are a slip of the pen away from a known name.
func (l *load) environment(environ []string) {
	byEnv := make(map[string]field, len(l.fields))
	for _, f := range l.fields {
		byEnv[f.env()] = f
	}
	k := koanf.New(".")
	// Neither provider nor merge can fail here: both work on maps in memory.
	_ = k.Load(env.Provider(".", env.Opt{
		Prefix:      EnvPrefix,
		EnvironFunc: func() []string { return environ },
		TransformFunc: func(name, value string) (string, any) {
			if strings.HasPrefix(value, "tcp://") && strings.HasSuffix(name, "_PORT") {
				return "", nil // a service link: https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
			}
			if f, ok := byEnv[name]; ok {
				return f.key(), value
			}
			if near := l.nearest(name, field.env); near != "" {
				l.faults = append(l.faults, Fault{Field: name, Value: value, Problem: "is not a setting (in the environment)", Remedy: "write " + near})
			}
			return "", nil
		},
	}), nil)
	l.apply(k, func(f field) string { return "from " + f.env() })
}

func (l *load) flags() {
	byFlag := make(map[string]field, len(l.fields))
	for _, f := range l.fields {
		byFlag[f.flag()] = f
	}
	k := koanf.New(".")
	_ = k.Load(posflag.ProviderWithFlag(l.flagSet, ".", nil, func(flag *pflag.Flag) (string, any) {
		if f, ok := byFlag[flag.Name]; ok {
			return f.key(), flag.Value.String()
		}
		return "", nil
	}), nil)
	l.apply(k, func(f field) string { return "from --" + f.flag() })
}

// apply sets the fields that a layer has.
func (l *load) apply(k *koanf.Koanf, from func(field) string) {
	for _, f := range l.fields {
		raw := k.Get(f.key())
		if raw == nil {
			continue
		}
		v, err := decode(raw, f.value.Type())
		if err != nil {
			problem, remedy, ok := strings.Cut(err.Error(), "; ")
			if !ok {
				remedy = "correct it"
			}
			l.faults = append(l.faults, Fault{Field: f.key(), Value: scalarText(raw), Problem: problem + " (" + from(f) + ")", Remedy: remedy})
			continue
		}
		f.value.Set(v)
	}
}

// validate asks cfg, or if it has no Validate the structs in it, what is wrong.
func (l *load) validate(cfg any) {
	l.validateStruct(structOf(cfg), nil)
}

func (l *load) validateStruct(v reflect.Value, path []string) {
	target := v.Interface()
	if v.CanAddr() {
		target = v.Addr().Interface()
	}
	if c, ok := target.(interface{ Validate() error }); ok {
		if err := c.Validate(); err != nil {
			for _, f := range Faults(err) {
				l.faults = append(l.faults, l.placed(f, path))
			}
		}
		return
	}
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		if name == "-" || !sf.IsExported() || !isBranch(sf.Type) {
			continue
		}
		sub := path
		if name != "" || !sf.Anonymous {
			if name == "" {
				name = kebab(sf.Name)
			}
			sub = join(path, name)
		}
		l.validateStruct(v.Field(i), sub)
	}
}

// placed names the field of a fault as the operator knows it, and adds the ways
// to set it.
func (l *load) placed(f Fault, path []string) Fault {
	key := strings.Join(join(path, f.Field), ".")
	for _, known := range l.fields {
		if f.Field != "" && (known.key() == key || known.flag() == f.Field) {
			f.Field = known.key()
			if f.Remedy != "" {
				f.Remedy += " "
			}
			f.Remedy += "(" + known.ways() + ")"
		}
	}
	return f
}

// nearest is the name of the field whose name is at most two edits from s.
func (l *load) nearest(s string, name func(field) string) string {
	best, bestDist := "", 3
	for _, f := range l.fields {
		if d := editDistance(strings.ReplaceAll(s, "_", "-"), strings.ReplaceAll(name(f), "_", "-")); d < bestDist {
			best, bestDist = name(f), d
		}
	}
	return best
}

// editDistance is Levenshtein's, capped for texts whose lengths already differ
// by more than two.
func editDistance(a, b string) int {
	if len(a)-len(b) > 2 || len(b)-len(a) > 2 {
		return 3
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost = min(diag, row[j], row[j+1]) + 1
			}
			diag, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
