package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/spf13/cobra"

	"github.com/grapevine-llm/grapevine/picker/recording"
)

// traceOptions are the flags of `grapevine trace`.
type traceOptions struct {
	gateway, out string
	duration     time.Duration
	requests     int
	asJSON       bool
}

// newTraceCommand is `grapevine trace`: a gateway's traffic as a trace for the simulator.
func newTraceCommand() *cobra.Command {
	var o traceOptions
	cmd := &cobra.Command{
		Use:   "trace [--gateway URL] [--for 10m] [-o FILE]",
		Short: "Record what a gateway serves as a request trace, without its text, for grapevine sim",
		Long: `Records each request that a gateway serves from now on: when it came, how long its prompt and answer were, which blocks of
its prompt are the same as other requests', and its session. One JSON object a line, in the form that
grapevine sim --format grapevine plays.

There is no text in it, no token id, no model, user or key: blocks and sessions are numbers made by the gateway under a random
key that is this recording's alone and is never written anywhere. Equal numbers say that two prompts begin alike; nobody can
test whether a certain prompt is in a recording, or compare two recordings. Lengths and times are as they were. A gateway that
watches another router (--ext-proc-advise) adds who served, as host:port, and how many tokens its engine found in its cache.

With --for, requests that come in that time are recorded, however late they end (up to five minutes); interrupt it and what is in
progress is missing. Requests that were refused or that failed are counted, not recorded. Of several gateways record each on
its own: their numbers don't fit together.`,
		Example: `  grapevine trace --for 10m -o today.jsonl.zst
  grapevine trace --gateway http://10.0.0.7:9090 --requests 5000 -o today.jsonl.gz --json
  grapevine sim --trace today.jsonl.zst --format grapevine --block-tokens 16 --pods 8`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	gatewayFlag(f, &o.gateway)
	f.DurationVar(&o.duration, "for", 0, "record the requests that come in this time; 0: until interrupted")
	f.IntVar(&o.requests, "requests", 0, "stop when so many requests have ended; 0: no limit")
	f.StringVarP(&o.out, "output", "o", "-", "file to write, compressed if it ends in .gz or .zst; - for standard output")
	f.BoolVar(&o.asJSON, "json", false, "print the summary as JSON on standard output")
	return cmd
}

// traceSummary is what `grapevine trace --json` prints.
type traceSummary struct {
	File             string  `json:"file"`
	Seconds          float64 `json:"seconds"`
	Requests         int     `json:"requests"` // in the file
	PromptTokens     int     `json:"prompt_tokens"`
	OutputTokens     int     `json:"output_tokens"`
	BlockTokens      int     `json:"block_tokens"`
	UnknownPrompts   int     `json:"unknown_prompts"`   // in the file without blocks
	EstimatedOutputs int     `json:"estimated_outputs"` // the engine did not say how long, or was not let end
	Lost             int     `json:"lost"`              // this tool was too slow to take them
	Unserved         int     `json:"unserved"`          // refused, failed or given up: not in the file
	InProgress       int     `json:"in_progress"`       // at the end: not in the file
}

func (o *traceOptions) run(cmd *cobra.Command) error {
	switch {
	case !isURL(o.gateway):
		return usageError(fmt.Sprintf("--gateway %q: give the admin listener's URL, e.g. %s", o.gateway, defaultAdmin))
	case o.duration < 0 || o.requests < 0:
		return usageError(fmt.Sprintf("--for %v, --requests %d: give 0 or more", o.duration, o.requests))
	case o.out == "":
		return usageError("--output is empty: give a file, or - for standard output")
	case o.asJSON && o.out == "-":
		return usageError("--json and the trace both go to standard output: give the trace a file with -o")
	}
	file := &traceFile{path: o.out, stdout: cmd.OutOrStdout()}
	if err := file.try(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(cmd.Context())
	defer cancel(nil)
	body, err := o.connect(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	if o.duration > 0 {
		defer time.AfterFunc(o.duration+lastAnswers, func() { cancel(nil) }).Stop()
	}
	t := &traceTaker{o: o, file: file, progress: newStatusLine(cmd.ErrOrStderr())}
	t.sum.File = o.out
	begun := time.Now()
	watch := time.AfterFunc(gatewaySilence, func() { cancel(errSilent) })
	defer watch.Stop()
	err = t.take(body, func() { watch.Reset(gatewaySilence) })
	if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
		err = errSilent
	} else if ctx.Err() != nil { // time is over, or the user has enough
		err = nil
	}
	t.progress.end()
	t.sum.Seconds = math.Round(time.Since(begun).Seconds()*10) / 10
	if lost := t.file.Close(); lost != nil { // of what was compressed, nobody knows how much
		return errors.Join(err, lost)
	}
	if t.sum.Requests > 0 {
		err = errors.Join(err, t.report(cmd))
	}
	if err != nil {
		return err
	}
	return t.sum.judge()
}

// lastAnswers is how long requests that came in the time of --for may take to end beyond it.
const lastAnswers = 5 * time.Minute

// gatewaySilence is how long a gateway that says something four times a second may say nothing.
const gatewaySilence = 15 * time.Second

var (
	errSilent = fmt.Errorf("the gateway has said nothing for %v: the recording ends here", gatewaySilence)
	errEnough = errors.New("as many as asked for")
)

// connect starts the recording.
func (o *traceOptions) connect(ctx context.Context) (io.ReadCloser, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = gatewaySilence
	transport.DisableKeepAlives = true
	path := "/trace"
	if o.duration > 0 {
		path += "?for=" + o.duration.String()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(o.gateway, "/")+path, nil)
	if err != nil {
		return nil, usageError(fmt.Sprintf("--gateway %q: %v: give the admin listener's URL, e.g. %s", o.gateway, err, defaultAdmin))
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("ask the gateway for a recording: %w: is it running, and is --gateway its --admin-listen address?", err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return nil, fmt.Errorf("%s has no /trace: give --gateway the gateway's --admin-listen address, not the one for clients", o.gateway)
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if message := errorMessage(text); message != "" {
		return nil, fmt.Errorf("the gateway says: %s", message)
	}
	return nil, fmt.Errorf("the gateway answers with status %d", resp.StatusCode)
}

// traceTaker takes a recording in.
type traceTaker struct {
	o        *traceOptions
	file     *traceFile
	progress *statusLine
	sum      traceSummary
	warned   bool
}

// maxTraceLine is more than a gateway keeps for a reader. Memory is taken as lines need it.
const maxTraceLine = 32 << 20

// statusPrefix begins the lines in which a gateway speaks of the recording.
const statusPrefix = `{"recording":`

// take reads lines until there are no more; a part of a line at the end is dropped. heard is called with each line.
func (t *traceTaker) take(r io.Reader, heard func()) error {
	in := bufio.NewReaderSize(r, maxTraceLine)
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Errorf("the gateway sent what is no line of a trace: %.100q and %d MiB more", line, maxTraceLine>>20)
		}
		if err != nil {
			if err == io.EOF && len(line) == 0 && t.o.duration > 0 { // all that came in time is there
				return nil
			}
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = errors.New("the gateway ended the recording: it went down, or this tool was too slow")
			}
			return err
		}
		heard()
		if bytes.HasPrefix(line, []byte(statusPrefix)) {
			err = t.status(line)
		} else {
			err = t.request(line)
		}
		if errors.Is(err, errEnough) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (t *traceTaker) status(line []byte) error {
	var said struct{ Recording recording.Status }
	if err := json.Unmarshal(line, &said); err != nil {
		return fmt.Errorf("read the gateway's status: %w", err)
	}
	s, sum := said.Recording, &t.sum
	sum.BlockTokens, sum.Lost, sum.Unserved, sum.InProgress = s.BlockTokens, s.Lost, s.Unserved, s.InProgress
	if !t.warned && sum.Requests >= 20 && sum.UnknownPrompts == sum.Requests {
		t.warned = true
		t.progress.say("warning: none of the prompts so far is known to the gateway; " + promptRemedy)
	}
	t.progress.show(fmt.Sprintf("%v: %d requests (%.1f/s), %d in progress, %d lost",
		spanOf(s.Seconds), sum.Requests, float64(sum.Requests)/max(s.Seconds, 1), sum.InProgress, sum.Lost))
	return nil
}

func (t *traceTaker) request(line []byte) error {
	var r struct {
		InputLength     int      `json:"input_length"`
		OutputLength    int      `json:"output_length"`
		HashIDs         []uint64 `json:"hash_ids"`
		BlockTokens     int      `json:"block_tokens"`
		OutputEstimated bool     `json:"output_estimated"`
	}
	if err := json.Unmarshal(line, &r); err != nil || r.InputLength < 1 {
		return fmt.Errorf("the gateway sent what is no line of a trace: %.100q", line)
	}
	if _, err := t.file.Write(line); err != nil {
		return err
	}
	sum := &t.sum
	sum.Requests++
	sum.PromptTokens += r.InputLength
	sum.OutputTokens += r.OutputLength
	if len(r.HashIDs) == 0 && r.InputLength >= r.BlockTokens {
		sum.UnknownPrompts++
	}
	if r.OutputEstimated {
		sum.EstimatedOutputs++
	}
	if sum.Requests == t.o.requests {
		return errEnough
	}
	return nil
}

// promptRemedy says how a gateway comes to know prompts.
const promptRemedy = "give it the model's files (grapevine gateway --model NAME=FOLDER) or engines with a render or tokenize endpoint; " +
	"grapevine status and docs/prompts.md say why"

// judge says what makes a recording useless.
func (s *traceSummary) judge() error {
	switch {
	case s.Requests == 0 && s.Lost > 0:
		return fmt.Errorf("all of %d requests were lost: this tool is too slow for the gateway", s.Lost)
	case s.Requests == 0 && s.Unserved > 0:
		return fmt.Errorf("nothing recorded: %d requests came, but none was served; grapevine status shows the endpoints", s.Unserved)
	case s.Requests == 0:
		return errors.New("nothing recorded: no request came and ended while the recording ran; is this the gateway that gets the traffic?")
	case s.UnknownPrompts == s.Requests:
		return fmt.Errorf("the trace has times and lengths only, so a simulation finds nothing shared: none of the %d prompts is known to the gateway; %s", s.Requests, promptRemedy)
	}
	return nil
}

func (t *traceTaker) report(cmd *cobra.Command) error {
	s := &t.sum
	if t.o.asJSON {
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(s)
	}
	w := cmd.ErrOrStderr()
	to := s.File
	if to == "-" {
		to = "standard output"
	}
	fmt.Fprintf(w, "recorded %d requests in %v to %s: %d prompt tokens, %d output tokens, blocks of %d tokens, %d lost\n",
		s.Requests, spanOf(s.Seconds), to, s.PromptTokens, s.OutputTokens, s.BlockTokens, s.Lost)
	for _, remark := range []struct {
		n    int
		text string
	}{
		{s.UnknownPrompts, "prompts are not known to the gateway: the trace has their lengths, not their blocks"},
		{s.EstimatedOutputs, "answers did not say how long they were: estimated, and marked output_estimated"},
		{s.Unserved, "requests were refused, failed or given up: not in the trace"},
		{s.InProgress, "requests were in progress at the end: not in the trace"},
		{s.Lost, "requests were lost: this tool, its disk or the network was too slow"},
	} {
		if remark.n > 0 {
			fmt.Fprintf(w, "%d %s\n", remark.n, remark.text)
		}
	}
	if s.File != "-" && s.UnknownPrompts < s.Requests {
		fmt.Fprintf(w, "play it: grapevine sim --trace %s --format grapevine --block-tokens %d\n", s.File, s.BlockTokens)
	}
	return nil
}

func spanOf(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(100 * time.Millisecond)
}

// traceFile is the trace's file, made with the first line. What was written is whole after Close.
type traceFile struct {
	path   string
	stdout io.Writer
	w      io.Writer   // nil: nothing was written
	close  []io.Closer // inner ones first
	plain  *os.File    // what is written goes there as it is; nil: it does not
	lines  int64       // bytes of the lines in it
}

// try finds out whether the file can be written, before hours of waiting for a first line. One that is there stays as it is.
func (f *traceFile) try() error {
	if f.path == "-" {
		return nil
	}
	if info, err := os.Stat(f.path); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return nil // a pipe waits for its reader
	}
	_, there := os.Lstat(f.path) // a link whose file is not there stays, too
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return fmt.Errorf("write the trace: %w", err)
	}
	_ = file.Close()
	if errors.Is(there, fs.ErrNotExist) {
		_ = os.Remove(f.path)
	}
	return nil
}

func (f *traceFile) Write(b []byte) (int, error) {
	if f.w == nil {
		if err := f.open(); err != nil {
			return 0, err
		}
	}
	n, err := f.w.Write(b)
	if err == nil {
		f.lines += int64(n)
		return n, nil
	}
	if f.plain != nil { // a disk that is full takes a part of a line
		_ = f.plain.Truncate(f.lines)
	}
	return n, fmt.Errorf("write the trace: %w", err)
}

func (f *traceFile) open() error {
	if f.path == "-" {
		f.w = f.stdout
		return nil
	}
	file, err := os.Create(f.path)
	if err != nil {
		return fmt.Errorf("write the trace: %w", err)
	}
	f.w, f.close = file, []io.Closer{file}
	var packer io.WriteCloser
	switch {
	case strings.HasSuffix(f.path, ".gz"):
		packer = gzip.NewWriter(file)
	case strings.HasSuffix(f.path, ".zst"):
		if packer, err = zstd.NewWriter(file, zstd.WithEncoderConcurrency(1)); err != nil {
			return errors.Join(fmt.Errorf("write the trace: %w", err), file.Close())
		}
	default:
		f.plain = file
		return nil
	}
	f.w, f.close = packer, append([]io.Closer{packer}, f.close...)
	return nil
}

func (f *traceFile) Close() error {
	var errs []error
	for _, c := range f.close {
		if err := c.Close(); err != nil {
			errs = append(errs, fmt.Errorf("write the trace: %w", err))
		}
	}
	return errors.Join(errs...)
}

// statusLine shows how far long work is: on a terminal in one line that is written over, else a line now and then.
type statusLine struct {
	w        io.Writer
	terminal bool
	shown    time.Time
	width    int // of what stands in the line
}

const progressEvery = 30 * time.Second // where it is no terminal

func newStatusLine(w io.Writer) *statusLine {
	p := &statusLine{w: w, shown: time.Now()}
	if f, ok := w.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

func (p *statusLine) show(text string) {
	switch {
	case p.terminal:
		fmt.Fprintf(p.w, "\r%-*s", p.width, text)
		p.width = len(text)
	case time.Since(p.shown) >= progressEvery:
		fmt.Fprintln(p.w, text)
		p.shown = time.Now()
	}
}

// say prints a line that stays.
func (p *statusLine) say(text string) {
	p.end()
	fmt.Fprintln(p.w, text)
}

// end leaves the line.
func (p *statusLine) end() {
	if p.width > 0 {
		fmt.Fprintln(p.w)
	}
	p.width = 0
}
