package load

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"
)

// traceBlock is the number of tokens that one hash id of a Mooncake trace stands for
// (kvcache-ai/Mooncake, FAST25 release traces).
const traceBlock = 512

// maxTraceLine bounds one line of a trace file, in bytes.
const maxTraceLine = 4 << 20

// ReadTrace reads JSON lines in Mooncake's form, plain or gzip: timestamp (ms),
// input_length, output_length (tokens), hash_ids (one per 512 tokens of the prompt, equal ids for
// equal prefixes). Tokens are made up from the ids. limit bounds the number of requests (0: all).
func ReadTrace(path string, v Vocabulary, limit int) ([]Request, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	defer f.Close()
	in := bufio.NewReader(f)
	var r io.Reader = in
	if magic, _ := in.Peek(2); len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		if r, err = gzip.NewReader(in); err != nil {
			return nil, fmt.Errorf("open trace: %w", err)
		}
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), maxTraceLine)
	blocks := map[uint64][]uint32{}
	var out []Request
	for n := 1; lines.Scan() && (limit == 0 || len(out) < limit); n++ {
		var rec struct {
			Timestamp    float64  `json:"timestamp"`
			InputLength  int      `json:"input_length"`
			OutputLength int      `json:"output_length"`
			HashIDs      []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &rec); err != nil {
			return nil, fmt.Errorf("trace line %d: %w", n, err)
		}
		if rec.InputLength < 1 || rec.OutputLength < 0 || rec.Timestamp < 0 {
			return nil, fmt.Errorf("trace line %d: timestamp %g, input_length %d, output_length %d: want 0 or more, input_length 1 or more", n, rec.Timestamp, rec.InputLength, rec.OutputLength)
		}
		req := Request{At: time.Duration(rec.Timestamp * float64(time.Millisecond)), MaxTokens: max(1, rec.OutputLength)}
		left := rec.InputLength
		for _, id := range rec.HashIDs {
			if left <= 0 {
				break
			}
			b, ok := blocks[id]
			if !ok {
				b = v.draw(rand.New(rand.NewPCG(id, 5)), traceBlock)
				blocks[id] = b
			}
			b = b[:min(left, traceBlock)]
			req.Parts = append(req.Parts, b)
			left -= len(b)
		}
		if left > 0 {
			req.Parts = append(req.Parts, v.draw(rand.New(rand.NewPCG(uint64(n), 6)), left))
		}
		out = append(out, req)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("trace %s holds no request", path)
	}
	return sorted(out), nil
}
