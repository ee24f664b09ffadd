package docs

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/grapevine-llm/grapevine/deploy/inject/webhook"
	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/extproc"
	"github.com/grapevine-llm/grapevine/picker/pool"
	"github.com/grapevine-llm/grapevine/picker/proxy"
)

// metric is one row of docs/metrics.md.
type metric struct {
	name, kind, help string
	labels           []string
}

const metricsHead = "# Metrics\n\n" + generated + `
Both binaries serve Prometheus text at ` + "`/metrics`" + `: the gateway on ` + "`--admin-listen`" + ` (127.0.0.1:9090), the agent on ` + "`--metrics-listen`" + `
(127.0.0.1:9464). Labels are bounded: policies, rungs and reasons are fixed sets, endpoints and ranks are those of the pool and go with
them. No label or value holds prompt text. [operations.md](operations.md) says what to alert on.

`

// Metrics is docs/metrics.md. agentDir is the folder of package agent, whose collector is private: its metrics are read
// from the source, those of the gateway from what it registers.
func Metrics(agentDir string) (string, error) {
	gateway, err := gatewayMetrics()
	if err != nil {
		return "", err
	}
	agent, err := agentMetrics(agentDir)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(metricsHead)
	b.WriteString("## Gateway\n\nBesides these, the usual `go_*` and `process_*`.\n\n")
	table(&b, gateway)
	b.WriteString("\n## Agent\n\n")
	table(&b, agent)
	b.WriteString("\n## Injector\n\nOn `--admin-listen` (:8081).\n\n")
	table(&b, injectorMetrics())
	return b.String(), nil
}

// injectorMetrics lists what the webhook registers.
func injectorMetrics() []metric {
	var r recorder
	webhook.Describe(&r)
	return sorted(r.metrics)
}

func table(b *strings.Builder, list []metric) {
	b.WriteString("| Metric | Kind | Labels | Meaning |\n| --- | --- | --- | --- |\n")
	for _, m := range list {
		labels := "none"
		if len(m.labels) > 0 {
			labels = "`" + strings.Join(m.labels, "`, `") + "`"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", m.name, m.kind, labels, m.help)
	}
}

// gatewayMetrics lists what picker, proxy, pool and extproc register, by name.
func gatewayMetrics() ([]metric, error) {
	var r recorder
	cfg := picker.Default()
	cfg.Registerer = &r
	p, err := picker.New(cfg)
	if err != nil {
		return nil, err
	}
	if _, err := proxy.New(proxy.Default(), p, nil, nil, &r); err != nil {
		return nil, err
	}
	if _, err := pool.New(pool.Config{}, nil, &r); err != nil {
		return nil, err
	}
	ext := extproc.Default()
	ext.Listen, ext.Advise = []string{"127.0.0.1:0"}, true
	if _, err := extproc.New(ext, extproc.Options{Picker: p, Registerer: &r}); err != nil {
		return nil, err
	}
	return sorted(r.metrics), r.err
}

// recorder is a registerer that keeps descriptions only.
type recorder struct {
	metrics []metric
	err     error
}

func (r *recorder) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		c.Describe(descs)
	}()
	for d := range descs {
		m, err := describe(d)
		if err != nil {
			r.err = err
			continue
		}
		switch c.(type) {
		case *prometheus.HistogramVec, prometheus.Histogram:
			m.kind = "histogram"
		}
		r.metrics = append(r.metrics, m)
	}
	return nil
}

func (r *recorder) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		_ = r.Register(c) // never fails; see err
	}
}

func (r *recorder) Unregister(prometheus.Collector) bool { return false }

// description is how client_golang writes a description; there is no other way to its parts.
var description = regexp.MustCompile(`^Desc\{fqName: ("[^"]*"), help: ("(?:[^"\\]|\\.)*"),.* constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

func describe(d *prometheus.Desc) (metric, error) {
	parts := description.FindStringSubmatch(d.String())
	if parts == nil {
		return metric{}, fmt.Errorf("read description of a metric: %s", d)
	}
	var m metric
	for i, to := range []*string{&m.name, &m.help} {
		var err error
		if *to, err = strconv.Unquote(parts[1+i]); err != nil {
			return metric{}, fmt.Errorf("read description of a metric: %w", err)
		}
	}
	for _, list := range parts[3:] {
		for label := range strings.SplitSeq(list, ",") {
			if name, _, _ := strings.Cut(label, "="); name != "" {
				m.labels = append(m.labels, name)
			}
		}
	}
	m.kind = kindOf(m.name)
	return m, nil
}

// kindOf goes by the naming rule that counters, and only they, end in _total.
func kindOf(name string) string {
	if strings.HasSuffix(name, "_total") {
		return "counter"
	}
	return "gauge"
}

func sorted(list []metric) []metric {
	slices.SortFunc(list, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	return list
}
