package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestChartNotes: what `helm install` says is numbered, and names the namespaces that are to be labelled.
func TestChartNotes(t *testing.T) {
	for name, tt := range map[string]struct {
		values string
		steps  int
		labels []string
		lists  bool // says that namespaces have to be listed
	}{
		"own namespace":   {"", 5, []string{"grapevine"}, true},
		"others":          {"modelNamespaces: [models, more]", 5, []string{"models", "more"}, false},
		"both modes":      {"gateway: {mode: both}\nmodelNamespaces: [models]", 6, []string{"models"}, false},
		"pool made":       {"gateway: {mode: extproc}\ninferencePools: [{name: a, selector: {a: b}, targetPorts: [1]}]", 4, []string{"grapevine"}, true},
		"no injector":     {"injector: {enabled: false}", 2, nil, false},
		"keys of its own": {"keys: {existingSecret: mine}", 5, []string{"grapevine"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(file, []byte(registry+tt.values+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			out, stderr, err := helm(t, "install", "grapevine", "chart", "--dry-run=client", "--namespace", "grapevine", "--values", file)
			if err != nil && strings.Contains(stderr, "cluster unreachable") {
				t.Skip("this Helm asks a cluster before it says what it would do")
			}
			if err != nil {
				t.Fatal(stderr)
			}
			_, notes, _ := strings.Cut(out, "\nNOTES:\n")
			for i, m := range regexp.MustCompile(`(?m)^([0-9]+)\. `).FindAllStringSubmatch(notes, -1) {
				if m[1] != strconv.Itoa(i+1) || i >= tt.steps {
					t.Errorf("step %d of %d is numbered %s", i+1, tt.steps, m[1])
				}
			}
			if !strings.Contains(notes, fmt.Sprintf("\n%d. ", tt.steps)) {
				t.Errorf("no step %d", tt.steps)
			}
			var labels []string
			for _, m := range regexp.MustCompile(`kubectl label namespace (\S+)`).FindAllStringSubmatch(notes, -1) {
				labels = append(labels, m[1])
			}
			if !slices.Equal(labels, tt.labels) || strings.Contains(notes, "have to be listed") != tt.lists {
				t.Errorf("labels %v; says that namespaces have to be listed: %v", labels, !tt.lists)
			}
			if t.Failed() {
				t.Log(notes)
			}
		})
	}
}
