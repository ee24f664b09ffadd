package extproc

import (
	"bytes"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// TestCodecKeepsMessages: what is decoded lies in no buffer that goes back to the pool.
func TestCodecKeepsMessages(t *testing.T) {
	c := codec{newPool()}
	for _, size := range []int{0, 100, 2000, 64 << 10, 5 << 20} {
		want := chunk(bytes.Repeat([]byte{'a'}, size), true)
		data, err := c.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		// In pieces, as they come from the wire.
		b := data.Materialize()
		data.Free()
		got := new(extprocv3.ProcessingRequest)
		if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b[:len(b)/2]), mem.SliceBuffer(b[len(b)/2:])}, got); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Marshal(chunk(bytes.Repeat([]byte{'z'}, size), true)); err != nil { // into the same buffer
			t.Fatal(err)
		}
		if !proto.Equal(got, want) {
			t.Errorf("%d bytes: the message changed", size)
		}
	}
	if _, err := c.Marshal("text"); err == nil {
		t.Error("a string was encoded as protobuf")
	}
	if err := c.Unmarshal(nil, new(string)); err == nil {
		t.Error("a string was decoded from protobuf")
	}
}
