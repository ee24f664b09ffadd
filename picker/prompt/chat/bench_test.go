package chat

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// longConversation is a JSON list of n messages of about size bytes in all, with
// the escapes of usual text.
func longConversation(n, size int) json.RawMessage {
	line := "The quick brown fox \"jumps\" over the lazy dog, again and again and again.\n"
	var list []map[string]any
	for i := range n {
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		list = append(list, map[string]any{"role": role, "content": fmt.Sprint(i, ": ") + strings.Repeat(line, size/n/len(line))})
	}
	raw, _ := json.Marshal(list)
	return raw
}

func BenchmarkRender(b *testing.B) {
	tmpl := tiny(b)
	for _, size := range []int{2 << 10, 120 << 10, 512 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			req := Request{Messages: longConversation(40, size), AddGenerationPrompt: true}
			var dst []byte
			b.ReportAllocs()
			for b.Loop() {
				out, err := tmpl.AppendRender(dst[:0], day, req)
				if err != nil {
					b.Fatal(err)
				}
				dst = out
			}
			b.SetBytes(int64(len(dst)))
		})
	}
}
