package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/grapevine-llm/grapevine/test/demo"
)

// newDemoCommand is `grapevine demo`.
func newDemoCommand() *cobra.Command {
	cfg := demo.Config{Engines: 3, Speedup: 10, Scale: 1, Version: version}
	var once bool
	engines := demo.EnginesConfig{Sessions: 4, Turns: 4, PromptTokens: 2500, TurnTokens: 100, AnswerTokens: 16, Gap: 500 * time.Millisecond}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the main job: the same requests under round robin, least load and Grapevine",
		Long: `Starts three fleets of emulated H200 engines side by side (real processes, real KV events, real
gossip, real HTTP), sends all of them the same three workloads, and prints what became of them.
With --engines it sends a conversation workload to engines that are already there instead, under round robin
and then under Grapevine.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find own binary: %w", err)
			}
			cfg.Exe, cfg.Out = exe, cmd.OutOrStdout()
			if info, err := os.Stdout.Stat(); err == nil {
				cfg.Terminal = info.Mode()&os.ModeCharDevice != 0
			}
			if once {
				cfg.Keep = false
			}
			if cfg.Speedup <= 0 || cfg.Engines < 1 || cfg.Scale <= 0 || cfg.Scale > 1 {
				return usageError(fmt.Sprintf("--speedup %g, --fleet-size %d, --scale %g: give numbers above 0, --scale at most 1", cfg.Speedup, cfg.Engines, cfg.Scale))
			}
			for _, name := range cfg.Workloads {
				if !slices.Contains(demo.WorkloadNames(), name) {
					return usageError(fmt.Sprintf("--workloads %q: give one of %s", name, strings.Join(demo.WorkloadNames(), ", ")))
				}
			}
			if cfg.Fault != "" && !slices.Contains(demo.FaultNames(), cfg.Fault) {
				return usageError(fmt.Sprintf("--fault %q: give one of %s", cfg.Fault, strings.Join(demo.FaultNames(), ", ")))
			}
			if len(engines.URLs) > 0 {
				return demo.RunEngines(cmd.Context(), cfg, engines)
			}
			_, err = demo.Run(cmd.Context(), cfg)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.JSONFile, "json", "", "write the report to this file as well")
	f.BoolVar(&once, "once", false, "end after the table even with --keep")
	f.BoolVar(&cfg.Keep, "keep", false, "leave the fleets running to play with, until Ctrl-C")
	f.Float64Var(&cfg.Speedup, "speedup", cfg.Speedup, "divide every time constant of engines, gateways and load")
	f.IntVar(&cfg.Engines, "fleet-size", cfg.Engines, "emulated engines per fleet")
	f.StringSliceVar(&cfg.Workloads, "workloads", nil, "of multi-turn, agentic, documents (default all)")
	f.Float64Var(&cfg.Scale, "scale", cfg.Scale, "share of the requests to send, for a quick look")
	f.StringVar(&cfg.Fault, "fault", "", "in the middle of each workload, in Grapevine's fleet: restart the gateway, kill one agent or engine and start it 2 s later, or stop all agents for 2 s (gateway, agent, agents, engine)")
	f.StringSliceVar(&cfg.GatewayArgs, "gateway-arg", nil, "further flag for the Grapevine gateway, e.g. --gateway-arg=--speculating=false")
	f.StringSliceVar(&engines.URLs, "engines", nil, "engines that are already there, as base URLs")
	f.StringVar(&engines.Model, "model", "tiny", "with --engines: the model to ask for")
	f.StringVar(&engines.ModelDir, "model-dir", "", "with --engines: folder with the model's tokenizer.json")
	f.BoolVar(&engines.ResetCaches, "reset-caches", false, "with --engines: reset their prefix caches before each run")
	f.IntVar(&engines.Sessions, "sessions", engines.Sessions, "with --engines: conversations")
	f.IntVar(&engines.Turns, "turns", engines.Turns, "with --engines: turns of each")
	f.IntVar(&engines.PromptTokens, "prompt-tokens", engines.PromptTokens, "with --engines: tokens of the first turn")
	f.IntVar(&engines.TurnTokens, "turn-tokens", engines.TurnTokens, "with --engines: tokens that each later turn adds")
	f.IntVar(&engines.AnswerTokens, "answer-tokens", engines.AnswerTokens, "with --engines: tokens of each answer")
	f.DurationVar(&engines.Gap, "gap", engines.Gap, "with --engines: mean gap between two requests")
	return cmd
}
