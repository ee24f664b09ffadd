// Package agentcmd is the agent as a program. cmd/agent and `grapevine agent` both run it.
package agentcmd

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/grapevine-llm/grapevine/agent"
	"github.com/grapevine-llm/grapevine/cmd/internal/config"
)

const about = `Follows the KV-cache events of engines and tells the gateways by gossip what each engine holds. It runs beside one engine, or
wherever the HTTP and event ports of several can be reached.

Examples:
  agent --engine http://127.0.0.1:8000 --gossip-join gateways.default.svc --state-dir /var/lib/grapevine
  agent --engine http://10.0.0.5:8000,http://10.0.0.6:8000 --gossip-join 10.0.0.1`

// Main resolves the configuration from args and runs the agent. fs names the program, and may have flags of the caller's. It
// returns the exit code: 2 for faults in flags or configuration, 1 for everything else.
func Main(ctx context.Context, fs *pflag.FlagSet, args []string, version string, stdout, stderr io.Writer) int {
	cfg := agent.Default()
	if run, code := config.Start(fs, about, args, &cfg, version, stdout, stderr); !run {
		return code
	}
	cfg.Logger, cfg.Version = cfg.NewLogger(stderr), version
	a, err := agent.New(cfg)
	if err == nil {
		err = a.Run(ctx)
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", fs.Name(), err)
		return 1
	}
	return 0
}
