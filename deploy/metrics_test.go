package deploy

import (
	"bufio"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// metricTable is docs/metrics.md, which is made from what the binaries register: labels and kinds by metric. code is the
// source that gives labels their values.
type metricTable struct {
	labels, kinds map[string]string
	code          string
}

func metrics(t *testing.T) metricTable {
	t.Helper()
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([a-z]+) \\| ([^|]*) \\|")
	out := metricTable{map[string]string{}, map[string]string{}, source(t)}
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		out.labels[m[1]], out.kinds[m[1]] = m[3], m[2]
	}
	if len(out.labels) < 50 {
		t.Fatalf("%d metrics in docs/metrics.md", len(out.labels))
	}
	return out
}

var (
	metricName = regexp.MustCompile(`\bgrapevine_[a-z0-9_]+`)
	selector   = regexp.MustCompile(`\b(grapevine_[a-z0-9_]+)\{([^}]*)\}`)
	labelName  = regexp.MustCompile(`([a-z_]+)\s*[=!]`)
	labelValue = regexp.MustCompile(`=~?"([^"]*)"`)
)

// source is the code of what has metrics.
func source(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{"../agent", "../gossip", "../gpu", "../picker"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			all.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}

// check: the metrics of a query exist, have the labels that it selects by, and these can have such values.
func (m metricTable) check(t *testing.T, where, query string) {
	t.Helper()
	for _, name := range metricName.FindAllString(query, -1) {
		if _, ok := m.base(name); !ok {
			t.Errorf("%s: no metric %s in docs/metrics.md", where, name)
		}
	}
	for _, s := range selector.FindAllStringSubmatch(query, -1) {
		for _, v := range labelValue.FindAllStringSubmatch(strings.ReplaceAll(s[2], `pool="default"`, ""), -1) {
			for value := range strings.SplitSeq(v[1], "|") {
				if !strings.Contains(value, "$") && !strings.Contains(m.code, `"`+value+`"`) {
					t.Errorf("%s: no label has the value %q", where, value)
				}
			}
		}
		base, _ := m.base(s[1])
		have := strings.Split(strings.ReplaceAll(m.labels[base], "`", ""), ", ")
		for _, l := range labelName.FindAllStringSubmatch(s[2], -1) {
			target := []string{"namespace", "pod", "job", "instance", "le"} // given by who scrapes
			if !slices.Contains(have, l[1]) && !slices.Contains(target, l[1]) {
				t.Errorf("%s: %s has labels %v, not %s", where, base, have, l[1])
			}
		}
	}
}

// base is the metric that a series belongs to: a histogram has three kinds of series.
func (m metricTable) base(name string) (string, bool) {
	if _, ok := m.labels[name]; ok {
		return name, true
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, cut := strings.CutSuffix(name, suffix); cut && m.kinds[base] == "histogram" {
			return base, true
		}
	}
	return "", false
}

func bufioReader(s string) *bufio.Reader { return bufio.NewReader(strings.NewReader(s)) }
