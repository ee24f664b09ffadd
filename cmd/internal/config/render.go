package config

import (
	"fmt"
	"io"
	"reflect"
	"sort"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Print writes cfg as the YAML that --config reads, in the order of the struct,
// each setting under a comment with its meaning.
func Print(w io.Writer, cfg any) error {
	root := &yaml.Node{Kind: yaml.MappingNode}
	branches := map[string]*yaml.Node{"": root}
	for _, f := range fieldsOf(cfg) {
		parent := root
		for i := range len(f.path) - 1 {
			prefix := strings.Join(f.path[:i+1], ".")
			node, ok := branches[prefix]
			if !ok {
				node = &yaml.Node{Kind: yaml.MappingNode}
				branches[prefix] = node
				parent.Content = append(parent.Content, text(f.path[i]), node)
			}
			parent = node
		}
		key := text(f.path[len(f.path)-1])
		key.HeadComment = f.help
		parent.Content = append(parent.Content, key, valueNode(f.value))
	}
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return fmt.Errorf("print configuration: %w", err)
	}
	return enc.Close()
}

func text(s string) *yaml.Node {
	node := &yaml.Node{}
	node.SetString(s)
	return node
}

func valueNode(v reflect.Value) *yaml.Node {
	if !isMany(v.Type()) {
		switch kindName(v.Type()) {
		case "string", "text", "duration":
			return text(formatScalar(v))
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Value: formatScalar(v)}
	}
	if v.Kind() == reflect.Slice {
		node := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range v.Len() {
			node.Content = append(node.Content, valueNode(v.Index(i)))
		}
		return node
	}
	node := &yaml.Node{Kind: yaml.MappingNode}
	keys := v.MapKeys()
	sort.Slice(keys, func(i, j int) bool { return keys[i].String() < keys[j].String() })
	for _, k := range keys {
		node.Content = append(node.Content, text(k.String()), valueNode(v.MapIndex(k)))
	}
	return node
}

// Markdown is the reference table of a struct filled with its defaults: one row
// for each setting with its name in the file, flag, variable, default and
// meaning.
func Markdown(defaults any) string {
	var b strings.Builder
	b.WriteString("| Setting | Flag | Environment | Default | Meaning |\n| --- | --- | --- | --- | --- |\n")
	for _, f := range fieldsOf(defaults) {
		value := formatFlag(f.value)
		if value == "" {
			value = "none"
		} else {
			value = "`" + cell(value) + "`"
		}
		fmt.Fprintf(&b, "| `%s` | `--%s` (%s) | `%s` | %s | %s |\n",
			f.key(), f.flag(), kindName(f.value.Type()), f.env(), value, cell(f.help))
	}
	return b.String()
}

// cell escapes what would end a table cell.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(s)
}
