package docs

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/grapevine-llm/grapevine/agent"
	"github.com/grapevine-llm/grapevine/cmd/internal/config"
	"github.com/grapevine-llm/grapevine/cmd/internal/gatewaycmd"
)

var update = flag.Bool("update", false, "write the pages that are made from the code")

const root = "../../.."

func agentDir() string { return filepath.Join(root, "agent") }

func TestPagesAreWhatTheCodeSays(t *testing.T) {
	metrics, err := Metrics(agentDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"configuration.md": Configuration(), "metrics.md": metrics} {
		path := filepath.Join(root, "docs", name)
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(string(got), "\n")); diff != "" {
			t.Errorf("%s is not what the code says, run go test ./cmd/internal/docs -update (-want +got):\n%s", name, diff)
		}
	}
}

// pages reads README and docs.
func pages(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, path := range append(paths, filepath.Join(root, "README.md"), filepath.Join(root, "CONTRIBUTING.md")) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[path] = string(text)
	}
	return out
}

var (
	metricName = regexp.MustCompile(`\bgrapevine_[a-z0-9_]+`)
	link       = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	goFile     = regexp.MustCompile("`([a-z0-9_/]+\\.go)`")
	traceRow   = regexp.MustCompile("\\| `([a-z0-9_/]+\\.go)` \\| (`[^|]+`) \\|")
)

func TestPagesNameWhatExists(t *testing.T) {
	gateway, err := gatewayMetrics()
	if err != nil {
		t.Fatal(err)
	}
	agents, err := agentMetrics(agentDir())
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range slices.Concat(gateway, agents, injectorMetrics()) {
		known[m.name] = true
		if m.kind == "histogram" {
			known[m.name+"_bucket"], known[m.name+"_sum"], known[m.name+"_count"] = true, true, true
		}
	}
	for path, text := range pages(t) {
		for _, name := range metricName.FindAllString(text, -1) {
			if !known[name] {
				t.Errorf("%s: there is no metric %s", path, name)
			}
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s: link leads nowhere: %v", path, err)
			}
		}
		for _, m := range goFile.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil && strings.Contains(m[1], "/") {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
}

// TestTracesNameFunctions checks table rows with a file and, in the next cell, functions or methods declared there.
func TestTracesNameFunctions(t *testing.T) {
	rows := 0
	for path, text := range pages(t) {
		for _, m := range traceRow.FindAllStringSubmatch(text, -1) {
			rows++
			source, err := os.ReadFile(filepath.Join(root, m[1]))
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			for name := range strings.SplitSeq(m[2], ",") {
				name = strings.Trim(name, "` ")
				receiver, method, isMethod := strings.Cut(name, ".")
				pattern := `(?m)^func ` + regexp.QuoteMeta(name) + `[\[(]`
				if isMethod {
					pattern = `(?m)^func \(\w* ?\*?` + receiver + `(\[\w+\])?\) ` + method + `\(`
				}
				if !regexp.MustCompile(pattern).Match(source) {
					t.Errorf("%s: %s does not declare %s", path, m[1], name)
				}
			}
		}
	}
	if rows < 20 {
		t.Errorf("only %d rows with a file and functions were found: has the form of the tables changed?", rows)
	}
}

// TestCommandsHaveTheirFlags checks the flags of agent and gateway in code blocks.
func TestCommandsHaveTheirFlags(t *testing.T) {
	flags := map[string]*pflag.FlagSet{}
	for name, cfg := range map[string]any{"agent": agent.Default(), "gateway": gatewaycmd.Default()} {
		flags[name] = pflag.NewFlagSet(name, pflag.ContinueOnError)
		config.Bind(flags[name], cfg)
	}
	command := regexp.MustCompile(`(?m)^ *(?:\$ )?(?:bin/)?grapevine (agent|gateway) .*$`)
	option := regexp.MustCompile(`--([a-z-]+)`)
	seen := 0
	for path, text := range pages(t) {
		text = strings.ReplaceAll(text, "\\\n", " ")
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			for _, o := range option.FindAllStringSubmatch(m[0], -1) {
				seen++
				if flags[m[1]].Lookup(o[1]) == nil {
					t.Errorf("%s: %s has no flag --%s", path, m[1], o[1])
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no command with flags was found")
	}
}

// TestPagesSpeakOfTheProjectOnly: a page is read on other machines than the one it was written on.
func TestPagesSpeakOfTheProjectOnly(t *testing.T) {
	private := regexp.MustCompile(`/(work|tmp|home|root|Users)/`)
	for path, text := range pages(t) {
		if found := private.FindAllString(text, -1); len(found) > 0 {
			t.Errorf("%s names paths of one machine: %v", path, slices.Compact(found))
		}
		if strings.ContainsRune(text, '\r') {
			t.Errorf("%s has carriage returns", path)
		}
	}
}
