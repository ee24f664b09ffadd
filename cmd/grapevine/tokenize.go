package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer"
)

// newTokenizeCommand is `grapevine tokenize`: texts to token ids and back, as a filter.
func newTokenizeCommand() *cobra.Command {
	var model string
	var special, decode bool
	cmd := &cobra.Command{
		Use:   "tokenize --model DIR",
		Short: "Turn JSON lines of texts into token ids, or back, with a model's tokenizer.json",
		Long: `Reads JSON lines {"text": "..."} and writes one line {"ids": [...]} for each, with --decode the other way
round. A line that cannot be read is answered with {"error": "..."}, the others go on, and the exit code is 1.
Answers are written as soon as no more input is waiting, so that a program can talk with it line by line.

Special tokens in a text become their ids, as in vLLM. What a chat template makes of a request shows
grapevine chain.`,
		Example: `  echo '{"text": "Hello <|im_end|>"}' | grapevine tokenize --model models/qwen3
  grapevine tokenize --model models/llama --add-special-tokens < texts.jsonl > ids.jsonl
  grapevine tokenize --model models/qwen3 --decode < ids.jsonl`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if decode && special {
				return usageError("--add-special-tokens is for texts, not for --decode")
			}
			tok, err := readTokenizer(model)
			if err != nil {
				return err
			}
			answer := func(line []byte) (any, error) { return encodeLine(tok, line, special) }
			if decode {
				answer = func(line []byte) (any, error) { return decodeLine(tok, line) }
			}
			return filterLines(cmd.InOrStdin(), cmd.OutOrStdout(), answer)
		},
	}
	f := cmd.Flags()
	f.StringVar(&model, "model", "", "folder with the model's tokenizer.json")
	f.BoolVar(&special, "add-special-tokens", false, "put the tokens around each text that the tokenizer's post-processor adds (BOS)")
	f.BoolVar(&decode, "decode", false, `turn {"ids": [...]} into {"text": "..."}`)
	return cmd
}

// readTokenizer reads DIR/tokenizer.json.
func readTokenizer(dir string) (*tokenizer.Tokenizer, error) {
	if dir == "" {
		return nil, usageError("--model is needed: the folder with the model's tokenizer.json")
	}
	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); err != nil {
		return nil, usageError(fmt.Sprintf("--model %s: %v: give the folder that the engine was started with, alone", dir, err))
	}
	tok, err := tokenizer.LoadDir(os.DirFS(dir))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", dir, err)
	}
	return tok, nil
}

type textLine struct {
	Text *string `json:"text"`
}

type idsLine struct {
	IDs *[]uint32 `json:"ids"`
}

func encodeLine(tok *tokenizer.Tokenizer, line []byte, special bool) (any, error) {
	var in textLine
	if err := json.Unmarshal(line, &in); err != nil || in.Text == nil {
		return nil, errors.New(`want {"text": "..."}`)
	}
	ids := []uint32{} // [] and not null for an empty text
	if special {
		ids = append(ids, tok.Prefix()...)
	}
	ids = tok.Encode(ids, *in.Text)
	if special {
		ids = append(ids, tok.Suffix()...)
	}
	return idsLine{&ids}, nil
}

func decodeLine(tok *tokenizer.Tokenizer, line []byte) (any, error) {
	var in idsLine
	if err := json.Unmarshal(line, &in); err != nil || in.IDs == nil {
		return nil, errors.New(`want {"ids": [1, 2, ...]}`)
	}
	for _, id := range *in.IDs {
		if tok.Bytes(id) == nil {
			return nil, fmt.Errorf("the model has no token %d", id)
		}
	}
	text := tok.Decode(*in.IDs, false)
	return textLine{&text}, nil
}

// maxLine bounds a line of input.
const maxLine = 256 << 20

// filterLines answers every line of in that is not blank with one of out.
func filterLines(in io.Reader, out io.Writer, answer func(line []byte) (any, error)) error {
	r, w := bufio.NewReaderSize(in, 64<<10), bufio.NewWriter(out)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	lines, bad := 0, 0
	for more := true; more; {
		line, err := readLine(r)
		switch {
		case errors.Is(err, io.EOF):
			more = false
		case err != nil:
			return errors.Join(fmt.Errorf("read line %d: %w", lines+1, err), w.Flush())
		}
		if more || len(line) > 0 {
			lines++
		}
		if len(bytes.TrimSpace(line)) > 0 {
			got, err := answer(line)
			if err != nil {
				bad++
				got = map[string]string{"error": fmt.Sprintf("line %d: %v", lines, err)}
			}
			if err := enc.Encode(got); err != nil {
				return fmt.Errorf("write answer: %w", err)
			}
		}
		if r.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return fmt.Errorf("write answer: %w", err)
			}
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d lines could not be read: see their {\"error\"}", bad, lines)
	}
	return nil
}

// readLine returns a line without its end; io.EOF comes with the last one, which may be empty.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, fmt.Errorf("longer than %d MiB", maxLine>>20)
		}
		line = append(line, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		return bytes.TrimRight(line, "\r\n"), err
	}
}
