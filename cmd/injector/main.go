// Command injector is a mutating webhook for Kubernetes: it puts the agent into model
// pods of labelled namespaces. It never denies a pod.
//
//	injector --agent-image registry.example/grapevine-agent:v1 --gossip-join grapevine-gossip.grapevine.svc
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/grapevine-llm/grapevine/cmd/internal/config"
	"github.com/grapevine-llm/grapevine/deploy/inject/webhook"
)

// version is set by the linker (-X main.version=...).
var version = "dev"

const about = `A mutating webhook for Kubernetes: it puts the agent into model pods of labelled namespaces, and never denies a pod.
The chart in deploy/chart installs it; grapevine inject shows without a cluster what it would do.

Examples:
  injector --agent-image REGISTRY/agent:TAG --gossip-join grapevine-gossip.grapevine.svc`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// run returns the exit code: 2 for faults in flags or configuration, 1 for
// everything else.
func run(ctx context.Context, args []string) int {
	cfg := webhook.Default()
	fs := pflag.NewFlagSet("injector", pflag.ContinueOnError)
	if ok, code := config.Start(fs, about, args, &cfg, version, os.Stdout, os.Stderr); !ok {
		return code
	}
	cfg.Logger, cfg.Version = cfg.NewLogger(os.Stderr), version
	client, err := cfg.Connect()
	if err == nil {
		var s *webhook.Server
		if s, err = webhook.New(cfg, client); err == nil {
			err = s.Run(ctx)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "injector:", err)
		return 1
	}
	return 0
}
