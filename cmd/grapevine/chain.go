package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt"
	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer"
)

// chainOptions are the flags of `grapevine chain`.
type chainOptions struct {
	model, file, path, seedFile, compare string
	blockSize                            int
	adapter, asJSON                      bool
}

// newChainCommand is `grapevine chain`: from a request body to the blocks that a gateway looks for.
func newChainCommand() *cobra.Command {
	var o chainOptions
	cmd := &cobra.Command{
		Use:   "chain --model DIR",
		Short: "Show what a request becomes: prompt, token ids, segments and block hashes; compare them with an engine",
		Long: `Reads the body of an OpenAI request and shows what a gateway makes of it with the model's files: the text of
the prompt, its token ids, the segments between special tokens, and the hash of each block.

--compare asks a live engine for its own ids, at its render endpoint and at /tokenize, and shows the first
difference; the exit code is then 1. vLLM opens its render endpoints with --enable-scale-out (0.30 and later).`,
		Example: `  grapevine chain --model models/qwen3 --file body.json
  echo '{"model":"tiny","prompt":"Hello"}' | grapevine chain --model models/tiny --block-size 32 --json
  grapevine chain --model models/qwen3 --file body.json --compare http://10.0.0.5:8000`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.model, "model", "", "folder with the model's tokenizer.json and chat template")
	f.StringVar(&o.file, "file", "-", "file with the request body, - for standard input")
	f.StringVar(&o.path, "path", "", pathUsage)
	f.IntVar(&o.blockSize, "block-size", 16, "tokens of a KV block")
	f.StringVar(&o.seedFile, "seed-file", "", "file with the pool's secret seed of block hashes; empty: the common default")
	f.BoolVar(&o.adapter, "adapter", false, "the body's model is a LoRA adapter: its name marks the chain")
	f.StringVar(&o.compare, "compare", "", "base URL of an engine whose ids to compare with")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	return cmd
}

// chainReport is what the command says.
type chainReport struct {
	Path      string    `json:"path"`
	Rung      string    `json:"rung"`              // ids: the body holds them; own: made here
	Partial   bool      `json:"partial,omitempty"` // the ids end before the prompt does
	Text      string    `json:"text"`              // of the prompt, as its tokens spell it
	Tokens    int       `json:"tokens"`
	IDs       []uint32  `json:"ids"`
	Segments  []segment `json:"segments"`
	BlockSize int       `json:"block_size"`
	Root      string    `json:"root,omitempty"` // of chains with an adapter or a salt
	Blocks    []string  `json:"blocks"`         // hashes
	Compared  []verdict `json:"compared,omitempty"`
	Notes     []string  `json:"notes,omitempty"`
	file      *tokenizer.Tokenizer
}

// segment is the run of tokens before a special token, which ends it; the last one may end without.
type segment struct {
	From    int    `json:"from"` // position of its first token
	Tokens  int    `json:"tokens"`
	Special string `json:"special,omitempty"`
	Text    string `json:"text"`
}

func (o *chainOptions) run(cmd *cobra.Command) error {
	switch {
	case o.blockSize < 1:
		return usageError(fmt.Sprintf("--block-size %d: give a number above 0, such as the engine's --block-size", o.blockSize))
	case o.compare != "" && !isURL(o.compare):
		return usageError(fmt.Sprintf("--compare %q: give the engine's base URL, e.g. http://127.0.0.1:8000", o.compare))
	}
	tok, err := readTokenizer(o.model)
	if err != nil {
		return err
	}
	seed, err := o.seed()
	if err != nil {
		return err
	}
	body, path, err := readBody(cmd.InOrStdin(), o.file, o.path)
	if err != nil {
		return err
	}
	req, err := openai.Parse(path, body)
	if err != nil {
		return fmt.Errorf("read %s request: %w", path, err)
	}
	rep := chainReport{Path: path, BlockSize: o.blockSize, file: tok}
	if err := o.resolve(cmd, req, blockhash.NewHasher(seed), &rep); err != nil {
		return err
	}
	if o.compare != "" {
		e := comparer{client: http.DefaultClient, url: strings.TrimSuffix(o.compare, "/"), tok: tok, partial: rep.Partial}
		if rep.Compared, err = e.compare(cmd.Context(), req, rep.IDs); err != nil {
			return err
		}
	}
	if o.asJSON {
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		err = enc.Encode(&rep)
	} else {
		err = rep.write(cmd.OutOrStdout())
	}
	if err != nil {
		return err
	}
	return outcome(rep.Compared)
}

// resolve fills in the ids and what follows from them.
func (o *chainOptions) resolve(cmd *cobra.Command, req *openai.Request, hasher blockhash.Hasher, rep *chainReport) error {
	res, err := prompt.New(prompt.Config{
		Models:    map[string]string{req.Model: o.model},
		IsAdapter: func(string) bool { return o.adapter },
	})
	if err != nil {
		return err
	}
	got, err := res.Resolve(cmd.Context(), req, "")
	if err != nil {
		return err
	}
	if got.TokenIDs == nil {
		return fmt.Errorf("the prompt cannot be made from the model's files: %s: a gateway asks an engine for it, "+
			"best at its render endpoints (vLLM: --enable-scale-out)", strings.TrimSuffix(got.Reason, "; no engine to ask"))
	}
	if n := len(req.Prompts); n > 1 {
		rep.Notes = append(rep.Notes, fmt.Sprintf("the longest of %d prompts, which decides", n))
	}
	if req.PromptLogprobs {
		rep.Notes = append(rep.Notes, "asks for logprobs of the prompt: the engine does not read its cache for it")
	}
	if rep.Partial = got.Partial; got.Partial {
		rep.Notes = append(rep.Notes, strings.TrimPrefix(got.Reason, "own: "))
	}
	rep.Rung, rep.IDs, rep.Tokens = got.Rung, got.TokenIDs, len(got.TokenIDs)
	rep.Text = rep.file.Decode(rep.IDs, false)
	rep.Segments = segmentsOf(rep.file, rep.IDs)
	root := hasher.Root(got.Extras...)
	if root != 0 {
		rep.Root = hexHash(root)
	}
	rep.Blocks = []string{}
	for _, h := range hasher.AppendChain(nil, root, rep.IDs, o.blockSize) {
		rep.Blocks = append(rep.Blocks, hexHash(h))
	}
	return nil
}

func hexHash(h blockhash.Hash) string { return fmt.Sprintf("%016x", uint64(h)) }

func (o *chainOptions) seed() (uint64, error) {
	if o.seedFile == "" {
		return blockhash.DefaultSeed, nil
	}
	b, err := os.ReadFile(o.seedFile)
	if err != nil {
		return 0, usageError(fmt.Sprintf("--seed-file: %v", err))
	}
	seed, err := strconv.ParseUint(strings.TrimSpace(string(b)), 0, 64)
	if err != nil {
		return 0, usageError(fmt.Sprintf("--seed-file %s does not hold one number of 64 bits", o.seedFile))
	}
	return seed, nil
}

const pathUsage = "API that the body is for, such as /v1/completions; empty: guessed from its fields"

// readBody reads a request body from a file, - for standard input, and guesses the API that it is for where none is given.
func readBody(stdin io.Reader, file, path string) (body []byte, api string, err error) {
	if file == "-" {
		body, err = io.ReadAll(stdin)
	} else {
		body, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, "", fmt.Errorf("read request body: %w", err)
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, "", usageError("the request body is empty: give --file, or a body on standard input")
	}
	if path == "" {
		path, err = guessPath(body)
	}
	return body, path, err
}

// guessPath tells the API from a body's fields.
func guessPath(body []byte) (string, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return "", fmt.Errorf("read request body: want a JSON object: %w", err)
	}
	for _, guess := range []struct{ field, path string }{
		{"system", "/v1/messages"},
		{"messages", "/v1/chat/completions"},
		{"prompt", "/v1/completions"},
		{"input", "/v1/responses"},
	} {
		if _, ok := fields[guess.field]; ok {
			return guess.path, nil
		}
	}
	return "", usageError("the body holds neither messages nor prompt nor input: give --path, the API that it is for")
}

// segmentsOf cuts ids behind each special token.
func segmentsOf(tok *tokenizer.Tokenizer, ids []uint32) []segment {
	out := []segment{}
	from := 0
	add := func(to int, special string) {
		out = append(out, segment{From: from, Tokens: to - from, Special: special, Text: tok.Decode(ids[from:to], false)})
		from = to
	}
	for i, id := range ids {
		if name, ok := addedToken(tok, id); ok {
			add(i, name)
			from++ // the special token itself
		}
	}
	if from < len(ids) {
		add(len(ids), "")
	}
	return out
}

// addedToken tells whether an id is that of a token that is cut out of texts, and its spelling.
func addedToken(tok *tokenizer.Tokenizer, id uint32) (string, bool) {
	name := string(tok.Bytes(id))
	before, found, rest, ok := tok.Cut(name)
	return name, ok && before == "" && rest == "" && found == id
}
