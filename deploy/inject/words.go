package inject

import (
	"encoding/json"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// word is one word of a command line. known is false if a part of it comes from
// where this package cannot look, as a Secret.
type word struct {
	text  string
	known bool
}

// maxWord bounds what variables can blow up, since those that name each other twice
// double with each step; maxWords bounds a container's environment, its command line
// and a script, of which each part may name a long one.
const (
	maxWord  = 64 << 10
	maxWords = 1 << 20
)

// podIP is written for the pod's own address: the agent's container has that
// variable too.
const podIP = "$(POD_IP)"

// environment is the part of a container's environment that stands in the pod.
func environment(c *corev1.Container) map[string]word {
	env, left := make(map[string]word), maxWords
	for _, e := range c.Env {
		switch from := e.ValueFrom; {
		case from == nil:
			env[e.Name] = expand(e.Value, env, &left)
		case from.FieldRef != nil && from.FieldRef.FieldPath == "status.podIP":
			env[e.Name] = word{podIP, true}
		default:
			env[e.Name] = word{}
		}
	}
	return env
}

// expand puts the values of $(NAME) in their places, as the kubelet does: $$ is
// one $, and a name that is not there stays as it is written. left is how many bytes
// there may be yet; a word that is longer is not known.
func expand(s string, env map[string]word, left *int) word {
	var b strings.Builder
	known, closes := true, true // as far as is known a ) follows
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			end := -1
			if closes {
				end = strings.IndexByte(s[i:], ')')
			}
			if closes = end >= 0; !closes {
				b.WriteByte(s[i])
				continue
			}
			ref := s[i : i+end+1]
			if v, ok := env[ref[2:len(ref)-1]]; ok && v.known {
				if b.Len()+len(v.text) > min(maxWord, *left) {
					return word{}
				}
				b.WriteString(v.text)
			} else {
				known = false // also a name that envFrom may bring
				b.WriteString(ref)
			}
			i += end
		default:
			b.WriteByte(s[i])
		}
	}
	if *left -= b.Len(); *left < 0 {
		return word{}
	}
	return word{b.String(), known}
}

// commandLine is the command and arguments of a container, expanded.
func commandLine(c *corev1.Container, env map[string]word) []word {
	var out []word
	left := maxWords
	for _, list := range [][]string{c.Command, c.Args} {
		for _, s := range list {
			out = append(out, expand(s, env, &left))
		}
	}
	return out
}

// script returns the words of the string that a shell is given with -c.
func script(line []word, env map[string]word) (words []word, ok bool) {
	if len(line) == 0 {
		return nil, false
	}
	switch path.Base(line[0].text) {
	case "sh", "bash", "ash", "dash", "zsh", "ksh":
	default:
		return nil, false
	}
	for i, w := range line[1:] {
		switch {
		case strings.HasPrefix(w.text, "-") && !strings.HasPrefix(w.text, "--") && strings.HasSuffix(w.text, "c") && i+2 < len(line):
			s, left := line[i+2], maxWords
			return evaluated(split(s.text, env, &left), env, &left), true
		case !strings.HasPrefix(w.text, "-") && !strings.HasPrefix(w.text, "+") && w.text != "pipefail":
			return nil, true // a script file
		}
	}
	return nil, true
}

// evaluated takes apart what a shell would: the words after eval.
func evaluated(words []word, env map[string]word, left *int) []word {
	for i, w := range words {
		if w.text != "eval" {
			continue
		}
		out := slices.Clone(words[:i])
		for _, w := range words[i+1:] {
			if strings.ContainsAny(w.text, " \t\n") {
				out = append(out, split(w.text, env, left)...)
			} else {
				out = append(out, w)
			}
		}
		return out
	}
	return words
}

// breaks end a command in a shell script; they become words of their own.
const breaks = ";&|\n()"

// split takes a shell script apart, as far as reading arguments needs it: quotes,
// backslashes, line continuations, comments, $NAME and ${NAME} of the container's
// environment. What it does not understand becomes a word that is not known. left is
// how many bytes of variables there may be yet.
func split(s string, env map[string]word, left *int) []word {
	var out []word
	var b strings.Builder
	in, known := false, true
	flush := func() {
		if in {
			out = append(out, word{b.String(), known})
		}
		b.Reset()
		in, known = false, true
	}
	variable := func(i int) int { // s[i] is $; the index of its last byte
		end, name := i, ""
		if i+1 < len(s) && s[i+1] == '{' {
			n := strings.IndexByte(s[i:], '}')
			if n < 0 {
				known = false
				return len(s) - 1
			}
			end, name = i+n, s[i+2:i+n]
		} else {
			for end+1 < len(s) && (s[end+1] == '_' || s[end+1] >= '0' && s[end+1] <= '9' || s[end+1]|0x20 >= 'a' && s[end+1]|0x20 <= 'z') {
				end++
			}
			name = s[i+1 : end+1]
		}
		if name == "" {
			known = false // $(command) and the like
			b.WriteByte('$')
			return end
		}
		name, def, hasDefault := strings.Cut(name, ":-")
		switch v, ok := env[name]; {
		case ok && v.known && len(v.text) <= *left:
			*left -= len(v.text)
			b.WriteString(v.text)
		case !ok && hasDefault && !strings.Contains(def, "$"):
			b.WriteString(def)
		default:
			known = false
			b.WriteString("${" + name + "}")
		}
		return end
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '\\' && i+1 < len(s):
			i++
			if s[i] == '\n' {
				continue
			}
			in = true
			b.WriteByte(s[i])
		case c == '\'':
			in = true
			end := strings.IndexByte(s[i+1:], '\'')
			if end < 0 {
				end, known = len(s)-i-1, false
			}
			b.WriteString(s[i+1 : min(i+1+end, len(s))])
			i += end + 1
		case c == '"':
			in = true
			for i++; i < len(s) && s[i] != '"'; i++ {
				switch {
				case s[i] == '\\' && i+1 < len(s) && strings.IndexByte("\"\\$`\n", s[i+1]) >= 0:
					i++
					if s[i] != '\n' {
						b.WriteByte(s[i])
					}
				case s[i] == '$':
					i = variable(i)
				default:
					b.WriteByte(s[i])
				}
			}
			known = known && i < len(s)
		case c == '$':
			// Unquoted: its value may be several words or none.
			first := b.Len() == 0
			i = variable(i)
			if first && known {
				if fields := strings.Fields(b.String()); len(fields) != 1 {
					for _, f := range fields {
						out = append(out, word{f, true})
					}
					b.Reset()
					continue
				}
			}
			in = true
		case c == '`':
			in, known = true, false
		case c == '#' && !in:
			for i+1 < len(s) && s[i+1] != '\n' {
				i++
			}
		case c == ' ' || c == '\t':
			flush()
		case strings.IndexByte(breaks, c) >= 0:
			flush()
			out = append(out, word{string(c), true})
		default:
			in = true
			b.WriteByte(c)
		}
	}
	flush()
	return out
}

// flags are an engine's arguments by name, with dashes; the last one counts.
type flags struct {
	values map[string]word
	opaque bool // something among them could be any argument
	rest   []string
}

// short names of vLLM (vllm/engine/arg_utils.py).
var short = map[string]string{"-dp": "data-parallel-size", "-dpn": "data-parallel-rank", "-dpl": "data-parallel-size-local"}

// readFlags reads `--name value`, `--name=value`, `--a_b`, and the vLLM way to set
// one field of a JSON value, `--name.field value`.
func readFlags(words []word) flags {
	f := flags{values: make(map[string]word)}
	for i := 0; i < len(words); i++ {
		w := words[i]
		name, value, joined := strings.Cut(w.text, "=")
		switch long, isShort := short[name]; {
		case isShort:
			name = long
		case strings.HasPrefix(name, "--") && len(name) > 2:
			name = strings.ReplaceAll(name[2:], "_", "-")
		case !w.known:
			f.opaque = true
			continue
		default:
			f.rest = append(f.rest, w.text)
			continue
		}
		v := word{value, w.known}
		if !joined && i+1 < len(words) && !startsFlag(words[i+1].text) {
			i++
			v = words[i]
		}
		f.values[name] = v
	}
	return f
}

func startsFlag(s string) bool { return len(s) > 1 && s[0] == '-' && !(s[1] >= '0' && s[1] <= '9') }

func (f flags) has(name string) bool { _, ok := f.values[name]; return ok }

// get is the value of a flag, "" if it is not there or not known.
func (f flags) get(name string) string {
	if v := f.values[name]; v.known {
		return v.text
	}
	return ""
}

// object is a JSON value that is given whole or field by field; ok is false if a
// part of it cannot be read.
func (f flags) object(name string) (out map[string]any, given, ok bool) {
	out, ok = make(map[string]any), true
	if v, has := f.values[name]; has {
		given = true
		if json.Unmarshal([]byte(v.text), &out) != nil || out == nil {
			return map[string]any{}, true, false
		}
	}
	for key, v := range f.values {
		field, has := strings.CutPrefix(key, name+".")
		if !has {
			continue
		}
		given = true
		var parsed any
		if json.Unmarshal([]byte(v.text), &parsed) != nil {
			parsed = v.text
		}
		out[strings.ReplaceAll(field, "-", "_")] = parsed
	}
	return out, given, ok
}
