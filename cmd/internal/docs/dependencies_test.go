package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDependenciesAreNamed: docs/dependencies.md names the libraries that our code imports, and no others.
func TestDependenciesAreNamed(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(page), "\n## ") // what we wrote ourselves comes after it
	named := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]+) \|`).FindAllStringSubmatch(table, -1) {
		for name := range strings.SplitSeq(row[1], ", ") {
			if strings.Contains(name, "/") {
				named[name] = true
			}
		}
	}
	used := map[string]bool{}
	for _, path := range imports(t) {
		module := ""
		for name := range named {
			if p := strings.TrimPrefix(path, "github.com/"); (p == name || strings.HasPrefix(p, name+"/")) && len(name) > len(module) {
				module = name
			}
		}
		if module == "" {
			t.Errorf("%s is imported, but docs/dependencies.md does not name it", path)
		}
		used[module] = true
	}
	for name := range named {
		if !used[name] {
			t.Errorf("docs/dependencies.md names %s, which nothing imports", name)
		}
	}
}

// imports lists what our packages, their tests and the tools of go.mod import from outside.
func imports(t *testing.T) []string {
	cmd := exec.Command("go", "list", "-f", `{{join .Imports "\n"}}{{"\n"}}{{join .TestImports "\n"}}{{"\n"}}{{join .XTestImports "\n"}}`, "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for path := range strings.FieldsSeq(string(out)) {
		if host, _, _ := strings.Cut(path, "/"); strings.Contains(host, ".") && !strings.HasPrefix(path, "github.com/grapevine-llm/") {
			list = append(list, path)
		}
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	_, tools, _ := strings.Cut(string(mod), "\ntool (")
	tools, _, _ = strings.Cut(tools, ")")
	return append(list, strings.Fields(tools)...)
}
