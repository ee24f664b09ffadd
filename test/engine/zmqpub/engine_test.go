package zmqpub_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/grapevine-llm/grapevine/picker/prompt/chat"
	"github.com/grapevine-llm/grapevine/test/engine"
	"github.com/grapevine-llm/grapevine/test/engine/zmqpub"
)

// letters is a tokenizer of one token a byte without a chat template.
type letters struct{}

func (letters) Encode(text string) (out []uint32) {
	for i := range len(text) {
		out = append(out, uint32(text[i]))
	}
	return out
}
func (letters) Decode(ids []uint32) string          { return strings.Repeat("x", len(ids)) }
func (letters) Render(chat.Request) (string, error) { return "chat", nil }

// event is a decoded KV event, in the map form.
type event struct {
	Type   string   `msgpack:"type"`
	Hashes []uint64 `msgpack:"block_hashes"`
	Parent *uint64  `msgpack:"parent_block_hash"`
	Tokens []uint32 `msgpack:"token_ids"`
	Size   int      `msgpack:"block_size"`
}

// TestEngineOverZMQ runs a whole engine with two ranks through evictions and a
// reset, and rebuilds each rank's cache from the replay of its events alone.
func TestEngineOverZMQ(t *testing.T) {
	cfg := engine.Default()
	cfg.Listen, cfg.Tokenizer = "127.0.0.1:0", letters{}
	cfg.Speedup, cfg.KVTokens, cfg.Ranks = 2000, 1600, 2
	cfg.Events = zmqpub.Config{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0", Topic: "kv@x@tiny"}
	e, err := engine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	defer func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	post := func(path, rank, body string) {
		req, err := http.NewRequestWithContext(ctx, "POST", "http://"+e.Addr()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-data-parallel-rank", rank)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Fatalf("%s: %s", path, resp.Status)
		}
	}
	for i := range 40 {
		if i == 20 {
			post("/reset_prefix_cache", "", "")
		}
		prompt := strings.Repeat(fmt.Sprintf("%08d", i%7), 40+i)
		post("/v1/completions", fmt.Sprint(i%2), `{"prompt":"`+prompt+`","max_tokens":40}`)
	}
	for rank, want := range e.Stats().Ranks {
		copies, batches := rebuild(t, e, rank)
		if copies != want.BlocksResident || batches < 20 {
			t.Errorf("rank %d: %d copies by %d batches, engine has %d", rank, copies, batches, want.BlocksResident)
		}
	}
}

// rebuild counts the copies that a rank's replayed events leave.
func rebuild(t *testing.T, e *engine.Engine, rank int) (copies, batches int) {
	t.Helper()
	zctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	dealer, err := zctx.NewSocket(zmq.DEALER)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = dealer.Close()
		_ = zctx.Term()
	}()
	_ = dealer.SetLinger(0)
	_ = dealer.SetRcvtimeo(5 * time.Second)
	_, replay := e.Endpoints(rank)
	if err := dealer.Connect(replay); err != nil {
		t.Fatal(err)
	}
	if _, err := dealer.SendMessage("", make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	resident := map[uint64]int{}
	for {
		m, err := dealer.RecvMessageBytes(0)
		if err != nil || len(m) != 4 {
			t.Fatalf("replay: %d frames, %v", len(m), err)
		}
		seq := binary.BigEndian.Uint64(m[2])
		if seq == ^uint64(0) {
			break
		}
		if seq != uint64(batches) || string(m[1]) != "kv@x@tiny" {
			t.Fatalf("batch %d is %d of %s", batches, seq, m[1])
		}
		batches++
		var batch struct {
			_msgpack struct{} `msgpack:",as_array"`
			TS       float64
			Events   []event
			Rank     int
		}
		if err := msgpack.Unmarshal(m[3], &batch); err != nil {
			t.Fatal(err)
		}
		if batch.Rank != rank || time.Since(time.UnixMicro(int64(batch.TS*1e6))).Abs() > time.Minute {
			t.Errorf("batch of rank %d at %v", batch.Rank, batch.TS)
		}
		for _, ev := range batch.Events {
			switch ev.Type {
			case "BlockStored":
				if len(ev.Tokens) != ev.Size*len(ev.Hashes) {
					t.Fatalf("ragged event %+v", ev)
				}
				if ev.Parent != nil && resident[*ev.Parent] == 0 {
					t.Errorf("the parent of %x is not resident", ev.Hashes[0])
				}
				for _, h := range ev.Hashes {
					resident[h]++
				}
			case "BlockRemoved":
				resident[ev.Hashes[0]]--
			case "AllBlocksCleared":
				clear(resident)
			default:
				t.Errorf("event %q", ev.Type)
			}
		}
	}
	for h, n := range resident {
		if n < 0 {
			t.Errorf("%x was removed more often than stored", h)
		}
		copies += n
	}
	return copies, batches
}
