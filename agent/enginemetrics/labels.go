package enginemetrics

import (
	"bytes"
	"strings"
)

// labels are those of interest, as they stand in the text (escaped).
type labels struct {
	rank       int // -1: not a number
	model      []byte
	sleepState []byte
	otherShard bool // of a tensor or pipeline parallel rank other than the first: a copy

	blockSize, numBlocks, hashAlgo, prefixCaching []byte
	maxLoRA, runningLoRA, waitingLoRA             []byte
}

// parseLabels reads {name="value",...} at the start of b, if it is there, and
// returns what follows. all asks for the labels of the info metrics too.
func parseLabels(b []byte, all bool) (l labels, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != '{' {
		return l, b, true
	}
	b = b[1:]
	for {
		b = bytes.TrimLeft(b, " ,")
		if len(b) > 0 && b[0] == '}' {
			return l, b[1:], true
		}
		at := bytes.IndexByte(b, '=')
		if at < 0 || at+1 >= len(b) || b[at+1] != '"' {
			return l, nil, false
		}
		name := b[:at]
		b = b[at+2:]
		end := closingQuote(b)
		if end < 0 {
			return l, nil, false
		}
		value := b[:end]
		b = b[end+1:]
		l.take(name, value)
		if all {
			l.takeInfo(name, value)
		}
	}
}

func (l *labels) take(name, value []byte) {
	switch string(name) {
	case "engine", "dp_rank":
		l.rank = rankOf(value)
	case "model_name":
		l.model = value
	case "sleep_state":
		l.sleepState = value
	case "tp_rank", "pp_rank", "moe_ep_rank":
		l.otherShard = l.otherShard || string(value) != "0"
	}
}

func (l *labels) takeInfo(name, value []byte) {
	switch string(name) {
	case "block_size":
		l.blockSize = value
	case "num_gpu_blocks":
		l.numBlocks = value
	case "prefix_caching_hash_algo":
		l.hashAlgo = value
	case "enable_prefix_caching":
		l.prefixCaching = value
	case "max_lora":
		l.maxLoRA = value
	case "running_lora_adapters":
		l.runningLoRA = value
	case "waiting_lora_adapters":
		l.waitingLoRA = value
	}
}

// rankOf is the number in an engine or dp_rank label. SGLang leaves it empty or
// writes "None" without data parallelism.
func rankOf(b []byte) int {
	if len(b) == 0 || string(b) == "None" {
		return 0
	}
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' || n > maxRank {
			return -1
		}
		n = n*10 + int(c-'0')
	}
	return n
}

// closingQuote is the index of the quote that ends a label value.
func closingQuote(b []byte) int {
	from := 0
	for {
		at := bytes.IndexByte(b[from:], '"')
		if at < 0 {
			return -1
		}
		at += from
		slashes := 0
		for at-1-slashes >= 0 && b[at-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return at
		}
		from = at + 1
	}
}

// unescape is the text of a label value.
func unescape(b []byte) string {
	if bytes.IndexByte(b, '\\') < 0 {
		return string(b)
	}
	var out strings.Builder
	for i := 0; i < len(b); i++ {
		if b[i] == '\\' && i+1 < len(b) {
			i++
			switch b[i] {
			case 'n':
				out.WriteByte('\n')
			default:
				out.WriteByte(b[i])
			}
			continue
		}
		out.WriteByte(b[i])
	}
	return out.String()
}
