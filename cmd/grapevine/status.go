package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/extproc"
	"github.com/grapevine-llm/grapevine/picker/pool"
	"github.com/grapevine-llm/grapevine/picker/prompt"
)

const defaultAdmin = "http://127.0.0.1:9090"

// gatewayFlag adds the flag that says which gateway to ask. The gateway calls the address its admin one: --admin is the same.
func gatewayFlag(f *pflag.FlagSet, gateway *string) {
	f.StringVar(gateway, "gateway", defaultAdmin, "base URL of the gateway's admin listener")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "admin" {
			name = "gateway"
		}
		return pflag.NormalizedName(name)
	})
}

// newStatusCommand is `grapevine status`: what a gateway knows of its endpoints.
func newStatusCommand() *cobra.Command {
	var gateway string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what a gateway knows of its endpoints",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			body, err := call(cmd.Context(), http.MethodGet, gateway, "/status", nil)
			if err != nil {
				return err
			}
			if asJSON {
				_, err = cmd.OutOrStdout().Write(body)
				return err
			}
			var s struct {
				Version string `json:"version"`
				picker.Status
				Pools   []pool.Status   `json:"pools"`
				Prompts prompt.Status   `json:"prompts"`
				Advice  *extproc.Advice `json:"advice"`
			}
			if err := json.Unmarshal(body, &s); err != nil {
				return fmt.Errorf("read the gateway's answer: %w", err)
			}
			if s.Version != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "gateway %s, seed fingerprint %08x\n", s.Version, s.SeedFingerprint)
			}
			writePools(cmd.OutOrStdout(), s.Pools)
			writeStatus(cmd.OutOrStdout(), &s.Status)
			if s.Advice != nil {
				writeAdvice(cmd.OutOrStdout(), s.Advice, s.Time)
			}
			for _, m := range s.Prompts.Models {
				if m.Problem != "" {
					fmt.Fprintf(cmd.OutOrStdout(), "prompts of %s: engines are asked (%s) instead of the model's files: %s\n", m.Name(), m.Rung, m.Problem)
				}
			}
			return nil
		},
	}
	gatewayFlag(cmd.Flags(), &gateway)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the gateway's own JSON")
	return cmd
}

func writeStatus(w io.Writer, s *picker.Status) {
	fmt.Fprintf(w, "pool %s: %d endpoints, %d with an agent that reports; models: %s\n", s.Pool, len(s.Endpoints), s.Reporting, orNone(strings.Join(s.Models, ", ")))
	fmt.Fprintf(w, "held: %d requests, %d uncached tokens; endpoints wanted: %d\n", s.Held.Requests, s.Held.UncachedTokens, s.Held.Wanted)
	if g := s.Gossip; g != nil && g.Hint.Gateways > 0 {
		h := &g.Hint
		fmt.Fprintf(w, "other gateways: %d; %d packets sent, %d received, %d lost; heard of %d requests\n", h.Gateways, h.Sent, h.Received, h.Lost, h.Bound)
	}
	if s.Frozen {
		fmt.Fprintln(w, "view frozen for a few seconds: many agents fell silent at once, or this gateway got no CPU for over 200 ms; ages are as of then")
	}
	if s.Draining {
		fmt.Fprintln(w, "draining")
	}
	if len(s.Endpoints) == 0 {
		fmt.Fprintln(w, "no endpoint: give the gateway --endpoints, name pools of Kubernetes that have ready pods, or let an agent join (its --gossip-join)")
		return
	}
	t := newTable(w)
	t.AppendHeader(table.Row{"endpoint", "engine", "known by", "digest age", "running", "waiting", "blocks used", "cached", "own requests", "others'", "trust", "problems"})
	for _, e := range s.Endpoints {
		age := "-"
		if e.DigestAgeMs >= 0 {
			age = fmt.Sprintf("%.0f ms", e.DigestAgeMs)
		}
		t.AppendRow(table.Row{e.ID, e.Engine, e.Rung, age, e.Running, e.Waiting, max(0, e.Blocks-e.FreeBlocks-e.CachedBlocks), e.CachedBlocks, e.Outstanding, e.Others, fmt.Sprintf("%.2f", e.Trust), problems(&e)})
	}
	t.Render()
}

// writePools says what Kubernetes tells, one line for each pool.
func writePools(w io.Writer, pools []pool.Status) {
	for _, p := range pools {
		fmt.Fprintf(w, "%s %s: ", p.Kind, p.Name)
		if p.Synced {
			fmt.Fprintf(w, "%d eligible endpoints, %d not ready, %d terminating", p.Endpoints, p.NotReady, p.Terminating)
		} else {
			fmt.Fprint(w, "not read yet")
		}
		if p.Error != "" {
			fmt.Fprintf(w, "; not heard of for %.0f s: %s", p.AgeSeconds, p.Error)
		}
		if p.Note != "" {
			fmt.Fprintf(w, "; %s", p.Note)
		}
		fmt.Fprintln(w)
	}
}

// problems says in words what is not as it should be.
func problems(e *picker.EndpointStatus) string {
	var out []string
	add := func(on bool, text string) {
		if on {
			out = append(out, text)
		}
	}
	add(e.Out, "not reachable")
	add(e.DigestAgeMs < 0 && e.Problem == "", "no agent")
	add(e.Stale, "agent silent")
	add(e.Partial, "picture partial")
	add(e.Suspect, "picture suspect")
	add(e.Verdict != "", e.Verdict)
	add(e.Problem != "", e.Problem)
	add(e.KVEvents != "" && e.KVEvents != "ok", "KV events "+e.KVEvents)
	return strings.Join(out, "; ")
}

func orNone(s string) string {
	if s == "" {
		return "none known"
	}
	return s
}

// newExplainCommand is `grapevine explain`: why a request went, or would go, where.
func newExplainCommand() *cobra.Command {
	var gateway, requestID, file, path string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "explain (--request-id ID | --file BODY.json)",
		Short: "Show why a request went to its endpoint, or where a request body would go",
		Example: `  grapevine explain --request-id 7f0c...        # the X-Request-Id of an answer
  grapevine explain --file body.json            # nothing is sent to an engine
  echo '{"model":"tiny","prompt":[1,2,3]}' | grapevine explain --file -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (requestID == "") == (file == "") {
				return usageError("give --request-id ID of a request that was answered, or --file with a request body")
			}
			body, err := explained(cmd, gateway, requestID, file, path)
			if err != nil {
				return err
			}
			if asJSON {
				_, err = cmd.OutOrStdout().Write(body)
				return err
			}
			var r picker.Receipt
			if err := json.Unmarshal(body, &r); err != nil {
				return fmt.Errorf("read the gateway's answer: %w", err)
			}
			writeReceipt(cmd.OutOrStdout(), &r)
			return nil
		},
	}
	f := cmd.Flags()
	gatewayFlag(f, &gateway)
	f.StringVar(&requestID, "request-id", "", "id of a request that this gateway has decided on (X-Request-Id)")
	f.StringVar(&file, "file", "", "file with an OpenAI request body, - for standard input")
	f.StringVar(&path, "path", "", pathUsage)
	f.BoolVar(&asJSON, "json", false, "print the gateway's own JSON")
	return cmd
}

func explained(cmd *cobra.Command, gateway, requestID, file, path string) ([]byte, error) {
	if requestID != "" {
		return call(cmd.Context(), http.MethodGet, gateway, "/receipts/"+url.PathEscape(requestID), nil)
	}
	body, path, err := readBody(cmd.InOrStdin(), file, path)
	if err != nil {
		return nil, err
	}
	return call(cmd.Context(), http.MethodPost, gateway, "/explain?path="+url.QueryEscape(path), body)
}

func writeReceipt(w io.Writer, r *picker.Receipt) {
	to := r.Endpoint
	if to == "" {
		to = "held until an endpoint is ready"
	}
	fmt.Fprintf(w, "request %s: %s\n", r.RequestID, to)
	fmt.Fprintf(w, "policy %s, bound %s after %.1f ms, known by %s, token ids by %s\n", r.Policy, r.Reason, r.HeldMs, r.Rung, orNone(r.PromptRung))
	fmt.Fprintf(w, "prompt %d tokens in %d blocks: %d blocks matched, %d tokens expected in the cache", r.PromptTokens, r.PromptBlocks, r.MatchedBlocks, r.PredictedCachedTokens)
	if r.Outcome != nil && r.Outcome.CachedTokens >= 0 {
		fmt.Fprintf(w, ", %d reported", r.Outcome.CachedTokens)
	}
	fmt.Fprintln(w)
	t := newTable(w)
	t.AppendHeader(table.Row{"", "candidate", "known by", "matched", "ready", "wait", "cost", "prefill", "for others", "displaced", "lower tier", "decode", "load"})
	for _, c := range r.Candidates {
		mark := ""
		if c.Endpoint == r.Endpoint {
			mark = "→"
		}
		t.AppendRow(table.Row{
			mark, c.Endpoint, c.Rung, c.MatchedBlocks, c.Ready, millis(c.WaitMs), millis(c.CostMs),
			millis(c.Prefill), millis(c.Spread), millis(c.Displacement), millis(c.LowerTier), millis(c.Interference), millis(c.Load),
		})
	}
	t.Render()
	if n := r.Considered - len(r.Candidates); n > 0 {
		fmt.Fprintf(w, "and %d costlier candidates\n", n)
	}
}

func millis(x float64) string { return fmt.Sprintf("%.1f ms", x) }

func newTable(w io.Writer) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	return t
}

// call asks a gateway's admin listener.
func call(ctx context.Context, method, gateway, path string, body []byte) ([]byte, error) {
	if !isURL(gateway) {
		return nil, usageError(fmt.Sprintf("--gateway %q: give the admin listener's URL, e.g. %s", gateway, defaultAdmin))
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(gateway, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, usageError(fmt.Sprintf("--gateway %q: %v: give the admin listener's URL, e.g. %s", gateway, err, defaultAdmin))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the gateway: %w: is it running, and is --gateway its --admin-listen address?", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read the gateway's answer: %w", err)
	}
	if resp.StatusCode == http.StatusNotFound && path == "/status" {
		return nil, fmt.Errorf("%s has no /status: give --gateway the gateway's --admin-listen address, not the one for clients", gateway)
	}
	if resp.StatusCode != http.StatusOK {
		if message := errorMessage(text); message != "" {
			return nil, fmt.Errorf("the gateway says: %s", message)
		}
		return nil, fmt.Errorf("the gateway answers with status %d", resp.StatusCode)
	}
	return text, nil
}
