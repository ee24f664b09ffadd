package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/grapevine-llm/grapevine/"

// pkg is the part of `go list -json` that the rules need.
type pkg struct {
	ImportPath string
	Doc        string
	Imports    []string
	Deps       []string
	CgoFiles   []string
}

func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Doc,Imports,Deps,CgoFiles"}, args...)...)
	cmd.Dir = "../.."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v\n%s", args, err, stderr.String())
	}
	var pkgs []pkg
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatalf("read go list output: %v", err)
		}
		pkgs = append(pkgs, p)
	}
}

// TestOurImports holds the package map: what each package may import of ours.
// A name that ends in "/..." allows the whole subtree. Test support under test/ and
// the commands may import anything, with the exceptions of TestEmulatedEngineIsIndependent.
func TestOurImports(t *testing.T) {
	allowed := map[string][]string{
		"gossip/blockhash":            {},
		"gossip/bloom":                {"gossip/blockhash"},
		"gossip/wire":                 {"gossip/bloom", "gossip/blockhash"},
		"gossip/digest":               {"gossip/wire", "gossip/bloom", "gossip/blockhash"},
		"gossip/view":                 {"gossip/wire", "gossip/bloom", "gossip/blockhash"},
		"gossip/mesh":                 {"gossip/wire"},
		"gossip/gossiptest":           {"gossip/wire"},
		"gpu":                         {},
		"gpu/nvml":                    {"gpu"},
		"gpu/gputest":                 {"gpu"},
		"agent/kvevent":               {},
		"agent/blockset":              {"agent/kvevent", "gossip/blockhash"},
		"agent/enginemetrics":         {},
		"agent/zmqsub":                {"agent/kvevent"},
		"agent/blockset/blocksettest": {"agent/kvevent", "gossip/blockhash"},
		"agent/inspect":               {"agent/...", "gossip/blockhash"},
		"agent":                       {"agent/...", "gossip/...", "gpu/...", "gpu"},
		"picker/openai":               {},
		"picker/prompt/tokenizer":     {"picker/prompt/tokenizer/internal/..."},
		"picker/prompt/tokenizer/internal/pattern": {"picker/prompt/tokenizer/internal/ucd"},
		"picker/prompt/tokenizer/internal/ucd":     {},
		"picker/prompt/chat":                       {"picker/prompt/chat/jinja"},
		"picker/prompt/chat/jinja":                 {},
		"picker/prompt":                            {"picker/prompt/...", "picker/openai", "gossip/blockhash"},
		"picker/match":                             {"gossip/bloom", "gossip/blockhash"},
		"picker/score":                             {},
		"picker/hold":                              {"picker/score"},
		"picker/hint":                              {"gossip/wire", "gossip/blockhash"},
		"picker":                                   {"picker/match", "picker/score", "picker/hold", "picker/hint", "gossip/..."},
		"picker/inbound":                           {"picker", "picker/openai", "picker/prompt"},
		"picker/proxy":                             {"picker", "picker/inbound", "picker/openai", "picker/prompt", "picker/recording", "picker/webui"},
		"picker/recording":                         {"picker", "picker/openai", "gossip/blockhash"},
		"picker/extproc":                           {"picker", "picker/inbound", "picker/openai", "picker/prompt", "picker/recording"},
		"picker/webui":                             {"picker"},
		"deploy/inject":                            {},
		"deploy/inject/webhook":                    {"deploy/inject"},
		"picker/pool":                              {},
		"deploy":                                   {},
	}
	for _, p := range list(t, "./...") {
		name := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(name, "cmd/") || strings.HasPrefix(name, "test/") {
			continue
		}
		may, known := allowed[name]
		if !known {
			t.Errorf("%s is not in the package map: add it here with what it may import", name)
			continue
		}
		for _, imp := range p.Imports {
			ours, isOurs := strings.CutPrefix(imp, module)
			if isOurs && !permits(may, ours) {
				t.Errorf("%s imports %s; allowed: %v", name, ours, may)
			}
		}
	}
}

func permits(may []string, name string) bool {
	return slices.ContainsFunc(may, func(m string) bool {
		if tree, ok := strings.CutSuffix(m, "..."); ok {
			return strings.HasPrefix(name, tree)
		}
		return m == name
	})
}

// TestOutsideImports holds which package may touch which outside library, or any package below its path.
func TestOutsideImports(t *testing.T) {
	only := map[string][]string{
		"github.com/hashicorp/memberlist":         {"gossip/mesh", "gossip/gossiptest"},
		"github.com/pebbe/zmq4":                   {"agent/zmqsub", "test/engine/zmqpub"},
		"github.com/NVIDIA/go-nvml/pkg/nvml":      {"gpu/nvml"},
		"github.com/vmihailenco/msgpack/v5":       {"gossip/mesh", "agent/kvevent", "test/engine/zmqpub"},
		"google.golang.org/grpc":                  {"picker/extproc", "test/..."},
		"k8s.io":                                  {"picker/pool", "deploy/...", "cmd/grapevine", "test/..."},
		"github.com/spf13/cobra":                  {"cmd/..."},
		"github.com/knadh/koanf/v2":               {"cmd/internal/config"},
		"github.com/zeebo/xxh3":                   {"gossip/blockhash", "gossip/wire", "agent/blockset", "picker", "test/sim", "test/trace"},
		"github.com/NVIDIA/go-nvml/pkg/nvml/mock": {"gpu/nvml"},
	}
	for _, p := range list(t, "./...") {
		name := strings.TrimPrefix(p.ImportPath, module)
		for _, imp := range p.Imports {
			for lib, may := range only {
				if (imp == lib || strings.HasPrefix(imp, lib+"/")) && !permits(may, name) {
					t.Errorf("%s imports %s; only %v may", name, imp, may)
				}
			}
		}
	}
}

// TestPickerIsLight: whoever links the picker library or the proxy into a gateway gets no ZMQ,
// no NVML, no gRPC and no Kubernetes code. The gateway binary has the last two, and no CGO.
func TestPickerIsLight(t *testing.T) {
	never := []string{"github.com/pebbe/zmq4", "github.com/NVIDIA/go-nvml", module + "agent", module + "gpu", module + "test"}
	library := append([]string{"google.golang.org/grpc", "k8s.io/"}, never...)
	for root, banned := range map[string][]string{"./picker": library, "./picker/proxy": library, "./cmd/gateway": never} {
		for _, dep := range list(t, root)[0].Deps {
			for _, b := range banned {
				if strings.HasPrefix(dep, b) {
					t.Errorf("%s depends on %s", root, dep)
				}
			}
		}
	}
	// net and os/user use cgo where it is on; the gateway is built with CGO_ENABLED=0.
	for _, p := range list(t, "-deps", "./cmd/gateway") {
		std := !strings.Contains(strings.SplitN(p.ImportPath, "/", 2)[0], ".")
		if !std && len(p.CgoFiles) > 0 {
			t.Errorf("./cmd/gateway depends on %s, which uses cgo", p.ImportPath)
		}
	}
}

// TestAgentAndPickerApart: what both need sits in gossip; gossip and gpu stand alone.
func TestAgentAndPickerApart(t *testing.T) {
	rules := map[string][]string{
		"./agent/...":  {"picker", "test", "cmd"},
		"./picker/...": {"agent", "gpu", "test", "cmd"},
		"./gossip/...": {"agent", "picker", "gpu", "test", "cmd"},
		"./gpu/...":    {"agent", "picker", "gossip", "test", "cmd"},
	}
	for roots, banned := range rules {
		for _, p := range list(t, roots) {
			for _, dep := range p.Deps {
				ours, isOurs := strings.CutPrefix(dep, module)
				if top, _, _ := strings.Cut(ours, "/"); isOurs && slices.Contains(banned, top) {
					t.Errorf("%s depends on %s", p.ImportPath, dep)
				}
			}
		}
	}
}

// TestEmulatedEngineIsIndependent: the emulated engine must not share code with what it
// is used to test, or both could be wrong in the same way.
func TestEmulatedEngineIsIndependent(t *testing.T) {
	for _, p := range list(t, "./test/engine/...") {
		for _, dep := range p.Deps {
			for _, b := range []string{"agent", "gossip", "gpu"} {
				if strings.HasPrefix(dep, module+b) {
					t.Errorf("%s depends on %s", p.ImportPath, dep)
				}
			}
		}
	}
}

// TestPackageComments: every package says what it owns.
func TestPackageComments(t *testing.T) {
	for _, p := range list(t, "./...") {
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}
