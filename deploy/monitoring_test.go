package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// ruleFile is a file of Prometheus rules.
type ruleFile struct {
	Groups []struct {
		Name     string `json:"name"`
		Interval string `json:"interval"`
		Rules    []rule `json:"rules"`
	} `json:"groups"`
}

type rule struct {
	Record      string            `json:"record,omitempty"`
	Alert       string            `json:"alert,omitempty"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// rules are those of deploy/alerts.
func rules(t *testing.T) []rule {
	t.Helper()
	var file ruleFile
	if err := yaml.UnmarshalStrict([]byte(read(t, "alerts/grapevine.rules.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	var out []rule
	for _, g := range file.Groups {
		out = append(out, g.Rules...)
	}
	return out
}

// recorded is a metric that a rule makes: level:metric:operation.
var recorded = regexp.MustCompile(`\b[a-z_]+:[a-z0-9_]+:[a-z0-9_]+`)

// TestAlerts: each rule asks for metrics that exist, with labels that they have, and tells a person what to do.
func TestAlerts(t *testing.T) {
	known := metrics(t)
	records := map[string]bool{}
	for _, r := range rules(t) {
		name := r.Alert + r.Record
		known.check(t, name, recorded.ReplaceAllString(r.Expr, "recorded"))
		if !strings.Contains(r.Expr, "grapevine_") {
			t.Errorf("%s asks for nothing of ours", name)
		}
		records[r.Record] = true
		for _, m := range recorded.FindAllString(r.Expr, -1) {
			if !records[m] {
				t.Errorf("%s: nothing records %s before it", name, m)
			}
		}
		if r.Alert == "" {
			continue
		}
		if r.For == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s: lacks for, severity, summary or description", name)
		}
	}
}

const howPromtool = "it is in Debian's package prometheus"

func TestAlertsByPromtool(t *testing.T) {
	promtool := tool(t, "promtool", howPromtool)
	for _, args := range [][]string{{"check", "rules", "grapevine.rules.yaml"}, {"test", "rules", "grapevine.test.yaml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = "alerts"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// dashboard is the part of a Grafana dashboard that is checked.
type dashboard struct {
	Title      string `json:"title"`
	UID        string `json:"uid"`
	Templating struct {
		List []struct {
			Name string `json:"name"`
		} `json:"list"`
	} `json:"templating"`
	Panels []struct {
		ID          int    `json:"id"`
		Type        string `json:"type"`
		Title       string `json:"title"`
		Description string `json:"description"`
		GridPos     struct{ X, Y, W, H int }
		Targets     []struct {
			RefID string `json:"refId"`
			Expr  string `json:"expr"`
		} `json:"targets"`
	} `json:"panels"`
}

// TestDashboard: panels are told apart, explained and beside each other, and ask for metrics that exist.
func TestDashboard(t *testing.T) {
	var d dashboard
	if err := json.Unmarshal([]byte(read(t, "dashboards/grapevine.json")), &d); err != nil {
		t.Fatal(err)
	}
	known, ids, taken := metrics(t), map[int]bool{}, map[[2]int]string{}
	var queries []string
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%s: id %d is there twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s lies over %s or outside", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("%s: not explained, or empty", p.Title)
		}
		for _, q := range p.Targets {
			known.check(t, p.Title, q.Expr)
			queries = append(queries, q.Expr)
		}
	}
	if len(queries) < 20 {
		t.Errorf("%d queries", len(queries))
	}

	t.Run("promtool", func(t *testing.T) {
		promtool := tool(t, "promtool", howPromtool)
		var file ruleFile
		file.Groups = append(file.Groups, struct {
			Name     string `json:"name"`
			Interval string `json:"interval"`
			Rules    []rule `json:"rules"`
		}{Name: "dashboard", Interval: "15s"})
		for _, q := range queries {
			q = strings.NewReplacer("$__rate_interval", "1m", "$pool", ".*").Replace(q)
			file.Groups[0].Rules = append(file.Groups[0].Rules, rule{Record: "query", Expr: q, Labels: map[string]string{"n": q}})
		}
		text, err := yaml.Marshal(file)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "queries.yaml")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(promtool, "check", "rules", path).CombinedOutput(); err != nil {
			t.Errorf("promtool: %v\n%s", err, out)
		}
	})
}
