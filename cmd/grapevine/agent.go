package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/grapevine-llm/grapevine/agent"
	"github.com/grapevine-llm/grapevine/cmd/internal/config"
)

// newAgentCommand is `grapevine agent`, the same program as cmd/agent.
func newAgentCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "agent [flags]",
		Short:              "Run an agent: tell the gateways what the engines beside it hold",
		DisableFlagParsing: true, // config reads flags, environment and file in one go
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg := agent.Default()
			fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
			if run, code := config.Start(fs, args, &cfg, version, cmd.OutOrStdout(), cmd.ErrOrStderr()); !run {
				if code == 0 {
					return nil
				}
				return exitStatus(code)
			}
			cfg.Logger, cfg.Version = cfg.NewLogger(cmd.ErrOrStderr()), version
			a, err := agent.New(cfg)
			if err != nil {
				return fmt.Errorf("agent: %w", err)
			}
			return a.Run(cmd.Context())
		},
	}
}
