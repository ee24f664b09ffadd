package config

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"
)

// decode makes a value of type t from what a layer holds: text from the
// environment and flags, text, numbers, booleans, lists and mappings from YAML.
// The error says what is wrong and, after a semicolon, what to write instead.
func decode(raw any, t reflect.Type) (reflect.Value, error) {
	if isMany(t) {
		return decodeMany(raw, t)
	}
	switch raw.(type) {
	case []any, map[string]any:
		return reflect.Value{}, fmt.Errorf("is a list or mapping; write one %s", kindName(t))
	}
	text := scalarText(raw)
	out := reflect.New(t).Elem()
	if u, ok := out.Addr().Interface().(encoding.TextUnmarshaler); ok {
		err := u.UnmarshalText([]byte(text))
		return out, err
	}
	if t == durationType {
		return decodeDuration(text)
	}
	switch t.Kind() {
	case reflect.String:
		out.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return out, errors.New("is not a yes or no; write true or false")
		}
		out.SetBool(b)
	case reflect.Float32, reflect.Float64:
		f, err := strconv.ParseFloat(text, t.Bits())
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			return out, errors.New("is not a number; write a number such as 0.5")
		}
		out.SetFloat(f)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, t.Bits())
		if err != nil {
			low := int64(-1) << (t.Bits() - 1)
			return out, fmt.Errorf("is not a whole number in range; write a whole number from %d to %d", low, -(low + 1))
		}
		out.SetInt(n)
	default:
		n, err := strconv.ParseUint(text, 10, t.Bits())
		if err != nil {
			return out, fmt.Errorf("is not a whole number in range; write a whole number from 0 to %d", ^uint64(0)>>(64-t.Bits()))
		}
		out.SetUint(n)
	}
	return out, nil
}

func decodeDuration(text string) (reflect.Value, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		if _, numErr := strconv.ParseFloat(text, 64); numErr == nil {
			return reflect.Value{}, errors.New("has no unit; write it with one: 10s, 250ms, 1m30s")
		}
		return reflect.Value{}, errors.New("is not a duration; write it like 10s, 250ms, 1m30s")
	}
	return reflect.ValueOf(d), nil
}

// decodeMany reads slices and maps. Text is split at commas, for maps each item
// at its first equals sign; what needs more is written in the file.
func decodeMany(raw any, t reflect.Type) (reflect.Value, error) {
	if text, ok := raw.(string); ok {
		var items []any
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				items = append(items, item)
			}
		}
		if t.Kind() == reflect.Slice {
			return decodeSlice(items, t)
		}
		pairs := make(map[string]any, len(items))
		for _, item := range items {
			name, value, ok := strings.Cut(item.(string), "=")
			if !ok || name == "" {
				return reflect.Value{}, errors.New("has an item without a name; write name=value,name=value")
			}
			pairs[name] = value
		}
		return decodeMap(pairs, t)
	}
	switch raw := raw.(type) {
	case []any:
		if t.Kind() == reflect.Slice {
			return decodeSlice(raw, t)
		}
	case map[string]any:
		if t.Kind() == reflect.Map {
			return decodeMap(raw, t)
		}
	}
	if t.Kind() == reflect.Slice {
		return reflect.Value{}, errors.New("is not a list; write a YAML list, or items with commas between them")
	}
	return reflect.Value{}, errors.New("is not a mapping; write name: value lines, or name=value with commas between them")
}

func decodeSlice(items []any, t reflect.Type) (reflect.Value, error) {
	out := reflect.MakeSlice(t, 0, len(items))
	for i, item := range items {
		v, err := decode(item, t.Elem())
		if err != nil {
			return out, fmt.Errorf("item %d %w", i+1, err)
		}
		out = reflect.Append(out, v)
	}
	return out, nil
}

func decodeMap(pairs map[string]any, t reflect.Type) (reflect.Value, error) {
	out := reflect.MakeMapWithSize(t, len(pairs))
	for _, key := range sortedKeys(pairs) {
		v, err := decode(pairs[key], t.Elem())
		if err != nil {
			return out, fmt.Errorf("item %q %w", key, err)
		}
		out.SetMapIndex(reflect.ValueOf(key).Convert(t.Key()), v)
	}
	return out, nil
}

// scalarText is a YAML scalar as text; whole floats such as 1e3 lose nothing.
func scalarText(raw any) string {
	switch raw := raw.(type) {
	case string:
		return raw
	case float64:
		if raw == math.Trunc(raw) && math.Abs(raw) < 1<<53 {
			return strconv.FormatFloat(raw, 'f', 0, 64)
		}
	}
	return fmt.Sprint(raw)
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// formatFlag is the text that decode reads back as v.
func formatFlag(v reflect.Value) string {
	if !isMany(v.Type()) {
		return formatScalar(v)
	}
	var items []string
	if v.Kind() == reflect.Slice {
		for i := range v.Len() {
			items = append(items, formatScalar(v.Index(i)))
		}
	} else {
		for _, k := range v.MapKeys() {
			items = append(items, k.String()+"="+formatScalar(v.MapIndex(k)))
		}
		sort.Strings(items)
	}
	return strings.Join(items, ",")
}

func formatScalar(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case encoding.TextMarshaler:
		b, err := x.MarshalText()
		if err != nil {
			return ""
		}
		return string(b)
	case time.Duration:
		return formatDuration(x)
	}
	return fmt.Sprint(v.Interface())
}

// formatDuration is d.String() less its idle tail: 10m, not 10m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
