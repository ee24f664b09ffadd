package main

import (
	"github.com/spf13/cobra"

	"github.com/grapevine-llm/grapevine/cmd/internal/gatewaycmd"
)

// newGatewayCommand is `grapevine gateway`, the same program as cmd/gateway.
func newGatewayCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "gateway [flags]",
		Short:              "Run a gateway: an OpenAI-compatible reverse proxy that picks by prefix cache",
		DisableFlagParsing: true, // gatewaycmd reads flags, environment and file in one go
		RunE: func(cmd *cobra.Command, args []string) error {
			if code := gatewaycmd.Main(cmd.Context(), args, version, cmd.OutOrStdout(), cmd.ErrOrStderr()); code != 0 {
				return exitStatus(code)
			}
			return nil
		},
	}
}

// exitStatus ends the program with a code after its message has been printed.
type exitStatus int

func (e exitStatus) Error() string { return "" }
func (e exitStatus) ExitCode() int { return int(e) }
