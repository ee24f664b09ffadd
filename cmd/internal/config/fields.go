package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"
)

// field is one leaf of the struct.
type field struct {
	path  []string // names as in the file, outermost first
	short string   // a letter, "" for none
	help  string
	value reflect.Value
}

func (f field) key() string  { return strings.Join(f.path, ".") }
func (f field) flag() string { return strings.ToLower(strings.Join(f.path, "-")) }
func (f field) env() string {
	return EnvPrefix + strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(f.flag()))
}

// ways names the three ways to set f.
func (f field) ways() string {
	return fmt.Sprintf("--%s, %s or %s in the file", f.flag(), f.env(), f.key())
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// fieldsOf lists the leaves of a struct in order. It panics where two have the
// same flag or variable.
func fieldsOf(cfg any) []field {
	var out []field
	walk(structOf(cfg), nil, func(f field) { out = append(out, f) })
	seen := map[string]string{
		EnvPrefix + "CONFIG":       FlagConfig,
		EnvPrefix + "PRINT_CONFIG": FlagPrint,
		EnvPrefix + "VERSION":      FlagVersion,
	}
	for _, f := range out {
		if other, ok := seen[f.env()]; ok {
			panic(fmt.Sprintf("config: fields %s and %s share the name %s", other, f.key(), f.env()))
		}
		seen[f.env()] = f.key()
	}
	return out
}

func walk(v reflect.Value, path []string, visit func(field)) {
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		inline := sf.Anonymous && name == "" && isBranch(sf.Type)
		if name == "-" || !sf.IsExported() && !inline {
			continue
		}
		fv := v.Field(i)
		if isBranch(sf.Type) {
			switch {
			case inline:
				walk(fv, path, visit)
			case name == "":
				walk(fv, join(path, kebab(sf.Name)), visit)
			default:
				walk(fv, join(path, name), visit)
			}
			continue
		}
		if name == "" {
			name = kebab(sf.Name)
		}
		f := field{path: join(path, name), short: sf.Tag.Get("short"), help: sf.Tag.Get("help"), value: fv}
		if kindName(sf.Type) == "" {
			panic(fmt.Sprintf("config: field %s has type %s, which can't be configuration; tag it json:\"-\"", f.key(), sf.Type))
		}
		visit(f)
	}
}

// isBranch tells a nested struct from a leaf.
func isBranch(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(textType)
}

func join(path []string, name string) []string {
	return append(path[:len(path):len(path)], name)
}

// kebab is MaxModelLen -> max-model-len, APIKey -> api-key.
func kebab(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 &&
			(!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// isMany says whether t is given as a list of items.
func isMany(t reflect.Type) bool {
	return !reflect.PointerTo(t).Implements(textType) && (t.Kind() == reflect.Slice || t.Kind() == reflect.Map)
}

// kindName is the word for t in help and table, "" if t can't be configuration.
func kindName(t reflect.Type) string {
	switch {
	case t == durationType:
		return "duration"
	case reflect.PointerTo(t).Implements(textType):
		return "text"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "bool"
	case reflect.String:
		return "string"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "int"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "uint"
	case reflect.Float32, reflect.Float64:
		return "number"
	case reflect.Slice:
		if elem := kindName(t.Elem()); elem != "" && !isMany(t.Elem()) {
			return elem + "s"
		}
	case reflect.Map:
		if elem := kindName(t.Elem()); elem != "" && !isMany(t.Elem()) && t.Key().Kind() == reflect.String {
			return "name=" + elem
		}
	}
	return ""
}
