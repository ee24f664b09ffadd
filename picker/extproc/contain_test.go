package extproc

import (
	"context"
	"testing"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/grpc/codes"

	"github.com/grapevine-llm/grapevine/picker"
)

// A panic costs its own stream, not the gateway; bytes and streams are given back.
func TestPanicIsContained(t *testing.T) {
	faulty := true
	var r *rig
	r = newRig(t, setup{pick: func(ctx context.Context, req picker.Request) (picker.Decision, error) {
		if faulty {
			faulty = false
			panic("a bug")
		}
		return r.picker.Pick(ctx, req)
	}})
	const full = filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	e := r.open()
	e.send(post(full, full), chunk(chatBody(1000, ""), true))
	e.fails(codes.Internal)
	r.count("grapevine_extproc_panics_total", 1)
	r.count("grapevine_extproc_streams", 0, "picker")
	if n := r.server.bodies.Load(); n != 0 {
		t.Errorf("%d bytes of bodies are still counted", n)
	}
	e = r.open()
	e.send(post(full, full), chunk(chatBody(1000, ""), true))
	if list, _ := e.picked(false); list == "" {
		t.Error("no pick after a panic")
	}
}

func TestPanicInAMessageIsContained(t *testing.T) {
	r := newRig(t, setup{})
	var err error
	func() {
		defer r.server.contain(&err)
		panic("a bug")
	}()
	if err == nil {
		t.Error("no error after a panic")
	}
	r.count("grapevine_extproc_panics_total", 1)
}
