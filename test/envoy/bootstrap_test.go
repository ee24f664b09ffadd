package envoy

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// shipped is the folder of the files under test.
const shipped = "../../deploy/envoy"

type object = map[string]any

// bootstrap is a configuration of Envoy that can be changed.
type bootstrap struct{ root object }

func readBootstrap(t *testing.T, name string) *bootstrap {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(shipped, name))
	if err != nil {
		t.Fatal(err)
	}
	b := &bootstrap{}
	if err := yaml.UnmarshalStrict(text, &b.root); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return b
}

// write the configuration as a file that Envoy takes.
func (b *bootstrap) write(t *testing.T, path string) {
	t.Helper()
	text, err := yaml.Marshal(b.root)
	if err == nil {
		err = os.WriteFile(path, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// at follows keys and indices down from the root and fails the program if there is nothing: the files are ours.
func (b *bootstrap) at(path ...any) any { return at(b.root, path...) }

func at(v any, path ...any) any {
	for i, p := range path {
		ok := false
		switch p := p.(type) {
		case string:
			var o object
			if o, ok = v.(object); ok {
				v, ok = o[p]
			}
		case int:
			var l []any
			if l, ok = v.([]any); ok && p < len(l) {
				v = l[p]
			}
		}
		if !ok {
			panic(fmt.Sprintf("no %v in the configuration", path[:i+1]))
		}
	}
	return v
}

func (b *bootstrap) listeners() []any { return b.at("static_resources", "listeners").([]any) }

func (b *bootstrap) clusters() []any { return b.at("static_resources", "clusters").([]any) }

func (b *bootstrap) cluster(name string) object {
	for _, c := range b.clusters() {
		if at(c, "name") == name {
			return c.(object)
		}
	}
	panic("no cluster " + name)
}

// join takes in the listeners and clusters of another configuration; its clusters get longer names.
func (b *bootstrap) join(other *bootstrap, suffix string) {
	for _, c := range other.clusters() {
		c.(object)["name"] = at(c, "name").(string) + suffix
	}
	for _, l := range other.listeners() {
		l.(object)["name"] = at(l, "name").(string) + suffix
	}
	rename(other.root, suffix)
	s := b.at("static_resources").(object)
	s["listeners"] = append(b.listeners(), other.listeners()...)
	s["clusters"] = append(b.clusters(), other.clusters()...)
}

// rename lengthens all names of clusters in references to them.
func rename(v any, suffix string) {
	switch v := v.(type) {
	case object:
		for key, value := range v {
			if name, ok := value.(string); ok && (key == "cluster" || key == "cluster_name") {
				v[key] = name + suffix
				continue
			}
			rename(value, suffix)
		}
	case []any:
		for _, value := range v {
			rename(value, suffix)
		}
	}
}

// connectionManager of a listener.
func (b *bootstrap) connectionManager(listener int) object {
	return at(b.listeners()[listener], "filter_chains", 0, "filters", 0, "typed_config").(object)
}

// filter of a listener's chain.
func (b *bootstrap) filter(listener int, name string) object {
	for _, f := range b.connectionManager(listener)["http_filters"].([]any) {
		if at(f, "name") == name {
			return at(f, "typed_config").(object)
		}
	}
	panic("no filter " + name)
}

// insertFilter puts a filter before all others.
func (b *bootstrap) insertFilter(listener int, filter string) {
	var f any
	if err := yaml.Unmarshal([]byte(filter), &f); err != nil {
		panic(err)
	}
	m := b.connectionManager(listener)
	m["http_filters"] = append([]any{f}, m["http_filters"].([]any)...)
}

// address is a host:port, or a path that begins with a slash.
func address(a string) object {
	if strings.HasPrefix(a, "/") {
		return object{"pipe": object{"path": a}}
	}
	host, port, err := net.SplitHostPort(a)
	if err != nil {
		panic(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		panic(err)
	}
	return object{"socket_address": object{"address": host, "port_value": n}}
}

// endpoints sets the addresses of a cluster; the kind of the cluster stays.
func (b *bootstrap) endpoints(cluster string, addresses ...string) {
	check := at(b.cluster(cluster), "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint").(object)["health_check_config"]
	var all []any
	for _, a := range addresses {
		e := object{"address": address(a)}
		if check != nil {
			e["health_check_config"] = check
		}
		all = append(all, object{"endpoint": e})
	}
	at(b.cluster(cluster), "load_assignment", "endpoints", 0).(object)["lb_endpoints"] = all
}
