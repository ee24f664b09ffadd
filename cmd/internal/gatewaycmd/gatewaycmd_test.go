package gatewaycmd

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"
)

func TestFaultsAndTakenPorts(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	addr := taken.Addr().String()
	tests := []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"all at once", []string{"--listen", "127.0.0.1:99999", "--admin-listen", "5", "--max-body-bytes", "3", "--allow-paths", "/v1/completions", "--receipts", "2000000000"}, 2, []string{
			`listen = "127.0.0.1:99999"`, `admin-listen = "5"`, `max-body-bytes = "3" is too small; give at least 1024`,
			`allow-paths = "/v1/completions" is served already`, `receipts = "2000000000" is too large`,
		}},
		{"port of clients", []string{"--listen", addr, "--admin-listen", "127.0.0.1:0", "--gossip-enabled=false"}, 1, []string{addr, "--listen"}},
		{"port of operators", []string{"--listen", "127.0.0.1:0", "--admin-listen", addr, "--gossip-enabled=false"}, 1, []string{addr, "--admin-listen"}},
		{"port of gossip", []string{"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--gossip-bind", addr}, 1, []string{addr, "another port"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := Main(context.Background(), tt.args, "test", &out, &errs); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			for _, want := range tt.want {
				if !strings.Contains(errs.String(), want) {
					t.Errorf("%s\ndoes not say %s", errs.String(), want)
				}
			}
		})
	}
}

func TestNeedsRestart(t *testing.T) {
	policy := Default()
	policy.Policy.Shares = map[string]float64{"round-robin": 1}
	policy.Policy.Hold = false
	if needsRestart(Default(), policy) {
		t.Error("a new policy needs a restart")
	}
	limit := policy
	limit.MaxConcurrent = 5
	if !needsRestart(Default(), limit) {
		t.Error("a new limit needs none")
	}
}
