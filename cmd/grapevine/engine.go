package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/grapevine-llm/grapevine/test/engine"
	"github.com/grapevine-llm/grapevine/test/engine/pool"
)

// newEngineCommand is `grapevine engine`: an emulated vLLM for demos and tests.
func newEngineCommand() *cobra.Command {
	cfg := engine.Default()
	var loras []string
	var format, render string
	var noEvents bool
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Run an emulated vLLM: block pool, KV events and OpenAI surface, on a modelled H200 clock",
		Long: `Run an emulated vLLM. It keeps a true block pool with vLLM's own hashes and evictions, publishes KV
events over ZeroMQ and answers the OpenAI API with made-up words. Time is a model of Llama-3.1-70B
on one H200, --speedup times as fast: numbers from it are emulation, never measurements.

When it is ready it prints one JSON line with its addresses.`,
		Example: `  grapevine engine --listen 127.0.0.1:8000 --events 'tcp://*:5557' --replay 'tcp://*:5558'
  grapevine engine --listen 127.0.0.1:0 --events 'tcp://127.0.0.1:0' --replay 'tcp://127.0.0.1:0' --speedup 10`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var faults []error
			switch format {
			case "map":
			case "array":
				cfg.Events.Form.ArrayEvents = true
			default:
				faults = append(faults, fmt.Errorf("--event-format %q: give map (vLLM 0.24 and later) or array", format))
			}
			switch render {
			case "open":
			case "closed":
				cfg.RenderClosed = true
			default:
				faults = append(faults, fmt.Errorf("--render %q: give open or closed", render))
			}
			for _, l := range loras {
				name, path, ok := strings.Cut(l, "=")
				if !ok {
					faults = append(faults, fmt.Errorf("--lora %q: give NAME=PATH", l))
					continue
				}
				cfg.Adapters = append(cfg.Adapters, pool.Adapter{Name: name, Path: path})
			}
			if noEvents {
				cfg.Events.Endpoint, cfg.Events.ReplayEndpoint = "", ""
			}
			cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
			var err error
			if cfg.Tokenizer, err = engine.Tiny(); err != nil {
				return err
			}
			if err := errors.Join(append(faults, cfg.Validate())...); err != nil {
				return usageError(err.Error())
			}
			e, err := engine.New(cfg)
			if err != nil {
				return err
			}
			if err := announce(cmd, e, cfg); err != nil {
				e.Close()
				return err
			}
			return e.Run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Listen, "listen", cfg.Listen, "address of the HTTP server; port 0 picks one")
	f.StringVar(&cfg.Model, "model", cfg.Model, "served model name (the tokenizer is always the tiny model's)")
	f.Float64Var(&cfg.Speedup, "speedup", cfg.Speedup, "emulated seconds in a real second")
	f.IntVar(&cfg.BlockSize, "block-size", cfg.BlockSize, "tokens a block")
	f.IntVar(&cfg.KVTokens, "kv-tokens", cfg.KVTokens, "KV memory in tokens")
	f.IntVar(&cfg.MaxModelLen, "max-model-len", cfg.MaxModelLen, "longest prompt and output in tokens; 0: 131072 or what fits")
	f.IntVar(&cfg.MaxNumSeqs, "max-num-seqs", cfg.MaxNumSeqs, "requests running at once")
	f.StringVar(&cfg.Events.Endpoint, "events", cfg.Events.Endpoint, "ZeroMQ endpoint of the KV events (bound if it has * or ::, or port 0)")
	f.StringVar(&cfg.Events.ReplayEndpoint, "replay", cfg.Events.ReplayEndpoint, "ZeroMQ endpoint of the replay; empty: none")
	f.BoolVar(&noEvents, "no-events", false, "publish no KV events")
	f.StringVar(&cfg.Events.Topic, "topic", cfg.Events.Topic, "topic of the KV events")
	f.IntVar(&cfg.Events.BufferSteps, "buffer-steps", cfg.Events.BufferSteps, "batches kept for replay; 0: vLLM's 10000")
	f.StringVar(&format, "event-format", "map", "map or array (vLLM up to 0.23)")
	f.BoolVar(&cfg.Events.Form.BytesHashes, "bytes-hashes", false, "block hashes as 32 bytes, not as integers")
	f.BoolVar(&cfg.BareExtras, "bare-extras", false, "hash adapter and salt without labels (vLLM up to 0.30)")
	f.IntVar(&cfg.StreamInterval, "stream-interval", cfg.StreamInterval, "tokens in a stream's event; 0: so that events are 20 ms apart")
	f.StringVar(&cfg.Seed, "seed", cfg.Seed, "PYTHONHASHSEED, the start of every hash chain; empty: unset")
	f.IntVar(&cfg.Ranks, "data-parallel-size", cfg.Ranks, "data-parallel ranks, each with a pool and a publisher on port + rank")
	f.StringArrayVar(&loras, "lora", nil, "LoRA adapter as NAME=PATH; may be repeated")
	f.StringVar(&render, "render", "open", "render endpoints: open, or closed (403) as vLLM has them by default from 0.30 on")
	return cmd
}

// announce prints the addresses in use.
func announce(cmd *cobra.Command, e *engine.Engine, cfg engine.Config) error {
	type rank struct {
		Events string `json:"events,omitempty"`
		Replay string `json:"replay,omitempty"`
	}
	line := struct {
		URL   string `json:"url"`
		Model string `json:"model"`
		Ranks []rank `json:"ranks"`
	}{URL: "http://" + e.Addr(), Model: cfg.Model}
	for i := range cfg.Ranks {
		events, replay := e.Endpoints(i)
		line.Ranks = append(line.Ranks, rank{events, replay})
	}
	return json.NewEncoder(cmd.OutOrStdout()).Encode(line)
}
