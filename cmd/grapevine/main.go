// Command grapevine is the person's tool: it runs the demo, an emulated engine, a load
// generator, an agent or a gateway, shows what an engine's event stream says and what a request
// becomes, plays traces in a simulator, and asks a running gateway for its status, for the reasons of a decision
// or for a recording of its traffic, and finds out what is wrong with a fleet.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker (-X main.version=...).
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot()
	if err := root.ExecuteContext(ctx); err != nil {
		if errors.Is(err, context.Canceled) {
			os.Exit(130)
		}
		if msg := err.Error(); msg != "" { // else it has been said
			fmt.Fprintln(os.Stderr, "grapevine:", msg)
		}
		os.Exit(exitCode(err))
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "grapevine",
		Short:         "Prefix-cache-aware routing for vLLM fleets with no central index",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError(fmt.Sprintf("%v; see %s --help", err, cmd.CommandPath()))
	})
	root.AddCommand(
		newAgentCommand(),
		newGatewayCommand(),
		newEngineCommand(),
		newEventsCommand(),
		newLoadCommand(), newSimCommand(),
		newTraceCommand(),
		newDemoCommand(),
		newStatusCommand(),
		newExplainCommand(),
		newDoctorCommand(),
		newTokenizeCommand(),
		newChainCommand(),
		newInjectCommand(),
	)
	return root
}

// about is what --help says of a command whose flags config reads.
func about(cmd *cobra.Command) string {
	text := cmp.Or(cmd.Long, cmd.Short)
	if cmd.Example != "" {
		text += "\n\nExamples:\n" + cmd.Example
	}
	return text
}

// noArgs is cobra.NoArgs with the exit code of a usage error.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError(fmt.Sprintf("unknown command or argument %q; see %s --help", args[0], cmd.CommandPath()))
	}
	return nil
}

// exitCode is 2 for faults in flags or configuration, 1 for everything else.
func exitCode(err error) int {
	var c interface{ ExitCode() int }
	if errors.As(err, &c) {
		return c.ExitCode()
	}
	return 1
}
