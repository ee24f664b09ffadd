package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// agentMetrics reads the metrics of package agent from its source: calls of desc and podDesc, and options of histograms.
func agentMetrics(dir string) ([]metric, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, fmt.Errorf("list source: %w", err)
	}
	s := source{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read source: %w", err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
		if err != nil {
			return nil, fmt.Errorf("read source: %w", err)
		}
		ast.Inspect(file, s.visit)
	}
	for i := range s.metrics {
		s.metrics[i].name = s.namespace + "_" + s.metrics[i].name
	}
	return sorted(s.metrics), nil
}

type source struct {
	namespace string
	metrics   []metric
}

func (s *source) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ValueSpec:
		if len(n.Names) == 1 && n.Names[0].Name == "namespace" && len(n.Values) == 1 {
			s.namespace, _ = literal(n.Values[0])
		}
	case *ast.CallExpr:
		if f, ok := n.Fun.(*ast.Ident); ok && (f.Name == "desc" || f.Name == "podDesc") {
			s.call(f.Name, n.Args)
		}
	case *ast.CompositeLit:
		if t, ok := n.Type.(*ast.SelectorExpr); ok && t.Sel.Name == "HistogramOpts" {
			s.histogram(n)
		}
	}
	return true
}

func (s *source) call(function string, args []ast.Expr) {
	var texts []string
	for _, a := range args {
		if text, ok := literal(a); ok {
			texts = append(texts, text)
		}
	}
	if len(texts) < 2 {
		return
	}
	m := metric{name: texts[0], help: texts[1], kind: kindOf(texts[0]), labels: texts[2:]}
	if function == "desc" {
		m.labels = append([]string{"engine"}, m.labels...)
	}
	s.metrics = append(s.metrics, m)
}

func (s *source) histogram(n *ast.CompositeLit) {
	m := metric{kind: "histogram", labels: []string{"engine"}}
	for _, e := range n.Elts {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		switch text, _ := literal(kv.Value); kv.Key.(*ast.Ident).Name {
		case "Name":
			m.name = text
		case "Help":
			m.help = text
		}
	}
	s.metrics = append(s.metrics, m)
}

func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}
