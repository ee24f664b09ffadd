// Command agent is the sidecar of a model pod: it follows the KV-cache events of the
// pod's engines and tells the gateways by gossip what each engine holds.
//
//	agent --engine http://127.0.0.1:8000 --pool llama --gossip-join gateways.default.svc
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/grapevine-llm/grapevine/cmd/internal/agentcmd"
)

// version is set by the linker (-X main.version=...).
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// run returns the exit code: 2 for faults in flags or configuration, 1 for
// everything else.
func run(ctx context.Context, args []string) int {
	asks := func(arg string) bool {
		return slices.Contains([]string{"--version", "--print-config", "--help", "-h"}, arg)
	}
	if rest, on := supervised(args); on && !slices.ContainsFunc(args, asks) {
		self, err := os.Executable()
		if err != nil {
			fmt.Fprintln(os.Stderr, "agent:", err)
			return 1
		}
		return supervisor{program: self, args: rest, pause: firstPause, patience: lastWords, stderr: os.Stderr}.run(ctx)
	}
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	fs.Bool(superviseFlag, false, "start the agent again whenever it ends, so that its container goes on: a sidecar that ends makes its pod not ready")
	return agentcmd.Main(ctx, fs, args, version, os.Stdout, os.Stderr)
}
