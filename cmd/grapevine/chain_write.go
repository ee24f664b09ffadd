package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/jedib0t/go-pretty/v6/table"
)

const maxShown = 60 // of a text in a table

// write prints the report for people.
func (rep *chainReport) write(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s: %d tokens (%s), %d blocks of %d tokens\n", rep.Path, rep.Tokens, rungWords(rep.Rung), len(rep.Blocks), rep.BlockSize)
	for _, note := range rep.Notes {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	fmt.Fprintf(&b, "\n%s\n\n", printable(strings.TrimSuffix(rep.Text, "\n")))
	t := newTable(&b)
	t.AppendHeader(table.Row{"segment from token", "tokens", "text", "ended by"})
	for _, s := range rep.Segments {
		t.AppendRow(table.Row{s.From, s.Tokens, shorten(s.Text), s.Special})
	}
	t.Render()
	rep.writeBlocks(&b)
	if rest := rep.Tokens - len(rep.Blocks)*rep.BlockSize; rest > 0 {
		fmt.Fprintf(&b, "and %d tokens in a block that is not full, which has no hash\n", rest)
	}
	for _, v := range rep.Compared {
		v.write(&b, rep.Tokens)
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (rep *chainReport) writeBlocks(w io.Writer) {
	if len(rep.Blocks) == 0 {
		return
	}
	t := newTable(w)
	t.AppendHeader(table.Row{"block", "hash", "text"})
	if rep.Root != "" {
		t.AppendRow(table.Row{"root", rep.Root, "adapter, cache salt"})
	}
	for i, hash := range rep.Blocks {
		t.AppendRow(table.Row{i, hash, shorten(rep.file.Decode(rep.IDs[i*rep.BlockSize:(i+1)*rep.BlockSize], false))})
	}
	t.Render()
}

func (v *verdict) write(w io.Writer, own int) {
	switch {
	case v.Skipped != "":
		fmt.Fprintf(w, "%s: not compared: %s\n", v.Endpoint, v.Skipped)
	case v.Equal:
		fmt.Fprintf(w, "%s: all %d ids equal\n", v.Endpoint, v.Tokens)
	default:
		d := v.Differs
		fmt.Fprintf(w, "%s: differs at token %d: own %d ids, the engine's %d\n", v.Endpoint, d.At, own, v.Tokens)
		fmt.Fprintf(w, "  own    from %d: %v %q\n", d.From, d.Own, d.OwnText)
		fmt.Fprintf(w, "  engine from %d: %v %q\n", d.From, d.Engine, d.EngineText)
	}
}

func rungWords(rung string) string {
	if rung == "ids" {
		return "ids of the body"
	}
	return "made from the model's files"
}

// printable keeps control characters of a prompt away from the terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// shorten quotes a text, without its middle if it is long.
func shorten(text string) string {
	if r := []rune(text); len(r) > maxShown {
		text = string(r[:maxShown/2]) + "…" + string(r[len(r)-maxShown/2:])
	}
	quoted := fmt.Sprintf("%q", text)
	return quoted[1 : len(quoted)-1]
}
