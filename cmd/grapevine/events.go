package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/grapevine-llm/grapevine/agent/inspect"
	"github.com/grapevine-llm/grapevine/agent/zmqsub"
)

// eventsOptions are the flags of `grapevine events`.
type eventsOptions struct {
	connect, listen, replay, topic string
	file, chain, record            string
	summary, asJSON                bool
	duration                       time.Duration
}

// newEventsCommand is `grapevine events`: what an engine's KV-event stream says.
func newEventsCommand() *cobra.Command {
	var o eventsOptions
	cmd := &cobra.Command{
		Use:   "events (--connect ENDPOINT | --listen ENDPOINT | --file CAPTURE)",
		Short: "Show an engine's KV-cache events, what it holds, and which prefixes were cached when",
		Long: `Decodes the KV-cache events of a vLLM or SGLang engine, live or from a capture, one JSON object a line;
gaps, restarts and anomalies are named between them.

With --replay the engine is asked for what it published before; with --summary or --chain the command then
ends after the replay. Without it, it goes on until it is interrupted or --for is over.

--chain reads prompts as JSON lines and answers how many leading blocks of each were cached:
  {"id": "a", "token_ids": [1, 2, ...], "cache_salt": "...", "lora_name": "...", "at_seq": 7}
at_seq: after the first batch of that number. at_line: after that line of the capture, from 0. -1: before
everything. Neither: at the end.`,
		Example: `  grapevine events --connect tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:6557
  grapevine events --connect tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:6557 --summary
  grapevine events --file capture.jsonl.gz --chain prompts.jsonl`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.connect, "connect", "", "engine's event endpoint to dial, such as tcp://127.0.0.1:5557")
	f.StringVar(&o.listen, "listen", "", "endpoint to bind, for an engine whose own endpoint names a host (no *)")
	f.StringVar(&o.replay, "replay", "", "engine's replay endpoint (replay_endpoint), such as tcp://127.0.0.1:6557")
	f.StringVar(&o.topic, "topic", "", "keep only batches of exactly this topic")
	f.StringVar(&o.file, "file", "", "capture to read, plain or gzip")
	f.StringVar(&o.chain, "chain", "", "file of prompts to match, - for standard input; events are then not shown")
	f.StringVar(&o.record, "record", "", "write what is received to this file, gzip if it ends in .gz")
	f.BoolVar(&o.summary, "summary", false, "show what the engine holds at the end instead of events")
	f.BoolVar(&o.asJSON, "json", false, "write the summary as JSON")
	f.DurationVar(&o.duration, "for", 0, "stop after this long, such as 30s; 0: do not")
	return cmd
}

func (o *eventsOptions) run(cmd *cobra.Command) error {
	sources := 0
	for _, s := range []string{o.connect, o.listen, o.file} {
		if s != "" {
			sources++
		}
	}
	switch {
	case sources != 1:
		return usageError("give one of --connect, --listen and --file: where the events come from")
	case o.file != "" && (o.replay != "" || o.record != "" || o.duration != 0):
		return usageError("--replay, --record and --for are for a live engine, not for --file")
	case o.asJSON && !o.summary:
		return usageError("--json is for --summary: events and answers are JSON anyway")
	}
	list, err := o.readChains(cmd.InOrStdin())
	if err != nil {
		return err
	}
	chains := inspect.NewChains(list)

	out := json.NewEncoder(cmd.OutOrStdout())
	out.SetEscapeHTML(false)
	show := out.Encode
	if o.summary || o.chain != "" {
		show = nil
	}
	x := inspect.New(o.replay != "", show)
	if o.file != "" {
		err = o.readFile(x, chains)
	} else {
		err = o.watch(cmd.Context(), x, chains)
	}
	if err != nil {
		return err
	}
	if x.Summary().Messages == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "no batch was received: the engine sends only when blocks change; see that it runs with"+
			" enable_kv_cache_events, that the port is that of its rank, and use --listen if its endpoint has no *")
	}
	unanswered := 0
	if o.chain != "" {
		for _, a := range chains.End(x) {
			if a.Error != "" {
				unanswered++
			}
			if err := out.Encode(a); err != nil {
				return err
			}
		}
	}
	switch {
	case o.summary && o.asJSON:
		err = out.Encode(x.Summary())
	case o.summary:
		_, err = fmt.Fprint(cmd.OutOrStdout(), x.Summary())
	}
	if err == nil && unanswered > 0 {
		err = fmt.Errorf("%d of %d chains ask for a point that is not in the stream", unanswered, len(list))
	}
	return err
}

func (o *eventsOptions) readChains(stdin io.Reader) ([]inspect.Chain, error) {
	switch o.chain {
	case "":
		return nil, nil
	case "-":
		return inspect.ReadChains(stdin)
	}
	f, err := os.Open(o.chain)
	if err != nil {
		return nil, fmt.Errorf("open chains: %w", err)
	}
	defer f.Close()
	return inspect.ReadChains(f)
}

func (o *eventsOptions) readFile(x *inspect.Inspector, chains *inspect.Chains) error {
	f, err := os.Open(o.file)
	if err != nil {
		return fmt.Errorf("open capture: %w", err)
	}
	defer f.Close()
	return inspect.ReadCapture(f, time.Now(), x, inspect.CaptureOptions{
		Topic: o.topic,
		After: func(line int, seq uint64, applied bool) error {
			chains.After(x, line, seq, applied)
			return nil
		},
	})
}

func (o *eventsOptions) watch(ctx context.Context, x *inspect.Inspector, chains *inspect.Chains) (err error) {
	sub, err := zmqsub.New(zmqsub.Config{
		Endpoint: o.connect + o.listen, Listen: o.listen != "", Replay: o.replay, Topic: o.topic,
	})
	if err != nil {
		return usageError(err.Error())
	}
	if o.duration > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, o.duration)
		defer stop()
	}
	w := inspect.WatchOptions{
		UntilReplayed: o.replay != "" && (o.summary || o.chain != "") && o.duration == 0,
		After: func(seq uint64) error {
			chains.After(x, -1, seq, true)
			return nil
		},
	}
	if o.record != "" {
		f, err := os.Create(o.record)
		if err != nil {
			return fmt.Errorf("create recording: %w", err)
		}
		w.Record = inspect.NewRecorder(f, o.record)
		defer func() { err = errors.Join(err, w.Record.Close(), f.Close()) }()
	}
	return inspect.Watch(ctx, sub, x, w)
}
