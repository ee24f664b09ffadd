package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/grapevine-llm/grapevine/test/load"
	"github.com/grapevine-llm/grapevine/test/trace"
)

// newLoadCommand is `grapevine load`: an open-loop load generator for any OpenAI-compatible server.
func newLoadCommand() *cobra.Command {
	cfg := load.Config{Speedup: 1}
	work := load.Synthetic{Seed: 1}
	vocabulary := load.DefaultVocabulary()
	var form, arrivals, path, format string
	var maxPrompt int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "load --target URL --model NAME",
		Short: "Send open-loop load to an OpenAI-compatible server and report TTFT, latency and cached tokens",
		Example: `  grapevine load --target http://127.0.0.1:8080 --model tiny --rate 5 --requests 200 --prompt-tokens 4000 --shared-tokens 3500 --groups 10
  grapevine load --target http://127.0.0.1:8080 --model tiny --trace conversation.jsonl.gz --speedup 10`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Form = load.Form(form)
			work.Poisson = arrivals == "poisson"
			var reqs []load.Request
			switch {
			case cfg.Target == "" || cfg.Model == "":
				return usageError("--target and --model are needed: the server's base URL and a model that it serves")
			case !isURL(cfg.Target):
				return usageError(fmt.Sprintf("--target %q: give a base URL, e.g. http://127.0.0.1:8080", cfg.Target))
			case cfg.Speedup <= 0:
				return usageError(fmt.Sprintf("--speedup %g: give a number above 0", cfg.Speedup))
			case form != "ids" && form != "text" && form != "chat":
				return usageError(fmt.Sprintf("--form %q: give ids, text or chat", form))
			case arrivals != "poisson" && arrivals != "even":
				return usageError(fmt.Sprintf("--arrivals %q: give poisson or even", arrivals))
			}
			if err := vocabulary.Validate(); err != nil {
				return usageError(err.Error())
			}
			if path != "" {
				t, err := trace.Read(path, trace.Format(format), trace.Options{Limit: work.Count, MaxPrompt: maxPrompt, Seed: work.Seed})
				if err != nil {
					return err
				}
				reqs = load.FromTrace(t, vocabulary)
			} else if err := work.Validate(); err != nil {
				return usageError(err.Error())
			} else {
				reqs = work.Requests(vocabulary)
			}
			fmt.Fprintf(os.Stderr, "sending %d requests over %v\n", len(reqs), time.Duration(float64(reqs[len(reqs)-1].At)/cfg.Speedup).Round(time.Millisecond))
			results, err := load.Run(cmd.Context(), cfg, reqs)
			if err != nil {
				return err
			}
			rep := load.Summarize(results)
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				if err := enc.Encode(rep); err != nil {
					return err
				}
			} else {
				rep.WriteTable(cmd.OutOrStdout())
			}
			if rep.Errors == rep.Requests {
				return errors.New("every request failed")
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Target, "target", "", "base URL of the server")
	f.StringVar(&cfg.Model, "model", "", "model name to ask for")
	f.StringVar(&form, "form", "ids", "prompts as token ids, text or chat")
	f.IntVar(&work.Count, "requests", 100, "number of requests (with --trace: at most; 0 sends all)")
	f.Float64Var(&work.RatePerSec, "rate", 1, "requests a second")
	f.StringVar(&arrivals, "arrivals", "poisson", "poisson or even")
	f.StringVar(&path, "trace", "", "file with a request trace, plain, gzip or zstd")
	f.StringVar(&format, "trace-format", string(trace.Mooncake), "its form: grapevine, mooncake, cc or azure")
	f.IntVar(&maxPrompt, "max-prompt", 0, "with --trace: leave out longer prompts, and what follows in their sessions; in tokens, 0: none")
	f.Float64Var(&cfg.Speedup, "speedup", 1, "divide all times of the workload")
	f.IntVar(&work.PromptTokens, "prompt-tokens", 1024, "tokens of each prompt")
	f.IntVar(&work.SharedTokens, "shared-tokens", 512, "of these, common to a group")
	f.IntVar(&work.Groups, "groups", 10, "groups of requests with a common prefix")
	f.IntVar(&work.AnswerTokens, "output-tokens", 64, "tokens of each answer")
	f.Uint32Var(&vocabulary.First, "vocabulary-first", vocabulary.First, "smallest token id to use")
	f.Uint32Var(&vocabulary.Last, "vocabulary-last", vocabulary.Last, "token ids stay below this")
	f.Uint64Var(&work.Seed, "seed", work.Seed, "seed of arrivals and prompts")
	f.DurationVar(&cfg.Timeout, "timeout", 10*time.Minute, "of one request")
	f.BoolVar(&asJSON, "json", false, "print the report as JSON")
	return cmd
}

func isURL(s string) bool { return strings.HasPrefix(s, "http://") || strings.HasPrefix(s, "https://") }

// usageError is a fault in the command line: exit code 2.
type usageError string

func (e usageError) Error() string { return string(e) }
func (usageError) ExitCode() int   { return 2 }
