package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/grapevine-llm/grapevine/cmd/internal/agentcmd"
)

// newAgentCommand is `grapevine agent`, the same program as cmd/agent.
func newAgentCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "agent [flags]",
		Short:              "Run an agent: tell the gateways what the engines beside it hold",
		DisableFlagParsing: true, // agentcmd reads flags, environment and file in one go
		RunE: func(cmd *cobra.Command, args []string) error {
			fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
			if code := agentcmd.Main(cmd.Context(), fs, args, version, cmd.OutOrStdout(), cmd.ErrOrStderr()); code != 0 {
				return exitStatus(code)
			}
			return nil
		},
	}
}
